//! What tests ask a node of a cluster, and nobody else.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tokio::sync::watch;

use crate::ids::{GroupId, ReplicaId};
use crate::map::Map;
use crate::node::cluster::ClusterNode;
use crate::node::process::Node;
use crate::node::routing::name;
use crate::node::shared::ClusterInner;
use crate::transport::Skew;
use crate::transport::wire::{ClusterId, NodeId};

impl ClusterNode {
    /// Its logs, connections and replicas.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.inner.node
    }

    /// The map as this node has applied it; none before it has anything of it.
    #[must_use]
    pub fn map(&self) -> watch::Receiver<Option<Arc<Map>>> {
        self.inner.map.subscribe()
    }

    /// Waits until this node has a map that it is in.
    pub async fn ready(&self) -> Arc<Map> {
        let own = self.inner.number();
        let mut maps = self.map();
        loop {
            if let Some(map) = maps.borrow_and_update().clone()
                && map.nodes.contains_key(&own)
            {
                return map;
            }
            // An error: the sender is in `self`.
            let _never = maps.changed().await;
        }
    }

    /// What this node knows of the cluster.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        self.inner.status()
    }
}

/// What a node knows of its cluster.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node's number.
    pub own: NodeId,
    /// The epoch of the map that this node has; 0 before it has one.
    pub epoch: u64,
    /// The cluster's feature level.
    pub level: u32,
    /// This node's replica of the map's group.
    pub map: Option<ReplicaStatus>,
    /// The node that leads the map's group, as far as this node knows.
    pub map_leader: Option<NodeId>,
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<NodeStatus>,
    /// The partitions, in the order of their groups.
    pub partitions: Vec<PartitionStatus>,
    /// What keeps this node from leading or from following the map, each with what it is about.
    pub problems: Vec<(String, String)>,
}

/// A node.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// Its number.
    pub number: NodeId,
    /// Its name for clients.
    pub name: String,
    /// Where other nodes reach it.
    pub peer: SocketAddr,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// Whether it answers this node.
    pub is_alive: bool,
    /// How far its time is from this node's, as of the last ping.
    pub skew: Option<Skew>,
    /// Why there is no connection to it, if there is none.
    pub problem: Option<String>,
    /// Its replica of the map's group.
    pub replica: ReplicaId,
    /// Whether that one votes.
    pub votes: bool,
}

/// A partition.
#[derive(Debug, Clone)]
pub struct PartitionStatus {
    /// Its group.
    pub group: GroupId,
    /// Its slots.
    pub slots: RangeInclusive<u16>,
    /// The node that leads it, by the word of this node's replica.
    pub leader: Option<NodeId>,
    /// The nodes that have replicas of it.
    pub nodes: Vec<NodeId>,
    /// This node's replica.
    pub here: Option<ReplicaStatus>,
}

/// A replica on this node.
#[derive(Debug, Clone)]
pub struct ReplicaStatus {
    /// Its id.
    pub replica: ReplicaId,
    /// Whether it leads.
    pub leads: bool,
    /// The index of the last entry that it has applied.
    pub applied: u64,
    /// By how many entries that is behind its log.
    pub lag: u64,
    /// Why it does not run, if it does not.
    pub problem: Option<String>,
}

impl ClusterInner {
    /// What this node knows.
    pub(super) fn status(&self) -> ClusterStatus {
        let map = self.map();
        // Nothing is held of what the problems are asked of, too: with a writer between them both would wait for ever.
        let states = self.peers().states().borrow().clone();
        let members = self.map_replica().and_then(|replica| replica.members().ok());
        let voters = members.map(|members| members.voters).unwrap_or_default();
        let (own_map, map_leader) = self.replica_status(self.identity.replica);
        let mut status = ClusterStatus {
            cluster: self.identity.cluster,
            own: self.number(),
            epoch: 0,
            level: self.identity.level,
            map: own_map,
            map_leader: None,
            nodes: Vec::new(),
            partitions: Vec::new(),
            problems: self.all_problems(),
        };
        let Some(map) = map else { return status };
        status.epoch = map.cluster.epoch;
        status.level = map.cluster.level;
        status.map_leader = map_leader
            .and_then(|leader| map.node_of_replica(leader))
            .map(|node| node.number);
        let nodes = map.nodes.values().map(|node| {
            let state = states.get(&node.number);
            NodeStatus {
                number: node.number,
                name: name(&map.cluster.id, node.number),
                peer: node.peer,
                client: node.client,
                is_alive: self.is_alive(&states, node.number),
                skew: state.and_then(|state| state.skew),
                problem: state.and_then(|state| state.problem.clone()),
                replica: node.replica,
                votes: voters.contains(&node.replica),
            }
        });
        status.nodes = nodes.collect();
        let partitions = map.partitions.values().map(|partition| {
            let here = partition.members_on(self.number());
            let all: Vec<_> = here.map(|member| self.replica_status(member.replica)).collect();
            let leads =
                |(here, _): &&(Option<ReplicaStatus>, _)| here.as_ref().is_some_and(|here| here.leads);
            let one = all.iter().find(leads).or(all.first()).cloned();
            let (here, leader) = one.unwrap_or_default();
            PartitionStatus {
                group: partition.group,
                slots: partition.slots(),
                leader: leader.and_then(|leader| partition.node_of(leader)),
                nodes: partition.members.iter().map(|member| member.node).collect(),
                here,
            }
        });
        status.partitions = partitions.collect();
        status
    }

    /// A replica on this node, and who leads by its word.
    fn replica_status(&self, id: ReplicaId) -> (Option<ReplicaStatus>, Option<ReplicaId>) {
        let Some(replica) = self.node.replica(id) else {
            return (None, None);
        };
        let mut status = ReplicaStatus {
            replica: id,
            leads: false,
            applied: 0,
            lag: 0,
            problem: None,
        };
        let leader = match replica.state() {
            Ok(state) => {
                status.leads = state.leads;
                status.applied = state.applied.map_or(0, |applied| applied.index);
                status.lag = state.last.unwrap_or(0).saturating_sub(status.applied);
                state.leader
            }
            Err(error) => {
                status.problem = Some(error.to_string());
                None
            }
        };
        (Some(status), leader)
    }
}

impl Node {
    /// Accepts what its replicas have lost.
    pub fn accept_losses(&self) {
        self.losses().accept(&self.losses().open());
    }
}
