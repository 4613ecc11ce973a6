//! Making the replicas that the map gives a node, each once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::blocking::blocking;
use crate::ids::{GroupId, ReplicaId};
use crate::map::{MAP_GROUP, Map, NodeRecord, PartitionRecord};
use crate::node::NodeError;
use crate::node::shared::Inner;
use crate::raft::{Member, Replica};
use crate::raftlog::StoreError;

/// A node's replica of group 0, as a member.
pub(super) fn map_member(node: &NodeRecord) -> Member {
    Member {
        node: node.number,
        disk: 0,
        address: node.peer.to_string(),
    }
}

/// The members of a partition.
pub(super) fn members(map: &Map, partition: &PartitionRecord) -> BTreeMap<ReplicaId, Member> {
    let member = |member: &crate::map::MapMember| {
        let address = map.nodes.get(&member.node).map(|node| node.peer.to_string());
        let (node, disk) = (member.node, member.disk);
        let address = address.unwrap_or_default();
        (member.replica, Member { node, disk, address })
    };
    partition.members.iter().map(member).collect()
}

/// This node's replica of a group: the one that is there, or a new one. The replica with the lowest
/// id of `begin` begins the group with these members, if it has not begun. May be called again after
/// any stop.
pub(super) async fn ensure(
    inner: &Inner,
    group: GroupId,
    (id, disk): (ReplicaId, u32),
    begin: BTreeMap<ReplicaId, Member>,
) -> Result<Arc<Replica>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let replica = match inner.node.replica(id) {
        Some(replica) => replica,
        None => make(inner, group, id, disk).await?,
    };
    let store = inner.store.clone();
    let noted = blocking(move || match store.was_made(id)? {
        true => Ok(()),
        false => store.set_made(id),
    });
    noted.await.map_err(|error| text(&error))?;
    if begin.keys().next() == Some(&id) {
        replica.opened().await.map_err(|error| text(&error))?;
        replica.begin(begin).await.map_err(|error| text(&error))?;
    }
    Ok(replica)
}

async fn make(inner: &Inner, group: GroupId, id: ReplicaId, disk: u32) -> Result<Arc<Replica>, String> {
    let store = inner.store.clone();
    let was_made = blocking(move || store.was_made(id)).await;
    if was_made.map_err(|error| error.to_string())? {
        let removed = inner.node.remembers_removal_of(id);
        return Err(match removed {
            true => StoreError::Removed { replica: id }.to_string(),
            false => format!(
                "replica {id} of group {group} was made on this node, and disk {disk} does not have it any more. It may \
                 have voted, so it is not made again: replace it by one with a new id"
            ),
        });
    }
    match inner.node.create(group, id, disk as usize).await {
        Ok(replica) => Ok(replica),
        Err(error @ NodeError::Store(StoreError::Exists { .. })) => {
            inner.node.replica(id).ok_or_else(|| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// This node's replica of group 0. The node that made the cluster begins the group, alone.
pub(super) async fn ensure_map_replica(inner: &Inner) -> Result<Arc<Replica>, String> {
    let id = inner.identity.replica;
    let alone = inner.founding().map(|founding| {
        let member = Member {
            node: inner.number(),
            disk: 0,
            address: founding.first.peer.to_string(),
        };
        BTreeMap::from([(id, member)])
    });
    ensure(inner, MAP_GROUP, (id, 0), alone.unwrap_or_default()).await
}
