//! The records of the map, and the rows that they are in.
//!
//! Their versions are those of the cluster's feature level: at level 1 version 1 is written, which every node of it
//! reads; from level 2 on version 3, with what moves of replicas need; from level 4 on version 4, with splits; from level
//! 5 on the newest, with disks that are drained. Each version is read at each level.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, ReplicaId};
use crate::transport::wire::{ClusterId, NodeId};

/// The newest feature level of this version: a cluster is made with it.
pub const LEVEL: u32 = 5;
/// From this level on replicas move.
pub const LEVEL_OF_MOVES: u32 = 2;
/// From this level on partitions are split.
pub const LEVEL_OF_SPLITS: u32 = 4;

/// From this level on rows are duplicated to other clusters.
pub const LEVEL_OF_DUPLICATION: u32 = 5;
/// From this level on disks of nodes are drained.
pub const LEVEL_OF_DISKS: u32 = 5;

/// The newest version of a row's value.
const VERSION: u8 = 5;
/// That of the levels before splits.
const VERSION_OF_MOVES: u8 = 3;
/// That of the levels before drained disks.
const VERSION_OF_SPLITS: u8 = 4;
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
    /// Whether replicas are to be on it.
    pub role: NodeRole,
    /// Nodes of one zone may fail together; empty: of none.
    pub zone: String,
    /// Clients are sent to this name of its host instead of its IP address; empty: to the address.
    pub host: String,
    /// The disks that are to have no replicas of partitions, in their order: these move to its others.
    pub drained: BTreeSet<u32>,
}

impl NodeRecord {
    /// The disks that may be given replicas.
    pub fn open_disks(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        let disks = 0..u32::try_from(self.disks.len()).unwrap_or(u32::MAX);
        disks.filter(|disk| !self.drained.contains(disk))
    }
}

/// Whether a node is to have replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRole {
    /// It is.
    #[default]
    Serves,
    /// Its replicas move to other nodes. It stays in the cluster.
    Drains,
    /// Its replicas move to other nodes, or to one. Then it is removed from the cluster.
    Leaves {
        /// The only node that they move to; none: to any.
        to: Option<NodeId>,
    },
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
    /// The replica that begins the group, of those that it was placed with. No other one ever does.
    pub begins: ReplicaId,
    /// Its replicas.
    pub members: Vec<MapMember>,
    /// The replicas that it is to have instead, while that is under way; empty: it is not. When raft
    /// has brought the group to them, they are its members.
    pub wanted: Vec<MapMember>,
    /// The epoch of the map with which it became so.
    pub changed: u64,
    /// What it is being split into beside itself.
    pub split: Option<SplitRecord>,
    /// The group that it was split from, until all its replicas are said to have the rows; 0: none.
    pub from: GroupId,
}

