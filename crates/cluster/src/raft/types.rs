//! The types that raft is run with: openraft's ids and ours, and the runtime of its tasks, which is tokio's with
//! draws that a simulation can repeat.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::AsyncRuntime;
use openraft::impls::{TokioRuntime as Tokio, leader_id_adv};
use openraft::{LogId, OptionalSend};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use crate::ids::{EntryId, LeaderId, ReplicaId, Vote};
use crate::raftlog::Reserved;
use crate::replica_store::ApplyOutcome;

openraft::declare_raft_types!(
    /// The groups of a cluster. Raft's id of a node is a [`ReplicaId`].
    pub Groups:
        D = EncodedEffects,
        R = ApplyOutcome,
        NodeId = ReplicaId,
        Node = Member,
        Term = u64,
        AsyncRuntime = Runtime,
);

/// What an entry does to the data of its group, encoded.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EncodedEffects {
    /// As they are in the log.
    pub bytes: Vec<u8>,
    /// The room that the leader has reserved for them. It goes with the entry until that is appended: an
    /// entry that waits to be committed is in the log, and needs no more.
    #[serde(skip)]
    pub(super) room: Arc<[Reserved]>,
}

impl EncodedEffects {
    pub(super) fn new(bytes: Vec<u8>, room: Vec<Reserved>) -> Self {
        let room = room.into();
        Self { bytes, room }
    }
}

impl PartialEq for EncodedEffects {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for EncodedEffects {}

impl From<Vec<u8>> for EncodedEffects {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes, Vec::new())
    }
}

impl fmt::Display for EncodedEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "effects of {} bytes", self.bytes.len())
    }
}

/// Where a replica is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub node: u64,
    /// The disk of the node, counted from 0.
    pub disk: u32,
    /// Where other nodes reach the node.
    pub address: String,
}

pub(super) type RaftLeaderId = leader_id_adv::LeaderId<u64, u64>;
pub(super) type RaftVote = openraft::Vote<RaftLeaderId>;

pub(super) fn to_vote(vote: Vote) -> RaftVote {
    RaftVote {
        leader_id: to_leader(vote.leader),
        committed: vote.committed,
    }
}

pub(super) fn from_vote(vote: &RaftVote) -> Vote {
    Vote {
        leader: from_leader(&vote.leader_id),
        committed: vote.committed,
    }
}

pub(super) fn to_leader(leader: LeaderId) -> RaftLeaderId {
    RaftLeaderId {
        term: leader.term,
        node_id: leader.replica,
    }
}

pub(super) fn from_leader(leader: &RaftLeaderId) -> LeaderId {
    LeaderId {
        term: leader.term,
        replica: leader.node_id,
    }
}

pub(super) fn to_log_id(id: EntryId) -> LogId<RaftLeaderId> {
    LogId {
        leader_id: to_leader(id.leader),
        index: id.index,
    }
}

pub(super) fn from_log_id(id: &LogId<RaftLeaderId>) -> EntryId {
    EntryId {
        leader: from_leader(&id.leader_id),
        index: id.index,
    }
}

/// Added to the seed for each draw: the golden ratio, as in SplitMix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on, what raft draws on this thread, such as how long a replica waits before it asks for
/// votes, follows from `seed` and from what was drawn before: for simulations, which run all nodes on
/// one thread. Threads that were given no seed draw what the system gives them.
#[cfg(feature = "testing")]
pub fn seed_draws(seed: u64) {
    SEED.set(Some(seed));
}

/// Tokio, with draws that [`seed_draws`] makes repeatable.
#[derive(Debug)]
pub struct Runtime(Tokio);

impl AsyncRuntime for Runtime {
    type JoinError = <Tokio as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Tokio as AsyncRuntime>::Sleep;
    type Instant = <Tokio as AsyncRuntime>::Instant;
    type TimeoutError = <Tokio as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Tokio as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;

    type Mpsc = <Tokio as AsyncRuntime>::Mpsc;
    type Watch = <Tokio as AsyncRuntime>::Watch;
    type Oneshot = <Tokio as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Tokio::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Tokio::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Tokio::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        Tokio::is_panic(error)
    }

    fn thread_rng() -> SmallRng {
        match SEED.get() {
            Some(seed) => {
                SEED.set(Some(seed.wrapping_add(STEP)));
                SmallRng::seed_from_u64(seed)
            }
            None => SmallRng::from_rng(&mut Tokio::thread_rng()),
        }
    }

    fn new(threads: usize) -> Self {
        Self(Tokio::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

/// A member that lacks no more entries than this has nearly all.
const NEARLY: u64 = 64;

/// The members of a group, as its leader knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// Those that vote. Of a change that is half done: those that will vote.
    pub voters: BTreeSet<ReplicaId>,
    /// All, voters included.
    pub all: BTreeMap<ReplicaId, Member>,
    /// Whether a change of voters is half done.
    pub is_joint: bool,
    /// Whether the entry that says so is applied: it is committed.
    pub is_applied: bool,
    /// The index of the leader's last entry.
    pub last: u64,
    /// The index of the last entry that each member has; empty where this replica does not lead.
    pub matched: BTreeMap<ReplicaId, u64>,
}

impl Members {
    /// Whether these vote, and there are no others.
    pub(crate) fn are(&self, wanted: &BTreeSet<ReplicaId>) -> bool {
        !self.is_joint && self.voters == *wanted && self.all.len() == wanted.len()
    }

    /// Whether a member has nearly all entries, as the leader knows; elsewhere that is not known.
    #[must_use]
    pub fn has_nearly_all(&self, id: ReplicaId) -> bool {
        let has = self.matched.get(&id).copied().unwrap_or(0);
        has > 0 && has.saturating_add(NEARLY) >= self.last
    }
}

/// What raft knows of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaState {
    /// Who leads, as far as it knows.
    pub leader: Option<ReplicaId>,
    /// Whether it leads, as far as it knows.
    pub leads: bool,
    /// Whom it has voted for.
    pub vote: LeaderId,
    /// The index of the last entry of its log.
    pub last: Option<u64>,
    /// The last entry that is applied.
    pub applied: Option<EntryId>,
    /// The index that its snapshot reaches.
    pub snapshot: Option<u64>,
    /// The index up to which its log is purged.
    pub purged: Option<u64>,
}
