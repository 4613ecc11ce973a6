//! How a node is started, and a node of a cluster.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, RealClock};
use collie_server::cluster::Reads;

use crate::duplication::TargetNetwork;
use crate::identity::LossRecord;
use crate::ids::ReplicaId;
use crate::map::LEVEL;
use crate::node::error::ClusterError;
use crate::raft::{GroupLimits, GroupTimes};
use crate::raftlog::{NodeLog, NodeStoreOptions};
use crate::replica_store::{MachineOptions, Runs, SLOTS};
use crate::transport::wire::DISKS_MAX;
use crate::transport::{Limits, PeersOptions, Times};

/// The longest name of a host, in bytes.
const HOST_MAX: usize = 253;
/// The longest name of a zone, in bytes.
const ZONE_MAX: usize = 64;

/// Called with a log that is open. It must not block.
pub type LogOpened = Arc<dyn Fn(&NodeLog) + Send + Sync>;

/// How a node is started.
#[derive(Clone)]
pub struct NodeOptions {
    /// Its logs, and the disks that they and its state machines are on.
    pub store: NodeStoreOptions,
    /// How it speaks to others.
    pub peers: PeersOptions,
    /// The clock that entries are stamped by.
    pub clock: Arc<dyn Clock>,
    /// How each state machine is opened.
    pub machine: MachineOptions,
    /// How its leaders make sure that reads are of the newest state.
    pub reads: Reads,
    /// How long anything of a group may take.
    pub times: GroupTimes,
    /// How much there may be of anything of a group.
    pub limits: GroupLimits,
    /// Bytes of tables that are sent to other nodes a second; 0: as many as there are.
    pub transfer_rate: u64,
    /// Gets each log when it is open, on the runtime of the node. A log without threads has to be
    /// flushed by a task that this spawns: for simulations. Default: none.
    pub log_opened: Option<LogOpened>,
    /// Notes for good that a replica is made here which a split puts beside another: before it is. It blocks.
    /// Default: none.
    pub note_made: Option<NoteMade>,
    /// What is known of entries that did not wait for the disk. Default: that all did.
    pub losses: LossOptions,
}

/// What a node knows of entries that its replicas acknowledged before they were on disk.
#[derive(Clone, Default)]
pub struct LossOptions {
    /// As the node was last left.
    pub record: LossRecord,
    /// Stores another record for good, or says why it cannot. It blocks. None: only where entries wait for the disk,
    /// and have always.
    pub note: Option<NoteLossRecord>,
}

/// Stores what a node knows of entries that did not wait for the disk.
pub type NoteLossRecord = Arc<dyn Fn(&LossRecord) -> Result<(), String> + Send + Sync>;

/// Notes that a replica is made, or says why it cannot.
pub type NoteMade = Arc<dyn Fn(ReplicaId) -> Result<(), String> + Send + Sync>;

/// What a node begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// It makes a cluster, in an empty directory.
    Bootstrap {
        /// Replicas of each partition, on as many nodes: from 1 to 7.
        replicas: u8,
        /// Partitions, from 1 to 4,096.
        partitions: u16,
        /// Replicas of the map's group that vote: 1, 3 or 5.
        voters: u8,
    },
    /// It joins the cluster of the nodes at these peer addresses, if it is not in it already.
    Join(Vec<SocketAddr>),
    /// It is a node already.
    Start,
}

