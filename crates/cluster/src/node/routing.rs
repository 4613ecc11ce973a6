//! Where slots are led, by the map and by what nodes say of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collie_server::cluster::Partition;

use crate::ids::GroupId;
use crate::map::{Map, NOWHERE, PartitionRecord};
use crate::node::process::Node;
use crate::raft::Replica;
use crate::transport::wire::{ClusterId, NodeId};
use crate::transport::{LedByNode, NodeStates};

/// The map, as slots are looked up in it.
#[derive(Default)]
pub(super) struct Routing {
    pub(super) map: Option<Arc<Map>>,
    /// For each slot, the place of its partition.
    by_slot: Vec<u16>,
    /// The groups, in the order of their places.
    groups: Vec<GroupId>,
    here: BTreeMap<GroupId, Vec<Here>>,
}

/// A partition that has a replica on this node. While that moves to another disk, there are two.
#[derive(Clone)]
pub(super) struct Here {
    replica: Arc<Replica>,
    pub(super) partition: Arc<dyn Partition>,
}

impl Here {
    /// Whether its replica can be read of a slot, as a follower or not.
    pub(super) fn has_slot(&self, slot: u16) -> bool {
        self.replica.has_slot(slot)
    }

    pub(super) fn leads(&self) -> bool {
        self.replica.leader() == Some(self.replica.id())
    }
}

impl Routing {
    /// The routes by a map; what of `before` still holds is kept.
    pub(super) fn of(map: &Arc<Map>, (number, node): (NodeId, &Node), before: &Self) -> Self {
        let mut here = BTreeMap::new();
        for partition in map.partitions.values() {
            let members = partition.members_on(number);
            let replicas = members.filter_map(|member| node.replica(member.replica));
            let all: Vec<_> = replicas
                .map(|replica| {
                    let mut known = before.all_here(partition.group);
                    let known = known.find(|known| Arc::ptr_eq(&known.replica, &replica));
                    let kept = known.filter(|known| known.partition.slots() == partition.slots());
                    let made = || Here {
                        partition: replica.partition(partition.slots()),
                        replica: Arc::clone(&replica),
                    };
                    kept.cloned().unwrap_or_else(made)
                })
                .collect();
            if !all.is_empty() {
                here.insert(partition.group, all);
            }
        }
        Self {
            by_slot: map.by_slot(),
            groups: map.partitions.keys().copied().collect(),
            map: Some(Arc::clone(map)),
            here,
        }
    }

    fn all_here(&self, group: GroupId) -> impl Iterator<Item = &Here> {
        self.here.get(&group).into_iter().flatten()
    }

    /// The replica of a group on this node: of two the one that leads, or else the one that goes, which has the rows.
    pub(super) fn here(&self, group: GroupId) -> Option<&Here> {
        let leads = self.all_here(group).find(|here| here.leads());
        leads.or_else(|| self.all_here(group).next())
    }

    /// The replicas on this node, one of each group.
    pub(super) fn each_here(&self) -> impl Iterator<Item = &Here> {
        self.here.keys().filter_map(|group| self.here(*group))
    }

    pub(super) fn partition(&self, slot: u16) -> Option<(&Map, &PartitionRecord)> {
        let place = self.by_slot.get(usize::from(slot))?;
        let group = (*place != NOWHERE).then(|| self.groups.get(usize::from(*place)))??;
        let map = self.map.as_deref()?;
        Some((map, map.partitions.get(group)?))
    }

    /// Who leads a partition, as far as this node knows: by the word of its replica, or else of the
    /// nodes that lead, of which the one with the latest term counts.
    ///
    /// A node that does not hear a majority of the replicas does not know of a leader that is silent:
    /// clients are not sent after it for ever.
    pub(super) fn leader(&self, partition: &PartitionRecord, known: &KnownNodes<'_>) -> Option<NodeId> {
        let nodes: BTreeSet<_> = partition.all().map(|member| member.node).collect();
        let alive = nodes.iter().filter(|node| known.is_alive(**node)).count();
        let hears_majority = 2 * alive > nodes.len();
        let here = self.here(partition.group);
        let followed = here.and_then(|here| partition.node_of(here.replica.leader()?));
        // A word of a term before that of the last vote here is over: the next leader would send clients back to the one
        // that handed over.
        let voted = || here.map_or(0, |here| here.replica.voted_term());
        let says_so = || {
            let terms = nodes
                .iter()
                .filter_map(|node| Some((known.term(*node, partition.group)?, *node)));
            terms
                .max()
                .filter(|(term, _)| *term >= voted())
                .map(|(_, node)| node)
        };
        followed
            .filter(|node| known.is_alive(*node))
            .or_else(says_so)
            .or(followed.filter(|_| hears_majority))
    }

    /// Whether the leader answers, and a majority of the group has answered it lately, by its word.
    pub(super) fn is_served(
        &self,
        partition: &PartitionRecord,
        leader: Option<NodeId>,
        known: &KnownNodes<'_>,
    ) -> bool {
        match leader {
            Some(node) if node == known.number => self.here(partition.group).is_some_and(Here::leads),
            Some(node) => known.term(node, partition.group).is_some(),
            None => false,
        }
    }
}

/// What a node knows of the others at one moment.
pub(super) struct KnownNodes<'a> {
    /// The number of this node.
    pub(super) number: NodeId,
    pub(super) states: &'a NodeStates,
    pub(super) led: &'a LedByNode,
}

impl KnownNodes<'_> {
    pub(super) fn is_alive(&self, node: NodeId) -> bool {
        is_alive(self.number, self.states, node)
    }

    /// The term in which another node that answers leads a group, by its own word.
    fn term(&self, node: NodeId, group: GroupId) -> Option<u64> {
        let state = self.states.get(&node).filter(|state| state.is_alive())?;
        let led = self.led.get(&node)?;
        // What a process before has said is over.
        (state.boot == Some(led.boot())).then(|| led.term_of(group))?
    }
}

/// Whether a node answers this one, which does itself.
pub(super) fn is_alive(number: NodeId, states: &NodeStates, node: NodeId) -> bool {
    node == number || states.get(&node).is_some_and(|state| state.is_alive())
}

/// A node's name for clients: forty hexadecimal digits, the cluster's id and the node's number mixed
/// so that all of them differ from node to node. It is the same for ever.
pub(super) fn name(cluster: &ClusterId, number: NodeId) -> String {
    let mut seed = u64::from(crc32c::crc32c(cluster)) ^ number;
    for half in cluster.chunks(8) {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(half).for_each(|(to, from)| *to = *from);
        seed = mixed(seed ^ u64::from_le_bytes(bytes)).wrapping_add(number);
    }
    let words = (1..=3_u64).map(|n| format!("{:016x}", mixed(seed.wrapping_add(n.wrapping_mul(GOLDEN)))));
    words.collect::<String>().chars().take(40).collect()
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64: one to one, so different seeds give different words.
fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_forty_digits_and_differ() {
        let names: BTreeSet<_> = (0..4u8)
            .flat_map(|cluster| (1..200).map(move |number| name(&[cluster; 16], number)))
            .collect();
        assert_eq!(names.len(), 4 * 199);
        assert!(names.iter().all(|name| name.len() == 40));
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|byte| byte.is_ascii_hexdigit()))
        );
    }
}
