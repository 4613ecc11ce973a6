//! Why a node of a cluster does not start.

use std::ops::RangeInclusive;

use crate::identity::IdentityError;
use crate::node::NodeError;
use crate::transport::JoinError;

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
