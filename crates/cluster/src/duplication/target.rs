//! The cluster that gets the rows, as its clients see it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, io};

use collie_server::cluster::{id_of, id_text};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::blocking::blocking;
use crate::transport::wire::ClusterId;

/// Bytes of rows in one command, and rows, at most; one is always taken.
const COMMAND_BYTES: usize = 1 << 20;
const COMMAND_ROWS: usize = 64;
/// Nodes of a target that are waited for at the same time, each by a thread.
const CALLS: usize = 8;
/// So many nodes are kept in mind.
const NAMED: usize = 64;
/// Slots are elsewhere than was known so often, at most, before it is tried again later.
const MOVES: usize = 8;

/// A way to the nodes of other clusters, as their clients have it.
pub trait TargetNetwork: fmt::Debug + Send + Sync {
    /// A connection to a node, on which commands are answered. Blocks, for seconds at most.
    ///
    /// # Errors
    /// It cannot be reached.
    fn connect(&self, address: &str) -> io::Result<Box<dyn TargetConnection>>;
}

/// A connection to a node of another cluster.
pub trait TargetConnection: Send {
    /// Sends commands, and returns a reply to each. Blocks, for seconds at most.
    ///
    /// # Errors
    /// The connection has failed, and is used no more: each command may have been executed.
    fn call(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<Vec<TargetReply>>;
}

/// What a node of another cluster answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetReply {
    /// A number.
    Number(i64),
    /// Text.
    Text(String),
    /// An error, by its text.
    Error(String),
}

/// A row for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MergeRow {
    pub(crate) slot: u16,
    /// The user's key.
    pub(crate) key: Vec<u8>,
    /// Its state, as `COLLIE.MERGE` takes it: the header, and the user's value.
    pub(crate) header: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// Another cluster.
pub(crate) struct TargetCluster {
    network: Arc<dyn TargetNetwork>,
    /// Its id: what has taken its place, or has one of its addresses, gets nothing.
    cluster: ClusterId,
    addresses: Vec<String>,
    /// Which of the nodes is asked of slots whose node is not known.
    seed: AtomicUsize,
    /// The nodes that others have named: each knows where slots are.
    named: Mutex<BTreeSet<String>>,
    /// The nodes of slots, as far as known.
    routes: Mutex<BTreeMap<u16, String>>,
    idle: Mutex<HashMap<String, Vec<Box<dyn TargetConnection>>>>,
    calls: Semaphore,
}

impl fmt::Debug for TargetCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetCluster")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// What one node has not taken.
struct Untaken {
    rows: Vec<MergeRow>,
    /// Why, but for those that are elsewhere.
    problem: Option<String>,
}

impl TargetCluster {
    pub(crate) fn new(network: Arc<dyn TargetNetwork>, cluster: ClusterId, addresses: Vec<String>) -> Self {
        Self {
            network,
            cluster,
            addresses,
            seed: AtomicUsize::new(0),
            named: Mutex::default(),
            routes: Mutex::default(),
            idle: Mutex::default(),
            calls: Semaphore::new(CALLS),
        }
    }

    /// Has the cluster take rows that are newer than its own. All are durable there when this returns.
    ///
    /// # Errors
    /// Why not all are known to be. They may be sent again.
    pub(crate) async fn merge(self: &Arc<Self>, mut rows: Vec<MergeRow>) -> Result<(), String> {
        for _ in 0..MOVES {
            let parts = self.by_node(rows);
            let sent = parts
                .into_iter()
                .map(|(address, rows)| Arc::clone(self).send(address, rows));
            rows = Vec::new();
            for rest in join_all(sent).await {
                if let Some(problem) = rest.problem {
                    return Err(problem);
                }
                rows.extend(rest.rows);
            }
            if rows.is_empty() {
                return Ok(());
            }
        }
        Err("its slots move from node to node".to_owned())
    }

    fn by_node(&self, rows: Vec<MergeRow>) -> BTreeMap<String, Vec<MergeRow>> {
        let seed = self.seed();
        let routes = self.routes.lock();
        let mut parts = BTreeMap::<String, Vec<MergeRow>>::new();
        for row in rows {
            let address = routes.get(&row.slot).unwrap_or(&seed).clone();
            parts.entry(address).or_default().push(row);
        }
        parts
    }

