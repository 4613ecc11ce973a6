//! A node whose clock is off leads nothing.
//!
//! Keys expire by the clock of who leads. A node compares its clock with those of the nodes that answer
//! its pings. It is off where it differs from the clocks of more than half of all nodes, and from all
//! of these in the same direction: so there is always a node whose clock is not off, and where half of
//! the nodes or more are silent or disagree, nothing is known and nothing changes. Of two nodes, that
//! is always so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cluster_node::groups::{Group, groups};
use crate::cluster_node::shared::Inner;
use crate::ids::ReplicaId;
use crate::map::Map;
use crate::peers::{NodeStates, SKEW_MAX, Skew};
use crate::wire::NodeId;

/// A clock that was off is right again when it differs by less than this.
const RIGHT_AGAIN: Duration = Duration::from_millis(400);
/// A replica that was asked to lead has so long before another one is asked.
const ASKED_FOR: Duration = Duration::from_secs(5);

/// How far clocks are ahead of one node's. Its own is in it.
type Clocks = BTreeMap<NodeId, Skew>;

/// The clocks of this node and of those that answer it.
fn clocks(inner: &Inner, map: &Map, states: &NodeStates) -> Clocks {
    let own = Skew {
        ahead_ms: 0,
        doubt_ms: 0,
    };
    let answers = states.iter().filter(|(_, state)| state.is_alive());
    let others = answers.filter_map(|(node, state)| Some((*node, state.skew?)));
    others
        .chain([(inner.number(), own)])
        .filter(|(node, _)| map.nodes.contains_key(node))
        .collect()
}

/// By how much a clock is ahead of those of most of the `nodes` nodes of the cluster, in milliseconds,
/// if it is off: of these the one that is least far away.
fn ahead_of_most(clocks: &Clocks, node: NodeId, nodes: usize, limit: Duration) -> Option<i64> {
    let own = clocks.get(&node)?;
    let limit_ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    let ahead_of = clocks.values().map(|other| {
        let doubt = other.doubt_ms.saturating_add(own.doubt_ms);
        let doubt = i64::try_from(doubt).unwrap_or(i64::MAX);
        (own.ahead_ms.saturating_sub(other.ahead_ms), doubt)
    });
    let off = |direction: i64| {
        let by = ahead_of
            .clone()
            .map(|(ahead, doubt)| (ahead.saturating_mul(direction), doubt));
        let far: Vec<_> = by
            .filter(|(ahead, doubt)| *ahead > limit_ms.saturating_add(*doubt))
            .map(|(ahead, _)| ahead)
            .collect();
        let least = far.iter().min().filter(|_| 2 * far.len() > nodes)?;
        Some(least.saturating_mul(direction))
    };
    off(1).or_else(|| off(-1))
}

/// The nodes of the map whose clocks are off, as far as this node knows.
pub(super) fn clocks_off(inner: &Inner, map: &Map) -> BTreeSet<NodeId> {
    let states = inner.peers().states();
    let clocks = clocks(inner, map, &states.borrow());
    let is_off = |node: &NodeId| ahead_of_most(&clocks, *node, map.nodes.len(), SKEW_MAX).is_some();
    clocks.keys().copied().filter(is_off).collect()
}

