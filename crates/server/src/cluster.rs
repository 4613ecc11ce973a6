//! The interface between a server and the cluster that its keys are in.
//!
//! A key is in a *slot*, slots are in *partitions*, and each partition is led by one of its replicas.
//! The node of that replica runs the commands. A server that is given a [`Cluster`]
//! (`ServerConfig::cluster`) has no keys of its own: a command that
//! names keys is evaluated in the partition of their slot, in four steps.
//!
//! 1. [`Cluster::route`] returns where that partition is led. A client whose key is led elsewhere is
//!    sent there by `MOVED`.
//! 2. [`Partition::begin`] locks the rows of the keys.
//! 3. The command reads them by [`Evaluation::get`]: also what other commands have changed and the
//!    replicas do not have yet.
//! 4. [`Evaluation::finish`] submits what it changes, all at once, and unlocks the rows. The reply is
//!    kept until [`Settling`] resolves to [`Settled::Holds`].
//!
//! A command that changes nothing, and has no unanswered command of its connection before it, reads what the
//! leader has applied ([`Partition::applied`]), without locks. [`Partition::confirm`] resolves to whether
//! that held.
//!
//! Rows are the engine's form of keys and values: users' keys and their index by expiry, as in
//! `docs/design/formats/values.md`. All rows of one command are in one slot.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use collie_db::Value;
use crc::{CRC_16_XMODEM, Crc, Table};
use tokio::sync::watch;

/// Slots of a cluster, as in Redis Cluster.
pub const SLOTS: u16 = 16_384;
/// The longest row, in bytes: a partition puts three bytes in front, which name the slot.
pub const MAX_ROW_BYTES: usize = collie_db::MAX_KEY_BYTES - 3;

const CRC16: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_XMODEM);

/// The slot of a key: the CRC-16 of the key, or of what is between its first `{` and the next `}`
/// if anything is. As the Redis Cluster specification has it.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let open = key.iter().position(|&byte| byte == b'{')?;
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|&byte| byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    };
    CRC16.checksum(tag().unwrap_or(key)) % SLOTS
}

/// The id of a cluster as it is shown: 32 hexadecimal digits.
#[must_use]
pub fn id_text(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The id that these digits show.
#[must_use]
pub fn id_of(digits: &[u8]) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != id.len() || !rest.is_empty() {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    for (byte, [high, low]) in id.iter_mut().zip(pairs) {
        *byte = u8::try_from(value(*high)? << 4 | value(*low)?).ok()?;
    }
    Some(id)
}

/// The partitions and nodes of a cluster, as one node has them. Nothing here blocks.
pub trait Cluster: fmt::Debug + Send + Sync + 'static {
    /// The nodes and the partitions.
    fn topology(&self) -> Arc<Topology>;

    /// Where a slot is led.
    fn route(&self, slot: u16) -> Route;

    /// Changes whenever the result of [`Cluster::route`] may change, and whenever a command that could
    /// not begin ([`Refused::NotNow`]) may be able to.
    fn changes(&self) -> watch::Receiver<u64>;

    /// The partitions that are led here.
    fn led(&self) -> Vec<Arc<dyn Partition>>;

    /// Requests the leadership of all partitions that have a replica on this node. Whether it is granted
    /// shows in [`Cluster::route`] later.
    ///
    /// # Errors
    /// This node cannot lead, or leads all of them: why.
    fn take_over(&self) -> Result<(), String>;

    /// Has the cluster's map say whether a node is to have replicas, which move later. Resolves when the map says
    /// so.
    ///
    /// # Errors
    /// Why it is refused, and what to do; or no answer: it may be asked for again.
    fn change_node(&self, request: NodeRequest) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

    /// Hands over what this node leads, before its shutdown, and takes over nothing from then on. Returns
    /// whether anything was handed over; within seconds, also where no other node can lead.
    fn retire(&self) -> Pin<Box<dyn Future<Output = bool> + Send>>;

    /// The partition of a slot if this node has a replica of it, whether that leads or not: for
    /// reads that may be old (`READONLY`).
    fn replica(&self, slot: u16) -> Option<Arc<dyn Partition>>;

    /// The problems of this node that an operator has to solve: a line each, with what to do. `CLUSTER
    /// INFO` shows them.
    fn problems(&self) -> Vec<String>;

    /// The clusters that get the rows of this one, as far as this node's partitions go.
    fn duplications(&self) -> Vec<DuplicationInfo>;

    /// Figures of this node, for `/metrics`, in the order in which they are shown.
    fn figures(&self) -> Vec<Figure>;
}

