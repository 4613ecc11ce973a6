//! A node whose time is off leads nothing, and a clock that jumps is not followed before it is known
//! to be right.
//!
//! Keys expire by the time of who leads. A node compares its time with those of the nodes that answer
//! its pings. It is off where it differs from the times of more than half of all nodes, and from all
//! of these in the same direction: so there is always a node whose time is not off, and where half of
//! the nodes or more are silent or disagree, nothing is known and nothing changes. Of two nodes, that
//! is always so. That a node is off is remembered, on disk, too, until most nodes have its time again:
//! that others went away makes no clock right. Where it has to lead, since the others of a group elect
//! no leader, it leads by the time of most ([`LeadingClock`](crate::node::steady::LeadingClock)).
//!
//! Where the clock of the machine jumps, a node goes on with the time before
//! ([`SteadyClock`](crate::node::steady::SteadyClock)). It adopts the clock's time when most
//! nodes have it, be it as their own time or on the clocks of their machines, or when its own time is
//! off and the clock is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::blocking::blocking;
use crate::ids::ReplicaId;
use crate::map::Map;
use crate::node::shared::{ClusterInner, Group, groups};
use crate::node::steady::{ClockVerdict, Jump};
use crate::transport::wire::NodeId;
use crate::transport::{NodeStates, SKEW_MAX, Skew};

/// A clock that was off is right again when it differs by less than this.
const RIGHT_AGAIN: Duration = Duration::from_millis(400);
/// A replica that was asked to lead has so long before another one is asked.
const ASKED_FOR: Duration = Duration::from_secs(5);
/// A node whose time is off leaves it to the others for so long to elect a leader of a group.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(10);
/// When this node's time has jumped, each node has answered another ping after so long, or is suspected.
const MEASURED_ANEW: Duration = Duration::from_millis(1500);

/// A jump of which nothing can be known is adopted after so long. A machine that was suspended, or whose
/// clock an operator has set, is then right. That is long enough for the pings of nodes that were out
/// of reach, and to put back what was set by mistake.
const ADOPTED_AFTER: Duration = Duration::from_secs(10);

/// How far the times of nodes are ahead of one node's. Its own is in it.
type Clocks = BTreeMap<NodeId, Skew>;

