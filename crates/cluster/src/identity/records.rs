//! What a node's own store says.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::ReplicaId;
use crate::transport::wire::{ClusterId, NodeId};

/// What a node asks to join by, or makes a cluster with: stored before the first attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Drawn at random.
    pub token: [u8; 16],
    /// Where other nodes reach it.
    pub peer: SocketAddr,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// The identities of its disks, drawn at random, in their order.
    pub disks: Vec<[u8; 16]>,
}

/// Who a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number.
    pub node: NodeId,
    /// Its replica of group 0.
    pub replica: ReplicaId,
    /// The feature level of the cluster when it joined.
    pub level: u32,
    /// What it has joined by.
    pub asked: Asked,
    /// Of the node that made the cluster: replicas of each partition, partitions, and voters of group
    /// 0, for the first entry of the map.
    pub founded: Option<(u8, u16, u8)>,
}
