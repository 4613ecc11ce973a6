//! The map as a whole, read from its rows, checked, and changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{GroupId, ReplicaId};
use crate::map::MAP_GROUP;
use crate::map::records::{
    ClusterRecord, MapError, MapMember, NodeRecord, PartitionRecord, cluster_key, decode, encode, node_key,
    partition_key,
};
use crate::map::targets::{self, Duplications};
use crate::replica_store::SLOTS;
use crate::transport::wire::NodeId;

/// In the table of [`Map::by_slot`]: no partition has the slot.
pub const NOWHERE: u16 = u16::MAX;

/// A row of the map: its key, and its value; none: it is removed.
pub type MapRow = (Vec<u8>, Option<Vec<u8>>);

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
    /// The clusters that get its rows.
    pub duplications: Duplications,
}

/// What one request changes: whole records, and the next epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The cluster, with the next epoch.
    pub cluster: ClusterRecord,
    /// Nodes that are new, or changed.
    pub nodes: Vec<NodeRecord>,
    /// Nodes that are no more.
    pub removed: Vec<NodeId>,
    /// Partitions that are new, or changed.
    pub partitions: Vec<PartitionRecord>,
    /// What is duplicated, if that changes.
    pub duplications: Option<Duplications>,
}

impl Changes {
    /// Nothing yet, but the next epoch.
    #[must_use]
    pub fn of(map: &Map) -> Self {
        let mut cluster = map.cluster.clone();
        cluster.epoch += 1;
        Self {
            cluster,
            nodes: Vec::new(),
            removed: Vec::new(),
            partitions: Vec::new(),
            duplications: None,
        }
    }

    /// Adds a partition as it is from now on.
    pub(super) fn set_partition(&mut self, partition: PartitionRecord) {
        self.partitions.push(PartitionRecord {
            changed: self.cluster.epoch,
            ..partition
        });
    }
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
            duplications: Duplications::default(),
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
        if let Some(value) = get(targets::key())? {
            map.duplications = targets::decode(&value)?;
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

    /// The rows that a change sets and removes.
    ///
    /// # Errors
    /// [`MapError::Row`] where a record cannot be encoded.
    pub fn rows(changes: &Changes) -> Result<Vec<MapRow>, MapError> {
        let level = changes.cluster.level;
        let mut rows = vec![(cluster_key(), Some(encode("cluster", &changes.cluster, level)?))];
        for node in &changes.nodes {
            let name = format!("node/{}", node.number);
            rows.push((node_key(node.number), Some(encode(&name, node, level)?)));
        }
        rows.extend(changes.removed.iter().map(|number| (node_key(*number), None)));
        for partition in &changes.partitions {
            let name = format!("partition/{}", partition.group);
            let value = encode(&name, partition, level)?;
            rows.push((partition_key(partition.group), Some(value)));
        }
        if let Some(record) = &changes.duplications {
            rows.push((targets::key(), Some(targets::encode(record)?)));
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

    /// Whether a replica that was made on a node is not to be there any more: its group goes on without
    /// it. A map that has not given out its id yet is older than the replica, as it may be after a
    /// restart, and has nothing to say of it.
    #[must_use]
    pub fn has_moved_away(&self, (group, replica): (GroupId, ReplicaId), node: NodeId) -> bool {
        let partition = self.partitions.get(&group);
        let member = partition.and_then(|partition| partition.member_on(node));
        let is_here = member.is_some_and(|member| member.replica == replica);
        // While the group changes, raft may count on one that the map does not name any more.
        let is_settled = partition.is_some_and(|partition| partition.wanted.is_empty());
        group != MAP_GROUP && replica < self.cluster.next_replica && is_settled && !is_here
    }

    /// The replicas of partitions that are on a disk of a node, or to be there.
    #[must_use]
    pub fn count_on(&self, node: NodeId, disk: u32) -> usize {
        let members = self.partitions.values().flat_map(PartitionRecord::all);
        members
            .filter(|member| (member.node, member.disk) == (node, disk))
            .count()
    }

    /// The replicas that are somewhere, or to be, and those whose ids are yet to be given out: of none of them may a node
    /// remove what it finds.
    pub fn named(&self) -> impl Fn(ReplicaId) -> bool + Send + 'static {
        let partitions = self.partitions.values();
        let splits = partitions.clone().filter_map(|one| one.split.as_ref());
        let new = splits.flat_map(|split| split.members.iter().copied());
        let members = partitions.flat_map(PartitionRecord::all).chain(new);
        let of_map = self.nodes.values().map(|node| node.replica);
        let named: BTreeSet<_> = members.map(|member| member.replica).chain(of_map).collect();
        let next = self.cluster.next_replica;
        move |replica| replica >= next || named.contains(&replica)
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
        } else if let Some(disk) = node
            .drained
            .iter()
            .find(|disk| **disk as usize >= node.disks.len())
        {
            format!(
                "expected a drained disk of {}, found disk {disk}",
                node.disks.len()
            )
        } else {
            return Ok(());
        };
        let row = format!("node/{number}");
        Err(MapError::Row { row, problem })
    }

    fn check_partition(&self, group: GroupId, partition: &PartitionRecord) -> Result<(), MapError> {
        let are_apart = |members: &[MapMember]| {
            let nodes: BTreeSet<_> = members.iter().map(|member| member.node).collect();
            nodes.len() == members.len()
        };
        // While the partition moves, a node may have one that goes and one in its place, on another disk.
        let all: Vec<_> = partition.all().collect();
        let disks: BTreeSet<_> = all.iter().map(|member| (member.node, member.disk)).collect();
        let are_distinct = are_apart(&partition.members) && are_apart(partition.lasting());
        let homeless = |member: &&MapMember| {
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
        } else if let Some(problem) = split_problem(partition) {
            problem
        } else if partition.members.is_empty() || !are_distinct || disks.len() < all.len() {
            format!("expected members on distinct nodes, found {all:?}")
        } else if let Some(member) = all.iter().find(homeless) {
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
        let members = self.partitions.values().flat_map(PartitionRecord::all);
        let splits = self
            .partitions
            .values()
            .filter_map(|partition| partition.split.as_ref());
        let new = splits.flat_map(|split| split.members.iter().copied());
        let replicas = members.chain(new).map(|member| member.replica);
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

/// What is wrong with the split of a partition.
fn split_problem(partition: &PartitionRecord) -> Option<String> {
    let split = partition.split.as_ref()?;
    let place = |member: &MapMember| (member.node, member.disk);
    let places = |members: &[MapMember]| members.iter().map(place).collect::<Vec<_>>();
    if split.first <= partition.first || split.first > partition.last {
        let (first, last) = (partition.first, partition.last);
        return Some(format!(
            "expected a split behind slot {first} and not behind {last}, found {}",
            split.first
        ));
    }
    let (own, new) = (places(&partition.members), places(&split.members));
    (own != new || !partition.wanted.is_empty())
        .then(|| format!("expected a split on {own:?}, and no move, found one on {new:?}"))
}

#[cfg(feature = "testing")]
impl Map {
    /// The map after a change.
    #[must_use]
    pub fn with(mut self, changes: Changes) -> Self {
        self.cluster = changes.cluster;
        self.nodes
            .extend(changes.nodes.into_iter().map(|node| (node.number, node)));
        self.nodes.retain(|number, _| !changes.removed.contains(number));
        self.duplications = changes.duplications.unwrap_or(self.duplications);
        let partitions = changes.partitions.into_iter();
        self.partitions
            .extend(partitions.map(|partition| (partition.group, partition)));
        self
    }
}
