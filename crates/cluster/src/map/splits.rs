//! Splitting a partition: its record says which slots go to which new group; when its leader has applied that, the
//! map has both.
//!
//! The members of the new group are on the nodes and disks of the old one's. Nothing gives a split up: the next leader
//! of the group goes on. Until it is done no replica of the partition moves; then none of both groups does before the
//! leader of the new one says that all its replicas have their rows. What moved before could not make the replica
//! beside it, so that one more would begin without them.

use std::ops::RangeInclusive;

use crate::ids::{GroupId, ReplicaId};
use crate::map::moves::unchanged;
use crate::map::records::{LEVEL_OF_SPLITS, MapMember, PartitionRecord, SplitRecord};
use crate::map::whole::{Changes, Map};
use crate::transport::wire::NodeId;

/// A cluster has at most so many partitions.
const PARTITIONS_MAX: usize = 4096;

/// The partition that has a slot is to give it, and all behind it, to a new one. Asked for again, it changes nothing.
///
/// # Errors
/// Why it cannot be split there, or not now.
pub fn split(map: &Map, first: u16) -> Result<Option<Changes>, String> {
    if map.cluster.level < LEVEL_OF_SPLITS {
        return Err(splits_from(map.cluster.level));
    }
    let mut partitions = map.partitions.values();
    let Some(partition) = partitions.find(|partition| partition.slots().contains(&first)) else {
        return Err(format!("no partition has slot {first}"));
    };
    let PartitionRecord { group, members, .. } = partition;
    if first == partition.first {
        return Err(format!(
            "the partition of group {group} begins with slot {first} already"
        ));
    }
    if let Some(split) = &partition.split {
        return match first == split.first {
            true => Ok(None),
            false => Err(format!(
                "the partition of group {group} is being split at slot {}: ask again when it has been",
                split.first
            )),
        };
    }
    if !partition.wanted.is_empty() {
        return Err(format!(
            "replicas of the partition of group {group} move: ask again when they have"
        ));
    }
    // The new one would begin there.
    let is_drained = |member: &&MapMember| {
        let node = map.nodes.get(&member.node);
        node.is_some_and(|node| node.drained.contains(&member.disk))
    };
    if let Some(MapMember { node, disk, .. }) = members.iter().find(is_drained) {
        return Err(format!(
            "a replica of the partition of group {group} is on disk {disk} of node {node}, which is drained: ask again when \
             it has moved, or end that by `collie cluster serve {node} --disk {disk}`"
        ));
    }
    let new = map.partitions.values().filter(|one| one.split.is_some());
    if map.partitions.len() + new.count() >= PARTITIONS_MAX {
        return Err(format!(
            "the cluster has {PARTITIONS_MAX} partitions, and can have no more"
        ));
    }
    let mut changes = Changes::of(map);
    let cluster = &mut changes.cluster;
    let new = cluster.next_group;
    let replica = cluster.next_replica;
    let out = || "the map has no more ids".to_owned();
    cluster.next_group = new.checked_add(1).ok_or_else(out)?;
    cluster.next_replica = replica.checked_add(members.len() as u64).ok_or_else(out)?;
    let beside = |(replica, member): (_, &MapMember)| MapMember { replica, ..*member };
    changes.set_partition(PartitionRecord {
        split: Some(SplitRecord {
            group: new,
            first,
            members: (replica..).zip(members).map(beside).collect(),
        }),
        ..partition.clone()
    });
    Ok(Some(changes))
}

/// Why nothing is split at a feature level.
#[must_use]
pub fn splits_from(level: u32) -> String {
    format!(
        "the cluster has feature level {level}, and partitions are split from level {LEVEL_OF_SPLITS} on: run `collie \
         cluster finalize` once all nodes have this version"
    )
}

/// The split of a group is applied on its leader: the map has both partitions.
///
/// # Errors
/// The partition was changed since: the leader knows an older map.
pub fn has_split(map: &Map, group: GroupId, changed: u64) -> Result<Option<Changes>, String> {
    if let Some(partition) = map.partitions.get(&group).filter(|one| one.split.is_none())
        && map
            .partitions
            .values()
            .any(|new| new.from == group && new.changed == partition.changed)
    {
        // Said again.
        return Ok(None);
    }
    let partition = unchanged(map, group, changed)?;
    let Some(split) = partition.split.clone() else {
        return Err(format!("the map has group {group} as one that is not split"));
    };
    let mut changes = Changes::of(map);
    changes.cluster.partitions = changes.cluster.partitions.saturating_add(1);
    changes.set_partition(PartitionRecord {
        last: split.first - 1,
        split: None,
        ..partition.clone()
    });
    changes.set_partition(PartitionRecord {
        group: split.group,
        first: split.first,
        last: partition.last,
        // All of them begin with the same rows: none begins the group alone.
        begins: 0,
        members: split.members,
        wanted: Vec::new(),
        changed: 0,
        split: None,
        from: group,
    });
    Ok(Some(changes))
}

/// What a node has of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Has {
    /// A replica that applies entries, or will; with its slots, if they are known yet.
    Replica(Option<RangeInclusive<u16>>),
    /// No replica, or one that applies nothing any more.
    None,
}

/// Whether a node's replica of the group that a partition was split from is yet to apply that: then it makes the
/// partition's beside it, with its rows. An empty one in its place would be one more that lacks them. `has` says what
/// the node has of a group, in which its replica is to be this one, if any.
pub fn is_made_by_split(
    map: &Map,
    partition: &PartitionRecord,
    node: NodeId,
    has: &impl Fn(GroupId, Option<ReplicaId>) -> Has,
) -> bool {
    // One that moves here comes by itself.
    let is_first = partition.members.iter().any(|member| member.node == node);
    if partition.from == 0 || !is_first {
        return false;
    }
    let parent = map.partitions.get(&partition.from);
    let own = parent.and_then(|parent| parent.member_on(node));
    match has(partition.from, own.map(|own| own.replica)) {
        Has::Replica(slots) => slots.is_none_or(|slots| slots.contains(&partition.first)),
        // It may be to be made by a split itself.
        Has::None => own.is_some() && parent.is_some_and(|parent| is_made_by_split(map, parent, node, has)),
    }
}
