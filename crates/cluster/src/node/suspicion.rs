//! A node that does not answer leads nothing for long: the groups that it led elect another leader as
//! soon as raft lets them, and need not wait until each finds out by itself.
//!
//! Raft refuses votes as long as a leader may have been heard within the time for an election, so a
//! suspicion that is wrong deposes no leader that a majority hears: each attempt is a pre-vote.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

use crate::node::groups::{Group, groups};
use crate::node::shared::Inner;
use crate::raft::Replica;
use crate::transport::wire::NodeId;

/// From one attempt of a replica to the next.
const AGAIN: Duration = Duration::from_millis(150);
/// So many attempts are made for a suspected node; then raft's own times are up.
const ATTEMPTS: usize = 24;
/// The replica that stands first behind the leader tries at once, the next one so many attempts
/// later: two that ask at the same time might both fail.
const HEAD_START: usize = 5;

/// Watches which nodes answer, until the node ends.
pub(super) async fn watch_nodes(inner: Arc<Inner>) {
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
        // Where a slot without a replica here is led may have changed.
        inner.changed();
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
async fn replace_leader(inner: &Inner, node: NodeId) {
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
fn led_by(inner: &Inner, node: NodeId) -> Vec<(Arc<Replica>, usize)> {
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
