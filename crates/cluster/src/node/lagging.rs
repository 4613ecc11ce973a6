//! Which nodes lack what leaders on this node have had for a while. What is on such a node is no help where
//! another node of the same partitions is stopped, until it has all.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::ids::{GroupId, ReplicaId};
use crate::map::MAP_GROUP;
use crate::node::shared::{Answering, ClusterInner, LagLook, Lagging};
use crate::transport::NodeStates;
use crate::transport::wire::NodeId;

const PERIOD: Duration = Duration::from_secs(1);
/// A leader that begins knows nothing of its followers, and gives them until the next look, but for those on nodes
/// that have returned within so long.
const RETURNED: Duration = Duration::from_secs(60);
/// What a leader had so long ago, or up to twice as long, its followers are to have. A follower that keeps up
/// lacks what was written within milliseconds, however much that is.
const WITHIN: Duration = Duration::from_secs(5);
/// Partitions are named up to this number.
const NAMED: usize = 8;

/// The last entries that a leader had at two moments.
struct Had {
    /// As which leader.
    term: u64,
    /// It began to lead after the look before this one.
    is_new: bool,
    older: u64,
    newer: u64,
    /// When `newer` was.
    at: Instant,
    /// The last entry when a follower's node was last seen to be away, or to have begun anew: a node that returns
    /// is to have all of before, however short it was away.
    returned: BTreeMap<ReplicaId, u64>,
}

impl Had {
    fn begin(term: u64, last: u64, now: Instant) -> Self {
        Self {
            term,
            is_new: true,
            older: last,
            newer: last,
            at: now,
            returned: BTreeMap::new(),
        }
    }

    fn look(&mut self, last: u64, now: Instant) {
        self.is_new = false;
        if now - self.at >= WITHIN {
            (self.older, self.newer, self.at) = (self.newer, last, now);
        }
    }

    /// Whether a follower that has so much lags.
    fn is_more_than(&self, follower: ReplicaId, has: u64) -> bool {
        has < self.older.max(self.returned.get(&follower).copied().unwrap_or(0))
    }
}

fn answering(states: &NodeStates) -> Answering {
    let answer = states
        .iter()
        .map(|(node, state)| (*node, state.boot.filter(|_| state.is_alive())));
    answer.collect()
}

/// Looks for as long as the node runs.
pub(super) async fn watch_lag(inner: Arc<ClusterInner>) {
    let (mut had, mut returned) = (BTreeMap::new(), BTreeMap::new());
    loop {
        sleep(PERIOD).await;
        let now = Instant::now();
        let answering = answering(&inner.peers().states().borrow());
        let before = inner.lagging.lock().clone();
        // At the first look nothing is known of before.
        let away = answering.iter().filter(|(node, boot)| {
            boot.is_none() || before.answering.get(node).is_some_and(|was| was != *boot)
        });
        returned.extend(away.map(|(node, _)| (*node, now)));
        returned.retain(|_, at| now - *at < RETURNED);
        let lagging = look(&inner, &mut had, &returned, now);
        for node in lagging.keys().filter(|node| !before.lagging.contains_key(node)) {
            tracing::warn!(node, "a node lags behind leaders on this one");
        }
        for node in before.lagging.keys().filter(|node| !lagging.contains_key(node)) {
            tracing::info!(node, "a node does not lag behind leaders on this one any more");
        }
        *inner.lagging.lock() = LagLook { answering, lagging };
    }
}

