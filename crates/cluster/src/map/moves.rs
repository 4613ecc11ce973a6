//! How replicas move between nodes: which partition is to have which replicas, as a function of the map and of
//! what is known of the nodes.
//!
//! A move is one record: a partition's `wanted` replicas. Its node makes the new replica, the leader of the group
//! has raft take it in and let the other one go, and says so; then they are the partition's members, and the node
//! of the other one removes it. Each step is found again in the map and in raft, by any leader.
//!
//! Where a disk of a node is drained, its replicas are replaced by others on the node's other disks, in the same way.
//! Only then has a node two replicas of a partition: never two of those that it has, nor of those that it is to have.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{GroupId, ReplicaId};
use crate::map::records::{LEVEL_OF_MOVES, MapMember, NodeRecord, NodeRole, PartitionRecord};
use crate::map::whole::{Changes, Map};
use crate::transport::wire::NodeId;

/// So many replicas are made on a node at a time.
const JOINING_MOST: usize = 2;

/// What the leader of group 0 knows of the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Those that can be given replicas now.
    pub ready: BTreeSet<NodeId>,
    /// Those that have not answered for so long that their replicas are replaced.
    pub gone: BTreeSet<NodeId>,
    /// Groups whose moves do not go on, each with the epoch with which its partition was changed.
    pub hanging: BTreeSet<(GroupId, u64)>,
    /// Groups that splits have made, and that wait for their replicas to have the rows.
    pub settling: BTreeSet<GroupId>,
    /// Whether replicas may also move to make the nodes hold as many each.
    pub may_spread: bool,
}

/// A group has these replicas, and raft no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The group.
    pub group: GroupId,
    /// Its replicas.
    pub replicas: BTreeSet<ReplicaId>,
    /// The epoch with which its partition was to have them.
    pub changed: u64,
}

/// Replicas that are to move and cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stuck {
    /// Nodes whose replicas no other node can take.
    pub nodes: BTreeSet<NodeId>,
    /// Nodes whose replicas one node alone is to take, which cannot.
    pub replaced: BTreeMap<NodeId, NodeId>,
    /// Groups most of whose replicas are on nodes that are gone: none of their replicas can be moved.
    pub lost: BTreeSet<GroupId>,
    /// Drained disks whose replicas wait for their node, which cannot be given any now.
    pub disks: BTreeSet<(NodeId, u32)>,
}

/// Where replicas are in the end.
struct Placement<'a> {
    map: &'a Map,
    nodes: &'a Nodes,
    on_node: BTreeMap<NodeId, usize>,
    on_disk: BTreeMap<(NodeId, u32), usize>,
    /// Those that are being made, or to be.
    joining: BTreeMap<NodeId, usize>,
    /// Groups of which nothing begins to move.
    staying: BTreeSet<GroupId>,
}

impl<'a> Placement<'a> {
    fn of(map: &'a Map, nodes: &'a Nodes) -> Self {
        let mut placement = Self {
            map,
            nodes,
            on_node: map.nodes.keys().map(|node| (*node, 0)).collect(),
            on_disk: BTreeMap::new(),
            joining: BTreeMap::new(),
            staying: staying(map, nodes),
        };
        for partition in map.partitions.values() {
            for member in partition.lasting() {
                placement.count(member);
                if !partition.members.contains(member) && !placement.is_lost(partition) {
                    *placement.joining.entry(member.node).or_default() += 1;
                }
            }
        }
        placement
    }

    fn count(&mut self, member: &MapMember) {
        *self.on_node.entry(member.node).or_default() += 1;
        *self.on_disk.entry((member.node, member.disk)).or_default() += 1;
    }

    fn uncount(&mut self, member: &MapMember) {
        let on_node = self.on_node.get_mut(&member.node);
        let on_disk = self.on_disk.get_mut(&(member.node, member.disk));
        for count in on_node.into_iter().chain(on_disk) {
            *count = count.saturating_sub(1);
        }
    }

    /// Whether a node is to have no replicas.
    fn is_to_be_left(&self, node: NodeId) -> bool {
        let role = self.map.nodes.get(&node).map(|node| node.role);
        role != Some(NodeRole::Serves) || self.nodes.gone.contains(&node)
    }

    /// Whether so many replicas are on nodes that are gone that the others can decide nothing.
    fn is_lost(&self, partition: &PartitionRecord) -> bool {
        let is_lost = |members: &[MapMember]| {
            let there = members
                .iter()
                .filter(|member| !self.nodes.gone.contains(&member.node));
            2 * there.count() <= members.len()
        };
        // Raft may have come to either.
        is_lost(&partition.members) && is_lost(partition.lasting())
    }