/// Follows the clocks, and hands over what this node leads while its own is off.
pub(super) async fn watch_clocks(inner: Arc<Inner>) {
    let mut states = inner.peers().states();
    let mut asked = BTreeMap::new();
    loop {
        drop(states.borrow_and_update());
        let is_off = look(&inner);
        if let Some(map) = inner.map() {
            obey(&inner, &map, is_off, &mut asked).await;
        }
        // Replicas come and go, and leaders change, while the clock is off.
        let again = async {
            match is_off {
                true => sleep(inner.options.look).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = states.changed() => if changed.is_err() {
                return;
            },
            () = again => {}
        }
    }
}

/// Compares this node's clock with the others', and says whether it is off.
fn look(inner: &Inner) -> bool {
    let Some(map) = inner.map() else { return false };
    let was = inner.clock_ahead_ms();
    let limit = if was.is_some() { RIGHT_AGAIN } else { SKEW_MAX };
    let states = inner.peers().states();
    let clocks = clocks(inner, &map, &states.borrow());
    let now = ahead_of_most(&clocks, inner.number(), map.nodes.len(), limit);
    inner.set_clock_ahead_ms(now);
    let node = inner.number();
    match (was, now) {
        (None, Some(_)) => {
            let problem = inner.clock_problem().unwrap_or_default();
            tracing::error!(node, problem, "this node leads nothing until its clock is right");
        }
        (Some(_), None) => tracing::info!(node, "the clock of this node is right again: it may lead"),
        _ => {}
    }
    now.is_some()
}

/// Lets the replicas of this node stand for election, or not. While the clock is off, those that lead
/// hand over, as soon as another one can lead.
async fn obey(inner: &Inner, map: &Map, is_off: bool, asked: &mut BTreeMap<ReplicaId, Instant>) {
    let off = if is_off {
        clocks_off(inner, map)
    } else {
        BTreeSet::new()
    };
    for group in groups(inner, map) {
        let stands = !is_off || !others_can_lead(inner, &group);
        group.replica.set_stands(stands);
        if !is_off || !group.replica.state().is_ok_and(|state| state.leads) {
            continue;
        }
        let own = group.replica.id();
        let now = Instant::now();
        if asked.get(&own).is_some_and(|at| now < *at + ASKED_FOR) {
            continue;
        }
        let right = group.others().filter(|(_, node)| !off.contains(node));
        for (to, node) in right {
            if inner.hears(node) && group.replica.has_nearly_all(to) {
                asked.insert(own, now);
                if let Err(error) = group.replica.transfer_to(to).await {
                    tracing::warn!(%error, replica = own, "leadership is not handed over");
                }
                break;
            }
        }
    }
}

/// Whether the others can elect a leader without this node, and one with all that was acknowledged:
/// each majority has a member among more than half of the members.
fn others_can_lead(inner: &Inner, group: &Group) -> bool {
    let answer = group.others().filter(|(_, node)| inner.hears(*node)).count();
    2 * answer > group.members.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn off(ahead_ms: &[i64], doubt_ms: u64, nodes: usize) -> Vec<i64> {
        let skew = |ahead_ms: &i64| Skew {
            ahead_ms: *ahead_ms,
            doubt_ms,
        };
        let clocks: Clocks = (1..).zip(ahead_ms.iter().map(skew)).collect();
        let by = |node| ahead_of_most(&clocks, node, nodes, SKEW_MAX);
        clocks.keys().filter_map(|node| by(*node)).collect()
    }

    #[test]
    fn a_clock_is_off_where_it_differs_from_most_in_one_direction() {
        assert_eq!(off(&[0, 0, 501], 0, 3), [501]);
        assert_eq!(off(&[0, 20, -600], 0, 3), [-600]);
        assert_eq!(off(&[0, 0, 500], 0, 3), [0; 0], "the limit is allowed");
        assert_eq!(off(&[0, 0, 501], 1, 3), [0; 0], "what was measured may be wrong");
        // The one in the middle is right.
        assert_eq!(off(&[-600, 0, 600], 0, 3), [-600, 600]);
        assert_eq!(off(&[0, 0, 0, 900, 900], 0, 5), [900, 900]);
    }

    #[test]
    fn where_half_of_the_clocks_are_silent_or_disagree_nothing_is_known() {
        assert_eq!(off(&[0, 900], 0, 2), [0; 0]);
        assert_eq!(off(&[0, 900], 0, 3), [0; 0], "the third is silent");
        assert_eq!(off(&[0, 0, 900, 900], 0, 4), [0; 0]);
        assert_eq!(off(&[0], 0, 1), [0; 0]);
        assert_eq!(off(&[i64::MIN, 0, i64::MAX], u64::MAX, 3), [0; 0]);
    }

    /// Of all sets of clocks, one can lead.
    #[test]
    fn there_is_always_a_clock_that_is_not_off() {
        let steps = [0, 400, 800, 1200, 1600];
        for code in 0..steps.len().pow(5) {
            let digit = |place: u32| steps[code / steps.len().pow(place) % steps.len()];
            let all: Vec<i64> = (0..5).map(digit).collect();
            for nodes in 1..=5 {
                let off = off(&all[..nodes], 0, nodes);
                assert!(off.len() < nodes, "{all:?}, of which the first {nodes}");
            }
        }
    }
}
