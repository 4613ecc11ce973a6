//! What the leader of group 0 does by itself. Each step is one entry of the group, or one change of
//! its members that can be asked for again, and each is decided by the newest map alone: another
//! leader goes on wherever this one stops.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::map::{self, Map, Placement};
use crate::node::changing::change;
use crate::node::replicas::map_member;
use crate::node::shared::Inner;
use crate::node::spreading::Spreading;
use crate::proposals::Answer;
use crate::raft::{Members, Replica};

/// A step that takes longer is given up, and asked for again.
const STEP: Duration = Duration::from_secs(10);

/// Takes step after step while this node's replica of group 0 leads, until the node ends.
pub(super) async fn control(inner: Arc<Inner>) {
    let mut ticks = interval(inner.options.look);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut map = inner.map.subscribe();
    let mut spreading = Spreading::default();
    loop {
        tokio::select! {
            biased;
            _ = map.changed() => {}
            _ = ticks.tick() => {}
        }
        let Some(replica) = inner.map_replica() else {
            continue;
        };
        if !replica.state().is_ok_and(|state| state.leads) {
            inner.report("the controller", None);
            spreading = Spreading::default();
            continue;
        }
        let steps = async {
            step(&inner, &replica).await?;
            if let Some(map) = inner.map() {
                spreading.step(&inner, &map).await;
            }
            Ok(())
        };
        let done = timeout(STEP, steps).await;
        let late = || Err(format!("a step took longer than {STEP:?}"));
        inner.report("the controller", done.unwrap_or_else(|_| late()).err());
    }
}

/// The next steps, in their order.
async fn step(inner: &Inner, replica: &Replica) -> Result<(), String> {
    let Some(map) = inner.map() else {
        return found(inner, replica).await;
    };
    learners(replica, &map).await?;
    let members = replica.members().map_err(|error| error.to_string())?;
    let ready = ready(inner, &map, &members);
    voters(replica, &map, &members, &ready).await?;
    place(replica, &map, &ready).await
}

/// The first entry of the map, on the node that made the cluster.
async fn found(inner: &Inner, replica: &Replica) -> Result<(), String> {
    let Some(founding) = inner.founding() else {
        return Ok(());
    };
    let rule = move |map: Option<&Map>| Ok(((), map.is_none().then(|| map::found(&founding))));
    settled(change(replica, rule).await)
}

/// Each node of the map is a member of group 0.
async fn learners(replica: &Replica, map: &Map) -> Result<(), String> {
    let members = replica.members().map_err(|error| error.to_string())?;
    for node in map.nodes.values() {
        if !members.all.contains_key(&node.replica) {
            let added = replica.add_learner(node.replica, map_member(node)).await;
            added.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// The members of group 0 that have nearly all entries, and whose nodes answer.
fn ready(inner: &Inner, map: &Map, members: &Members) -> BTreeSet<u64> {
    let states = inner.peers().states();
    let states = states.borrow();
    let is_ready = |replica: &u64| {
        let node = map.node_of_replica(*replica);
        members.has_nearly_all(*replica) && node.is_some_and(|node| inner.is_alive(&states, node.number))
    };
    members.all.keys().copied().filter(is_ready).collect()
}

/// As many members vote as are wanted, and no change of them stays half done.
async fn voters(
    replica: &Replica,
    map: &Map,
    members: &Members,
    ready: &BTreeSet<u64>,
) -> Result<(), String> {
    let wanted = match map::voters(map, &members.voters, ready) {
        Some(wanted) => wanted,
        None if members.is_joint => members.voters.clone(),
        None => return Ok(()),
    };
    let changed = replica.change_voters(wanted).await;
    changed.map_err(|error| error.to_string())
}

/// The partitions are placed, once.
async fn place(replica: &Replica, map: &Map, ready: &BTreeSet<u64>) -> Result<(), String> {
    let nodes = ready.iter().filter_map(|replica| map.node_of_replica(*replica));
    let placement = Placement {
        ready: nodes.map(|node| node.number).collect(),
    };
    let could = map::place(map, &placement).map_err(|error| error.to_string())?;
    if could.is_none() {
        return Ok(());
    }
    // Decided anew, on the map that the entry follows.
    let rule = move |map: Option<&Map>| match map {
        Some(map) => Ok((
            (),
            map::place(map, &placement).map_err(|error| error.to_string())?,
        )),
        None => Ok(((), None)),
    };
    settled(change(replica, rule).await)
}

/// What becomes of an entry shows in the map; what does not become one is tried again.
fn settled<E: std::fmt::Display>(answer: Result<Answer<Result<(), String>>, E>) -> Result<(), String> {
    match answer {
        Ok(Answer::Reply(done)) => done,
        Ok(Answer::TryAgain | Answer::Unknown) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