/// A metric of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it is, in one line.
    pub help: &'static str,
    /// Whether it only grows, from the start of the process on.
    pub is_counter: bool,
    /// Its values, each with its labels: names and values.
    pub samples: Vec<(Vec<(&'static str, String)>, u64)>,
}

/// A cluster that gets the rows of this one, and how far the partitions are that a node leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DuplicationInfo {
    /// Its name.
    pub name: String,
    /// Its id: 32 hexadecimal digits.
    pub cluster: String,
    /// The addresses by which it was named.
    pub addresses: Vec<String>,
    /// An operator has paused it: nothing is sent.
    pub is_paused: bool,
    /// Partitions of the cluster, whichever node leads them.
    pub partitions: u64,
    /// Partitions that have not begun.
    pub waiting: u64,
    /// Partitions of which all rows are being sent.
    pub copying: u64,
    /// Partitions of which rows are sent as they change.
    pub following: u64,
    /// Entries of the logs of those that were not sent yet.
    pub lag: u64,
    /// Rows that were sent, since the partitions have this leader.
    pub rows: u64,
    /// What has kept a partition from going on, and for how long.
    pub problem: Option<(Duration, String)>,
}

/// Where a slot is led.
#[derive(Debug, Clone)]
pub enum Route {
    /// Here.
    Here(Arc<dyn Partition>),
    /// By another node, which clients reach there.
    At(Endpoint),
    /// No leader is known at this node.
    Nowhere,
}

/// Where clients reach a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: SocketAddr,
    /// The name of its host, if clients are sent to that: with TLS they compare it with the certificate.
    pub host: Option<String>,
}

impl Endpoint {
    /// What clients are sent to: the name, or else the IP address, without brackets.
    #[must_use]
    pub fn host(&self) -> String {
        self.host.clone().unwrap_or_else(|| self.address.ip().to_string())
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self { address, host: None }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{host}:{}", self.address.port()),
            None => write!(f, "{}", self.address),
        }
    }
}

/// The nodes and the partitions of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The id of the cluster, if it is known.
    pub cluster: Option<[u8; 16]>,
    /// Grows with every change.
    pub epoch: u64,
    /// The feature level of the cluster; 0 before that is known.
    pub level: u32,
    /// The newest that this node speaks.
    pub newest_level: u32,
    /// The number of this node.
    pub own: u64,
    /// Its logs.
    pub logs: LogsInfo,
    /// Its disks that are drained.
    pub drained_here: Vec<DrainedDisk>,
    /// How its leaders make sure that reads are of the newest state.
    pub reads: Reads,
    /// What entries wait for on this node.
    pub durability: Durability,
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<NodeInfo>,
    /// The partitions, in the order of their slots. Slots may be missing.
    pub partitions: Vec<PartitionInfo>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its number in the cluster.
    pub number: u64,
    /// Its name for clients: forty hexadecimal digits.
    pub name: String,
    /// Where clients reach it.
    pub client: Endpoint,
    /// Where other nodes reach it.
    pub peer: SocketAddr,
    /// Whether this node has received something from it lately; always so of itself.
    pub is_alive: bool,
    /// Whether it is to have replicas.
    pub role: NodeRole,
    /// Its disks that are drained, and how many replicas the map has on each.
    pub drained: Vec<(u32, usize)>,
}