    /// The node whose replicas move to one node alone: that one.
    fn only(&self, node: NodeId) -> Option<NodeId> {
        match self.map.nodes.get(&node)?.role {
            NodeRole::Leaves { to } => to,
            NodeRole::Serves | NodeRole::Drains => None,
        }
    }

    /// How many of these replicas are in the zone of a node.
    fn in_zone_of(&self, node: &NodeRecord, others: &[MapMember]) -> usize {
        let zone = |member: &MapMember| self.map.nodes.get(&member.node).map(|node| &node.zone);
        let same = |member: &&MapMember| zone(member) == Some(&node.zone) && member.node != node.number;
        match node.zone.is_empty() {
            true => 0,
            false => others.iter().filter(same).count(),
        }
    }

    /// The nodes that can have another replica, beside those of `taken`.
    fn able(&self, taken: &[MapMember], only: Option<NodeId>) -> impl Iterator<Item = &'a NodeRecord> {
        let is_taken = |node: NodeId| taken.iter().any(|member| member.node == node);
        self.map.nodes.values().filter(move |node| {
            let number = node.number;
            self.nodes.ready.contains(&number)
                && !self.is_to_be_left(number)
                && !is_taken(number)
                && only.is_none_or(|only| only == number)
        })
    }

    /// The best node for another replica beside `others`, and not where one of `taken` is: in another
    /// zone, with the fewest replicas. None: no node is able, or all that are have enough to do.
    fn node_for(
        &self,
        others: &[MapMember],
        taken: &[MapMember],
        only: Option<NodeId>,
    ) -> Option<&'a NodeRecord> {
        let joining = |node: &NodeRecord| self.joining.get(&node.number).copied().unwrap_or(0);
        let able = self.able(taken, only).filter(|node| joining(node) < JOINING_MOST);
        able.min_by_key(|node| {
            let count = self.on_node.get(&node.number).copied();
            (self.in_zone_of(node, others), count, node.number)
        })
    }

    /// Another replica on a node, on the disk that has the fewest, and not where one of `taken` is. None: there is no
    /// such disk, or no id.
    fn place(&mut self, node: &NodeRecord, taken: &[MapMember], next: &mut ReplicaId) -> Option<MapMember> {
        let count = |disk: &u32| self.on_disk.get(&(node.number, *disk)).copied().unwrap_or(0);
        let is_taken = |disk: u32| {
            let mut here = taken.iter().filter(|member| member.node == node.number);
            here.any(|member| member.disk == disk)
        };
        let disks = node.open_disks().filter(|disk| !is_taken(*disk));
        let member = MapMember {
            disk: disks.min_by_key(count)?,
            node: node.number,
            replica: next_id(next)?,
        };
        self.count(&member);
        *self.joining.entry(node.number).or_default() += 1;
        Some(member)
    }

    /// Whether a replica is on a disk that is drained, of a node that is to have replicas.
    fn is_to_leave_disk(&self, member: &MapMember) -> bool {
        let node = self.map.nodes.get(&member.node);
        !self.is_to_be_left(member.node) && node.is_some_and(|node| node.drained.contains(&member.disk))
    }
}

/// The moves that are to begin now, if any: away from nodes that are to have no replicas, and, where nothing else
/// moves and that may be, to nodes that have fewer than others. A move to a node that is to have none any
/// more goes to another one, or is taken back; one that hangs goes to another one, if there is any.
#[must_use]
pub fn plan(map: &Map, nodes: &Nodes) -> Option<Changes> {
    if map.cluster.level < LEVEL_OF_MOVES {
        return None;
    }
    let mut changes = Changes::of(map);
    let mut placement = Placement::of(map, nodes);
    for partition in map.partitions.values() {
        if placement.is_lost(partition) {
            continue;
        }
        let next = &mut changes.cluster.next_replica;
        let wanted = match is_moving(partition) {
            true => turned(&mut placement, partition, next),
            false if placement.staying.contains(&partition.group) => None,
            false => left(&mut placement, partition, next),
        };
        if let Some(wanted) = wanted {
            changes.set_partition(with(partition, wanted));
        }
    }
    let mut all = map.partitions.values();
    let nothing_moves = all.all(|partition| partition.wanted.is_empty() || placement.is_lost(partition));
    if nodes.may_spread && nothing_moves && changes.partitions.is_empty() {
        spread(&mut placement, &mut changes);
    }
    (!changes.partitions.is_empty()).then_some(changes)
}

