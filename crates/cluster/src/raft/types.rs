//! The types that raft is run with.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::ReplicaId;
use crate::machine::Outcome;
use crate::raft::runtime::Runtime;

openraft::declare_raft_types!(
    /// The groups of a cluster. Raft's id of a node is a [`ReplicaId`].
    pub Groups:
        D = Effects,
        R = Outcome,
        NodeId = ReplicaId,
        Node = Member,
        Term = u64,
        AsyncRuntime = Runtime,
);

/// What an entry does to the data of its group, encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effects(pub Vec<u8>);

impl fmt::Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "effects of {} bytes", self.0.len())
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
