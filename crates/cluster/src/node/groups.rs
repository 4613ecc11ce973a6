//! The groups that have replicas on a node, and their members.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::ReplicaId;
use crate::map::Map;
use crate::node::shared::Inner;
use crate::raft::Replica;
use crate::transport::wire::NodeId;

/// A group with a replica on this node.
pub(super) struct Group {
    /// This node's replica, which votes.
    pub(super) replica: Arc<Replica>,
    /// The replicas that vote, each with its node.
    pub(super) members: BTreeMap<ReplicaId, NodeId>,
}

impl Group {
    /// The other members, each with its node: first the next one in the order of the ids, which goes
    /// round.
    pub(super) fn others(&self) -> impl Iterator<Item = (ReplicaId, NodeId)> + Clone {
        let own = self.replica.id();
        let behind = self.members.range(own..).skip(1);
        let before = self.members.range(..own);
        behind.chain(before).map(|(replica, node)| (*replica, *node))
    }
}

/// The groups with replicas on this node that vote there: the partitions', and the map's.
pub(super) fn groups(inner: &Inner, map: &Map) -> Vec<Group> {
    let members = map.partitions.values().map(|partition| {
        let members = partition.members.iter();
        members.map(|member| (member.replica, member.node)).collect()
    });
    let all = members.chain([map_voters(inner, map)]);
    all.filter_map(|members: BTreeMap<ReplicaId, NodeId>| {
        let (own, _) = members.iter().find(|(_, node)| **node == inner.number())?;
        let replica = inner.node.replica(*own)?;
        Some(Group { replica, members })
    })
    .collect()
}

/// The replicas of the map's group that vote.
fn map_voters(inner: &Inner, map: &Map) -> BTreeMap<ReplicaId, NodeId> {
    let members = inner.map_replica().and_then(|replica| replica.members().ok());
    let voters = members.map(|members| members.voters).unwrap_or_default();
    let node = |replica| Some((replica, map.node_of_replica(replica)?.number));
    voters.into_iter().filter_map(node).collect()
}
