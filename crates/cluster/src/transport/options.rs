//! Who a node is, and what it allows its peers.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use collie_io::Clock;

use crate::transport::wire::{ClusterId, Join, JoinAnswer, Lane, MapRequest, NodeId};

/// Who a node is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node's number in it.
    pub node: NodeId,
    /// Drawn at random when this process started.
    pub boot: [u8; 16],
    /// The feature level of the cluster, as this node knows it when it starts.
    pub level: u32,
    /// The feature levels that this version of the program speaks.
    pub spoken: RangeInclusive<u32>,
}

/// How a node speaks to its peers.
#[derive(Clone)]
pub struct PeersOptions {
    /// Who it is.
    pub identity: Identity,
    /// Where it takes connections; port 0 is any that is free.
    pub listen: SocketAddr,
    /// The time that the node goes by. Answers to pings carry it, and peers compare it with theirs.
    pub clock: Arc<dyn Clock>,
    /// The clock of its machine, which may have jumped away from that. Pings carry it.
    pub machine_clock: Arc<dyn Clock>,
    /// What the jitter of reconnections is drawn from.
    pub seed: u64,
    /// How much of anything.
    pub limits: Limits,
    /// How long.
    pub times: Times,
    /// Who decides which processes become nodes; none: each is refused.
    pub admission: Option<Arc<dyn Admission>>,
}

/// How much of anything there may be. What this node sends waits for room; a peer that sends more
/// is answered `busy`.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one group's unanswered requests to one peer. Votes are too small to count.
    pub group_bytes: u32,
    /// Unanswered appends of one group to one peer.
    pub group_appends: u32,
    /// Bytes of all unanswered requests to one peer, on either connection.
    pub peer_bytes: u32,
    /// Unanswered requests on one connection.
    pub requests: usize,
    /// Bytes that are gathered for one write. A larger frame is written by itself.
    pub batch_bytes: usize,
    /// Connections that peers have made and greeted on.
    pub connections: usize,
    /// Connections that have not said yet who they are.
    pub strangers: usize,
}

/// How long anything may take.
#[derive(Debug, Clone)]
pub struct Times {
    /// From one ping of a raft connection to the next.
    pub ping: Duration,
    /// From one ping of a bulk connection to the next.
    pub bulk_ping: Duration,
    /// Without a frame on the raft connection for so long, a node is suspected: when a ping had no answer for
    /// 0.9 s, and before the followers of a leader there may vote for another, as a rule.
    pub suspect: Duration,
    /// A raft connection without a byte for so long is closed, and made anew.
    pub silence: Duration,
    /// The same for a bulk connection, on which one frame may take longer.
    pub bulk_silence: Duration,
    /// From a connection's beginning until both sides have said who they are.
    pub greeting: Duration,
    /// From a request to join to its answer.
    pub join: Duration,
    /// From the first byte of a frame to its last.
    pub frame: Duration,
    /// The first pause before another attempt to connect; doubled with each.
    pub backoff: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// What [`Peers::close`](super::Peers::close) gives the connections to send what is queued.
    pub close: Duration,
}

impl PeersOptions {
    /// Options with the usual limits and times. The node goes by the clock of its machine.
    pub fn new(identity: Identity, listen: SocketAddr, clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            identity,
            listen,
            machine_clock: Arc::clone(&clock),
            clock,
            seed,
            limits: Limits::default(),
            times: Times::default(),
            admission: None,
        }
    }
}

impl Times {
    /// After how long without a byte a connection ends.
    pub(super) fn silence_of(&self, lane: Lane) -> Duration {
        match lane {
            Lane::Raft => self.silence,
            Lane::Bulk => self.bulk_silence,
        }
    }

    /// From one ping to the next.
    pub(super) fn ping_of(&self, lane: Lane) -> Duration {
        match lane {
            Lane::Raft => self.ping,
            Lane::Bulk => self.bulk_ping,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            group_bytes: 16 << 20,
            group_appends: 16,
            peer_bytes: 64 << 20,
            requests: 65_536,
            batch_bytes: 256 << 10,
            connections: 512,
            strangers: 64,
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            ping: Duration::from_millis(500),
            bulk_ping: Duration::from_secs(5),
            suspect: Duration::from_millis(1400),
            silence: Duration::from_secs(3),
            bulk_silence: Duration::from_secs(30),
            greeting: Duration::from_secs(2),
            join: Duration::from_secs(10),
            frame: Duration::from_secs(10),
            backoff: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            close: Duration::from_secs(1),
        }
    }
}

impl fmt::Debug for PeersOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeersOptions")
            .field("identity", &self.identity)
            .field("listen", &self.listen)
            .field("limits", &self.limits)
            .field("times", &self.times)
            .finish_non_exhaustive()
    }
}

/// What is answered to a process that asks to join: an error is a refusal, with what to do.
pub type Admitted = Pin<Box<dyn Future<Output = Result<JoinAnswer, String>> + Send>>;

/// What becomes of a request to change the map: an error says why nothing changed.
pub type MapChanged = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Decides which processes become nodes, and what else changes in the map.
pub trait Admission: Send + Sync {
    /// Judges a request. The future may be dropped before it is ready, while the join goes on: it is
    /// asked for again with the same token.
    fn join(&self, join: Join) -> Admitted;

    /// Whether a node was in the map, and is not any more: it is not spoken to.
    fn was_removed(&self, node: NodeId) -> bool;

    /// Changes the map, where this node leads group 0. The future may be dropped, as that of a join.
    fn change_map(&self, request: MapRequest) -> MapChanged;
}
