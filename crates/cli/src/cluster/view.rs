//! What a node answers about the cluster: `CLUSTER INFO`, `CLUSTER NODES` and `DBSIZE`.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use collie_cli::resp::{Client, Reply};

use super::access::Access;

/// A node that serves answers within this time.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Lines of `name:value`, as `CLUSTER INFO` answers.
#[derive(Debug, Default)]
pub(super) struct Info(BTreeMap<String, String>);

impl Info {
    pub(super) fn of(lines: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(lines.into_iter().collect())
    }

    /// The problems that the node reports of itself.
    pub(super) fn problems(&self) -> Vec<String> {
        let problem = |number: usize| self.0.get(&format!("collie_problem_{number}")).cloned();
        (1..).map_while(problem).collect()
    }

    /// Its disks that are drained, each with what is left: a number of replicas, or a word.
    pub(super) fn drained_disks(&self) -> Vec<(u32, String)> {
        let disks = self.0.get("collie_drained_disks").map_or("", String::as_str);
        let disk = |text: &str| {
            let (disk, left) = text.split_once('=')?;
            Some((disk.parse().ok()?, left.to_owned()))
        };
        disks.split(' ').filter_map(disk).collect()
    }

    /// Whether leaders on the node are to count on leases.
    pub(super) fn has_leases(&self) -> bool {
        self.0.get("collie_reads").is_some_and(|reads| reads == "lease")
    }

    /// Whether entries on the node do not wait for the disk.
    pub(super) fn may_lose_entries(&self) -> bool {
        self.0
            .get("collie_durability")
            .is_some_and(|entries| entries == "process")
    }

    /// The names of the clusters that get no rows, by command.
    pub(super) fn paused(&self) -> impl Iterator<Item = &str> {
        let names = self.0.get("collie_duplications_paused");
        let names = names.into_iter().flat_map(|names| names.split(','));
        names.filter(|name| !name.is_empty())
    }

    /// A number; 0 where it is not there.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// Requests `CLUSTER INFO`.
pub(super) fn info(client: &mut Client) -> io::Result<Info> {
    let lines = text(client, &[b"CLUSTER", b"INFO"])?;
    let pairs = lines.lines().filter_map(|line| line.split_once(':'));
    Ok(Info::of(
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())),
    ))
}

/// Requests `CLUSTER NODES`: the nodes, as one of them sees them.
pub(super) fn lines(client: &mut Client) -> io::Result<Vec<Line>> {
    let nodes = text(client, &[b"CLUSTER", b"NODES"])?;
    Ok(nodes.lines().filter_map(line).collect())
}

fn text(client: &mut Client, words: &[&[u8]]) -> io::Result<String> {
    match client.call(words)?.good()? {
        Reply::Bulk(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Reply::Text(text) => Ok(text),
        other => Err(io::Error::other(format!("expected a text, found {other:?}"))),
    }
}

/// A node, as one of them sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) address: String,
    pub(super) peer_port: u16,
    /// It answers the node that was asked.
    pub(super) alive: bool,
    /// The slots of which it is shown as the master.
    pub(super) ranges: Vec<String>,
}

/// What a node answered.
#[derive(Debug)]
pub(super) struct View {
    /// The nodes.
    pub(super) lines: Vec<Line>,
    pub(super) info: Info,
    /// The slots that it leads itself, the first and the last of each range, as just confirmed.
    pub(super) led: Vec<(u16, u16)>,
    /// How many keys are in them.
    pub(super) keys: Option<u64>,
}

/// Asks a node for its view.
pub(super) fn ask(access: &Access, at: SocketAddr) -> io::Result<View> {
    let mut client = access.connect(at, PATIENCE)?;
    let lines = lines(&mut client)?;
    let info = info(&mut client)?;
    // It is answered once a majority of each partition that the node leads has confirmed that.
    let keys = match client.call(&[b"DBSIZE"])? {
        Reply::Number(keys) => u64::try_from(keys).ok(),
        _ => None,
    };
    let led = info.0.get("collie_slots_led").map_or("", String::as_str);
    let led = match keys {
        Some(_) => led.split(' ').filter_map(range).collect(),
        None => Vec::new(),
    };
    Ok(View {
        lines,
        info,
        led,
        keys,
    })
}

/// Why a node could not be asked, which had so long to answer, and what to do.
pub(super) fn words(error: &io::Error, patience: Duration) -> String {
    let text = error.to_string();
    if text.contains("NOAUTH") {
        return "it asks for a password: give --password-file, or COLLIE_PASSWORD in the environment"
            .to_owned();
    }
    if text.contains("TLS only") {
        return "it speaks TLS: give --tls-ca-cert-file, and --tls-cert-file where it asks for one"
            .to_owned();
    }
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {} s", patience.as_secs())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            format!("it ended the connection ({text}): if clients speak TLS to it, give --tls-ca-cert-file")
        }
        _ => text,
    }
}

/// A line of `CLUSTER NODES`: `name address@port[,host] flags master ping pong epoch link slots …`.
fn line(text: &str) -> Option<Line> {
    let mut words = text.split(' ');
    let (address, peer_port) = words.nth(1)?.split_once('@')?;
    let (peer_port, _) = peer_port.split_once(',').unwrap_or((peer_port, ""));
    let flags = words.next()?;
    // An address of IPv6 has no brackets there.
    let (ip, port) = address.rsplit_once(':')?;
    let address = SocketAddr::new(ip.parse().ok()?, port.parse().ok()?);
    Some(Line {
        address: address.to_string(),
        peer_port: peer_port.parse().ok()?,
        alive: !flags.contains("fail"),
        ranges: words.skip(5).map(str::to_owned).collect(),
    })
}

/// The first and the last slot of a range.
fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cluster_nodes_is_parsed() {
        let found =
            line("07c3 127.0.0.1:7002@17002 master,fail - 0 0 7 connected 0-9 11 16000-16383").unwrap();
        let expected = Line {
            address: "127.0.0.1:7002".to_owned(),
            peer_port: 17_002,
            alive: false,
            ranges: ["0-9", "11", "16000-16383"].map(str::to_owned).to_vec(),
        };
        assert_eq!(found, expected);
        let own = line("07c3 127.0.0.1:7001@17001 myself,slave 07c4 0 0 7 connected").unwrap();
        assert!(own.alive && own.ranges.is_empty());
        let six = line("07c3 ::1:7001@17001 myself,master - 0 0 7 connected").unwrap();
        assert_eq!(six.address, "[::1]:7001");
        let named = line("07c3 127.0.0.1:7001@17001,a.host myself,master - 0 0 7 connected").unwrap();
        assert_eq!((&*named.address, named.peer_port), ("127.0.0.1:7001", 17_001));
        assert!(line("no such line").is_none());
        assert_eq!(
            ["0-9", "11", "9-1", ""].map(range),
            [Some((0, 9)), Some((11, 11)), None, None]
        );
    }

    #[test]
    fn problems_come_in_their_order_and_nothing_else_is_one() {
        let lines = (1..=11)
            .rev()
            .map(|n| (format!("collie_problem_{n}"), format!("it is {n}")));
        let mut info = Info(lines.collect());
        info.0.insert("cluster_state".to_owned(), "ok".to_owned());
        let expected: Vec<_> = (1..=11).map(|n| format!("it is {n}")).collect();
        assert_eq!(info.problems(), expected);
    }
}
