//! Whether a leader still has its majority.

use std::time::Duration;

use openraft::metrics::RaftServerMetrics;
use tokio::time::Instant;

use crate::ids::ReplicaId;
use crate::raft::running::elected;
use crate::raft::types::Groups;

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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use openraft::{Membership, ServerState, StoredMembership};

    use super::*;
    use crate::raft::ids::{RaftLeaderId, RaftVote};
    use crate::raft::types::Member;

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
