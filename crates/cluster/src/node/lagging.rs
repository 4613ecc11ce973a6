//! Which nodes lack what leaders on this node have had for a while. What is on such a node is no help where
//! another node of the same partitions is stopped, until it has all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::ids::{GroupId, ReplicaId};
use crate::map::MAP_GROUP;
use crate::node::shared::{ClusterInner, Lagging};
use crate::transport::wire::NodeId;

const PERIOD: Duration = Duration::from_secs(1);
/// What a leader had so long ago, or up to twice as long, its followers are to have. A follower that keeps up
/// lacks what was written within milliseconds, however much that is.
const WITHIN: Duration = Duration::from_secs(5);
/// Partitions are named up to this number.
const NAMED: usize = 8;

/// The last entries that a leader had at two moments.
struct Had {
    /// As which leader.
    term: u64,
    older: u64,
    newer: u64,
    /// When `newer` was.
    at: Instant,
    /// The last entry when a follower's node was last seen to be away, or to have begun anew: a node that returns
    /// is to have all of before, however short it was away.
    returned: BTreeMap<ReplicaId, u64>,
}

impl Had {
    /// A leader that begins has what all of a majority have, but for its first entry.
    fn begin(term: u64, last: u64, now: Instant) -> Self {
        Self {
            term,
            older: last,
            newer: last,
            at: now,
            returned: BTreeMap::new(),
        }
    }

    fn look(&mut self, last: u64, now: Instant) {
        if now - self.at >= WITHIN {
            (self.older, self.newer, self.at) = (self.newer, last, now);
        }
    }

    /// Whether a follower that has so much lags.
    fn is_more_than(&self, follower: ReplicaId, has: u64) -> bool {
        has < self.older.max(self.returned.get(&follower).copied().unwrap_or(0))
    }
}

/// As which process each node answers; `None`: it does not.
type Answering = BTreeMap<NodeId, Option<[u8; 16]>>;

/// Looks for as long as the node runs.
pub(super) async fn watch_lag(inner: Arc<ClusterInner>) {
    let (mut had, mut answering) = (BTreeMap::new(), Answering::new());
    loop {
        sleep(PERIOD).await;
        let states = inner.peers().states().borrow().clone();
        let now: Answering = states
            .iter()
            .map(|(node, state)| (*node, state.boot.filter(|_| state.is_alive())))
            .collect();
        let is_same = |node: &NodeId| {
            now.get(node)
                .is_none_or(|boot| boot.is_some() && answering.get(node) == Some(boot))
        };
        let (lagging, leading) = look(&inner, &mut had, Instant::now(), is_same);
        had.retain(|replica, _| leading.contains(replica));
        answering = now;
        let before = std::mem::replace(&mut *inner.lagging.lock(), lagging.clone());
        for node in lagging.keys().filter(|node| !before.contains_key(node)) {
            tracing::warn!(node, "a node lags behind the leaders on this one");
        }
        for node in before.keys().filter(|node| !lagging.contains_key(node)) {
            tracing::info!(
                node,
                "a node has all that the leaders on this one had some seconds ago"
            );
        }
    }
}

/// Who lags now, and which replicas lead. (The members of a parked group have all.) `is_same`: the node answers, and
/// did at the last look, as the same process.
fn look(
    inner: &ClusterInner,
    had: &mut BTreeMap<ReplicaId, Had>,
    now: Instant,
    is_same: impl Fn(&NodeId) -> bool,
) -> (Lagging, BTreeSet<ReplicaId>) {
    let (mut lagging, mut leading) = (Lagging::new(), BTreeSet::new());
    for replica in inner.node.replicas() {
        let leads_in = replica.leads_in().filter(|_| !replica.is_parked());
        let (Some(term), Ok(members)) = (leads_in, replica.members()) else {
            continue;
        };
        leading.insert(replica.id());
        let begin = || Had::begin(term, members.last, now);
        let had = had.entry(replica.id()).or_insert_with(begin);
        if had.term != term {
            *had = begin();
        }
        had.look(members.last, now);
        for voter in members.voters.iter().filter(|voter| **voter != replica.id()) {
            let Some(member) = members.all.get(voter) else {
                continue;
            };
            if !is_same(&member.node) {
                had.returned.insert(*voter, members.last);
            }
            let has = members.matched.get(voter).copied().unwrap_or(0);
            if had.is_more_than(*voter, has) {
                lagging.entry(member.node).or_default().insert(replica.group());
            }
        }
    }
    (lagging, leading)
}

impl ClusterInner {
    /// How many replicas lag that belong to groups which this node leads.
    pub(super) fn lagging_replicas(&self) -> usize {
        self.lagging.lock().values().map(BTreeSet::len).sum()
    }

    /// The nodes that answer and lag. Of others it is shown that they are silent.
    pub(super) fn lag_problems(&self) -> Vec<(String, String)> {
        let lagging = self.lagging.lock().clone().into_iter();
        let heard = lagging.filter(|(node, _)| self.hears(*node));
        heard
            .map(|(node, groups)| (format!("node {node}"), problem(&groups)))
            .collect()
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
        "it lacks what was written more than {} s ago in {}{more}, and is sent it: stop no other node of these before it \
         has all",
        WITHIN.as_secs(),
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
        assert!(text.contains("partition 7 and 4 more, and is sent it"), "{text}");
    }
}
