//! How the map changes: functions of the map and a request, and of nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::ids::ReplicaId;
use crate::map::moves::Nodes;
use crate::map::records::{
    ClusterRecord, LEVEL_OF_MOVES, MapError, MapMember, NodeRecord, NodeRole, PartitionRecord,
};
use crate::map::whole::{Changes, Map};
use crate::replica_store::SLOTS;
use crate::transport::wire::{ClusterId, NodeId, Site};

/// What a cluster is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founding {
    /// Its id.
    pub id: ClusterId,
    /// The feature level.
    pub level: u32,
    /// Replicas of each partition, from 1 on.
    pub replicas: u8,
    /// Partitions, from 1 to [`SLOTS`].
    pub partitions: u16,
    /// Voters of group 0, at most. Odd.
    pub voters: u8,
    /// The first node: number 1, with replica 1.
    pub first: JoinRequest,
}

/// A process asks to become a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The same at each attempt.
    pub token: [u8; 16],
    /// Where other nodes will reach it.
    pub peer: SocketAddr,
    /// Where clients will reach it.
    pub client: SocketAddr,
    /// The identities of its disks.
    pub disks: Vec<[u8; 16]>,
}

/// The map of a new cluster with one node.
#[must_use]
pub fn found(founding: &Founding) -> Changes {
    let cluster = ClusterRecord {
        id: founding.id,
        epoch: 1,
        level: founding.level,
        replicas: founding.replicas,
        partitions: founding.partitions,
        voters: founding.voters,
        next_node: 2,
        next_replica: 2,
        next_group: 1,
    };
    Changes {
        cluster,
        nodes: vec![node_of(&founding.first, 1, 1)],
        removed: Vec::new(),
        partitions: Vec::new(),
        duplications: None,
    }
}

fn node_of(request: &JoinRequest, number: NodeId, replica: ReplicaId) -> NodeRecord {
    NodeRecord {
        number,
        token: request.token,
        peer: request.peer,
        client: request.client,
        disks: request.disks.clone(),
        replica,
        role: NodeRole::Serves,
        zone: String::new(),
        host: String::new(),
        drained: BTreeSet::new(),
    }
}

/// Takes a node into the map. A token that the map has is that of a node whose answer was lost:
/// nothing changes.
///
/// # Errors
/// Why it is refused, and what to do.
pub fn join(map: &Map, request: &JoinRequest) -> Result<(NodeRecord, Option<Changes>), String> {
    if let Some(node) = map.node_of_token(&request.token) {
        let same = NodeRecord {
            role: node.role,
            zone: node.zone.clone(),
            host: node.host.clone(),
            drained: node.drained.clone(),
            ..node_of(request, node.number, node.replica)
        } == *node;
        return match same {
            true => Ok((node.clone(), None)),
            false => Err(format!(
                "the token is that of node {}, which joined as {} with {} disks and client address {}: start it with \
                 these, or, if the directory was copied from another node, give this node an empty one",
                node.number,
                node.peer,
                node.disks.len(),
                node.client
            )),
        };
    }
    if request.disks.is_empty() {
        return Err("the node names no disk: give it one".to_owned());
    }
    check_free(map, None, (request.peer, request.client))?;
    for node in map.nodes.values() {
        if let Some(disk) = node.disks.iter().position(|disk| request.disks.contains(disk)) {
            return Err(format!(
                "a disk of the node is disk {disk} of node {}: give this node an empty directory",
                node.number
            ));
        }
    }
    let mut changes = Changes::of(map);
    let cluster = &mut changes.cluster;
    let node = node_of(request, cluster.next_node, cluster.next_replica);
    cluster.next_node += 1;
    cluster.next_replica += 1;
    changes.nodes.push(node.clone());
    Ok((node, Some(changes)))
}

/// No node but `own` has these addresses.
fn check_free(
    map: &Map,
    own: Option<NodeId>,
    (peer, client): (SocketAddr, SocketAddr),
) -> Result<(), String> {
    for node in map.nodes.values().filter(|node| Some(node.number) != own) {
        let taken = [node.peer, node.client];
        if let Some(address) = [peer, client].into_iter().find(|at| taken.contains(at)) {
            let number = node.number;
            return Err(format!(
                "{address} is an address of node {number}: give this node another one; or, if it is to take the place of \
                 node {number}, start it on the directory of that node, or remove that node first"
            ));
        }
    }
    Ok(())
}

/// Says where a node is.
///
/// # Errors
/// Why it is refused, and what to do.
pub fn describe(map: &Map, number: NodeId, site: &Site) -> Result<Option<Changes>, String> {
    let Some(node) = map.nodes.get(&number) else {
        return Err(format!("node {number} was removed from the cluster"));
    };
    if map.cluster.level < LEVEL_OF_MOVES {
        return Err(format!(
            "addresses and zones change from feature level {LEVEL_OF_MOVES} on, and the cluster has level {}",
            map.cluster.level
        ));
    }
    check_free(map, Some(number), (site.peer, site.client))?;
    let Site {
        peer,
        client,
        host,
        zone,
    } = site.clone();
    let described = NodeRecord {
        peer,
        client,
        host,
        zone,
        ..node.clone()
    };
    if described == *node {
        return Ok(None);
    }
    let mut changes = Changes::of(map);
    changes.nodes.push(described);
    Ok(Some(changes))
}

