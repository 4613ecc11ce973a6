//! Who leads what: taking over what other nodes lead, on request (`CLUSTER FAILOVER`), and handing over what this
//! node leads before it ends.
//!
//! A node that does not answer leads nothing for long: the groups that it led elect another leader as soon as
//! raft lets them, and need not wait until each finds out by itself.
//!
//! Raft refuses votes as long as a leader may have been heard within the time for an election, so a suspicion
//! that is wrong deposes no leader that a majority hears: each attempt is a pre-vote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use crate::ids::{GroupId, ReplicaId};
use crate::map::{MAP_GROUP, Map};
use crate::node::clocks::clocks_off;
use crate::node::shared::{ClusterInner, Group, groups};
use crate::raft::Replica;
use crate::transport::Call;
use crate::transport::wire::{HandOver, NodeId, Request, Response};

/// So many leaders are asked at a time.
const ASKED_AT_A_TIME: usize = 8;
/// A node that is to end leads on for so long at most.
const RETIRES_WITHIN: Duration = Duration::from_secs(10);
/// Where no leadership has gone over for so long, none will: the other nodes end, too, or are gone.
const IN_VAIN: Duration = Duration::from_secs(2);
/// A replica that was asked to lead has so long before another one is asked.
const ASKED_FOR: Duration = Duration::from_secs(1);
/// From one look at what is still led here to the next.
const LOOK: Duration = Duration::from_millis(20);

/// Asks the leaders of all partitions to hand over to this node, whenever that is wanted.
pub(super) async fn take_over(inner: Arc<ClusterInner>) {
    loop {
        inner.taking_over.notified().await;
        if let Some(map) = inner.map() {
            take_over_all(&inner, &map).await;
        }
    }
}

async fn take_over_all(inner: &ClusterInner, map: &Map) {
    let all = groups(inner, map).into_iter();
    let partitions = all.filter(|group| group.replica.group() != MAP_GROUP);
    let asked = stream::iter(partitions).for_each_concurrent(ASKED_AT_A_TIME, async |group| {
        if let Err(problem) = take_over_one(inner, &group).await {
            let (group, node) = (group.replica.group(), inner.number());
            tracing::warn!(group, node, problem, "leadership of a group is not taken over");
        }
    });
    asked.await;
}

/// Asks the leader of a group to hand over; where it is silent, or there is none, stands for election.
async fn take_over_one(inner: &ClusterInner, group: &Group) -> Result<(), String> {
    let own = group.replica.id();
    let leader = group.replica.leader();
    if leader == Some(own) {
        return Ok(());
    }
    let node = leader.and_then(|leader| Some((*group.members.get(&leader)?, leader)));
    match node.filter(|(node, _)| inner.hears(*node)) {
        Some(at) => ask_to_hand_over(inner, group.replica.group(), at, own).await,
        None => group.replica.elect().await.map_err(|error| error.to_string()),
    }
}

/// Asks the replica that leads a group, on another node, to hand over to another one. Whether it does shows later.
///
/// # Errors
/// It does not answer, or refuses: it does not lead, or the other one lacks entries.
pub(super) async fn ask_to_hand_over(
    inner: &ClusterInner,
    group: GroupId,
    (node, leader): (NodeId, ReplicaId),
    to: ReplicaId,
) -> Result<(), String> {
    let call = Call {
        node,
        group,
        from: inner.identity.replica,
        to: leader,
        request: Request::HandOver(HandOver { to }),
        within: inner.options.times.append,
    };
    match inner.peers().call(call).await {
        Ok(Response::HandingOver) => Ok(()),
        Ok(Response::Refusal(refusal)) => Err(refusal.to_string()),
        Ok(other) => Err(format!("expected an answer to that, found {}", other.kind())),
        Err(error) => Err(error.to_string()),
    }
}

/// Hands over what this node leads, the map's group too, each to a member that has nearly all entries,
/// and takes over nothing any more. Says whether anything went over.
pub(super) async fn retire(inner: &ClusterInner) -> bool {
    // Relaxed: what has not seen it yet is asked again below.
    inner.retires.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let mut first = None;
    let (mut left, mut since) = (usize::MAX, began);
    let mut asked = BTreeMap::new();
    loop {
        let Some(map) = inner.map() else { return false };
        let led = led_here(inner, &map);
        let went_over = led.len() < *first.get_or_insert(led.len());
        if led.is_empty() || inner.node.has_failed() {
            return went_over;
        }
        if led.len() < left {
            (left, since) = (led.len(), Instant::now());
        }
        let hears = |group: &Group| group.others().any(|(_, node)| inner.hears(node));
        let is_alone = !led.iter().any(hears);
        if is_alone || since.elapsed() >= IN_VAIN || began.elapsed() >= RETIRES_WITHIN {
            let (node, groups) = (inner.number(), led.len());
            tracing::warn!(
                node,
                groups,
                "this node ends and leads on in some groups, as no other node takes over: they elect a leader then"
            );
            return went_over;
        }
        hand_over(inner, &map, led, &mut asked).await;
        sleep(LOOK).await;
    }
}