/// Who lags. (The members of a parked group have all.) `returned`: when nodes were last away, or began anew.
fn look(
    inner: &ClusterInner,
    had: &mut BTreeMap<ReplicaId, Had>,
    returned: &BTreeMap<NodeId, Instant>,
    now: Instant,
) -> Lagging {
    let (mut lagging, mut leading) = (Lagging::new(), BTreeSet::new());
    for replica in inner.node.replicas() {
        let Some(term) = replica.leads_in() else { continue };
        leading.insert(replica.id());
        let Some(members) = replica.members().ok().filter(|_| !replica.is_parked()) else {
            continue;
        };
        let begin = || Had::begin(term, members.last, now);
        let had = match had.entry(replica.id()) {
            Entry::Occupied(known) if known.get().term == term => {
                let known = known.into_mut();
                known.look(members.last, now);
                known
            }
            Entry::Occupied(known) => {
                let known = known.into_mut();
                *known = begin();
                known
            }
            Entry::Vacant(vacant) => vacant.insert(begin()),
        };
        // While a change is half done a majority of those before is needed too.
        let voters: Vec<_> = match members.is_joint {
            true => members.all.keys().collect(),
            false => members.voters.iter().collect(),
        };
        for voter in voters.into_iter().filter(|voter| **voter != replica.id()) {
            let Some(member) = members.all.get(voter) else {
                continue;
            };
            let came = returned.get(&member.node);
            if came == Some(&now) {
                had.returned.insert(*voter, members.last);
            }
            let has = members.matched.get(voter).copied().unwrap_or(0);
            if had.is_more_than(*voter, has) && (!had.is_new || came.is_some()) {
                lagging.entry(member.node).or_default().insert(replica.group());
            }
        }
    }
    had.retain(|replica, _| leading.contains(replica));
    lagging
}

impl ClusterInner {
    /// How many replicas lag of groups that this node leads, on nodes that answer.
    pub(super) fn lagging_replicas(&self) -> usize {
        let looked = self.lagging.lock().clone();
        let heard = looked.lagging.iter().filter(|(node, _)| self.hears(**node));
        heard.map(|(_, groups)| groups.len()).sum()
    }

    /// The nodes that answer and lag. Of others it is shown that they are silent.
    pub(super) fn lag_problems(&self) -> Vec<(String, String)> {
        let looked = self.lagging.lock().clone();
        let mut problems = Vec::new();
        for (node, boot) in answering(&self.peers().states().borrow()) {
            if boot.is_none() {
                continue;
            }
            if let Some(groups) = looked.lagging.get(&node) {
                problems.push((format!("node {node}"), problem(groups)));
            } else if looked.answering.get(&node).is_some_and(|was| *was != boot) {
                let text = "it has just returned, and what it lacks is known in a second".to_owned();
                problems.push((format!("node {node}"), text));
            }
        }
        if let Some(groups) = looked.lagging.get(&self.number()) {
            problems.push((format!("node {}", self.number()), problem(groups)));
        }
        problems
    }
}

fn problem(groups: &BTreeSet<GroupId>) -> String {
    let named = groups.iter().take(NAMED).map(|group| match *group {
        MAP_GROUP => "the map".to_owned(),
        group => format!("partition {group}"),
    });
    let named: Vec<_> = named.collect();
    let more = match groups.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "it lacks what others have had for seconds in {}{more}: stop no other node of these before it has all",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_within_seconds_is_no_lag() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut had = Had::begin(1, 10, begun);
        let older = [
            (1, 500),
            (4, 2_000),
            (5, 2_500),
            (6, 3_000),
            (9, 4_000),
            (10, 5_000),
            (15, 6_000),
        ];
        let seen: Vec<u64> = older
            .map(|(at, last)| {
                had.look(last, after(at));
                had.older
            })
            .to_vec();
        assert_eq!(seen, [10, 10, 10, 10, 10, 2_500, 5_000]);
        assert!(had.is_more_than(7, 4_999) && !had.is_more_than(7, 5_000));
        had.returned.insert(7, 5_900);
        assert!(had.is_more_than(7, 5_899) && !had.is_more_than(8, 5_000));
    }

    #[test]
    fn a_node_that_lags_in_many_partitions_is_one_line() {
        let text = problem(&(0..12).collect());
        assert!(text.contains("in the map, partition 1, partition 2"), "{text}");
        assert!(
            text.contains("partition 7 and 4 more: stop no other node"),
            "{text}"
        );
    }
}