/// How a node of a cluster is started.
#[derive(Clone)]
pub struct ClusterOptions {
    /// The node's directory. Its own store is in `node/` there.
    pub dir: PathBuf,
    /// How the node's own store is opened.
    pub own: collie_db::Options,
    /// Its logs and its disks, from 1 to 64. Where none is named, the directory `data` of the node's.
    pub store: NodeStoreOptions,
    /// How each state machine is opened. Its device is also that of the disks' marks.
    pub machine: MachineOptions,
    /// Where other nodes reach it. No other node has this address. An unspecified one (`0.0.0.0`, `::`), here or in
    /// [`client`](Self::client), is refused. A node may be started with other ones than before: it says so.
    pub peer: SocketAddr,
    /// Where it takes the connections of other nodes. Default: [`peer`](Self::peer).
    pub listen: SocketAddr,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// The name of its host, where clients are to be sent to that instead of the IP address: those that compare it
    /// with a certificate, for example. Default: empty, to the address.
    pub client_host: String,
    /// Nodes of one zone may fail together: replicas of a partition are in different zones, where there are so many.
    /// Default: empty, none.
    pub zone: String,
    /// The feature levels that the program speaks. Default: all.
    pub spoken: RangeInclusive<u32>,
    /// The clock of the machine. The node follows it as long as it does not jump.
    pub clock: Arc<dyn Clock>,
    /// How its leaders make sure that reads are of the newest state.
    pub reads: Reads,
    /// How long anything of a group may take.
    pub times: GroupTimes,
    /// How much there may be of anything of a group.
    pub limits: GroupLimits,
    /// How long anything between nodes may take.
    pub peer_times: Times,
    /// How much there may be of anything between nodes.
    pub peer_limits: Limits,
    /// From one look of the controller at the map to the next, where nothing changes. Default 500 ms.
    pub look: Duration,
    /// Leaders and replicas are spread over the nodes again when nothing has changed the leaders for so
    /// long. Default 30 s.
    pub spread_after: Duration,
    /// The replicas of a node that has not answered for so long are replaced by others, on other nodes.
    /// Default 5 min.
    pub replace_after: Duration,
    /// Bytes of tables that the node sends to others a second, where replicas move or lack more than the log has; 0:
    /// as many as there are. Default 100 MB.
    pub transfer_rate: u64,
    /// A way to other clusters, that rows are duplicated to. Default: none.
    pub targets: Option<Arc<dyn TargetNetwork>>,
}

impl ClusterOptions {
    /// Options with their defaults.
    #[must_use]
    pub fn new(dir: PathBuf, peer: SocketAddr, client: SocketAddr) -> Self {
        Self {
            dir,
            own: collie_db::Options::default(),
            store: NodeStoreOptions::default(),
            machine: MachineOptions::new(Arc::new(Runs)),
            peer,
            listen: peer,
            client,
            client_host: String::new(),
            zone: String::new(),
            spoken: 1..=LEVEL,
            clock: Arc::new(RealClock),
            reads: Reads::default(),
            times: GroupTimes::default(),
            limits: GroupLimits::default(),
            peer_times: Times::default(),
            peer_limits: Limits::default(),
            look: Duration::from_millis(500),
            spread_after: Duration::from_secs(30),
            replace_after: Duration::from_secs(300),
            transfer_rate: 100_000_000,
            targets: None,
        }
    }

    /// Fills in the disk, and checks what can be checked without a look at anything.
    pub(super) fn checked(mut self, begin: &Begin) -> Result<Self, ClusterError> {
        if self.store.disks.is_empty() {
            self.store.disks.push(self.dir.join("data"));
        }
        let wrong = |option, problem: &str| {
            let problem = problem.to_owned();
            Err(ClusterError::Options { option, problem })
        };
        if self.store.disks.len() > DISKS_MAX {
            return wrong("disks", "a node has at most 64");
        }
        if self.peer.port() == 0 || self.client.port() == 0 || self.peer == self.client {
            return wrong(
                "addresses",
                "the peer and the client address are kept in the map: name two that differ, each with its port",
            );
        }
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if self.zone.len() > ZONE_MAX || !self.zone.bytes().all(is_known) {
            return wrong(
                "zone",
                "its name has at most 64 letters, digits, `.`, `_` and `-`",
            );
        }
        if self.client_host.len() > HOST_MAX || !self.client_host.bytes().all(is_known) {
            return wrong(
                "client_host",
                "the name of a host has at most 253 letters, digits, `.`, `_` and `-`",
            );
        }
        match begin {
            Begin::Bootstrap {
                replicas,
                partitions,
                voters,
            } => {
                if !(1..=7).contains(replicas) {
                    return wrong("replicas", "a partition has from 1 to 7");
                }
                if !(1..=SLOTS / 4).contains(partitions) {
                    return wrong("partitions", "a cluster has from 1 to 4096");
                }
                if ![1, 3, 5].contains(voters) {
                    return wrong("voters", "the map has 1, 3 or 5");
                }
            }
            Begin::Join(peers) if peers.is_empty() => {
                return wrong(
                    "join",
                    "name the peer address of at least one node of the cluster",
                );
            }
            Begin::Join(_) | Begin::Start => {}
        }
        Ok(self)
    }
}

impl std::fmt::Debug for ClusterOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterOptions")
            .field("dir", &self.dir)
            .field("disks", &self.store.disks)
            .field("peer", &self.peer)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}
