//! The members of the partitions' groups, which their leaders bring to what the map says.
//!
//! What is to be done is found in the map and in raft alone, so each leader goes on where the one before has stopped:
//! a replica that is to join is first a member without a vote; once those that are to stay have nearly all entries,
//! they get the votes, and the others are no members any more; once that is committed, the map says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::timeout;

use crate::ids::ReplicaId;
use crate::map::{Map, PartitionRecord};
use crate::node::changing::member;
use crate::node::leaders::hand_over_to_one;
use crate::node::map_requests::ask;
use crate::node::shared::ClusterInner;
use crate::raft::Replica;
use crate::transport::wire::MapRequest;

/// So many groups are changed at a time.
const AT_A_TIME: usize = 8;
/// A step that takes longer is given up, and taken again.
const STEP: Duration = Duration::from_secs(10);

/// Brings the groups that this node leads to the members that they are to have, until the node ends.
pub(super) async fn keep_members(inner: Arc<ClusterInner>) {
    let mut ticks = inner.peers().beat().every(inner.options.look);
    loop {
        ticks.tick().await;
        let Some(map) = inner.map() else { continue };
        let moving = map
            .partitions
            .values()
            .filter(|partition| !partition.wanted.is_empty());
        let led = moving.filter_map(|partition| {
            // Also one that the map does not name any more.
            let leads = |replica: &Arc<Replica>| {
                replica.group() == partition.group && replica.state().is_ok_and(|state| state.leads)
            };
            let replica = inner.node.replicas().into_iter().find(leads)?;
            Some((partition, replica))
        });
        let led: Vec<_> = led.collect();
        stream::iter(led)
            .for_each_concurrent(AT_A_TIME, |(partition, replica)| {
                let (inner, map) = (&inner, &map);
                async move {
                    let done = timeout(STEP, step(inner, map, partition, &replica)).await;
                    let done = done.unwrap_or_else(|_| Err(format!("a step took longer than {STEP:?}")));
                    if let Err(problem) = done {
                        let group = partition.group;
                        tracing::debug!(group, problem, "the members of a group are not changed yet");
                    }
                }
            })
            .await;
    }
}

/// The next step for one group, which this node leads.
async fn step(
    inner: &ClusterInner,
    map: &Map,
    partition: &PartitionRecord,
    replica: &Replica,
) -> Result<(), String> {
    let wanted: BTreeSet<ReplicaId> = partition.wanted.iter().map(|member| member.replica).collect();
    let members = replica.members().map_err(|error| error.to_string())?;
    let is_whole = !members.is_joint && members.voters == wanted && members.all.len() == wanted.len();
    if is_whole && members.is_applied {
        // One more entry: a leader that was deposed cannot commit it, and has nothing to say.
        let confirmed = replica.change_members(wanted.clone()).await;
        confirmed.map_err(|error| error.to_string())?;
        let replicas = wanted.into_iter().collect();
        let group = partition.group;
        return ask(inner, MapRequest::Moved { group, replicas }).await;
    }
    let new = partition
        .wanted
        .iter()
        .filter(|member| !members.all.contains_key(&member.replica));
    for joining in new {
        let added = replica.add_learner(joining.replica, member(map, joining)).await;
        added.map_err(|error| error.to_string())?;
    }
    let lack = wanted
        .iter()
        .filter(|id| !members.has_nearly_all(**id) && !members.voters.contains(id));
    let lack: Vec<_> = lack.collect();
    if !lack.is_empty() {
        return Err(format!("replicas {lack:?} have not all entries yet"));
    }
    if !wanted.contains(&replica.id()) {
        return give_up_lead(inner, partition, replica, &wanted).await;
    }
    let changed = replica.change_members(wanted).await;
    changed.map_err(|error| error.to_string())
}

/// Has a replica lead that stays.
async fn give_up_lead(
    inner: &ClusterInner,
    partition: &PartitionRecord,
    replica: &Replica,
    wanted: &BTreeSet<ReplicaId>,
) -> Result<(), String> {
    let members = replica.members().map_err(|error| error.to_string())?;
    let hears = |id: &ReplicaId| partition.node_of(*id).is_some_and(|node| inner.hears(node));
    let able = members.voters.intersection(wanted).copied();
    if hand_over_to_one(
        replica,
        able.filter(|id| members.has_nearly_all(*id) && hears(id)),
    )
    .await?
    {
        return Ok(());
    }
    // None of those that stay votes: they get a vote beside this one, and then one of them leads.
    let own = replica.id();
    let all = wanted.iter().copied().chain([own]);
    let changed = replica.change_members(all.collect()).await;
    changed.map_err(|error| error.to_string())
}
