//! What a process says that is no node yet and wants to become one, and what it is answered.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::ReplicaId;
use crate::transport::wire::message::{ClusterId, NodeId, list};

/// Disks of one node.
pub const DISKS_MAX: usize = 64;
/// Addresses in one answer, which is as short as a greeting. The map has all of them.
pub const PEERS_MAX: usize = 64;

/// A process asks to become a node, or says that it is one and asks whether it is at the right
/// cluster. `version` stands first in every version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// [`VERSION`](super::VERSION).
    pub version: u16,
    /// The cluster and the number of a node that has joined before.
    pub known: Option<(ClusterId, NodeId)>,
    /// Drawn at random and stored before the first attempt: all attempts of one process have the
    /// same, also after a restart.
    pub token: [u8; 16],
    /// Where other nodes will reach it.
    pub peer: SocketAddr,
    /// Where clients will reach it.
    pub client: SocketAddr,
    /// The identities of its disks, in their order.
    #[serde(deserialize_with = "list::<_, _, DISKS_MAX>")]
    pub disks: Vec<[u8; 16]>,
    /// The lowest feature level that it speaks.
    pub least: u32,
    /// The highest.
    pub most: u32,
    /// Its wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
}

/// Answers a [`Join`] that was not refused. `version` stands first in every version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// [`VERSION`](super::VERSION).
    pub version: u16,
    /// The answer.
    pub answer: JoinAnswer,
}

/// What becomes of a [`Join`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// The map has the node.
    Taken(Place),
    /// This node does not lead the group of the map, or cannot say at the moment what became of the
    /// request. It is to be sent again: to this address, if there is one.
    Elsewhere(Option<SocketAddr>),
    /// The clocks differ by too much, unless the request took long. This is the wall clock of the node
    /// that answers, in milliseconds since 1970.
    Clock(u64),
}

/// What a node is in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node's number.
    pub node: NodeId,
    /// Its replica of the group of the map.
    pub replica: ReplicaId,
    /// The feature level of the cluster.
    pub level: u32,
    /// Numbers and peer addresses of nodes, this one's included.
    #[serde(deserialize_with = "list::<_, _, PEERS_MAX>")]
    pub peers: Vec<(NodeId, SocketAddr)>,
}