/// The groups of which no replica begins to move: those that are being split, and those of a split whose replicas are
/// not all known to have their rows. With a node that is gone some cannot have them, and it is to be replaced.
fn staying(map: &Map, nodes: &Nodes) -> BTreeSet<GroupId> {
    let splitting = map.partitions.values().filter(|one| one.split.is_some());
    let new = nodes.settling.iter().filter_map(|new| map.partitions.get(new));
    let is_gone = |member: &MapMember| nodes.gone.contains(&member.node);
    let settling = new.filter(|new| new.from != 0 && !new.members.iter().any(is_gone));
    let settling = settling.flat_map(|new| [new.group, new.from]);
    splitting.map(|one| one.group).chain(settling).collect()
}

/// Whether a replica of the partition is being made. One that moves back to what it had has none.
fn is_moving(partition: &PartitionRecord) -> bool {
    !partition.wanted.is_empty() && partition.wanted != partition.members
}

/// What is to move and cannot.
#[must_use]
pub fn stuck(map: &Map, nodes: &Nodes) -> Stuck {
    let placement = Placement::of(map, nodes);
    let mut stuck = Stuck::default();
    for partition in map.partitions.values() {
        if placement.is_lost(partition) {
            stuck.lost.insert(partition.group);
        } else if !is_moving(partition) {
            let members = partition.members.iter();
            for member in members {
                if placement.is_to_leave_disk(member) && !nodes.ready.contains(&member.node) {
                    stuck.disks.insert((member.node, member.disk));
                }
                if !placement.is_to_be_left(member.node) {
                    continue;
                }
                let only = placement.only(member.node);
                if placement.able(&partition.members, only).next().is_some() {
                    continue;
                }
                match only {
                    Some(to) => drop(stuck.replaced.insert(member.node, to)),
                    None => drop(stuck.nodes.insert(member.node)),
                }
            }
        }
    }
    stuck
}

fn with(partition: &PartitionRecord, wanted: Vec<MapMember>) -> PartitionRecord {
    PartitionRecord {
        wanted,
        ..partition.clone()
    }
}

/// The next id of a replica; none: they are used up.
fn next_id(next: &mut ReplicaId) -> Option<ReplicaId> {
    let id = *next;
    *next = id.checked_add(1)?;
    Some(id)
}

/// What a partition is to have where one of its replicas is on a node that is to have none.
fn left(
    placement: &mut Placement<'_>,
    partition: &PartitionRecord,
    next: &mut ReplicaId,
) -> Option<Vec<MapMember>> {
    let leaves = |member: &&MapMember| placement.is_to_be_left(member.node);
    // What does not answer first: the others are a majority only as long as no other one fails.
    let is_there = |member: &&MapMember| !placement.nodes.gone.contains(&member.node);
    let leaving = partition
        .members
        .iter()
        .filter(leaves)
        .min_by_key(is_there)
        .copied();
    leaving
        .and_then(|leaving| replaced(placement, partition, leaving, next))
        .or_else(|| left_disk(placement, partition, next))
}

/// What a partition is to have where one of its replicas is on a drained disk.
fn left_disk(
    placement: &mut Placement<'_>,
    partition: &PartitionRecord,
    next: &mut ReplicaId,
) -> Option<Vec<MapMember>> {
    let can_move = |member: &&MapMember| {
        let joining = placement.joining.get(&member.node).copied().unwrap_or(0);
        placement.is_to_leave_disk(member)
            && placement.nodes.ready.contains(&member.node)
            && joining < JOINING_MOST
    };
    let leaving = *partition.members.iter().find(can_move)?;
    let node = placement.map.nodes.get(&leaving.node)?;
    let new = placement.place(node, &partition.members, next)?;
    placement.uncount(&leaving);
    let others = partition.members.iter().filter(|member| **member != leaving);
    Some(others.copied().chain([new]).collect())
}

/// What a partition is to have in place of one of its replicas.
fn replaced(
    placement: &mut Placement<'_>,
    partition: &PartitionRecord,
    leaving: MapMember,
    next: &mut ReplicaId,
) -> Option<Vec<MapMember>> {
    let others = partition.members.iter().filter(|member| **member != leaving);
    let mut wanted: Vec<_> = others.copied().collect();
    let node = placement.node_for(&wanted, &partition.members, placement.only(leaving.node))?;
    placement.uncount(&leaving);
    wanted.push(placement.place(node, &[], next)?);
    Some(wanted)
}

