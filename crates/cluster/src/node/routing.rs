//! Where slots are led: what the server asks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_server::cluster::{Cluster, Figure, NodeInfo, Partition, PartitionInfo, Route, Topology};
use tokio::sync::watch;

use crate::ids::{GroupId, ReplicaId};
use crate::map::{Map, NOWHERE, PartitionRecord};
use crate::node::handing_over::retire;
use crate::node::shared::Inner;
use crate::raft::Replica;
use crate::transport::wire::{ClusterId, NodeId};
use crate::transport::{LedByNode, NodeStates};

/// The map, as slots are looked up in it.
#[derive(Default)]
pub(super) struct Routing {
    map: Option<Arc<Map>>,
    /// For each slot, the place of its partition.
    by_slot: Vec<u16>,
    /// The groups, in the order of their places.
    groups: Vec<GroupId>,
    here: BTreeMap<GroupId, Here>,
}

/// A partition that has a replica on this node.
#[derive(Clone)]
struct Here {
    replica: Arc<Replica>,
    partition: Arc<dyn Partition>,
}

impl Here {
    fn leads(&self) -> bool {
        self.replica.leader() == Some(self.replica.id())
    }
}

impl Routing {
    /// The routes by a map; what of `before` still holds is kept.
    pub(super) fn of(map: &Arc<Map>, inner: &Inner, before: &Self) -> Self {
        let mut here = BTreeMap::new();
        for partition in map.partitions.values() {
            let member = partition.member_on(inner.number());
            let Some(replica) = member.and_then(|member| inner.node.replica(member.replica)) else {
                continue;
            };
            let known = before.here.get(&partition.group);
            let known = known.filter(|known| Arc::ptr_eq(&known.replica, &replica));
            let kept = known.filter(|known| known.partition.slots() == partition.slots());
            let made = || Here {
                partition: replica.partition(partition.slots()),
                replica: Arc::clone(&replica),
            };
            here.insert(partition.group, kept.cloned().unwrap_or_else(made));
        }
        Self {
            by_slot: map.by_slot(),
            groups: map.partitions.keys().copied().collect(),
            map: Some(Arc::clone(map)),
            here,
        }
    }

    fn partition(&self, slot: u16) -> Option<(&Map, &PartitionRecord)> {
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
    fn leader(&self, partition: &PartitionRecord, known: &Known<'_>) -> Option<NodeId> {
        let nodes = partition.members.iter().map(|member| member.node);
        let alive = nodes.clone().filter(|node| known.is_alive(*node)).count();
        let hears_majority = 2 * alive > partition.members.len();
        let here = self.here.get(&partition.group);
        let followed = here.and_then(|here| node_of(partition, here.replica.leader()?));
        let says_so = || {
            let terms = nodes.filter_map(|node| Some((known.term(node, partition.group)?, node)));
            terms.max().map(|(_, node)| node)
        };
        followed
            .filter(|node| known.is_alive(*node))
            .or_else(says_so)
            .or(followed.filter(|_| hears_majority))
    }

    /// Whether the leader answers, and a majority of the group has answered it lately, by its word.
    fn is_served(&self, partition: &PartitionRecord, leader: Option<NodeId>, known: &Known<'_>) -> bool {
        match leader {
            Some(node) if node == known.inner.number() => {
                let here = self.here.get(&partition.group);
                here.is_some_and(Here::leads)
            }
            Some(node) => known.term(node, partition.group).is_some(),
            None => false,
        }
    }
}

/// What a node knows of the others at one moment.
struct Known<'a> {
    inner: &'a Inner,
    states: &'a NodeStates,
    led: &'a LedByNode,
}

impl Known<'_> {
    fn is_alive(&self, node: NodeId) -> bool {
        self.inner.is_alive(self.states, node)
    }

    /// The term in which another node that answers leads a group, by its own word.
    fn term(&self, node: NodeId, group: GroupId) -> Option<u64> {
        let state = self.states.get(&node).filter(|state| state.is_alive())?;
        let led = self.led.get(&node)?;
        // What a process before has said is over.
        (state.boot == Some(led.boot())).then(|| led.term_of(group))?
    }
}

