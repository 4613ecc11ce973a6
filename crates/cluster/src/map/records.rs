//! The records of the map, and the rows that they are in.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, ReplicaId};
use crate::map::error::MapError;
use crate::transport::wire::{ClusterId, NodeId};

/// The feature level of this version: a cluster is made with it.
pub const LEVEL: u32 = 1;

/// The version of each row's value.
const VERSION: u8 = 1;
const CLUSTER: &[u8] = b"cluster";
const NODE: &[u8] = b"node/";
const PARTITION: &[u8] = b"partition/";

/// The cluster, and the numbers that are handed out next. None is handed out twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Its id, drawn at random when it was made.
    pub id: ClusterId,
    /// Grows by one with each change of the map.
    pub epoch: u64,
    /// The feature level that all nodes speak.
    pub level: u32,
    /// So many replicas each partition is to have.
    pub replicas: u8,
    /// So many partitions there are to be.
    pub partitions: u16,
    /// So many replicas of group 0 are to vote, at most.
    pub voters: u8,
    /// The number of the next node.
    pub next_node: NodeId,
    /// The id of the next replica, of any group.
    pub next_replica: ReplicaId,
    /// The number of the next group.
    pub next_group: GroupId,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its number.
    pub number: NodeId,
    /// What it asked to join by.
    pub token: [u8; 16],
    /// Where other nodes reach it.
    pub peer: SocketAddr,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// The identities of its disks, in their order. At least one.
    pub disks: Vec<[u8; 16]>,
    /// Its replica of group 0, on its first disk.
    pub replica: ReplicaId,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// Its group.
    pub group: GroupId,
    /// Its first slot.
    pub first: u16,
    /// Its last slot.
    pub last: u16,
    /// Its replicas, the lowest id first.
    pub members: Vec<MapMember>,
}

/// A replica of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapMember {
    /// Its id.
    pub replica: ReplicaId,
    /// Its node.
    pub node: NodeId,
    /// The disk of the node, counted from 0.
    pub disk: u32,
}

impl PartitionRecord {
    /// Its slots.
    #[must_use]
    pub fn slots(&self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// Its replica on a node.
    #[must_use]
    pub fn member_on(&self, node: NodeId) -> Option<MapMember> {
        self.members.iter().copied().find(|member| member.node == node)
    }
}

/// The key of the cluster's row.
pub(super) fn cluster_key() -> Vec<u8> {
    CLUSTER.to_vec()
}

/// The key of a node's row.
pub(super) fn node_key(number: NodeId) -> Vec<u8> {
    [NODE, &number.to_be_bytes()].concat()
}

/// The key of a partition's row.
pub(super) fn partition_key(group: GroupId) -> Vec<u8> {
    [PARTITION, &group.to_be_bytes()].concat()
}

/// The value of a row.
pub(super) fn encode<T: Serialize>(row: &str, record: &T) -> Result<Vec<u8>, MapError> {
    postcard::to_extend(record, vec![VERSION]).map_err(|error| MapError::Row {
        row: row.to_owned(),
        problem: error.to_string(),
    })
}

/// What a row's value says. Each byte of it is accounted for.
pub(super) fn decode<T: DeserializeOwned>(row: &str, value: &[u8]) -> Result<T, MapError> {
    let wrong = |problem: String| MapError::Row {
        row: row.to_owned(),
        problem,
    };
    let record = match value.split_first() {
        Some((&VERSION, record)) => record,
        other => {
            return Err(MapError::Version {
                row: row.to_owned(),
                expected: VERSION,
                found: other.map_or("nothing".to_owned(), |(found, _)| found.to_string()),
            });
        }
    };
    match postcard::take_from_bytes(record) {
        Ok((record, [])) => Ok(record),
        Ok((_, more)) => Err(wrong(format!(
            "expected its end, found {} bytes more",
            more.len()
        ))),
        Err(error) => Err(wrong(format!(
            "{} bytes that cannot be read: {error}",
            record.len()
        ))),
    }
}
