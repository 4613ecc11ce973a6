//! The types that raft is run with.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::ReplicaId;
use crate::raft::runtime::Runtime;
use crate::raftlog::Reserved;
use crate::replica_store::Outcome;

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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Effects {
    /// As they are in the log.
    pub bytes: Vec<u8>,
    /// The room that the leader has reserved for them. It goes with the entry until that is appended: an
    /// entry that waits to be committed is in the log, and needs no more.
    #[serde(skip)]
    pub(super) room: Arc<[Reserved]>,
}

impl Effects {
    pub(super) fn new(bytes: Vec<u8>, room: Vec<Reserved>) -> Self {
        let room = room.into();
        Self { bytes, room }
    }
}

impl PartialEq for Effects {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Effects {}

impl From<Vec<u8>> for Effects {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes, Vec::new())
    }
}

impl fmt::Display for Effects {
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
