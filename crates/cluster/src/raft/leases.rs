//! Leases: a leader that holds one answers reads without asking a majority.
//!
//! A follower that takes an append votes for no other leader for a while. A leader counts a lease from before it sent
//! the appends that a majority has taken, and ends it before that while is over. Raft's own followers keep this as long
//! as they run and no leader hands over; the rest is here, and each rule stands for a way to a stale read:
//!
//! 1. Raft forgets at a restart whom a replica has followed. So one that may have followed a leader gives no vote
//!    for one lease after it was opened ([`Promises`]). All replicas keep that, whatever their own reads; from
//!    [`LEVEL_OF_LEASES`] on all nodes run versions that do, and before that no leader counts on it.
//! 2. Who is to lead by a transfer gets votes in spite of a lease. So a leader gives up its lease for as long as it
//!    leads before it asks anybody to, and a vote counts as one of a transfer only where it is that of the leader that
//!    the voter follows.
//! 3. A replica that grants a vote ends its own lease before it says so: it does not count on itself.
//! 4. A change of members ends the lease before others hear of it. The next one counts by both old and new members; and
//!    there is none where one voter is a majority, which raft has stand for election at once.
//! 5. Time is that of a clock which goes on while the machine is suspended, and a tenth of the lease is left for clocks
//!    that are slower than others.
//! 6. A read is made before the lease is looked at: a process may be stopped in between for long. And while a split may
//!    be committed and not applied here, reads are confirmed by a majority.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use collie_io::{Clock, Nanos};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{EntryPayload, LogIdOptionExt};
use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::{Instant, sleep_until};

use crate::ids::{EntryId, LeaderId, ReplicaId, Vote};
use crate::raft::body::Body;
use crate::raft::options::GroupTimes;
use crate::raft::parking::Parking;
use crate::raft::types::Groups;

/// From this feature level of the cluster on leaders count on leases, if they are asked to.
pub const LEVEL_OF_LEASES: u32 = 5;

type ServerMetrics = WatchReceiverOf<Groups, RaftServerMetrics<Groups>>;

/// The lease of a replica, for as long as it leads.
pub(super) struct Leases {
    replica: ReplicaId,
    /// Whether leaders may count on them now.
    are_used: Box<dyn Fn() -> bool + Send + Sync>,
    /// As the leader counts it.
    length: Nanos,
    clock: Arc<dyn Clock>,
    parking: Arc<Parking>,
    /// What raft says of the members.
    raft: OnceLock<ServerMetrics>,
    now: Mutex<Lease>,
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("replica", &self.replica)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// So long a follower votes for no other, at least, and so long a replica does that was opened.
fn promised(times: &GroupTimes) -> Duration {
    times.election_min
}

/// So long a leader counts on that.
fn counted(times: &GroupTimes) -> Duration {
    promised(times) * 9 / 10
}

impl Leases {
    pub(super) fn new(
        replica: ReplicaId,
        are_used: impl Fn() -> bool + Send + Sync + 'static,
        times: &GroupTimes,
        clock: Arc<dyn Clock>,
        parking: Arc<Parking>,
    ) -> Self {
        Self {
            replica,
            are_used: Box::new(are_used),
            length: Nanos::try_from(counted(times).as_nanos()).unwrap_or(0),
            clock,
            parking,
            raft: OnceLock::new(),
            now: Mutex::default(),
        }
    }

    /// Raft runs, and says this. Before, there is no lease.
    pub(super) fn follow(&self, raft: ServerMetrics) {
        // An error: it was said before.
        _ = self.raft.set(raft);
    }

    /// The moment from which on the answer to what is sent now counts.
    pub(super) fn now(&self) -> Nanos {
        self.clock.boot()
    }

    /// This replica is about to send these entries, as the leader.
    pub(super) fn sends<'a>(&self, leader: LeaderId, entries: impl Iterator<Item = (u64, &'a Body)>) {
        if !(self.are_used)() {
            return;
        }
        let members = entries.filter(|(_, body)| matches!(body, EntryPayload::Membership(_)));
        if let Some((index, _)) = members.last() {
            self.now.lock().of(leader).changes(index);
        }
    }

    /// A replica has followed an append of this leadership that was sent at `sent`, or later.
    pub(super) fn followed(&self, leader: LeaderId, follower: ReplicaId, sent: Nanos) {
        let Some(raft) = self.raft.get().filter(|_| (self.are_used)()) else {
            return;
        };
        let members = Arc::clone(&raft.borrow_watched().membership_config);
        let config = members.membership().get_joint_config();
        let mut now = self.now.lock();
        let lease = now.of(leader);
        lease.sent_at(follower, sent);
        if members.log_id().index() >= lease.members_at {
            lease.count(self.replica, config, self.length);
        }
    }

    /// What this leadership has, and all before it, is over: it is handed over, or another one was voted for.
    pub(super) fn end(&self, leader: LeaderId) {
        let mut now = self.now.lock();
        now.over = now.over.max(Some(leader));
    }

    /// Whether no other can lead by now. To be asked after what was read.
    pub(super) fn holds(&self, leader: LeaderId) -> bool {
        if !(self.are_used)() {
            return false;
        }
        let holds = {
            let now = self.now.lock();
            now.leader == Some(leader) && now.over < Some(leader) && self.clock.boot() < now.end
        };
        if holds {
            self.parking.need();
        }
        holds
    }
}

