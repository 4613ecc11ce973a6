//! `collie cluster status`: what the nodes say of themselves and of each other.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use collie_cli::Outcome;
use collie_cli::output::{self, Results, grouped};
use collie_cli::resp::{Client, Reply};
use collie_io::{Clock, RealClock};

use super::access::Access;
use super::local::Local;
use super::verdict::{Health, NOT_ASKED, Verdict};
use crate::args::StatusArgs;

/// A node that serves answers within this time.
const PATIENCE: Duration = Duration::from_secs(3);
/// While leaders change, clients wait as long before they are told that there is none.
const LEADERS_WITHIN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);

/// Lines of `name:value`, as `CLUSTER INFO` answers.
#[derive(Debug, Default)]
pub(super) struct Info(BTreeMap<String, String>);

impl Info {
    /// What is wrong with the node, by its own word.
    pub(super) fn problems(&self) -> Vec<String> {
        let problem = |number: usize| self.0.get(&format!("collie_problem_{number}")).cloned();
        (1..).map_while(problem).collect()
    }

    /// A number; 0 where it is not there.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// What a node says of the cluster.
pub(super) fn info(client: &mut Client) -> io::Result<Info> {
    let lines = text(client, &[b"CLUSTER", b"INFO"])?;
    let pairs = lines.lines().filter_map(|line| line.split_once(':'));
    Ok(Info(
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    ))
}

/// The nodes, as one of them sees them.
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

/// What a node says.
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

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<Outcome> {
    match look(args) {
        Ok(verdict) => {
            show(args, &verdict)?;
            Ok(Outcome::Code(verdict.state.code()))
        }
        Err(error) => {
            output::complain(&error);
            Ok(Outcome::Code(NOT_ASKED))
        }
    }
}

/// Asks all nodes, again for a moment where slots seem to have no leader: one may just be elected.
fn look(args: &StatusArgs) -> anyhow::Result<Verdict> {
    let access = Access::of(&args.access)?;
    let seeds = match &args.node[..] {
        [] => Local::get(&args.dir)?
            .places()
            .iter()
            .map(|place| place.address)
            .collect(),
        nodes => nodes.to_vec(),
    };
    let began = RealClock.monotonic();
    loop {
        let asked = ask_all(&access, &seeds);
        if asked.values().all(Result::is_err) {
            let why = asked.iter().filter_map(|(at, asked)| {
                let problem = asked.as_ref().err()?;
                Some(format!("{at}: {problem}"))
            });
            bail!("no node can be asked: {}", why.collect::<Vec<_>>().join("; "));
        }
        let verdict = Verdict::of(&asked);
        let waited = RealClock.monotonic().saturating_sub(began);
        if verdict.state != Health::Down || u128::from(waited) >= LEADERS_WITHIN.as_nanos() {
            return Ok(verdict);
        }
        thread::sleep(PAUSE);
    }
}

/// Asks these nodes, and all that they name, at the same time.
fn ask_all(access: &Access, seeds: &[SocketAddr]) -> BTreeMap<String, Result<View, String>> {
    let mut asked = BTreeMap::new();
    let mut next: Vec<SocketAddr> = seeds.to_vec();
    while !next.is_empty() {
        let views: Vec<_> = thread::scope(|scope| {
            let asking: Vec<_> = next
                .iter()
                .map(|at| scope.spawn(move || ask(access, *at).map_err(|error| words(&error))))
                .collect();
            let answer = |asking: thread::ScopedJoinHandle<'_, Result<View, String>>| {
                asking
                    .join()
                    .unwrap_or_else(|_| Err("asking it has failed".to_owned()))
            };
            asking.into_iter().map(answer).collect()
        });
        asked.extend(next.iter().map(ToString::to_string).zip(views));
        let named = asked.values().filter_map(|asked| asked.as_ref().ok());
        let named = named.flat_map(|view| &view.lines);
        let new = named.filter(|line| !asked.contains_key(&line.address));
        let mut new: Vec<SocketAddr> = new.filter_map(|line| line.address.parse().ok()).collect();
        new.sort();
        new.dedup();
        next = new;
    }
    asked
}

fn ask(access: &Access, at: SocketAddr) -> io::Result<View> {
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

/// Why a node could not be asked, and what to do.
fn words(error: &io::Error) -> String {
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
            format!("no answer within {} s", PATIENCE.as_secs())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            format!("it ended the connection ({text}): if clients speak TLS to it, give --tls-ca-cert-file")
        }
        _ => text,
    }
}

fn show(args: &StatusArgs, verdict: &Verdict) -> anyhow::Result<()> {
    let mut results = Results::new();
    if args.json {
        for node in &verdict.nodes {
            results.json(node)?;
        }
        results.json(verdict)?;
        return Ok(results.flush()?);
    }
    results.line(format_args!(
        "{:<22} {:<9} {:>6} {:>12}",
        "node", "state", "slots", "keys"
    ))?;
    for node in &verdict.nodes {
        let keys = node.keys.map_or_else(|| "-".to_owned(), grouped);
        results.line(format_args!(
            "{:<22} {:<9} {:>6} {keys:>12}",
            node.address,
            node.state(),
            node.slots
        ))?;
    }
    for node in &verdict.nodes {
        for problem in node.unanswered.iter().chain(&node.problems) {
            results.line(format_args!("{}: {problem}", node.address))?;
        }
    }
    if !verdict.unserved.is_empty() {
        results.line(format_args!(
            "not served: slots {}: no node that answers leads them, confirmed by a majority of their replicas",
            verdict.unserved.join(" ")
        ))?;
    }
    Ok(results.flush()?)
}

/// A line of `CLUSTER NODES`: `name address@port flags master ping pong epoch link slots …`.
fn line(text: &str) -> Option<Line> {
    let mut words = text.split(' ');
    let (address, peer_port) = words.nth(1)?.split_once('@')?;
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
    fn a_line_of_cluster_nodes_says_who_is_where_and_whether_it_answers() {
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
