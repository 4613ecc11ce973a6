//! What can go wrong with a node, and why a node of a cluster does not start.

use std::ops::RangeInclusive;

use crate::identity::IdentityError;
use crate::ids::{GroupId, ReplicaId};
use crate::raft::ReplicaError;
use crate::raftlog::StoreError;
use crate::transport::{JoinError, PeerError};

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
    /// What its replicas may have lost cannot be stored.
    #[error("cannot store which replicas may have lost entries: {problem}")]
    Losses {
        /// Why.
        problem: String,
    },
    /// There is no such replica here.
    #[error("there is no replica {replica} on this node")]
    Unknown {
        /// The replica.
        replica: ReplicaId,
    },
}

/// A node of a cluster cannot be started.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Its directories are not those of this node, or cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Its logs or its connections.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It cannot join.
    #[error("cannot join the cluster: {0}")]
    Join(#[from] JoinError),
    /// The cluster has a feature level that this version does not speak.
    #[error(
        "the cluster has feature level {found}, and this version speaks levels {} to {}: run a version that speaks the \
         cluster's level",
        spoken.start(), spoken.end()
    )]
    Level {
        /// The cluster's.
        found: u32,
        /// This program's.
        spoken: RangeInclusive<u32>,
    },
    /// An option.
    #[error("option {option}: {problem}")]
    Options {
        /// Its name.
        option: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The system.
    #[error("{what}: {problem}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The system's words.
        problem: String,
    },
}
