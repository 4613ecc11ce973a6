//! Taking over what other nodes lead, on request (`CLUSTER FAILOVER`).

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;

use crate::cluster_node::groups::{Group, groups};
use crate::cluster_node::shared::Inner;
use crate::map::{MAP_GROUP, Map};

/// So many leaders are asked at a time.
const ASKED_AT_A_TIME: usize = 8;

/// Asks the leaders of all partitions to hand over to this node, whenever that is wanted.
pub(super) async fn take_over(inner: Arc<Inner>) {
    loop {
        inner.taking_over.notified().await;
        if let Some(map) = inner.map() {
            take_over_all(&inner, &map).await;
        }
    }
}

async fn take_over_all(inner: &Inner, map: &Map) {
    let all = groups(inner, map).into_iter();
    let partitions = all.filter(|group| group.replica.group() != MAP_GROUP);
    let asked = stream::iter(partitions).for_each_concurrent(ASKED_AT_A_TIME, async |group| {
        if let Err(error) = take_over_one(inner, &group).await {
            let (group, node) = (group.replica.group(), inner.number());
            tracing::warn!(group, node, %error, "leadership of a group is not taken over");
        }
    });
    asked.await;
}

/// Asks the leader of a group to hand over; where it is silent, or there is none, stands for election.
async fn take_over_one(inner: &Inner, group: &Group) -> Result<(), crate::raft::ReplicaError> {
    let own = group.replica.id();
    let leader = group.replica.leader();
    if leader == Some(own) {
        return Ok(());
    }
    let node = leader.and_then(|leader| Some((*group.members.get(&leader)?, leader)));
    match node.filter(|(node, _)| inner.hears(*node)) {
        Some(at) => group.replica.ask_to_hand_over(at, own).await,
        None => group.replica.elect().await,
    }
}