/// The times of this node and of those that answer it.
fn clocks(inner: &ClusterInner, map: &Map, states: &NodeStates) -> Clocks {
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

/// By how much a node's time is ahead of those of most of the `nodes` nodes of the cluster, in
/// milliseconds, if it is off: of these the one that is least far away.
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

/// Whether most of the `nodes` nodes of the cluster have a node's time, it among them.
fn is_times_of_most(clocks: &Clocks, node: NodeId, nodes: usize, limit: Duration) -> bool {
    let Some(own) = clocks.get(&node) else {
        return false;
    };
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let is_near = |other: &&Skew| {
        let doubt_ms = other.doubt_ms.saturating_add(own.doubt_ms);
        own.ahead_ms.abs_diff(other.ahead_ms) <= limit_ms.saturating_add(doubt_ms)
    };
    2 * clocks.values().filter(is_near).count() > nodes
}

/// What is known of a node's time by what was known and by the times of the nodes that answer.
fn judged(was: ClockVerdict, clocks: &Clocks, node: NodeId, nodes: usize) -> ClockVerdict {
    if was == ClockVerdict::Right {
        let ahead_ms = ahead_of_most(clocks, node, nodes, SKEW_MAX);
        return ahead_ms.map_or(ClockVerdict::Right, ClockVerdict::Off);
    }
    if is_times_of_most(clocks, node, nodes, RIGHT_AGAIN) {
        return ClockVerdict::Right;
    }
    // How far it is off, the others tell that are left.
    let left = clocks.len().saturating_sub(1);
    let ahead_ms = ahead_of_most(clocks, node, nodes, RIGHT_AGAIN)
        .or_else(|| ahead_of_most(clocks, node, left, RIGHT_AGAIN));
    ahead_ms.map_or(was, ClockVerdict::Off)
}

/// Whether the clock of `node`'s machine is right, as far as that can be known, and its time is not.
/// `machines` is how far the clocks of the other nodes' machines are ahead of its time.
fn is_right(
    jump: Jump,
    node: NodeId,
    nodes: usize,
    times: &Clocks,
    machines: &BTreeMap<NodeId, i64>,
) -> bool {
    let is_near = |one: i64, other: i64| u128::from(one.abs_diff(other)) <= SKEW_MAX.as_millis();
    let (mut with_clock, mut with_time) = (0, 0);
    for (other, time) in times.iter().filter(|(other, _)| **other != node) {
        let machine = machines.get(other);
        if is_near(time.ahead_ms, jump.ahead_ms)
            || machine.is_some_and(|ahead| is_near(*ahead, jump.ahead_ms))
        {
            with_clock += 1;
        } else if is_near(time.ahead_ms, 0) {
            with_time += 1;
        }
    }
    if with_clock > 0 && 2 * (with_clock + 1) > nodes {
        return true;
    }
    let mut as_clock = times.clone();
    if let Some(own) = as_clock.get_mut(&node) {
        own.ahead_ms = jump.ahead_ms;
    }
    let is_off = |times| ahead_of_most(times, node, nodes, SKEW_MAX).is_some();
    match (is_off(times), is_off(&as_clock)) {
        (_, true) => false,
        (true, false) => true,
        (false, false) => with_time == 0 && jump.lasted >= ADOPTED_AFTER,
    }
}

/// The nodes of the map whose times are off, as far as this node knows.
pub(super) fn clocks_off(inner: &ClusterInner, map: &Map) -> BTreeSet<NodeId> {
    let states = inner.peers().states();
    let clocks = clocks(inner, map, &states.borrow());
    let is_off = |node: &NodeId| ahead_of_most(&clocks, *node, map.nodes.len(), SKEW_MAX).is_some();
    clocks.keys().copied().filter(is_off).collect()
}

/// Follows the clocks, and hands over what this node leads while its time is off.
pub(super) async fn watch_clocks(inner: Arc<ClusterInner>) {
    let mut states = inner.peers().states();
    let mut ticks = inner.peers().beat().every(inner.options.look);
    let mut obeying = Obeying::default();
    let mut had_jumped = false;
    let mut adopted: Option<Instant> = None;
    let mut stored = inner.clock.verdict() != ClockVerdict::Right;
    loop {
        drop(states.borrow_and_update());
        match look_at_clock(&inner, had_jumped) {
            Looked::Adopted => (had_jumped, adopted) = (false, Some(Instant::now())),
            Looked::Jumped => had_jumped = true,
            Looked::There => had_jumped = false,
        }
        if adopted.is_none_or(|at| at.elapsed() >= MEASURED_ANEW) {
            look(&inner);
        }
        let verdict = inner.clock.verdict();
        let is_off = verdict != ClockVerdict::Right;
        if is_off != stored {
            stored = remember(&inner, is_off, stored).await;
        }
        if let Some(map) = inner.map() {
            obeying.obey(&inner, &map, verdict).await;
        }
        // Clocks jump, and replicas come and go and leaders change while the time is off.
        tokio::select! {
            biased;
            changed = states.changed() => if changed.is_err() {
                return;
            },
            _ = ticks.tick() => {}
        }
    }
}

/// Where the clock of the machine is.
enum Looked {
    /// At this node's time.
    There,
    Jumped,
    /// Its time was adopted.
    Adopted,
}

/// Compares the clock of the machine with this node's time. If it has jumped and is right, its time is
/// adopted.
fn look_at_clock(inner: &ClusterInner, had_jumped: bool) -> Looked {
    let node = inner.number();
    let Some(jump) = inner.clock.jump() else {
        if had_jumped {
            tracing::info!(node, "the clock of the machine is back at the time of this node");
        }
        return Looked::There;
    };
    let ahead_ms = jump.ahead_ms;
    let is_right = inner.map().is_some_and(|map| {
        let times = clocks(inner, &map, &inner.peers().states().borrow());
        is_right(
            jump,
            node,
            map.nodes.len(),
            &times,
            &inner.peers().machine_clocks(),
        )
    });
    if is_right && inner.clock.adopt(jump) {
        tracing::warn!(
            node,
            ahead_ms,
            "the clock of the machine has jumped, and this node adopts its time"
        );
        return Looked::Adopted;
    }
    if !had_jumped {
        let problem = jump_problem(jump);
        tracing::error!(
            node,
            problem,
            "this node does not follow the clock of its machine"
        );
    }
    Looked::Jumped
}

/// Compares this node's time with the others'.
fn look(inner: &ClusterInner) {
    let Some(map) = inner.map() else { return };
    let was = inner.clock.verdict();
    let states = inner.peers().states();
    let clocks = clocks(inner, &map, &states.borrow());
    let now = judged(was, &clocks, inner.number(), map.nodes.len());
    inner.clock.set_verdict(now);
    let node = inner.number();
    match (was, now) {
        (ClockVerdict::Right, ClockVerdict::Off(ahead_ms)) => {
            let problem = off_problem(ahead_ms);
            tracing::error!(node, problem, "this node leads nothing until its clock is right");
        }
        (ClockVerdict::Off(_) | ClockVerdict::WasOff, ClockVerdict::Right) => {
            tracing::info!(node, "the clock of this node is right again: it may lead");
        }
        _ => {}
    }
}

/// Notes on disk whether this node's time is off. Returns what is noted there now.
async fn remember(inner: &ClusterInner, is_off: bool, stored: bool) -> bool {
    let store = inner.store.clone();
    match blocking(move || store.set_clock_off(is_off)).await {
        Ok(()) => is_off,
        Err(error) => {
            // It is tried again at the next look.
            tracing::error!(node = inner.number(), %error, "that the clock is off, or right again, is not noted");
            stored
        }
    }
}

impl ClusterInner {
    /// What is wrong with this node's clock, and what to do.
    pub(super) fn clock_problems(&self) -> impl Iterator<Item = String> + use<> {
        let off = self.off_problem();
        off.into_iter().chain(self.clock.jump().map(jump_problem))
    }

    /// Why this node leads nothing, if its time is off.
    pub(super) fn off_problem(&self) -> Option<String> {
        match self.clock.verdict() {
            ClockVerdict::Right => None,
            ClockVerdict::Off(ahead_ms) => Some(off_problem(ahead_ms)),
            ClockVerdict::WasOff => Some(
                "the clock of this machine was off when it was last compared with those of other nodes, and none has \
                 answered since the node was started: it leads nothing until one does"
                    .to_owned(),
            ),
        }
    }
}

/// What is wrong, and what to do, where this node's time is off by so much.
fn off_problem(ahead_ms: i64) -> String {
    let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
    format!(
        "the clock of this machine is {} ms {direction} those of most other nodes, of at most {} ms: set it right",
        ahead_ms.unsigned_abs(),
        SKEW_MAX.as_millis()
    )
}

fn jump_problem(jump: Jump) -> String {
    let direction = if jump.ahead_ms > 0 { "ahead" } else { "back" };
    format!(
        "the clock of this machine has jumped {} ms {direction}, and the node goes on with the time before, until most \
         nodes have the clock's: set it right",
        jump.ahead_ms.unsigned_abs()
    )
}

/// What is remembered from one look to the next.
#[derive(Default)]
struct Obeying {
    /// What was obeyed last. Replicas stand by themselves.
    verdict: ClockVerdict,
    /// When replicas that lead were last asked to hand over.
    asked: BTreeMap<ReplicaId, Instant>,
    /// Since when groups are seen without a leader that answers.
    leaderless: BTreeMap<ReplicaId, Instant>,
}

impl Obeying {
    /// Lets the replicas of this node stand for election, or not. While the time is off, those that lead
    /// hand over, as soon as another one can lead.
    async fn obey(&mut self, inner: &ClusterInner, map: &Map, verdict: ClockVerdict) {
        let was = std::mem::replace(&mut self.verdict, verdict);
        if verdict == ClockVerdict::Right {
            self.leaderless.clear();
            let replicas = inner.node.replicas().into_iter();
            replicas
                .filter(|_| was != verdict)
                .for_each(|replica| inner.set_stands(&replica, true));
            return;
        }
        let off = clocks_off(inner, map);
        for group in groups(inner, map) {
            let stands = self.stands(inner, &group, verdict);
            inner.set_stands(&group.replica, stands);
            if !group.replica.state().is_ok_and(|state| state.leads) {
                continue;
            }
            let own = group.replica.id();
            let now = Instant::now();
            if self.asked.get(&own).is_some_and(|at| now < *at + ASKED_FOR) {
                continue;
            }
            let right = group.others().filter(|(_, node)| !off.contains(node));
            for (to, node) in right {
                if inner.hears(node) && group.replica.has_nearly_all(to) {
                    self.asked.insert(own, now);
                    match group.replica.transfer_to(to).await {
                        Ok(()) => break,
                        Err(error) => {
                            tracing::warn!(%error, replica = own, "leadership is not handed over");
                        }
                    }
                }
            }
        }
    }

    /// Whether a replica is to stand for election. One of a node whose time is off does only where the
    /// others cannot elect a leader, or do not: they may lack what was acknowledged.
    fn stands(&mut self, inner: &ClusterInner, group: &Group, verdict: ClockVerdict) -> bool {
        let own = group.replica.id();
        let leader = group.replica.leader();
        let node = leader.and_then(|leader| group.members.get(&leader));
        if node.is_some_and(|node| inner.hears(*node)) {
            self.leaderless.remove(&own);
            return false;
        }
        let since = *self.leaderless.entry(own).or_insert_with(Instant::now);
        let is_alone = group.members.len() == 1;
        let is_left = is_alone || since.elapsed() >= LEFT_TO_OTHERS;
        verdict != ClockVerdict::WasOff && is_left && !others_can_lead(inner, group)
    }
}

/// Whether the others can elect a leader without this node, and one with all that was acknowledged:
/// each majority has a member among more than half of the members.
fn others_can_lead(inner: &ClusterInner, group: &Group) -> bool {
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
    fn half_of_the_clocks_silent_or_apart_tell_nothing() {
        assert_eq!(off(&[0, 900], 0, 2), [0; 0]);
        assert_eq!(off(&[0, 900], 0, 3), [0; 0], "the third is silent");
        assert_eq!(off(&[0, 0, 900, 900], 0, 4), [0; 0]);
        assert_eq!(off(&[0], 0, 1), [0; 0]);
        assert_eq!(off(&[i64::MIN, 0, i64::MAX], u64::MAX, 3), [0; 0]);
    }

    #[test]
    fn a_node_is_off_until_most_have_its_time() {
        let judge = |was, ahead_ms: &[(NodeId, i64)], nodes| {
            let skew = |ahead_ms| Skew {
                ahead_ms,
                doubt_ms: 0,
            };
            let clocks = ahead_ms.iter().map(|(node, ahead_ms)| (*node, skew(*ahead_ms)));
            judged(was, &clocks.collect(), 2, nodes)
        };
        let off = ClockVerdict::Off(3000);
        assert_eq!(
            judge(ClockVerdict::Right, &[(1, -3000), (2, 0), (3, -3100)], 3),
            off
        );
        assert_eq!(
            judge(off, &[(2, 0), (3, -3100)], 3),
            ClockVerdict::Off(3100),
            "the third is gone"
        );
        assert_eq!(judge(off, &[(2, 0)], 3), off, "all others are");
        assert_eq!(judge(ClockVerdict::WasOff, &[(2, 0)], 3), ClockVerdict::WasOff);
        assert_eq!(
            judge(ClockVerdict::WasOff, &[(2, 0), (3, -3000)], 3),
            off,
            "after a restart"
        );
        assert_eq!(
            judge(ClockVerdict::WasOff, &[(2, 0), (3, 400)], 3),
            ClockVerdict::Right
        );
        assert_eq!(judge(off, &[(2, 0), (3, 401)], 3), ClockVerdict::Off(-401));
        // Another one that is off in the same way proves nothing.
        assert_eq!(judge(off, &[(2, 0), (4, 20)], 5), off);
        assert_eq!(judge(off, &[(1, -3000), (2, 0), (4, 20)], 5), off);
        assert_eq!(judge(off, &[(1, 10), (2, 0), (4, 20)], 5), ClockVerdict::Right);
    }

    /// Whether a node's clock that has jumped by an hour is right, where those that answer have these
    /// times and clocks.
    fn right(others: &[(i64, i64)], nodes: usize, lasted: Duration) -> bool {
        let jump = Jump {
            ahead_ms: 3_600_000,
            lasted,
        };
        let skew = |ahead_ms| Skew {
            ahead_ms,
            doubt_ms: 5,
        };
        let others = (2..).zip(others);
        let times = others.clone().map(|(node, (time, _))| (node, skew(*time)));
        let times = times.chain([(1, skew(0))]).collect();
        let machines = others.map(|(node, (_, machine))| (node, *machine)).collect();
        is_right(jump, 1, nodes, &times, &machines)
    }

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(3600);
    const HOUR: i64 = 3_600_000;

    #[test]
    fn a_clock_that_jumps_away_from_most_stays_wrong() {
        for lasted in [AT_ONCE, LONG] {
            assert!(!right(&[(0, 0), (20, 20)], 3, lasted));
            assert!(!right(&[(0, 0)], 3, lasted), "the third is silent");
            assert!(!right(&[(0, 0)], 2, lasted), "the other one has the time before");
            assert!(!right(&[(0, 0), (0, HOUR)], 5, lasted), "two of five");
            assert!(
                !right(&[(-7000, -7000), (-7000, -7000)], 3, lasted),
                "it was off before, and is now"
            );
        }
    }

    #[test]
    fn a_clock_is_right_at_once_that_most_have() {
        let other = (HOUR - 400, HOUR - 400);
        assert!(right(&[other, other], 3, AT_ONCE), "this node was off");
        assert!(right(&[other], 3, AT_ONCE), "the third is silent");
        assert!(right(&[other], 2, AT_ONCE));
        assert!(
            right(&[(0, HOUR + 400), (0, 0)], 3, AT_ONCE),
            "the clocks of most were set"
        );
        assert!(right(&[(0, HOUR)], 2, AT_ONCE), "those of both were set");
        assert!(
            !right(&[(0, HOUR + 501), (0, 0)], 3, AT_ONCE),
            "another one was set to another time"
        );
        // In the middle of two that are off.
        assert!(right(&[(HOUR - 9000, 0), (HOUR + 9000, 0)], 3, AT_ONCE));
    }

    #[test]
    fn a_clock_of_which_nothing_can_be_known_is_right_after_a_while() {
        for nodes in [1, 2, 3] {
            assert!(!right(&[], nodes, ADOPTED_AFTER - Duration::from_millis(1)));
            assert!(right(&[], nodes, ADOPTED_AFTER));
        }
        assert!(
            !right(&[(0, 0), (HOUR, HOUR)], 5, LONG),
            "one has this, one has that"
        );
        assert!(right(&[(HOUR, HOUR), (77_000, 77_000)], 5, ADOPTED_AFTER));
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
