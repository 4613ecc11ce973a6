//! Why a replica became the leader, and whether it still has its majority.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::metrics::RaftServerMetrics;
use openraft::type_config::alias::VoteOf;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ids::ReplicaId;
use crate::raft::types::Groups;

/// What an election comes of that is won within so long.
const WITHIN: Duration = Duration::from_secs(5);

/// What made a replica stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ElectionCause {
    /// It had heard no leader for too long.
    Timeout,
    /// The leader's node does not answer.
    Suspicion,
    /// The leader handed over.
    Transfer,
}

impl ElectionCause {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Timeout, Self::Suspicion, Self::Transfer];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Suspicion => "suspicion",
            Self::Transfer => "transfer",
        }
    }
}

/// The elections that a replica has won since its node started.
#[derive(Debug, Default)]
pub(super) struct Elections {
    asked: Mutex<Option<(Instant, ElectionCause)>>,
    won: [AtomicU64; 3],
}

impl Elections {
    /// It is about to stand for election.
    pub(super) fn asked(&self, cause: ElectionCause) {
        *self.asked.lock() = Some((Instant::now(), cause));
    }

    /// It leads.
    pub(super) fn won(&self) {
        let asked = self.asked.lock().take();
        let asked = asked.filter(|(at, _)| at.elapsed() < WITHIN);
        let cause = asked.map_or(ElectionCause::Timeout, |(_, cause)| cause);
        if let Some(count) = self.won.get(cause as usize) {
            // Relaxed, also below: a count, and nothing hangs on it.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many of this cause.
    pub(super) fn count(&self, cause: ElectionCause) -> u64 {
        let count = self.won.get(cause as usize);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// Follows what a replica that leads hears from the others. Raft lets a leader that hears nothing lead
/// on: nothing that it proposes is committed, and others may lead by then.
#[derive(Debug)]
pub(super) struct Quorum {
    replica: ReplicaId,
    /// The majority counts as lost when it has answered nothing for so long.
    within: Duration,
    /// The term that the replica leads in, and since when that is known.
    leads: Option<(u64, Instant)>,
}

impl Quorum {
    pub(super) fn new(replica: ReplicaId, within: Duration) -> Self {
        Self {
            replica,
            within,
            leads: None,
        }
    }

    /// Nothing is to be lost while the group is parked. Afterwards the majority has as long as after an election.
    pub(super) fn rests(&mut self) -> Option<Instant> {
        self.leads = None;
        None
    }

    /// When the majority will count as lost, unless it answers; `None` where there is nothing to lose:
    /// the replica does not lead, or is a majority by itself. `acked` is when the requests were sent that
    /// a majority has answered last.
    pub(super) fn lost_at(
        &mut self,
        now: &RaftServerMetrics<Groups>,
        acked: Option<Instant>,
    ) -> Option<Instant> {
        let term = now.vote.leader_id.term;
        if !now.state.is_leader() || elected(now.current_leader, &now.vote) != Some(self.replica) {
            self.leads = None;
            return None;
        }
        let since = match self.leads {
            Some((known, since)) if known == term => since,
            _ => Instant::now(),
        };
        self.leads = Some((term, since));
        let mut voters = now.membership_config.voter_ids();
        if voters.all(|voter| voter == self.replica) {
            return None;
        }
        Some(acked.map_or(since, |acked| acked.max(since)) + self.within)
    }
}

/// Who leads. Raft calls a replica that begins its group the leader of term 0, before it has asked
/// anybody for a vote.
pub(super) fn elected(leader: Option<ReplicaId>, vote: &VoteOf<Groups>) -> Option<ReplicaId> {
    leader.filter(|_| vote.leader_id.term > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use openraft::{Membership, ServerState, StoredMembership};

    use super::*;
    use crate::raft::types::{Member, RaftLeaderId, RaftVote};

    const WITHIN: Duration = Duration::from_secs(3);

    fn leads(term: u64, voters: &[ReplicaId]) -> RaftServerMetrics<Groups> {
        let voters: BTreeSet<_> = voters.iter().copied().collect();
        let nodes: BTreeMap<_, _> = voters.iter().map(|id| (*id, Member::default())).collect();
        let membership = Membership::new(vec![voters], nodes).unwrap();
        let membership = Arc::new(StoredMembership::new(None, membership));
        RaftServerMetrics {
            id: 1,
            vote: RaftVote {
                leader_id: RaftLeaderId { term, node_id: 1 },
                committed: true,
            },
            state: ServerState::Leader,
            current_leader: Some(1),
            membership_config: Arc::clone(&membership),
            committed_membership_config: membership,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_majority_is_lost_when_it_is_silent_for_long() {
        let mut quorum = Quorum::new(1, WITHIN);
        let began = Instant::now();
        assert_eq!(quorum.lost_at(&leads(5, &[1, 2, 3]), None), Some(began + WITHIN));
        tokio::time::advance(WITHIN * 2).await;
        assert_eq!(quorum.lost_at(&leads(5, &[1, 2, 3]), None), Some(began + WITHIN));
        let acked = Instant::now();
        tokio::time::advance(WITHIN / 3).await;
        assert_eq!(
            quorum.lost_at(&leads(5, &[1, 2, 3]), Some(acked)),
            Some(acked + WITHIN)
        );
        // Of another term that it leads nothing is known yet.
        let again = Instant::now();
        assert_eq!(quorum.lost_at(&leads(7, &[1, 2, 3]), None), Some(again + WITHIN));
        assert_eq!(
            quorum.lost_at(&leads(7, &[1, 2, 3]), Some(acked)),
            Some(again + WITHIN)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_lead_or_is_a_majority_loses_none() {
        let mut quorum = Quorum::new(1, WITHIN);
        assert_eq!(quorum.lost_at(&leads(5, &[1]), None), None);
        let mut follows = leads(5, &[1, 2, 3]);
        follows.state = ServerState::Follower;
        follows.current_leader = Some(2);
        assert_eq!(quorum.lost_at(&follows, None), None);
    }
}
