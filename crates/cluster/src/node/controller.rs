//! What the leader of group 0 does by itself. Each step is one entry of the group, or one change of
//! its members that can be asked for again, and each is decided by the newest map alone: another
//! leader goes on wherever this one stops.
//!
//! Among that is spreading leaders over the nodes again: one partition after the other is handed
//! over, where a node leads at least two more than another that could lead it.
//!
//! It begins when nothing has changed a leader for some time: so it works against no fail-over, no
//! node whose clock is off, and no hand-over that was asked for, as long as its reason lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::ids::{GroupId, ReplicaId};
use crate::map::{self, Changes, Map, NodeRole, Nodes, Stuck};
use crate::node::changing::{change, map_member};
use crate::node::clocks::clocks_off;
use crate::node::leaders::{ask_to_hand_over, give_up_lead};
use crate::node::routing::KnownNodes;
use crate::node::shared::ClusterInner;
use crate::proposals::Answer;
use crate::raft::{Members, Replica};
use crate::transport::wire::NodeId;

/// What the problem is about of replicas that cannot move.
const MOVES: &str = "moves of replicas";
/// Replicas that cannot move for so long are a problem.
const STUCK_FOR: Duration = Duration::from_secs(5);
/// A step that takes longer is given up, and asked for again.
const STEP: Duration = Duration::from_secs(10);

/// Takes step after step while this node's replica of group 0 leads, until the node ends.
pub(super) async fn control(inner: Arc<ClusterInner>) {
    let mut ticks = inner.peers().beat().every(inner.options.look);
    let mut map = inner.map.subscribe();
    let mut spreading = Spreading::default();
    let mut lasting = Lasting::default();
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
            inner.report(MOVES, None);
            spreading = Spreading::default();
            lasting = Lasting::default();
            continue;
        }
        let may_spread = spreading.is_quiet(inner.options.spread_after);
        let done = steps(&inner, &replica, &mut lasting, may_spread).await;
        if let Some(map) = inner.map() {
            // A hand-over that takes longer is asked for again.
            drop(timeout(STEP, spreading.step(&inner, &map)).await);
        }
        inner.report("the controller", done.err());
    }
}

/// What has lasted for how long, as this node knows.
#[derive(Debug, Default)]
struct Lasting {
    /// The nodes that do not answer, each since then.
    silent: BTreeMap<NodeId, Instant>,
    /// Groups that splits have made whose replicas are not known to have the rows, each since then.
    settling: BTreeMap<GroupId, Instant>,
    /// Replicas that are to move cannot, since then.
    stuck: Option<Instant>,
}

impl Lasting {
    /// Those that have not answered for so long.
    fn gone(&mut self, inner: &ClusterInner, map: &Map) -> BTreeSet<NodeId> {
        let states = inner.peers().states();
        let states = states.borrow();
        let nodes = map.nodes.keys().copied();
        note(
            &mut self.silent,
            nodes.filter(|node| !inner.is_alive(&states, *node)),
        );
        let is_gone = |since: &Instant| since.elapsed() >= inner.options.replace_after;
        let gone = self.silent.iter().filter(|(_, since)| is_gone(since));
        gone.map(|(node, _)| *node).collect()
    }

    /// Groups that splits have made, and that still wait for their replicas to have the rows. One that cannot have them,
    /// and a leader that cannot say so, keep nothing from moving for longer than a node that is silent.
    fn settling(&mut self, inner: &ClusterInner, map: &Map) -> BTreeSet<GroupId> {
        let new = map.partitions.values().filter(|partition| partition.from != 0);
        note(&mut self.settling, new.map(|partition| partition.group));
        let waits = |since: &Instant| since.elapsed() < inner.options.replace_after;
        let settling = self.settling.iter().filter(|(_, since)| waits(since));
        settling.map(|(group, _)| *group).collect()
    }

    /// Says what is to move and cannot. A leader that is new does not know for a moment who could take it.
    fn report_stuck(&mut self, inner: &ClusterInner, map: &Map, nodes: &Nodes) {
        let problem = stuck_problem(&map::stuck(map, nodes));
        if problem.is_none() {
            self.stuck = None;
        } else if self.stuck.get_or_insert_with(Instant::now).elapsed() < STUCK_FOR {
            return;
        }
        inner.report(MOVES, problem);
    }
}