    fn seed(&self) -> String {
        let named = self.named.lock();
        let all = self.addresses.len() + named.len();
        // Relaxed: any of them will do.
        let at = self.seed.load(Ordering::Relaxed) % all.max(1);
        let found = self.addresses.iter().chain(&*named).nth(at);
        found.cloned().unwrap_or_default()
    }

    /// A slot is at this node, by the word of another one.
    fn is_at(&self, slot: u16, node: String) {
        let mut named = self.named.lock();
        if named.len() == NAMED && !named.contains(&node) {
            named.clear();
        }
        named.insert(node.clone());
        drop(named);
        self.routes.lock().insert(slot, node);
    }

    /// Sends rows to one node.
    async fn send(self: Arc<Self>, address: String, rows: Vec<MergeRow>) -> Untaken {
        let Ok(_turn) = self.calls.acquire().await else {
            return Untaken {
                rows,
                problem: Some("this node ends".to_owned()),
            };
        };
        let own = Arc::clone(&self);
        blocking(move || own.send_now(&address, rows)).await
    }

    fn send_now(&self, address: &str, mut rows: Vec<MergeRow>) -> Untaken {
        rows.sort_by_key(|row| row.slot);
        let mut parts = Vec::new();
        let mut rows = rows.into_iter().peekable();
        while let Some(first) = rows.next() {
            let (slot, mut bytes) = (first.slot, first.payload.len());
            let mut part = vec![first];
            while let Some(row) = rows.next_if(|row| {
                bytes += row.key.len() + row.header.len() + row.payload.len();
                row.slot == slot && bytes <= COMMAND_BYTES && part.len() < COMMAND_ROWS
            }) {
                part.push(row);
            }
            parts.push(part);
        }
        let commands: Vec<_> = parts.iter().map(|part| command(part)).collect();
        let replies = match self.call(address, &commands) {
            Ok(replies) => replies,
            Err(error) => {
                self.forget(address);
                return Untaken {
                    rows: Vec::new(),
                    problem: Some(format!("{address}: {error}")),
                };
            }
        };
        let mut rest = Untaken {
            rows: Vec::new(),
            problem: None,
        };
        for (part, reply) in parts.into_iter().zip(replies) {
            match reply {
                TargetReply::Number(_) => {}
                TargetReply::Error(text) => match moved(&text, address) {
                    Some((slot, to)) => {
                        self.is_at(slot, to);
                        rest.rows.extend(part);
                    }
                    None => {
                        rest.problem
                            .get_or_insert_with(|| format!("{address} has answered: {text}"));
                    }
                },
                TargetReply::Text(text) => {
                    rest.problem.get_or_insert_with(|| {
                        format!("{address}: expected a number of rows, found {text:?}")
                    });
                }
            }
        }
        rest
    }