/// What a partition that moves is to have where the node, or the disk, that it moves to is to have none any more, or
/// where the move hangs.
fn turned(
    placement: &mut Placement<'_>,
    partition: &PartitionRecord,
    next: &mut ReplicaId,
) -> Option<Vec<MapMember>> {
    let hangs = placement
        .nodes
        .hanging
        .contains(&(partition.group, partition.changed));
    let is_vain = |member: &&MapMember| {
        let is_left = placement.is_to_be_left(member.node) || placement.is_to_leave_disk(member);
        !partition.members.contains(member) && (hangs || is_left)
    };
    let vain = *partition.wanted.iter().find(is_vain)?;
    let stays = partition.members.iter().find(|member| member.node == vain.node);
    if !placement.is_to_be_left(vain.node) && (stays.is_some() || placement.is_to_leave_disk(&vain)) {
        return turned_on_node(placement, partition, vain, next);
    }
    let mut leaving = partition
        .members
        .iter()
        .filter(|member| !partition.wanted.contains(member));
    let only = leaving.find_map(|member| placement.only(member.node));
    let mut wanted = partition.wanted.clone();
    wanted.retain(|member| *member != vain);
    let all: Vec<_> = partition.all().collect();
    let Some(node) = placement.node_for(&wanted, &all, only) else {
        // Raft may have taken the new one in: it is brought back to what it had.
        let is_in_vain = placement.is_to_be_left(vain.node) && placement.able(&all, only).next().is_none();
        return is_in_vain.then(|| partition.members.clone());
    };
    placement.uncount(&vain);
    wanted.push(placement.place(node, &[], next)?);
    Some(wanted)
}

/// The same where the replica stays on its node: it goes to a third disk, if there is one. If not, one whose disk is
/// drained no more stays there, and any other waits for room.
fn turned_on_node(
    placement: &mut Placement<'_>,
    partition: &PartitionRecord,
    vain: MapMember,
    next: &mut ReplicaId,
) -> Option<Vec<MapMember>> {
    let node = placement.map.nodes.get(&vain.node)?;
    let all: Vec<_> = partition.all().collect();
    let Some(new) = placement.place(node, &all, next) else {
        let before = partition.members.iter().find(|member| member.node == vain.node)?;
        let may_stay = !placement.is_to_leave_disk(before);
        return may_stay.then(|| partition.members.clone());
    };
    placement.uncount(&vain);
    let others = partition.wanted.iter().filter(|member| **member != vain);
    Some(others.copied().chain([new]).collect())
}

/// Moves that make nodes hold as many replicas each, and put replicas of a partition into different zones.
fn spread(placement: &mut Placement<'_>, changes: &mut Changes) {
    while changes.partitions.len() < JOINING_MOST {
        let planned: BTreeSet<_> = changes
            .partitions
            .iter()
            .map(|partition| partition.group)
            .collect();
        let gain = |partition: &PartitionRecord, leaving: MapMember| {
            let others = partition.members.iter().filter(|member| **member != leaving);
            let others: Vec<_> = others.copied().collect();
            let to = placement.node_for(&others, &partition.members, None)?;
            let from = placement.map.nodes.get(&leaving.node)?;
            let zones = placement
                .in_zone_of(from, &others)
                .checked_sub(placement.in_zone_of(to, &others))?;
            let (more, fewer) = (
                placement.on_node.get(&leaving.node)?,
                placement.on_node.get(&to.number)?,
            );
            let difference = more.saturating_sub(*fewer);
            (zones > 0 || difference >= 2).then_some((zones, difference))
        };
        // One that lacks a replica can spare none.
        let is_able = |partition: &&PartitionRecord| {
            let mut nodes = partition.members.iter().map(|member| member.node);
            !placement.staying.contains(&partition.group)
                && !planned.contains(&partition.group)
                && !nodes.any(|node| placement.is_to_be_left(node))
        };
        let moves = placement
            .map
            .partitions
            .values()
            .filter(is_able)
            .flat_map(|partition| partition.members.iter().map(move |member| (partition, *member)))
            .filter_map(|(partition, leaving)| Some((gain(partition, leaving)?, partition, leaving)));
        // Of equal ones the first.
        let best = moves.reduce(|best, other| if other.0 > best.0 { other } else { best });
        let Some((_, partition, leaving)) = best else {
            return;
        };
        let next = &mut changes.cluster.next_replica;
        let Some(wanted) = replaced(placement, partition, leaving, next) else {
            return;
        };
        changes.set_partition(with(partition, wanted));
    }
}

