//! What can go wrong with a node.

use crate::ids::{GroupId, ReplicaId};
use crate::raft::ReplicaError;
use crate::raftlog::StoreError;
use crate::transport::PeerError;

/// An error of a node.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Its logs.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its connections.
    #[error(transparent)]
    Peers(#[from] PeerError),
    /// A replica.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A file.
    #[error("{what}: {problem}")]
    Files {
        /// What was to be done.
        what: String,
        /// The system's words.
        problem: String,
    },
    /// A group that this node is no member of, or twice.
    #[error("group {group}: expected one member on node {node}, found {found}")]
    Members {
        /// The group.
        group: GroupId,
        /// This node.
        node: u64,
        /// How many of the members are on it.
        found: usize,
    },
    /// There is no such replica here.
    #[error("there is no replica {replica} on this node")]
    Unknown {
        /// The replica.
        replica: ReplicaId,
    },
}
