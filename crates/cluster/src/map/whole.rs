//! The map as a whole, read from its rows, checked, and changed; its records, and the rows that they are in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, ReplicaId};
use crate::replica_store::SLOTS;
use crate::transport::wire::{ClusterId, NodeId};

/// In the table of [`Map::by_slot`]: no partition has the slot.
pub const NOWHERE: u16 = u16::MAX;

/// A row of the map: its key and its value.
pub type MapRow = (Vec<u8>, Vec<u8>);

/// The nodes and partitions of a cluster, at one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// The cluster.
    pub cluster: ClusterRecord,
    /// The nodes, by their numbers. A number below the next that is missing is that of a node which
    /// was removed.
    pub nodes: BTreeMap<NodeId, NodeRecord>,
    /// The partitions, by their groups.
    pub partitions: BTreeMap<GroupId, PartitionRecord>,
}

/// What one request changes: whole records, and the next epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The cluster, with the next epoch.
    pub cluster: ClusterRecord,
    /// Nodes that are new.
    pub nodes: Vec<NodeRecord>,
    /// Partitions that are new.
    pub partitions: Vec<PartitionRecord>,
}

impl Map {
    /// Reads the map by its rows' keys; none where there is none yet.
    ///
    /// # Errors
    /// Those of `get`, and [`MapError`] where a later version wrote a row, or rows do not go together.
    pub fn read<E: From<MapError>>(
        mut get: impl FnMut(Vec<u8>) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Self>, E> {
        let Some(value) = get(cluster_key())? else {
            return Ok(None);
        };
        let cluster: ClusterRecord = decode("cluster", &value)?;
        let mut map = Self {
            nodes: BTreeMap::new(),
            partitions: BTreeMap::new(),
            cluster,
        };
        for number in 1..map.cluster.next_node {
            if let Some(value) = get(node_key(number))? {
                let node: NodeRecord = decode(&format!("node/{number}"), &value)?;
                map.check_node(number, &node)?;
                map.nodes.insert(number, node);
            }
        }
        for group in 1..map.cluster.next_group {
            if let Some(value) = get(partition_key(group))? {
                let partition: PartitionRecord = decode(&format!("partition/{group}"), &value)?;
                map.check_partition(group, &partition)?;
                map.partitions.insert(group, partition);
            }
        }
        map.check_ids()?;
        Ok(Some(map))
    }

    /// The epoch of the map alone; none where there is none yet.
    ///
    /// # Errors
    /// As [`Map::read`].
    pub fn read_epoch<E: From<MapError>>(
        mut get: impl FnMut(Vec<u8>) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<u64>, E> {
        let value = get(cluster_key())?;
        let cluster = value.map(|value| decode::<ClusterRecord>("cluster", &value));
        Ok(cluster.transpose()?.map(|cluster| cluster.epoch))
    }

    /// The rows that a change sets.
    ///
    /// # Errors
    /// [`MapError::Row`] where a record cannot be encoded.
    pub fn rows(changes: &Changes) -> Result<Vec<MapRow>, MapError> {
        let mut rows = vec![(cluster_key(), encode("cluster", &changes.cluster)?)];
        for node in &changes.nodes {
            let name = format!("node/{}", node.number);
            rows.push((node_key(node.number), encode(&name, node)?));
        }
        for partition in &changes.partitions {
            let name = format!("partition/{}", partition.group);
            rows.push((partition_key(partition.group), encode(&name, partition)?));
        }
        Ok(rows)
    }

    /// The node that joined by this token.
    #[must_use]
    pub fn node_of_token(&self, token: &[u8; 16]) -> Option<&NodeRecord> {
        self.nodes.values().find(|node| node.token == *token)
    }

    /// The node whose replica of group 0 this is.
    #[must_use]
    pub fn node_of_replica(&self, replica: ReplicaId) -> Option<&NodeRecord> {
        self.nodes.values().find(|node| node.replica == replica)
    }

    /// For each slot the place of its partition in the order of [`Map::partitions`], or [`NOWHERE`].
    #[must_use]
    pub fn by_slot(&self) -> Vec<u16> {
        let mut table = vec![NOWHERE; usize::from(SLOTS)];
        for (place, partition) in (0..NOWHERE).zip(self.partitions.values()) {
            let slots = usize::from(partition.first)..=usize::from(partition.last);
            if let Some(slots) = table.get_mut(slots) {
                slots.fill(place);
            }
        }
        table
    }

    fn check_node(&self, number: NodeId, node: &NodeRecord) -> Result<(), MapError> {
        let problem = if node.number != number {
            format!("expected node {number}, found node {}", node.number)
        } else if node.disks.is_empty() {
            "expected a disk, found none".to_owned()
        } else {
            return Ok(());
        };
        let row = format!("node/{number}");
        Err(MapError::Row { row, problem })
    }

    fn check_partition(&self, group: GroupId, partition: &PartitionRecord) -> Result<(), MapError> {
        let nodes: BTreeSet<_> = partition.members.iter().map(|member| member.node).collect();
        let homeless = |member: &&crate::map::MapMember| {
            let disks = self.nodes.get(&member.node).map_or(0, |node| node.disks.len());
            member.disk as usize >= disks
        };
        let problem = if partition.group != group {
            format!("expected group {group}, found group {}", partition.group)
        } else if partition.first > partition.last || partition.last >= SLOTS {
            format!(
                "expected a range of slots below {SLOTS}, found {:?}",
                partition.slots()
            )
        } else if partition.members.is_empty() || nodes.len() != partition.members.len() {
            format!(
                "expected members on distinct nodes, found {:?}",
                partition.members
            )
        } else if let Some(member) = partition.members.iter().find(homeless) {
            format!(
                "expected a disk of a node, found disk {} of node {}",
                member.disk, member.node
            )
        } else {
            return Ok(());
        };
        let row = format!("partition/{group}");
        Err(MapError::Row { row, problem })
    }

    /// No id twice, none that is yet to be handed out, and no slot in two partitions.
    fn check_ids(&self) -> Result<(), MapError> {
        let whole = |problem| Err(MapError::Whole { problem });
        let mut seen = BTreeSet::new();
        let members = self.partitions.values().flat_map(|partition| &partition.members);
        let replicas = members.map(|member| member.replica);
        for replica in self.nodes.values().map(|node| node.replica).chain(replicas) {
            if replica >= self.cluster.next_replica || !seen.insert(replica) {
                return whole(format!(
                    "expected replicas below {} each once, found replica {replica}",
                    self.cluster.next_replica
                ));
            }
        }
        let mut slots: Vec<_> = self.partitions.values().map(PartitionRecord::slots).collect();
        slots.sort_unstable_by_key(|slots| *slots.start());
        let pairs = slots.iter().zip(slots.iter().skip(1));
        match pairs.into_iter().find(|(one, next)| one.end() >= next.start()) {
            Some((one, next)) => whole(format!(
                "expected each slot in one partition, found {one:?} and {next:?}"
            )),
            None => Ok(()),
        }
    }
}

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

/// Rows that are no map of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The version of a row.
    #[error(
        "row {row} of the map: expected version {expected}, found {found}: run the version of the program that wrote \
         it, or a later one"
    )]
    Version {
        /// The row.
        row: String,
        /// What this program knows.
        expected: u8,
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

#[cfg(feature = "testing")]
impl Map {
    /// The map after a change.
    #[must_use]
    pub fn with(mut self, changes: Changes) -> Self {
        self.cluster = changes.cluster;
        self.nodes
            .extend(changes.nodes.into_iter().map(|node| (node.number, node)));
        let partitions = changes.partitions.into_iter();
        self.partitions
            .extend(partitions.map(|partition| (partition.group, partition)));
        self
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::fixtures::fixture;

    fn check<T: Debug + PartialEq + Serialize + DeserializeOwned>(
        name: &str,
        key: (&[u8], &[u8]),
        record: &T,
    ) {
        assert_eq!(key.0, key.1);
        let bytes = fixture(&format!("records-v1/{name}.bin"), &encode(name, record).unwrap());
        assert_eq!(&decode::<T>(name, &bytes).unwrap(), record);
    }

    #[test]
    fn records_of_version_1_say_what_was_written() {
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
        check("cluster", (&cluster_key(), b"cluster"), &cluster);
        let node = NodeRecord {
            number: 9,
            token: *b"a token of tests",
            peer: "192.0.2.1:7001".parse().unwrap(),
            client: "[2001:db8::2]:6379".parse().unwrap(),
            disks: vec![*b"the first disk..", *b"the second disk."],
            replica: 1000,
        };
        check("node", (&node_key(9), b"node/\0\0\0\0\0\0\0\x09"), &node);
        let member = |replica, node, disk| MapMember { replica, node, disk };
        let partition = PartitionRecord {
            group: 11,
            first: 12,
            last: 16_383,
            members: vec![member(13, 14, 0), member(1500, 16, 1)],
        };
        let key = b"partition/\0\0\0\0\0\0\0\x0b";
        check("partition", (&partition_key(11), key), &partition);
    }
}
