//! openraft's ids, and ours.

use openraft::LogId;
use openraft::impls::leader_id_adv;

use crate::ids::{EntryId, LeaderId, Vote};

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
