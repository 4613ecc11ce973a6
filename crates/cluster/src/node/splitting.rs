//! Splits of partitions, by the nodes that lead them: the map says what is to be split, the group's log does it, and
//! the map has both partitions then. Each leader of the group goes on where the one before has stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout};

use crate::ids::{GroupId, ReplicaId};
use crate::map::{Map, MapMember, PartitionRecord, SplitRecord};
use crate::node::changing::member;
use crate::node::map_requests::ask;
use crate::node::shared::ClusterInner;
use crate::proposals::Answer;
use crate::raft::{NewGroup, Replica};
use crate::transport::wire::MapRequest;

/// A step that takes longer is given up, and taken again.
const STEP: Duration = Duration::from_secs(10);
/// So long a split waits for replicas that do not answer, or lack entries. Those that a majority is without make the
/// new group's replica later, of what they applied, or get its tables.
const PATIENCE: Duration = Duration::from_secs(10);
/// So long the map waits for the new group's leader.
const ELECTED_WITHIN: Duration = Duration::from_secs(2);
/// From one vote that is asked for to the next.
const ELECTION: Duration = Duration::from_millis(50);

/// Splits what this node leads and the map has to be split, until the node ends.
pub(super) async fn split_partitions(inner: Arc<ClusterInner>) {
    let mut ticks = inner.peers().beat().every(inner.options.look);
    let mut maps = inner.map.subscribe();
    // The map may be there already, and not change for long.
    maps.mark_changed();
    // Since when, and whether a step runs.
    let mut groups = BTreeMap::<GroupId, (Instant, bool)>::new();
    let mut steps = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = maps.changed() => {}
            _ = ticks.tick(), if !groups.is_empty() => {}
            Some((group, done)) = steps.next() => {
                ended(&inner, &mut groups, group, done);
                continue;
            }
        }
        let Some(map) = maps.borrow_and_update().clone() else {
            continue;
        };
        let splits = map
            .partitions
            .values()
            .filter(|partition| partition.split.is_some());
        let splits: Vec<_> = splits.cloned().collect();
        let pending: BTreeSet<_> = splits.iter().map(|partition| partition.group).collect();
        groups.retain(|group, (_, runs)| {
            let stays = *runs || pending.contains(group);
            if !stays {
                inner.report(&about(*group), None);
            }
            stays
        });
        for partition in splits {
            let (since, runs) = groups.entry(partition.group).or_insert((Instant::now(), false));
            let leader = inner.node.replicas().into_iter();
            let leader = leader.filter(|replica| replica.group() == partition.group);
            let leader = leader.filter(|replica| replica.leads_in().is_some()).last();
            let Some(replica) = leader.filter(|_| !*runs) else {
                continue;
            };
            *runs = true;
            let (inner, map, since) = (Arc::clone(&inner), Arc::clone(&map), *since);
            steps.push(async move {
                let done = timeout(STEP, step(&inner, &map, &partition, &replica, since)).await;
                let done = done.unwrap_or_else(|_| Err(format!("a step took longer than {STEP:?}")));
                (partition.group, done)
            });
        }
    }
}

fn ended(
    inner: &ClusterInner,
    groups: &mut BTreeMap<GroupId, (Instant, bool)>,
    group: GroupId,
    done: Result<(), String>,
) {
    let Some((since, runs)) = groups.get_mut(&group) else {
        return;
    };
    *runs = false;
    let Err(problem) = done else {
        return inner.report(&about(group), None);
    };
    tracing::debug!(group, problem, "a partition is not split yet");
    let lasts = since.elapsed();
    if lasts > 2 * PATIENCE {
        let text = format!("its split has not gone on for {} s: {problem}", lasts.as_secs());
        inner.report(&about(group), Some(text));
    }
}

/// What a problem is about.
fn about(group: GroupId) -> String {
    format!("the split of group {group}")
}

/// What is left to be done for one partition, whose leader this is.
async fn step(
    inner: &ClusterInner,
    map: &Map,
    partition: &PartitionRecord,
    replica: &Replica,
    since: Instant,
) -> Result<(), String> {
    let Some(split) = &partition.split else {
        return Ok(());
    };
    let (group, changed) = (partition.group, partition.changed);
    let slots = replica.slots().ok_or("its replica does not run")?;
    if slots.contains(&split.first) {
        let lack = lacking(inner, partition, replica)?;
        // Those that have it make the replicas that the new group begins with: never less than most.
        let are_most = 2 * (partition.members.len() - lack.len()) > partition.members.len();
        if !lack.is_empty() && (since.elapsed() < PATIENCE || !are_most) {
            return Err(format!(
                "replicas on nodes {lack:?} do not answer, or have not all entries"
            ));
        }
        // From the split on, the slots are not served before the map has them elsewhere.
        ask(inner, MapRequest::IsUnchanged { group, changed }).await?;
        let done = replica.split(&new_group(map, partition, split)).await;
        match done.map_err(|error| error.to_string())? {
            Answer::Reply(()) => {}
            Answer::TryAgain | Answer::Unknown => return Err("it is not known to be split yet".to_owned()),
        }
        tracing::info!(
            group = partition.group,
            new = split.group,
            slot = split.first,
            "a partition is split"
        );
    }
    // So that its slots have a leader as soon as the map has them elsewhere.
    let beside = split
        .members
        .iter()
        .find_map(|member| inner.node.replica(member.replica));
    if let Some(beside) = beside {
        // Whether it has one or not: others of the new group may be made only when the map has it.
        _ = timeout(ELECTED_WITHIN, elect(&beside)).await;
    }
    ask(inner, MapRequest::HasSplit { group, changed }).await
}

/// The nodes of replicas that could not make the one beside them at once.
fn lacking(inner: &ClusterInner, partition: &PartitionRecord, replica: &Replica) -> Result<Vec<u64>, String> {
    let members = replica.members().map_err(|error| error.to_string())?;
    let lacks = |member: &&MapMember| {
        let is_own = member.replica == replica.id();
        let is_there = inner.hears(member.node) && members.has_nearly_all(member.replica);
        !is_own && !is_there
    };
    let lacking = partition.members.iter().filter(lacks);
    Ok(lacking.map(|member| member.node).collect())
}

fn new_group(map: &Map, partition: &PartitionRecord, split: &SplitRecord) -> NewGroup {
    let pair = |(parent, child): (&MapMember, &MapMember)| (parent.replica, child.replica);
    let members = split.members.iter();
    NewGroup {
        group: split.group,
        first: split.first,
        members: members
            .clone()
            .map(|one| (one.replica, member(map, one)))
            .collect(),
        pairs: partition.members.iter().zip(members).map(pair).collect(),
    }
}

/// Has a group that has just begun elect a leader, this replica if need be.
async fn elect(replica: &Replica) -> Result<(), String> {
    replica.opened().await.map_err(|error| error.to_string())?;
    loop {
        let state = replica.state().map_err(|error| error.to_string())?;
        let leader: Option<ReplicaId> = state.leader;
        if leader.is_some() {
            return Ok(());
        }
        replica.elect().await.map_err(|error| error.to_string())?;
        sleep(ELECTION).await;
    }
}