/// A disk of this node that is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainedDisk {
    /// The disk, counted from 0.
    pub disk: u32,
    /// What is left on it.
    pub left: LeftOnDisk,
}

/// What is left on a disk that is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOnDisk {
    /// Tables or logs of so many replicas. With none the node may be started without the disk.
    Replicas(usize),
    /// The node's replica of the map alone, which does not move.
    Map,
    /// The node was started without it.
    Absent,
}

/// Whether a node is to have replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeRole {
    /// It is.
    Serves,
    /// Its replicas move to other nodes.
    Drains,
    /// Its replicas move to other nodes; then it is removed from the cluster.
    Leaves,
}

/// What an operator wants of the nodes. One is named by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRequest {
    /// It is to have replicas.
    Serve(u64),
    /// Its replicas are to move to other nodes.
    Drain(u64),
    /// A disk of it, counted from 0, is to have replicas.
    ServeDisk {
        /// The node.
        node: u64,
        /// The disk.
        disk: u32,
    },
    /// The replicas on a disk of it, counted from 0, are to move to its other disks.
    DrainDisk {
        /// The node.
        node: u64,
        /// The disk.
        disk: u32,
    },
    /// They are to move, and it is to be removed from the cluster.
    Remove(u64),
    /// They are to move to one other node alone, and it is to be removed.
    Replace {
        /// The node.
        node: u64,
        /// The other one.
        by: u64,
    },
    /// All speak a newer feature level, and it is to be used.
    Finalize,
    /// What replicas have lost is lost: those that hear no leader vote with what they have.
    AcceptLoss {
        /// Nodes that need not answer.
        without: BTreeSet<u64>,
    },
    /// The partition that has this slot is to give it, and all behind it, to a new one.
    Split(u16),
    /// The cluster's rows are to go to another one, too.
    Duplicate {
        /// The name that it gets.
        name: String,
        /// Where clients reach nodes of it.
        addresses: Vec<String>,
    },
    /// They are to go to the other one of this name no more.
    EndDuplication(String),
    /// The other one of this name is to get nothing for now.
    PauseDuplication(String),
    /// It is to get again what it lacks.
    ResumeDuplication(String),
    /// The cluster is to get rows of another one, which has this id.
    Receive([u8; 16]),
    /// The logs of its replicas, or of some, are to be so.
    Layout {
        /// The node.
        node: u64,
        /// Which of its replicas.
        of: LogsOf,
        /// How.
        layout: LogLayout,
    },
}

/// Replicas of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogsOf {
    /// All.
    Node,
    /// Those on a disk, counted from 0.
    Disk(u32),
    /// That of a partition, named by its group.
    Partition(u64),
}

/// Which logs replicas are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLayout {
    /// All in one.
    Shared,
    /// In one for each disk.
    PerDisk,
    /// In one for each replica.
    Private,
}

impl LogLayout {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Shared, Self::PerDisk, Self::Private];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::PerDisk => "per-disk",
            Self::Private => "private",
        }
    }
}

/// How a leader makes sure that a read is of the newest state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reads {
    /// It asks a majority, once for all reads that wait.
    #[default]
    Index,
    /// It counts on its lease; where it has none, it asks.
    Lease,
}

impl Reads {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Lease => "lease",
        }
    }
}

/// What a replica's entries survive when it acknowledges them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// The loss of power.
    #[default]
    Disk,
    /// The end of the process.
    Process,
}

impl Durability {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Process => "process",
        }
    }
}