/// The groups that this node leads. None of its replicas stands for election.
fn led_here(inner: &ClusterInner, map: &Map) -> Vec<Group> {
    let all = groups(inner, map).into_iter();
    let led = all.filter(|group| {
        inner.set_stands(&group.replica, false);
        group.replica.state().is_ok_and(|state| state.leads)
    });
    led.collect()
}

/// Asks one other member of each group to lead, unless one was asked a moment ago.
async fn hand_over(
    inner: &ClusterInner,
    map: &Map,
    led: Vec<Group>,
    asked: &mut BTreeMap<ReplicaId, Instant>,
) {
    let off = clocks_off(inner, map);
    let now = Instant::now();
    let due = |group: &Group| {
        let before = asked.get(&group.replica.id());
        before.is_none_or(|at| now >= *at + ASKED_FOR)
    };
    let due: Vec<_> = led.into_iter().filter(due).collect();
    let off = &off;
    let done = stream::iter(due).map(|group| async move {
        let able = group.others().filter(|(to, node)| {
            !off.contains(node) && inner.hears(*node) && group.replica.has_nearly_all(*to)
        });
        let able = able.map(|(to, _)| to);
        let went_over = hand_over_to_one(&group.replica, able).await;
        matches!(went_over, Ok(true)).then(|| group.replica.id())
    });
    let done: Vec<_> = done.buffer_unordered(ASKED_AT_A_TIME).collect().await;
    asked.extend(done.into_iter().flatten().map(|replica| (replica, now)));
}

/// Has one of these lead, the first that may. Says whether there is any.
///
/// # Errors
/// Why the last one may not.
async fn hand_over_to_one(
    replica: &Replica,
    able: impl IntoIterator<Item = ReplicaId>,
) -> Result<bool, String> {
    let mut done = Ok(false);
    for to in able {
        match replica.transfer_to(to).await {
            Ok(()) => return Ok(true),
            Err(error) => {
                tracing::debug!(%error, to, "leadership is not handed over");
                done = Err(error.to_string());
            }
        }
    }
    done
}

/// Has another replica lead, of those that are wanted: one that votes, answers and has nearly all entries. Says
/// whether there is any.
///
/// # Errors
/// Why the last one may not.
pub(super) async fn give_up_lead(
    inner: &ClusterInner,
    replica: &Replica,
    wanted: &BTreeSet<ReplicaId>,
    node_of: impl Fn(ReplicaId) -> Option<NodeId>,
) -> Result<bool, String> {
    let members = replica.members().map_err(|error| error.to_string())?;
    let is_able =
        |id: &ReplicaId| members.has_nearly_all(*id) && node_of(*id).is_some_and(|node| inner.hears(node));
    let able = members.voters.intersection(wanted).copied();
    hand_over_to_one(replica, able.filter(is_able)).await
}

/// From one attempt of a replica to the next.
const AGAIN: Duration = Duration::from_millis(150);
/// So many attempts are made for a suspected node; then raft's own times are up.
const ATTEMPTS: usize = 24;
/// The replica that stands first behind the leader tries at once, the next one so many attempts
/// later: two that ask at the same time might both fail.
const HEAD_START: usize = 5;

/// Watches which nodes answer, until the node ends.
pub(super) async fn watch_nodes(inner: Arc<ClusterInner>) {
    let mut states = inner.peers().states();
    let mut suspected = BTreeSet::new();
    // Polled here, so that nothing of the node is held when this task has ended.
    let mut elections = FuturesUnordered::new();
    loop {
        let silent: BTreeSet<NodeId> = {
            let states = states.borrow_and_update();
            let silent = states.iter().filter(|(_, state)| !state.is_alive());
            silent.map(|(node, _)| *node).collect()
        };
        for node in silent.difference(&suspected) {
            elections.push(replace_leader(&inner, *node));
        }
        suspected = silent;
        loop {
            tokio::select! {
                biased;
                changed = states.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some(()) = elections.next() => {}
            }
        }
    }
}

/// Has the groups that a node led elect another leader, until it answers again.
async fn replace_leader(inner: &ClusterInner, node: NodeId) {
    for attempt in 0..ATTEMPTS {
        let is_alive = inner.is_alive(&inner.peers().states().borrow(), node);
        let led = led_by(inner, node);
        if is_alive || led.is_empty() {
            return;
        }
        for (replica, place) in led {
            if attempt >= place * HEAD_START
                && let Err(error) = replica.elect().await
            {
                tracing::debug!(%error, replica = replica.id(), "no election");
            }
        }
        sleep(AGAIN).await;
    }
}

/// The replicas on this node whose leader is on that one, each with its place behind it: 0 for the
/// first in the order of their ids, which goes round.
fn led_by(inner: &ClusterInner, node: NodeId) -> Vec<(Arc<Replica>, usize)> {
    let Some(map) = inner.map() else {
        return Vec::new();
    };
    let led = groups(inner, &map).into_iter().filter_map(|group| {
        let Group { replica, members } = group;
        let place = |wanted: NodeId| members.values().position(|at| *at == wanted);
        let (own, silent) = (place(inner.number())?, place(node)?);
        let leader = members.keys().nth(silent)?;
        let behind = (own + members.len() - silent - 1) % members.len();
        (replica.leader() == Some(*leader)).then_some((replica, behind))
    });
    led.collect()
}