/// The cluster has a newer feature level, which these nodes have noted.
///
/// # Errors
/// The map has other nodes by now.
pub fn raise(map: &Map, level: u32, noted: &BTreeSet<NodeId>) -> Result<Option<Changes>, String> {
    if map.cluster.level >= level {
        return Ok(None);
    }
    if !map.nodes.keys().eq(noted) {
        return Err("nodes have joined or left meanwhile: ask again".to_owned());
    }
    let mut changes = Changes::of(map);
    changes.cluster.level = level;
    Ok(Some(changes))
}

/// Places the partitions, once as many nodes are ready as each is to have replicas. They are placed
/// once: where the map has any, nothing changes.
///
/// # Errors
/// [`MapError::Exhausted`].
pub fn place(map: &Map, nodes: &Nodes) -> Result<Option<Changes>, MapError> {
    let nodes = map
        .nodes
        .values()
        .filter(|node| nodes.ready.contains(&node.number) && node.role == NodeRole::Serves);
    let nodes = by_turns(nodes);
    let replicas = usize::from(map.cluster.replicas.max(1));
    if !map.partitions.is_empty() || nodes.len() < replicas {
        return Ok(None);
    }
    let count = map.cluster.partitions.clamp(1, SLOTS);
    let mut changes = Changes::of(map);
    let cluster = &changes.cluster;
    let all = u64::from(count) * replicas as u64;
    if cluster.next_replica.checked_add(all).is_none() || cluster.next_group.checked_add(all).is_none() {
        let (what, limit) = ("ids of replicas", u64::MAX);
        return Err(MapError::Exhausted { what, limit });
    }
    let mut on_node: BTreeMap<NodeId, usize> = BTreeMap::new();
    // Of the nodes in a circle each partition takes so many in a row, the next one beginning one
    // further: its lowest id, which leads first, is on each node in turn.
    for index in 0..count {
        let row = nodes.iter().cycle().skip(usize::from(index) % nodes.len());
        let cluster = &mut changes.cluster;
        let members: Vec<_> = row
            .take(replicas)
            .map(|node| {
                let placed = on_node.entry(node.number).or_default();
                let member = MapMember {
                    replica: cluster.next_replica,
                    node: node.number,
                    disk: nth_open_disk(node, *placed),
                };
                *placed += 1;
                cluster.next_replica += 1;
                member
            })
            .collect();
        let bound = |index: u16| (u32::from(index) * u32::from(SLOTS) / u32::from(count)) as u16;
        let group = cluster.next_group;
        cluster.next_group += 1;
        changes.set_partition(PartitionRecord {
            group,
            first: bound(index),
            last: bound(index + 1) - 1,
            begins: members.first().map_or(0, |member| member.replica),
            members,
            wanted: Vec::new(),
            changed: 0,
            split: None,
            from: 0,
        });
    }
    Ok(Some(changes))
}

/// The disks of a node that may be given replicas, by turns.
fn nth_open_disk(node: &NodeRecord, turn: usize) -> u32 {
    node.open_disks().cycle().nth(turn).unwrap_or(0)
}

/// Nodes of different zones by turns.
fn by_turns<'a>(nodes: impl Iterator<Item = &'a NodeRecord>) -> Vec<&'a NodeRecord> {
    let mut before = BTreeMap::<&str, usize>::new();
    let place = |node: &'a NodeRecord| {
        let zone = before.entry(&node.zone).or_default();
        // A node without a zone has one of its own.
        let turn = if node.zone.is_empty() { 0 } else { *zone };
        *zone += 1;
        (turn, node.number, node)
    };
    let mut order: Vec<_> = nodes.map(place).collect();
    order.sort_unstable_by_key(|(turn, number, _)| (*turn, *number));
    order.into_iter().map(|(_, _, node)| node).collect()
}

/// The replicas of group 0 that are to vote, if others do now: as many as are wanted, an odd number, and no fewer
/// than now. Voters stay voters, but for those of nodes that leave, and those of nodes that are gone, where others
/// can take their place.
#[must_use]
pub fn voters(map: &Map, now: &BTreeSet<ReplicaId>, nodes: &Nodes) -> Option<BTreeSet<ReplicaId>> {
    let stays = |replica: &ReplicaId| {
        let node = map.node_of_replica(*replica);
        node.filter(|node| !matches!(node.role, NodeRole::Leaves { .. }))
    };
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for node in now.iter().filter_map(stays) {
        match nodes.gone.contains(&node.number) {
            true => last.push(node.replica),
            false => first.push(node.replica),
        }
    }
    let least = first.len() + last.len();
    let known = map.nodes.values().map(|node| node.replica);
    let is_ready = |replica: &ReplicaId| {
        !now.contains(replica) && stays(replica).is_some_and(|node| nodes.ready.contains(&node.number))
    };
    let candidates: Vec<_> = first
        .into_iter()
        .chain(known.filter(is_ready))
        .chain(last)
        .collect();
    let most = candidates.len().min(usize::from(map.cluster.voters.max(1)));
    // With two voters the loss of either would stop the group, as with one, and be twice as likely.
    let most = most.saturating_sub(usize::from(most % 2 == 0));
    let then: BTreeSet<_> = candidates.into_iter().take(most.max(least)).collect();
    // Without a majority that is ready, the group could not even take this back.
    let is_ready = |id: &&ReplicaId| {
        let node = map.node_of_replica(**id);
        node.is_some_and(|node| nodes.ready.contains(&node.number))
    };
    let is_safe = 2 * then.iter().filter(is_ready).count() > then.len();
    (then != *now && is_safe).then_some(then)
}