/// A lease, and what it is counted from.
#[derive(Debug, Default)]
struct Lease {
    leader: Option<LeaderId>,
    /// When the newest append was sent that a follower has taken.
    sent: BTreeMap<ReplicaId, Nanos>,
    /// The last entry with members that was sent. Raft may say later that it counts.
    members_at: Option<u64>,
    end: Nanos,
    over: Option<LeaderId>,
}

impl Lease {
    /// That of this leadership, or of a later one.
    fn of(&mut self, leader: LeaderId) -> &mut Self {
        if self.leader < Some(leader) {
            *self = Self {
                leader: Some(leader),
                over: self.over,
                ..Self::default()
            };
        }
        self
    }

    fn changes(&mut self, members_at: u64) {
        if self.members_at < Some(members_at) {
            self.members_at = Some(members_at);
            self.end = 0;
        }
    }

    fn sent_at(&mut self, follower: ReplicaId, sent: Nanos) {
        let at = self.sent.entry(follower).or_default();
        *at = sent.max(*at);
    }

    /// Counts by what majorities of all configurations have taken. The leader has its own word, where it votes.
    fn count(&mut self, own: ReplicaId, config: &[BTreeSet<ReplicaId>], length: Nanos) {
        let sent = |voters: &BTreeSet<ReplicaId>| {
            let of = |voter: &ReplicaId| match *voter == own {
                true => Nanos::MAX,
                false => self.sent.get(voter).copied().unwrap_or(0),
            };
            let mut all: Vec<_> = voters.iter().map(of).collect();
            all.sort_unstable();
            // The oldest of the newest majority.
            let oldest = all.len().checked_sub(all.len() / 2 + 1)?;
            all.get(oldest).copied().filter(|_| all.len() > 1)
        };
        let sent = config.iter().map(sent).min().flatten().filter(|sent| *sent > 0);
        if let Some(sent) = sent {
            self.end = self.end.max(sent.saturating_add(length));
        }
    }
}

/// For whom a replica does not vote, as it has followed a leader.
#[derive(Debug)]
pub(super) struct Promises {
    /// It may have followed one before it was opened: it gives no vote until then.
    silent_until: Option<Instant>,
    /// Whom it has followed since.
    followed: Mutex<Option<LeaderId>>,
    /// Raft has appends, or one vote.
    turn: Arc<RwLock<()>>,
}

impl Promises {
    /// Of a replica that is being opened, which has voted so. It has followed a leader only if that vote is durable
    /// as that of a leader.
    pub(super) fn new(voted: Option<Vote>, times: &GroupTimes) -> Self {
        let has_followed = voted.is_some_and(|vote| vote.committed);
        Self {
            silent_until: has_followed.then(|| Instant::now() + promised(times)),
            followed: Mutex::default(),
            turn: Arc::default(),
        }
    }

    /// Whether it gives no vote now.
    pub(super) fn is_silent(&self) -> bool {
        self.silent_until.is_some_and(|until| Instant::now() < until)
    }

    /// Waits until it may vote.
    pub(super) async fn are_over(&self) {
        if let Some(until) = self.silent_until {
            sleep_until(until).await;
        }
    }

    /// No vote is given by a transfer while raft has an append.
    pub(super) async fn append(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.turn).read_owned().await
    }

    /// Raft has followed an append of this leader, in its turn.
    pub(super) fn followed(&self, leader: LeaderId) {
        let mut followed = self.followed.lock();
        *followed = followed.max(Some(leader));
    }

    /// Raft gets no append until this is dropped.
    pub(super) async fn vote(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.turn).write_owned().await
    }

    /// Whether the leader that was followed last has asked a candidate to lead whose last entry is `last`. Who is asked
    /// has all of the leader's log, which begins with an entry of its own, and follows no other: a last entry of that
    /// leader's says that it, or a later one, has asked. `led` is the last leadership of the replica itself, which counts
    /// on the promises of others alone.
    pub(super) fn allow(&self, last: Option<EntryId>, led: Option<LeaderId>) -> bool {
        let followed = *self.followed.lock();
        followed.is_none() || led > followed || last.map(|last| last.leader) == followed
    }
}

#[cfg(test)]
mod tests;