/// The logs of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsInfo {
    /// The layout of its replicas, but for those that have another one.
    pub layout: LogLayout,
    /// So many of its replicas have their logs elsewhere, and are to move.
    pub to_move: usize,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its raft group.
    pub group: u64,
    /// Its slots.
    pub slots: RangeInclusive<u16>,
    /// The number of the node that leads it, if that is known at this node.
    pub leader: Option<u64>,
    /// Whether that node answers this one: keys are served.
    pub is_served: bool,
    /// The numbers of the nodes that have replicas of it.
    pub replicas: Vec<u64>,
    /// Of those on which a replica is being made.
    pub joining: Vec<u64>,
    /// Of those that have a replica which goes once the others are made.
    pub leaving: Vec<u64>,
    /// It is being split: the first slot that goes to the new partition.
    pub split_at: Option<u16>,
}

/// A row of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    /// Its slot.
    pub slot: u16,
    /// The row, in the engine's form.
    pub row: Vec<u8>,
    /// What it holds.
    pub value: Value,
}

/// A step of an iteration over rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Walked {
    /// A row.
    Row(StoredRow),
    /// Removed rows were passed over: so many entries, which take time. The iteration continues behind
    /// this row.
    Removed {
        /// Its slot.
        slot: u16,
        /// The row, in the engine's form; it need not exist.
        row: Vec<u8>,
        /// Entries since the last such step.
        entries: u64,
    },
}

/// Rows in the order of their slots, and of their bytes within a slot. A step takes a fraction of a
/// millisecond, whatever was removed.
pub type Rows = Box<dyn Iterator<Item = Result<Walked, Refused>> + Send>;

/// A replica of a partition on this node.
pub trait Partition: fmt::Debug + Send + Sync + 'static {
    /// Its raft group.
    fn group(&self) -> u64;

    /// Its slots.
    fn slots(&self) -> RangeInclusive<u16>;

    /// Locks rows of one slot, and begins the evaluation of a command on them. Waits for rows that
    /// other commands have locked, `patience` for each at most: zero is for threads that must not
    /// block.
    ///
    /// # Errors
    /// [`Refused`]: nothing is locked.
    fn begin(&self, slot: u16, rows: &[&[u8]], patience: Duration) -> Result<Box<dyn Evaluation>, Refused>;

    /// The rows behind this one, or all; those that are applied here. Other commands may change them
    /// meanwhile.
    ///
    /// # Errors
    /// [`Refused::Text`].
    fn rows_after(&self, after: Option<(u16, &[u8])>) -> Result<Rows, Refused>;

    /// The rows of this moment as they are applied here, however old that is. Of each entry of the log
    /// it has all or nothing.
    ///
    /// # Errors
    /// [`Refused::NotHere`], [`Refused::Text`].
    fn applied(&self) -> Result<Box<dyn Applied>, Refused>;

    /// The number of users' keys in slots of it, expired ones included that are not yet removed.
    ///
    /// # Errors
    /// [`Refused::Text`].
    fn key_count(&self, slots: RangeInclusive<u16>) -> Result<u64, Refused>;

    /// Tombstones that were written before this are to be removed, in milliseconds since the Unix epoch; 0
    /// where none is. See [`duplication`](crate::duplication).
    fn forgets_before_ms(&self) -> u64;

    /// Who leads, if that is this replica and it has applied all that was decided before it led.
    fn leadership(&self) -> Option<Leadership>;

    /// The time by which a command would run here now, in milliseconds since the Unix epoch: see
    /// [`Evaluation::now_ms`].
    fn now_ms(&self) -> u64;

    /// Resolves to whether what was read of this replica while `leadership` was [its](Self::leadership) held:
    /// it has led without a break since then, and these slots, of which that was, are still its partition's.
    /// `expired_ms` is the latest expiry of a key that was read and counted as expired, as in
    /// [`Evaluation::expired`].
    fn confirm(
        &self,
        leadership: Leadership,
        slots: RangeInclusive<u16>,
        expired_ms: Option<u64>,
    ) -> Settling;
}

/// The rows of a partition at one moment, as they were applied on this node. To be dropped soon: what
/// it needs of tables and memory is kept for it.
pub trait Applied: Send {
    /// What a row holds.
    ///
    /// # Errors
    /// [`Refused::Stale`] or [`Refused::Text`]: the command ends.
    fn get(&self, slot: u16, row: &[u8]) -> Result<Option<Value>, Refused>;
}