/// What a partition has is what it was to have: the move is over. Where nothing moved, all its replicas have the rows
/// that a split gave it.
///
/// # Errors
/// There is no such partition, or it was changed since: who says so is late, or says it again.
pub fn moved(map: &Map, moved: &Moved) -> Result<Changes, String> {
    let partition = unchanged(map, moved.group, moved.changed)?;
    let wanted: BTreeSet<_> = partition.lasting().iter().map(|member| member.replica).collect();
    if wanted != moved.replicas {
        return Err(format!(
            "group {} is to have the replicas {wanted:?}, and has {:?}",
            moved.group, moved.replicas
        ));
    }
    let mut changes = Changes::of(map);
    changes.set_partition(PartitionRecord {
        members: partition.lasting().to_vec(),
        wanted: Vec::new(),
        // Of replicas that were to stay it says nothing: they may still lack the rows of a split.
        from: match partition.wanted.is_empty() {
            true => 0,
            false => partition.from,
        },
        ..partition.clone()
    });
    Ok(changes)
}

/// A partition that was not changed since the map had this epoch.
///
/// # Errors
/// There is none, or it was changed.
pub fn unchanged(map: &Map, group: GroupId, changed: u64) -> Result<&PartitionRecord, String> {
    let Some(partition) = map.partitions.get(&group) else {
        return Err(format!("the map has no partition of group {group}"));
    };
    match partition.changed == changed {
        true => Ok(partition),
        false => Err(format!(
            "the partition of group {group} was changed with epoch {} of the map, and not with {changed} for the last time",
            partition.changed
        )),
    }
}

/// Has a node serve, drain, or leave the cluster. The node's replicas move later.
///
/// # Errors
/// Why it is refused, and what to do.
pub fn set_role(map: &Map, number: NodeId, role: NodeRole) -> Result<Option<Changes>, String> {
    if map.cluster.level < LEVEL_OF_MOVES {
        return Err(format!(
            "the cluster has feature level {}, and replicas move from level {LEVEL_OF_MOVES} on",
            map.cluster.level
        ));
    }
    let node = known_node(map, number)?;
    if node.role == role {
        return Ok(None);
    }
    if role != NodeRole::Serves {
        check_leaving(map, number, role)?;
    }
    let mut changes = Changes::of(map);
    changes.nodes.push(NodeRecord { role, ..node.clone() });
    Ok(Some(changes))
}

/// A node of the map.
///
/// # Errors
/// There is none of this number: which there are.
pub fn known_node(map: &Map, number: NodeId) -> Result<&NodeRecord, String> {
    map.nodes.get(&number).ok_or_else(|| {
        let known: Vec<_> = map.nodes.keys().map(ToString::to_string).collect();
        format!(
            "the cluster has no node {number}; it has nodes {}",
            known.join(", ")
        )
    })
}

/// Whether other nodes can take what a node has.
fn check_leaving(map: &Map, number: NodeId, role: NodeRole) -> Result<(), String> {
    if let NodeRole::Leaves { to: Some(to) } = role {
        let target = map.nodes.get(&to).filter(|_| to != number);
        if target.is_none_or(|node| node.role != NodeRole::Serves) {
            return Err(format!(
                "node {number} cannot be replaced by node {to}: that is not another node of the cluster which is to \
                 have replicas"
            ));
        }
        let both = |partition: &&PartitionRecord| {
            let on = |node| partition.lasting().iter().any(|member| member.node == node);
            on(number) && on(to)
        };
        let both = map.partitions.values().filter(both).count();
        if both > 0 {
            return Err(format!(
                "node {to} has replicas of {both} partitions already that node {number} has: replace node {number} by a \
                 node that has none of them, or remove it, and they move to several nodes"
            ));
        }
    }
    let serving = map.nodes.values().filter(|node| node.role == NodeRole::Serves);
    let left = serving.filter(|node| node.number != number).count();
    let needed = map
        .partitions
        .values()
        .map(|partition| partition.members.len())
        .max();
    let needed = needed.unwrap_or(1);
    if left < needed {
        return Err(format!(
            "{left} other nodes are to have replicas, and each partition has {needed} on as many nodes: let another node \
             join first"
        ));
    }
    Ok(())
}

/// Removes a node from the map, if it is to leave and no replica of a partition is on it.
#[must_use]
pub fn leave(map: &Map, number: NodeId) -> Option<Changes> {
    let node = map.nodes.get(&number)?;
    let mut partitions = map.partitions.values();
    // A group that changes may have a replica there that the map does not name any more.
    let has_any =
        partitions.any(|partition| partition.member_on(number).is_some() || !partition.wanted.is_empty());
    if has_any || !matches!(node.role, NodeRole::Leaves { .. }) {
        return None;
    }
    let mut changes = Changes::of(map);
    changes.removed.push(number);
    Some(changes)
}