/// The partition that another one is being split into, beside itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// Its group.
    pub group: GroupId,
    /// Its first slot; its last is that of the other one.
    pub first: u16,
    /// Its replicas, in the order of the other one's, and on the same disks.
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

    /// The replicas that it has in the end.
    #[must_use]
    pub fn lasting(&self) -> &[MapMember] {
        if self.wanted.is_empty() {
            &self.members
        } else {
            &self.wanted
        }
    }

    /// Its replicas, and those that it is to have.
    pub fn all(&self) -> impl Iterator<Item = MapMember> + Clone + '_ {
        let new = self.wanted.iter().filter(|member| !self.members.contains(member));
        self.members.iter().chain(new).copied()
    }

    /// Its replica on a node, or the one that is to be there. Of two, which a node has while one takes the place of
    /// another on another disk, the one that is to go.
    #[must_use]
    pub fn member_on(&self, node: NodeId) -> Option<MapMember> {
        self.members_on(node).next()
    }

    /// Its replicas on a node, or that are to be there.
    pub fn members_on(&self, node: NodeId) -> impl Iterator<Item = MapMember> + Clone + '_ {
        self.all().filter(move |member| member.node == node)
    }

    /// The node of one of its replicas.
    #[must_use]
    pub fn node_of(&self, replica: ReplicaId) -> Option<NodeId> {
        let member = self.all().find(|member| member.replica == replica)?;
        Some(member.node)
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

/// A record, and what of it earlier versions have.
pub(super) trait Record: Serialize + DeserializeOwned + Clone {
    type One: Serialize + DeserializeOwned + From<Self> + Into<Self>;
    /// The fields that version 2 lacks at its end, as they are without it.
    const AFTER_TWO: &[u8] = &[];
    /// The same of version 3.
    const AFTER_THREE: &[u8] = &[];
    /// The same of version 4.
    const AFTER_FOUR: &[u8] = &[];

    /// The feature level from which on nothing of it is lost that must not be, and what that is.
    fn needs(&self) -> (u32, &'static str) {
        (0, "")
    }
}

impl Record for ClusterRecord {
    type One = Self;
}

/// [`NodeRecord`], version 1.
#[derive(Serialize, Deserialize)]
pub(super) struct NodeOne {
    number: NodeId,
    token: [u8; 16],
    peer: SocketAddr,
    client: SocketAddr,
    disks: Vec<[u8; 16]>,
    replica: ReplicaId,
}

impl Record for NodeRecord {
    type One = NodeOne;
    const AFTER_TWO: &[u8] = &[0];
    const AFTER_FOUR: &[u8] = &[0];

    fn needs(&self) -> (u32, &'static str) {
        match self.drained.is_empty() {
            true => (0, ""),
            false => (LEVEL_OF_DISKS, "drained disks"),
        }
    }
}

impl From<NodeRecord> for NodeOne {
    fn from(node: NodeRecord) -> Self {
        let NodeRecord {
            number,
            token,
            peer,
            client,
            disks,
            replica,
            ..
        } = node;
        Self {
            number,
            token,
            peer,
            client,
            disks,
            replica,
        }
    }
}

impl From<NodeOne> for NodeRecord {
    fn from(node: NodeOne) -> Self {
        let NodeOne {
            number,
            token,
            peer,
            client,
            disks,
            replica,
        } = node;
        Self {
            number,
            token,
            peer,
            client,
            disks,
            replica,
            role: NodeRole::Serves,
            zone: String::new(),
            host: String::new(),
            drained: BTreeSet::new(),
        }
    }
}

/// [`PartitionRecord`], version 1.
#[derive(Serialize, Deserialize)]
pub(super) struct PartitionOne {
    group: GroupId,
    first: u16,
    last: u16,
    members: Vec<MapMember>,
}

impl Record for PartitionRecord {
    type One = PartitionOne;
    const AFTER_TWO: &[u8] = &[0];
    const AFTER_THREE: &[u8] = &[0, 0];

    fn needs(&self) -> (u32, &'static str) {
        match self.split.is_none() && self.from == 0 {
            true => (0, ""),
            false => (LEVEL_OF_SPLITS, "splits"),
        }
    }
}

impl From<PartitionRecord> for PartitionOne {
    fn from(partition: PartitionRecord) -> Self {
        let PartitionRecord {
            group,
            first,
            last,
            members,
            ..
        } = partition;
        Self {
            group,
            first,
            last,
            members,
        }
    }
}

impl From<PartitionOne> for PartitionRecord {
    /// None of its replicas has moved.
    fn from(partition: PartitionOne) -> Self {
        let PartitionOne {
            group,
            first,
            last,
            members,
        } = partition;
        let begins = members.iter().map(|member| member.replica).min();
        Self {
            group,
            first,
            last,
            begins: begins.unwrap_or_default(),
            members,
            wanted: Vec::new(),
            changed: 0,
            split: None,
            from: 0,
        }
    }
}

/// The value of a row, at a feature level.
pub(super) fn encode<T: Record>(row: &str, record: &T, level: u32) -> Result<Vec<u8>, MapError> {
    let wrong = |problem: String| MapError::Row {
        row: row.to_owned(),
        problem,
    };
    let (needed, what) = record.needs();
    if level < needed {
        return Err(wrong(format!("level {level} has no {what}")));
    }
    let without = |version: u8, after: &[&[u8]]| {
        postcard::to_extend(record, vec![version]).map(|mut value| {
            value.truncate(value.len() - after.concat().len());
            value
        })
    };
    let value = match level {
        0..LEVEL_OF_MOVES => postcard::to_extend(&T::One::from(record.clone()), vec![1]),
        LEVEL_OF_MOVES..LEVEL_OF_SPLITS => without(VERSION_OF_MOVES, &[T::AFTER_THREE, T::AFTER_FOUR]),
        LEVEL_OF_SPLITS..LEVEL_OF_DISKS => without(VERSION_OF_SPLITS, &[T::AFTER_FOUR]),
        LEVEL_OF_DISKS.. => without(VERSION, &[]),
    };
    value.map_err(|error| wrong(error.to_string()))
}

/// What a row's value says. Each byte of it is accounted for.
pub(super) fn decode<T: Record>(row: &str, value: &[u8]) -> Result<T, MapError> {
    let wrong = |problem: String| MapError::Row {
        row: row.to_owned(),
        problem,
    };
    let (version, bytes) = match value.split_first() {
        Some((version @ 1..=VERSION, bytes)) => (*version, bytes),
        other => {
            return Err(MapError::Version {
                row: row.to_owned(),
                most: VERSION,
                found: other.map_or("nothing".to_owned(), |(found, _)| found.to_string()),
            });
        }
    };
    let read = match version {
        1 => postcard::take_from_bytes::<T::One>(bytes).map(|(record, left)| (record.into(), left.len())),
        2..VERSION => {
            let after = [T::AFTER_TWO, T::AFTER_THREE, T::AFTER_FOUR];
            let lacking = after.get(usize::from(version) - 2..).unwrap_or_default();
            let whole = [bytes, &lacking.concat()].concat();
            postcard::take_from_bytes(&whole).map(|(record, left)| (record, left.len()))
        }
        _ => postcard::take_from_bytes(bytes).map(|(record, left)| (record, left.len())),
    };
    match read {
        Ok((record, 0)) => Ok(record),
        Ok((_, more)) => Err(wrong(format!("expected its end, found {more} bytes more"))),
        Err(error) => Err(wrong(format!(
            "{} bytes that cannot be read: {error}",
            bytes.len()
        ))),
    }
}

/// Rows that are no map of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The version of a row.
    #[error(
        "row {row} of the map: expected version 1 to {most}, found {found}: run the version of the program that wrote \
         it, or a later one"
    )]
    Version {
        /// The row.
        row: String,
        /// The newest that this program knows.
        most: u8,
        /// What stands there; none: the row is empty.
        found: String,
    },
    /// What a row holds.
    #[error("row {row} of the map: {problem}; the map is not followed until that is repaired")]
    Row {
        /// The row.
        row: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Rows that do not go together.
    #[error("the map: {problem}; it is not followed until that is repaired")]
    Whole {
        /// What does not go together.
        problem: String,
    },
    /// A number that is out.
    #[error("the map has no {what} left, of {limit} at most")]
    Exhausted {
        /// Of what.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::fixtures::fixture;

    /// Versions 1, 3, 4 and 5 are written, each at its level.
    fn check<T: Debug + PartialEq + Record>(name: &str, key: (&[u8], &[u8]), record: &T, version: u8) {
        assert_eq!(key.0, key.1);
        let level = [1, 2, 3, 4, LEVEL][usize::from(version) - 1];
        let mut written = encode(name, record, level).unwrap();
        if version == 2 {
            written[0] = 2;
            written.truncate(written.len() - T::AFTER_TWO.len());
        }
        let bytes = fixture(&format!("records-v{version}/{name}.bin"), &written);
        assert_eq!(bytes.first(), Some(&version));
        assert_eq!(&decode::<T>(name, &bytes).unwrap(), record);
    }

    #[test]
    fn records_of_each_version_say_what_was_written() {
        for version in 1..=VERSION {
            let is_first = version == 1;
            let cluster = ClusterRecord {
                id: *b"cluster of tests",
                epoch: 1 << 40,
                level: 2,
                replicas: 3,
                partitions: 400,
                voters: 5,
                next_node: 600,
                next_replica: 700_000,
                next_group: 8,
            };
            check("cluster", (&cluster_key(), b"cluster"), &cluster, version);
            let node = NodeRecord {
                number: 9,
                token: *b"a token of tests",
                peer: "192.0.2.1:7001".parse().unwrap(),
                client: "[2001:db8::2]:6379".parse().unwrap(),
                disks: vec![*b"the first disk..", *b"the second disk."],
                replica: 1000,
                role: match is_first {
                    true => NodeRole::Serves,
                    false => NodeRole::Leaves { to: Some(500) },
                },
                zone: if is_first { "" } else { "a zone" }.to_owned(),
                host: if version >= 3 { "a.host" } else { "" }.to_owned(),
                drained: if version >= 5 { [0, 300].into() } else { [].into() },
            };
            check("node", (&node_key(9), b"node/\0\0\0\0\0\0\0\x09"), &node, version);
            let member = |replica, node, disk| MapMember { replica, node, disk };
            let partition = PartitionRecord {
                group: 11,
                first: 12,
                last: 16_383,
                begins: if is_first { 13 } else { 7 },
                members: vec![member(13, 14, 0), member(1500, 16, 1)],
                wanted: match is_first {
                    true => Vec::new(),
                    false => vec![member(13, 14, 0), member(2000, 17, 2)],
                },
                changed: if version >= 3 { 1 << 30 } else { 0 },
                split: (version >= 4).then(|| SplitRecord {
                    group: 3000,
                    first: 9000,
                    members: vec![member(4000, 14, 0), member(5, 16, 1)],
                }),
                from: if version >= 4 { 6000 } else { 0 },
            };
            let key = b"partition/\0\0\0\0\0\0\0\x0b";
            check("partition", (&partition_key(11), key), &partition, version);
        }
    }
}