pub(super) fn node_of(partition: &PartitionRecord, replica: ReplicaId) -> Option<NodeId> {
    let member = partition
        .members
        .iter()
        .find(|member| member.replica == replica)?;
    Some(member.node)
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

/// A node, as its server sees the cluster.
pub(super) struct Routes(pub(super) Arc<Inner>);

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes")
            .field("node", &self.0.number())
            .finish_non_exhaustive()
    }
}

impl Cluster for Routes {
    fn topology(&self) -> Arc<Topology> {
        let inner = &self.0;
        let routing = inner.routing.load();
        let (states, led) = (inner.peers().states(), inner.peers().leaders());
        let known = Known {
            inner,
            states: &states.borrow(),
            led: &led.borrow(),
        };
        let own = inner.number();
        let Some(map) = &routing.map else {
            return Arc::new(Topology {
                epoch: 0,
                own,
                nodes: Vec::new(),
                partitions: Vec::new(),
            });
        };
        let nodes = map.nodes.values().map(|node| NodeInfo {
            number: node.number,
            name: name(&map.cluster.id, node.number),
            address: node.client,
            peer: node.peer,
            is_alive: known.is_alive(node.number),
        });
        let mut partitions: Vec<_> = map
            .partitions
            .values()
            .map(|partition| {
                let leader = routing.leader(partition, &known);
                PartitionInfo {
                    group: partition.group,
                    slots: partition.slots(),
                    leader,
                    is_served: routing.is_served(partition, leader, &known),
                    replicas: partition.members.iter().map(|member| member.node).collect(),
                }
            })
            .collect();
        partitions.sort_by_key(|partition| *partition.slots.start());
        Arc::new(Topology {
            epoch: map.cluster.epoch,
            own,
            nodes: nodes.collect(),
            partitions,
        })
    }

    fn route(&self, slot: u16) -> Route {
        let routing = self.0.routing.load();
        let Some((map, partition)) = routing.partition(slot) else {
            return Route::Nowhere;
        };
        let here = routing.here.get(&partition.group);
        if let Some(here) = here.filter(|here| here.leads()) {
            return Route::Here(Arc::clone(&here.partition));
        }
        let (states, led) = (self.0.peers().states(), self.0.peers().leaders());
        let known = Known {
            inner: &self.0,
            states: &states.borrow(),
            led: &led.borrow(),
        };
        // One that has a replica knows the way.
        let knows = || {
            let mut nodes = partition.members.iter().map(|member| member.node);
            nodes.find(|node| here.is_none() && known.is_alive(*node))
        };
        let leader = routing.leader(partition, &known).or_else(knows);
        match leader.and_then(|node| map.nodes.get(&node)) {
            Some(node) => Route::At(node.client),
            None => Route::Nowhere,
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.node.changes()
    }

    fn led(&self) -> Vec<Arc<dyn Partition>> {
        let routing = self.0.routing.load();
        let led = routing.here.values().filter(|here| here.leads());
        led.map(|here| Arc::clone(&here.partition)).collect()
    }

    fn take_over(&self) -> Result<(), String> {
        let inner = &self.0;
        if let Some(problem) = inner.off_problem() {
            return Err(problem);
        }
        // Relaxed: what it takes over after all it hands over again.
        if inner.retires.load(Ordering::Relaxed) {
            return Err("this node is about to end".to_owned());
        }
        let routing = inner.routing.load();
        if routing.here.values().all(Here::leads) {
            return Err("this node leads all that it has replicas of".to_owned());
        }
        inner.taking_over.notify_one();
        Ok(())
    }

    fn retire(&self) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { retire(&inner).await })
    }

    fn problems(&self) -> Vec<String> {
        self.0.problem_lines()
    }

    fn replica(&self, slot: u16) -> Option<Arc<dyn Partition>> {
        let routing = self.0.routing.load();
        let (_, partition) = routing.partition(slot)?;
        let here = routing.here.get(&partition.group)?;
        Some(Arc::clone(&here.partition))
    }

    fn figures(&self) -> Vec<Figure> {
        self.0.figures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

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