/// A command under way in a partition, whose rows are locked. Dropping it unlocks them, and nothing
/// is changed.
pub trait Evaluation: Send {
    /// Who leads, and since when: while this is the same, no other node has changed anything.
    fn leadership(&self) -> Leadership;

    /// The time by which the command runs, in milliseconds since the Unix epoch: this node's clock,
    /// but never before the time of a command that was applied.
    fn now_ms(&self) -> u64;

    /// Reads a row.
    ///
    /// # Errors
    /// [`Refused::Stale`] or [`Refused::Text`]: the command ends and changes nothing.
    fn get(&mut self, row: &[u8]) -> Result<Option<Value>, Refused>;

    /// Records that the command found a key expired, which has this expiry. Its reply then waits until
    /// all replicas that may lead later have a time behind that: no leader whose clock is behind shows the
    /// key again.
    fn expired(&mut self, expiry_ms: u64);

    /// The name of the cluster in the stamps of this partition, if it [stamps](crate::duplication) its rows.
    /// Then [`Evaluation::finish`] stamps what is changed.
    fn stamps(&self) -> Option<u64>;

    /// Submits changes, if there are any, and unlocks the rows. `None` removes a row. `keys` is by how
    /// much the number of users' keys in the slot changes. Does not block.
    ///
    /// # Errors
    /// [`Refused`]: the command changes nothing, now or later.
    fn finish(
        self: Box<Self>,
        changes: Vec<(Vec<u8>, Option<Value>)>,
        keys: i64,
    ) -> Result<Settling, Refused>;
}

/// Who leads a partition, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// The replica.
    pub replica: u64,
}

/// Resolves to whether a reply holds, as soon as that is known. For a command without changes the other
/// replicas are asked once it is polled, and not before. It may be dropped.
pub type Settling = Pin<Box<dyn Future<Output = Settled> + Send>>;

/// Whether a reply holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The command is executed, and a majority of the replicas has that on disk.
    Holds,
    /// The command was not executed and never will be: the client may send it again.
    TryAgain,
    /// The command may have been executed, or may still be: the connection is closed.
    Unknown,
}

/// Why a command cannot continue. It has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another command has locked a row for longer than the patience.
    #[error("another command works on the same key")]
    Locked,
    /// What it was evaluated on does not hold any more. It is evaluated anew, at once.
    #[error("what the command was evaluated on does not hold any more")]
    Stale,
    /// It can be evaluated once [`Cluster::changes`] has changed.
    #[error("the partition takes no commands at the moment")]
    NotNow,
    /// This replica does not lead: [`Cluster::route`] returns where the client is redirected.
    #[error("another replica leads the partition")]
    NotHere,
    /// It cannot be executed. The text is for the client, code first.
    #[error("{0}")]
    Text(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_shown() {
        let own = *b"\x00\xffcluster of tes";
        assert_eq!(id_of(id_text(&own).as_bytes()), Some(own));
        assert_eq!(id_of(id_text(&own).to_uppercase().as_bytes()), Some(own));
        let shown = id_text(&own);
        for wrong in ["", "00", &shown[1..], &format!("{shown}0"), &"+1".repeat(16)] {
            assert_eq!(id_of(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn slots_are_those_of_redis() {
        // The checksum of the specification, and what `CLUSTER KEYSLOT` of Redis 7.0.15 answers.
        assert_eq!(CRC16.checksum(b"123456789"), 0x31c3);
        for (key, slot) in [
            (&b""[..], 0),
            (b"foo", 12_182),
            (b"bar", 5061),
            (b"{user1000}.following", 3443),
            (b"user1000", 3443),
            (b"foo{}{bar}", 8363),
            (b"foo{{bar}}zap", 4015),
            (b"foo{bar}{zap}", 5061),
            (b"{", 4092),
        ] {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
    }
}