    /// Sends commands on a connection that is idle, or a new one.
    fn call(&self, address: &str, commands: &[Vec<Vec<u8>>]) -> io::Result<Vec<TargetReply>> {
        let idle = self.idle.lock().get_mut(address).and_then(Vec::pop);
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect(address)?,
        };
        let replies = connection.call(commands)?;
        if replies.len() != commands.len() {
            let problem = format!("expected {} replies, found {}", commands.len(), replies.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let mut idle = self.idle.lock();
        idle.entry(address.to_owned()).or_default().push(connection);
        Ok(replies)
    }

    /// A connection to a node, which is of this cluster.
    fn connect(&self, address: &str) -> io::Result<Box<dyn TargetConnection>> {
        let mut connection = self.network.connect(address)?;
        let found = asked_id(&mut *connection, &["COLLIE.DUPLICATE", "ID"]).map_err(io::Error::other)?;
        match found == self.cluster {
            true => Ok(connection),
            false => Err(io::Error::other(format!(
                "it is a node of cluster {}, and not of {}: end this duplication, and add it anew",
                id_text(&found),
                id_text(&self.cluster)
            ))),
        }
    }

    /// A node does not answer: others know where its slots are.
    fn forget(&self, address: &str) {
        self.idle.lock().remove(address);
        self.routes.lock().retain(|_, to| to != address);
        // Relaxed: any of them will do.
        self.seed.fetch_add(1, Ordering::Relaxed);
    }
}

fn command(rows: &[MergeRow]) -> Vec<Vec<u8>> {
    let mut words = vec![b"COLLIE.MERGE".to_vec()];
    for row in rows {
        words.extend([&row.key, &row.header, &row.payload].map(Clone::clone));
    }
    words
}

/// Where a slot is, as a node says that has it not: its port on the same host, if it names none.
fn moved(text: &str, asked: &str) -> Option<(u16, String)> {
    let mut words = text.strip_prefix("MOVED ")?.split(' ');
    let slot = words.next()?.parse().ok()?;
    let to = words.next()?;
    match to.strip_prefix(':') {
        Some(port) if !port.contains(':') => {
            let (host, _) = asked.rsplit_once(':')?;
            Some((slot, format!("{host}:{port}")))
        }
        _ => Some((slot, to.to_owned())),
    }
}

/// Has another cluster get the rows of this one, and returns its id. Blocks.
///
/// # Errors
/// Why it does not.
pub(crate) fn own_id(
    network: &dyn TargetNetwork,
    addresses: &[String],
    own: &ClusterId,
) -> Result<ClusterId, String> {
    let (mut problem, mut first) = ("no address is named".to_owned(), None);
    for address in addresses {
        let mut connection = match network.connect(address) {
            Ok(connection) => connection,
            Err(error) => {
                problem = format!("{address} cannot be asked: {error}");
                continue;
            }
        };
        let asked = asked_id(&mut *connection, &["COLLIE.DUPLICATE", "RECEIVE", &id_text(own)]);
        let id = asked.map_err(|problem| format!("{address}: {problem}"))?;
        let (known, of) = first.get_or_insert((id, address));
        if *known != id {
            return Err(format!(
                "{of} is a node of cluster {}, and {address} one of {}: name nodes of one cluster",
                id_text(known),
                id_text(&id)
            ));
        }
    }
    first.map(|(id, _)| id).ok_or(problem)
}

/// The id of the cluster that a node is of, as it answers to this.
fn asked_id(connection: &mut dyn TargetConnection, words: &[&str]) -> Result<ClusterId, String> {
    let words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
    let replies = connection.call(&[words]);
    match replies.map_err(|error| error.to_string())?.first() {
        Some(TargetReply::Text(text)) => {
            id_of(text.as_bytes()).ok_or_else(|| format!("expected the id of a cluster, found {text:?}"))
        }
        Some(TargetReply::Error(text)) if text.contains("unknown command") => Err(format!(
            "it is no node of a cluster that can be a target, or of an older version ({text}): run this version there"
        )),
        Some(TargetReply::Error(text)) if text.contains("TLS only") => {
            Err("it speaks TLS: the nodes of this cluster need --duplicate-tls-ca-cert-file".to_owned())
        }
        Some(TargetReply::Error(text)) if text.starts_with("NOAUTH") => {
            Err("it asks for a password: the nodes of this cluster need --duplicate-password-file".to_owned())
        }
        Some(TargetReply::Error(text)) => Err(format!("it has refused: {text}")),
        other => Err(format!("expected the id of a cluster, found {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_elsewhere_is_found_there() {
        let at = |text| moved(text, "first:7001");
        assert_eq!(
            at("MOVED 12 192.0.2.1:7002"),
            Some((12, "192.0.2.1:7002".to_owned()))
        );
        assert_eq!(at("MOVED 12 a.host:7002"), Some((12, "a.host:7002".to_owned())));
        assert_eq!(at("MOVED 12 ::1:7002"), Some((12, "::1:7002".to_owned())));
        assert_eq!(at("MOVED 12 :7002"), Some((12, "first:7002".to_owned())));
        assert_eq!(at("MOVED"), None);
        assert_eq!(at("TRYAGAIN"), None);
    }
}