/// Notes what is so now, each since when it was noted first.
fn note<K: Ord>(since: &mut BTreeMap<K, Instant>, now: impl Iterator<Item = K>) {
    let before = std::mem::take(since);
    let at = Instant::now();
    since.extend(now.map(|key| {
        let noted = before.get(&key).copied();
        (key, noted.unwrap_or(at))
    }));
}

/// What is to move and cannot, with what to do.
fn stuck_problem(stuck: &Stuck) -> Option<String> {
    let list = |numbers: &BTreeSet<u64>| {
        let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
        numbers.join(", ")
    };
    let mut all = Vec::new();
    if !stuck.nodes.is_empty() {
        all.push(format!(
            "replicas are to move away from node {}, and no other node can take them: start the nodes that do not answer, \
             or let another one join",
            list(&stuck.nodes)
        ));
    }
    all.extend(stuck.replaced.iter().map(|(node, by)| {
        format!(
            "node {node} is to be replaced by node {by} alone, which does not answer or has replicas of the same \
             partitions: remove node {node}, and its replicas move to several nodes"
        )
    }));
    for (node, disk) in &stuck.disks {
        all.push(format!(
            "replicas are to move away from disk {disk} of node {node}, which does not answer: start it, or have them move to \
             other nodes by `collie cluster drain {node}`"
        ));
    }
    if !stuck.lost.is_empty() {
        all.push(format!(
            "most replicas of the partitions of groups {} are on nodes that do not answer, so none of their replicas can \
             move: start these nodes",
            list(&stuck.lost)
        ));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// The next steps, in their order. One that fails keeps no other one from being taken.
async fn steps(
    inner: &ClusterInner,
    replica: &Replica,
    lasting: &mut Lasting,
    may_spread: bool,
) -> Result<(), String> {
    let Some(map) = inner.map() else {
        return found(inner, replica).await;
    };
    let learners = within(learners(replica, &map)).await;
    let members = replica.members().map_err(|error| error.to_string())?;
    let nodes = Nodes {
        ready: ready(inner, &map, &members),
        gone: lasting.gone(inner, &map),
        hanging: hanging(inner, &map),
        settling: lasting.settling(inner, &map),
        may_spread,
    };
    lasting.report_stuck(inner, &map, &nodes);
    let voters = within(voters(inner, replica, &map, &members, &nodes)).await;
    let placing = nodes.clone();
    let placed = within(decide(replica, &map, move |map| {
        map::place(map, &placing).map_err(|error| error.to_string())
    }));
    let placed = placed.await;
    let planned = within(decide(replica, &map, move |map| Ok(map::plan(map, &nodes)))).await;
    let removed = within(remove_nodes(replica, &map, &members)).await;
    learners.and(voters).and(placed).and(planned).and(removed)
}

async fn within(step: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let done = timeout(STEP, step).await;
    done.unwrap_or_else(|_| Err(format!("a step took longer than {STEP:?}")))
}

/// The moves that do not go on, by the word of the leaders of their groups.
fn hanging(inner: &ClusterInner, map: &Map) -> BTreeSet<(GroupId, u64)> {
    let mut hanging = inner.hanging.lock();
    hanging.retain(|(group, changed)| map::unchanged(map, *group, *changed).is_ok());
    hanging.clone()
}

/// The first entry of the map, on the node that made the cluster.
async fn found(inner: &ClusterInner, replica: &Replica) -> Result<(), String> {
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

/// The nodes that answer, and whose replicas of group 0 have nearly all entries.
fn ready(inner: &ClusterInner, map: &Map, members: &Members) -> BTreeSet<NodeId> {
    let states = inner.peers().states();
    let states = states.borrow();
    let all = members.all.keys();
    let nodes = all.filter(|replica| members.has_nearly_all(**replica));
    let nodes = nodes.filter_map(|replica| map.node_of_replica(*replica));
    let numbers = nodes.map(|node| node.number);
    numbers.filter(|node| inner.is_alive(&states, *node)).collect()
}

/// As many members vote as are wanted, and no change of them stays half done.
async fn voters(
    inner: &ClusterInner,
    replica: &Replica,
    map: &Map,
    members: &Members,
    nodes: &Nodes,
) -> Result<(), String> {
    let mut wanted = match map::voters(map, &members.voters, nodes) {
        Some(wanted) => wanted,
        None if members.is_joint => members.voters.clone(),
        None => return Ok(()),
    };
    if !wanted.contains(&replica.id()) {
        // The next leader goes on, and loses no time by an election.
        let node_of = |id| Some(map.node_of_replica(id)?.number);
        if give_up_lead(inner, replica, &wanted, node_of).await? {
            return Ok(());
        }
        // It votes alone: first another one has to, too.
        wanted.insert(replica.id());
    }
    let changed = replica.change_voters(wanted).await;
    changed.map_err(|error| error.to_string())
}

/// Nodes that are to leave and have nothing are removed from the map, and then from group 0.
async fn remove_nodes(replica: &Replica, map: &Map, members: &Members) -> Result<(), String> {
    let leaving = map.nodes.values().filter(|node| {
        matches!(node.role, NodeRole::Leaves { .. }) && !members.voters.contains(&node.replica)
    });
    for node in leaving.filter(|_| !members.is_joint) {
        let number = node.number;
        decide(replica, map, move |map| Ok(map::leave(map, number))).await?;
    }
    // A map that has not given out an id yet is older than the member.
    let is_unknown = |id: &ReplicaId| {
        *id < map.cluster.next_replica && map.node_of_replica(*id).is_none() && !members.voters.contains(id)
    };
    let unknown = members.all.keys().copied().filter(is_unknown);
    let removed = replica.remove_learners(unknown.collect()).await;
    removed.map_err(|error| error.to_string())
}

/// Changes the map by a rule, if the rule changes the map as it is known here. It is decided anew on the map that
/// the entry follows.
async fn decide<F>(replica: &Replica, map: &Map, rule: F) -> Result<(), String>
where
    F: Fn(&Map) -> Result<Option<Changes>, String> + Send + Sync + 'static,
{
    if rule(map)?.is_none() {
        return Ok(());
    }
    let rule = move |map: Option<&Map>| match map {
        Some(map) => Ok(((), rule(map)?)),
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

/// A hand-over that was asked for shows within this time, or is asked for again.
const ASKED_FOR: Duration = Duration::from_secs(5);

/// What leaders depend on, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeadersSeen {
    /// The node that leads each group; none where that is not known.
    leaders: BTreeMap<GroupId, Option<NodeId>>,
    /// The nodes that answer, and whose clocks are right.
    able: BTreeSet<NodeId>,
}

/// A hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Move {
    group: GroupId,
    from: NodeId,
    to: NodeId,
}

/// Spreads leaders, step by step.
#[derive(Debug, Default)]
pub(super) struct Spreading {
    seen: Option<LeadersSeen>,
    /// Since when nothing else has changed what was seen.
    quiet: Option<Instant>,
    asked: Option<(Move, Instant)>,
}

impl Spreading {
    /// Whether nothing has changed the leaders for so long.
    fn is_quiet(&self, after: Duration) -> bool {
        self.quiet.is_some_and(|since| since.elapsed() >= after)
    }

    /// Looks at the leaders, and asks for the next hand-over if it is time.
    pub(super) async fn step(&mut self, inner: &ClusterInner, map: &Map) {
        let seen = look(inner, map);
        if let Some(wanted) = self.next(seen, map, Instant::now(), inner.options.spread_after) {
            ask(inner, map, wanted).await;
        }
    }

    /// The next hand-over, if it is time for one.
    fn next(&mut self, seen: LeadersSeen, map: &Map, now: Instant, after: Duration) -> Option<Move> {
        let asked = self.asked;
        let as_asked = |before: &LeadersSeen| {
            let (done, _) = asked?;
            let mut expected = before.clone();
            expected.leaders.insert(done.group, Some(done.to));
            Some(expected == seen)
        };
        // While leadership changes hands, it is not known who has it.
        let is_between = |before: &LeadersSeen| {
            let (done, _) = asked?;
            let mut expected = before.clone();
            expected.leaders.insert(done.group, None);
            Some(expected == seen)
        };
        let before = self.seen.as_ref();
        if before.is_some_and(|before| is_between(before) == Some(true)) {
            return None;
        }
        if before.is_some_and(|before| as_asked(before) == Some(true)) {
            self.asked = None;
        } else if before != Some(&seen) {
            self.asked = None;
            self.quiet = Some(now);
        }
        self.seen = Some(seen.clone());
        let is_quiet = self.quiet.is_some_and(|since| now >= since + after);
        let waits = self.asked.is_some_and(|(_, at)| now < at + ASKED_FOR);
        if !is_quiet || waits {
            return None;
        }
        let wanted = next_move(map, &seen)?;
        self.asked = Some((wanted, now));
        Some(wanted)
    }
}

fn look(inner: &ClusterInner, map: &Map) -> LeadersSeen {
    let off = clocks_off(inner, map);
    let (states, led) = (inner.peers().states(), inner.peers().leaders());
    let known = KnownNodes {
        number: inner.number(),
        states: &states.borrow(),
        led: &led.borrow(),
    };
    let routing = inner.routing.load();
    let leaders = map
        .partitions
        .values()
        .map(|partition| (partition.group, routing.leader(partition, &known)));
    let able = map.nodes.keys().copied();
    LeadersSeen {
        leaders: leaders.collect(),
        able: able
            .filter(|node| !off.contains(node) && known.is_alive(*node))
            .collect(),
    }
}

/// The hand-over that makes the greatest difference smaller, if any node leads at least two more than
/// another one that has a replica of what it leads.
fn next_move(map: &Map, seen: &LeadersSeen) -> Option<Move> {
    let mut leads: BTreeMap<NodeId, usize> = seen.able.iter().map(|node| (*node, 0)).collect();
    for leader in seen.leaders.values().copied().flatten() {
        *leads.entry(leader).or_default() += 1;
    }
    let moves = seen.leaders.iter().filter_map(|(group, leader)| {
        let (from, partition) = ((*leader)?, map.partitions.get(group)?);
        let lasting = partition.lasting().iter();
        let could = lasting.filter(|member| partition.members.contains(member));
        let to = could
            .map(|member| member.node)
            .filter(|node| seen.able.contains(node))
            .min_by_key(|node| leads.get(node))?;
        let difference = leads.get(&from)?.checked_sub(*leads.get(&to)?)?;
        let group = *group;
        (difference >= 2).then_some((difference, Move { group, from, to }))
    });
    // Of equal ones the first.
    let best = moves.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, wanted)| wanted)
}

async fn ask(inner: &ClusterInner, map: &Map, wanted: Move) {
    let Move { group, from, to } = wanted;
    let on = |node| {
        let mut members = map.partitions.get(&group)?.members_on(node);
        let member = members.next()?;
        // Of two it is not known which one leads, or is to; one of them goes soon.
        members.next().is_none().then_some(member.replica)
    };
    let (Some(leader), Some(to_replica)) = (on(from), on(to)) else {
        return;
    };
    let asked = match inner.node.replica(leader) {
        Some(own) if own.has_nearly_all(to_replica) => own
            .transfer_to(to_replica)
            .await
            .map_err(|error| error.to_string()),
        Some(_) => return,
        None => ask_to_hand_over(inner, group, (from, leader), to_replica).await,
    };
    match asked {
        Ok(()) => tracing::info!(group, from, to, "leadership is handed over, to spread it"),
        // It is asked again: for as long as a disk is full, for example.
        Err(problem) => tracing::debug!(group, from, to, problem, "leadership is not handed over"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::map::{Founding, JoinRequest, MapMember, PartitionRecord, found};

    const AFTER: Duration = Duration::from_secs(10);

    /// A map with a partition for each element, which names the nodes that have replicas.
    fn map(partitions: &[&[NodeId]]) -> Map {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let founding = Founding {
            id: [1; 16],
            level: 1,
            replicas: 3,
            partitions: partitions.len() as u16,
            voters: 3,
            first: JoinRequest {
                token: [2; 16],
                peer: address,
                client: address,
                disks: vec![[3; 16]],
            },
        };
        let member = |group: u64| {
            move |node: &NodeId| MapMember {
                replica: group * 100 + node,
                node: *node,
                disk: 0,
            }
        };
        let partition = |(group, nodes): (u64, &&[NodeId])| PartitionRecord {
            group,
            first: group as u16,
            last: group as u16,
            begins: group * 100 + nodes[0],
            members: nodes.iter().map(member(group)).collect(),
            wanted: Vec::new(),
            changed: 0,
            split: None,
            from: 0,
        };
        let partitions = (1..).zip(partitions).map(partition);
        Map {
            cluster: found(&founding).cluster,
            nodes: BTreeMap::new(),
            partitions: partitions.map(|partition| (partition.group, partition)).collect(),
            duplications: map::Duplications::default(),
        }
    }

    fn seen(leaders: &[NodeId], able: &[NodeId]) -> LeadersSeen {
        let leader = |node: &NodeId| Some(*node).filter(|node| *node > 0);
        LeadersSeen {
            leaders: (1..).zip(leaders.iter().map(leader)).collect(),
            able: able.iter().copied().collect(),
        }
    }

    #[test]
    fn the_greatest_difference_becomes_smaller_first() {
        let all: &[NodeId] = &[1, 2, 3];
        let six = map(&[all; 6]);
        let next = |leaders: &[NodeId], able: &[NodeId]| {
            next_move(&six, &seen(leaders, able)).map(|wanted| (wanted.group, wanted.from, wanted.to))
        };
        assert_eq!(next(&[1, 1, 1, 2, 2, 1], all), Some((1, 1, 3)));
        assert_eq!(next(&[3, 1, 1, 2, 2, 1], all), Some((2, 1, 3)));
        assert_eq!(
            next(&[3, 1, 1, 2, 2, 3], all),
            None,
            "none leads two more than another"
        );
        assert_eq!(
            next(&[1, 1, 1, 2, 2, 1], &[1, 2]),
            Some((1, 1, 2)),
            "the third is silent"
        );
        assert_eq!(next(&[1, 1, 1, 2, 2, 0], &[1, 2]), None);
        // Only nodes with a replica can lead.
        let apart = map(&[&[1, 2], &[1, 2], &[1, 2], &[3]]);
        let wanted = next_move(&apart, &seen(&[1, 1, 1, 3], all)).unwrap();
        assert_eq!((wanted.group, wanted.to), (1, 2));
    }

    #[test]
    fn leaders_are_spread_one_by_one_once_nothing_else_changes() {
        let all: &[NodeId] = &[1, 2, 3];
        let four = map(&[all; 4]);
        let (mut spreading, began) = (Spreading::default(), Instant::now());
        let mut next = |leaders: &[NodeId], able: &[NodeId], seconds: u64| {
            let now = began + Duration::from_secs(seconds);
            let wanted = spreading.next(seen(leaders, able), &four, now, AFTER);
            wanted.map(|wanted| (wanted.group, wanted.to))
        };
        assert_eq!(next(&[1, 1, 1, 1], all, 0), None);
        assert_eq!(next(&[1, 1, 1, 1], all, 9), None, "not for so long");
        assert_eq!(next(&[1, 1, 1, 2], all, 10), None, "another leader");
        assert_eq!(next(&[1, 1, 1, 2], &[1, 2], 19), None, "a node is silent");
        assert_eq!(next(&[1, 1, 1, 2], all, 28), None, "it is back");
        assert_eq!(next(&[1, 1, 1, 2], all, 38), Some((1, 3)));
        assert_eq!(next(&[1, 1, 1, 2], all, 39), None, "it is under way");
        assert_eq!(
            next(&[1, 1, 1, 2], all, 43),
            Some((1, 3)),
            "it has not come about"
        );
        assert_eq!(next(&[0, 1, 1, 2], all, 44), None);
        assert_eq!(next(&[3, 1, 1, 2], all, 45), None, "they are spread");
        assert_eq!(next(&[3, 1, 1, 1], all, 46), None, "another leader again");
        assert_eq!(next(&[3, 1, 1, 1], all, 56), Some((2, 2)));
        assert_eq!(next(&[3, 3, 1, 1], all, 57), None, "not what was asked for");
    }
}
