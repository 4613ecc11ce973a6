//! What raft says of an entry and of a vote, in the project's own types.

use std::fmt;

/// A raft group: one partition, or the group of the cluster's map.
pub type GroupId = u64;

/// One member of one group. It is raft's id of a node, handed out once and never again: a replica
/// that came back under an id that it had before, with an empty log, could vote twice.
pub type ReplicaId = u64;

/// Who led when an entry was proposed, or whom a vote is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaderId {
    /// The term.
    pub term: u64,
    /// The replica that led in it.
    pub replica: ReplicaId,
}

/// An entry of a group's log: raft's log id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Who proposed it.
    pub leader: LeaderId,
    /// Its place in the group's log.
    pub index: u64,
}

/// What a replica has voted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vote {
    /// For whom, in which term.
    pub leader: LeaderId,
    /// Whether a quorum is known to have voted so.
    pub committed: bool,
}

impl fmt::Display for LeaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {} of replica {}", self.term, self.replica)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} ({})", self.index, self.leader)
    }
}
