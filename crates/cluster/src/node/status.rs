//! What a node says of itself and of its cluster: for operators, what is wrong and has to be put right; and its
//! metrics. `docs/operations.md` lists every name of these; a test compares the two.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use collie_log::LogStats;
use collie_server::cluster::Figure;

use crate::ids::{GroupId, ReplicaId};
use crate::node::routing::{name, node_of};
use crate::node::shared::Inner;
use crate::raft::{ElectionCause, Replica, ReplicaState};
use crate::raftlog::{Holding, NodeLog, NodeLogStats, ReplicaLog, replica_holder};
use crate::transport::Skew;
use crate::transport::wire::{ClusterId, NodeId};

/// What a node knows of its cluster.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node's number.
    pub own: NodeId,
    /// The epoch of the map that this node has; 0 before it has one.
    pub epoch: u64,
    /// The cluster's feature level.
    pub level: u32,
    /// This node's replica of the map's group.
    pub map: Option<ReplicaStatus>,
    /// The node that leads the map's group, as far as this node knows.
    pub map_leader: Option<NodeId>,
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<NodeStatus>,
    /// The partitions, in the order of their groups.
    pub partitions: Vec<PartitionStatus>,
    /// What keeps this node from leading or from following the map, each with what it is about.
    pub problems: Vec<(String, String)>,
}

/// A node.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// Its number.
    pub number: NodeId,
    /// Its name for clients.
    pub name: String,
    /// Where other nodes reach it.
    pub peer: SocketAddr,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// Whether it answers this node.
    pub is_alive: bool,
    /// How far its time is from this node's, as of the last ping.
    pub skew: Option<Skew>,
    /// Why there is no connection to it, if there is none.
    pub problem: Option<String>,
    /// Its replica of the map's group.
    pub replica: ReplicaId,
    /// Whether that one votes.
    pub votes: bool,
}

/// A partition.
#[derive(Debug, Clone)]
pub struct PartitionStatus {
    /// Its group.
    pub group: GroupId,
    /// Its slots.
    pub slots: RangeInclusive<u16>,
    /// The node that leads it, by the word of this node's replica.
    pub leader: Option<NodeId>,
    /// The nodes that have replicas of it.
    pub nodes: Vec<NodeId>,
    /// This node's replica.
    pub here: Option<ReplicaStatus>,
}

/// A replica on this node.
#[derive(Debug, Clone)]
pub struct ReplicaStatus {
    /// Its id.
    pub replica: ReplicaId,
    /// Whether it leads.
    pub leads: bool,
    /// The index of the last entry that it has applied.
    pub applied: u64,
    /// By how many entries that is behind its log.
    pub lag: u64,
    /// Why it does not run, if it does not.
    pub problem: Option<String>,
}

impl Inner {
    /// What this node knows.
    pub(super) fn status(&self) -> ClusterStatus {
        let map = self.map();
        let states = self.peers().states();
        let states = states.borrow();
        let members = self.map_replica().and_then(|replica| replica.members().ok());
        let voters = members.map(|members| members.voters).unwrap_or_default();
        let (own_map, map_leader) = self.replica_status(self.identity.replica);
        let mut status = ClusterStatus {
            cluster: self.identity.cluster,
            own: self.number(),
            epoch: 0,
            level: self.identity.level,
            map: own_map,
            map_leader: None,
            nodes: Vec::new(),
            partitions: Vec::new(),
            problems: self.all_problems(),
        };
        let Some(map) = map else { return status };
        status.epoch = map.cluster.epoch;
        status.level = map.cluster.level;
        status.map_leader = map_leader
            .and_then(|leader| map.node_of_replica(leader))
            .map(|node| node.number);
        let nodes = map.nodes.values().map(|node| {
            let state = states.get(&node.number);
            NodeStatus {
                number: node.number,
                name: name(&map.cluster.id, node.number),
                peer: node.peer,
                client: node.client,
                is_alive: self.is_alive(&states, node.number),
                skew: state.and_then(|state| state.skew),
                problem: state.and_then(|state| state.problem.clone()),
                replica: node.replica,
                votes: voters.contains(&node.replica),
            }
        });
        status.nodes = nodes.collect();
        let partitions = map.partitions.values().map(|partition| {
            let here = partition.member_on(self.number());
            let (here, leader) = here.map_or((None, None), |member| self.replica_status(member.replica));
            PartitionStatus {
                group: partition.group,
                slots: partition.slots(),
                leader: leader.and_then(|leader| node_of(partition, leader)),
                nodes: partition.members.iter().map(|member| member.node).collect(),
                here,
            }
        });
        status.partitions = partitions.collect();
        status
    }

    /// What is wrong, each with what it is about.
    pub(super) fn all_problems(&self) -> Vec<(String, String)> {
        let clock = self.clock_problems();
        let clock = clock.map(|problem| ("the clock".to_owned(), problem));
        clock.chain(self.problems()).collect()
    }

    /// A replica on this node, and who leads by its word.
    fn replica_status(&self, id: ReplicaId) -> (Option<ReplicaStatus>, Option<ReplicaId>) {
        let Some(replica) = self.node.replica(id) else {
            return (None, None);
        };
        let mut status = ReplicaStatus {
            replica: id,
            leads: false,
            applied: 0,
            lag: 0,
            problem: None,
        };
        let leader = match replica.state() {
            Ok(state) => {
                status.leads = state.leads;
                status.applied = state.applied.map_or(0, |applied| applied.index);
                status.lag = state.last.unwrap_or(0).saturating_sub(status.applied);
                state.leader
            }
            Err(error) => {
                status.problem = Some(error.to_string());
                None
            }
        };
        (Some(status), leader)
    }
}

/// Replicas with the same problem are named up to this number.
const NAMED: usize = 8;

impl Inner {
    /// A line for each thing that is wrong, with what to do; replicas with the same problem share one.
    pub(super) fn problem_lines(&self) -> Vec<String> {
        let problems = self.all_problems().into_iter();
        let mut all: Vec<_> = problems
            .map(|(about, problem)| format!("{about}: {problem}"))
            .collect();
        let mut by_problem = BTreeMap::<String, Vec<ReplicaId>>::new();
        for replica in self.node.replicas() {
            if let Some(problem) = replica.problem() {
                by_problem.entry(problem).or_default().push(replica.id());
            }
        }
        for lost in self.node.quarantined() {
            let problem = format!(
                "quarantined, since damage to the log took frames of it ({}); what is left is kept, and the others of its \
                 group go on",
                lost.lost
            );
            by_problem.entry(problem).or_default().push(lost.replica);
        }
        let line = |(problem, replicas): (String, Vec<ReplicaId>)| line(&problem, &replicas);
        all.extend(by_problem.into_iter().map(line));
        all
    }
}

fn line(problem: &str, replicas: &[ReplicaId]) -> String {
    let named: Vec<_> = replicas.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match replicas.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let each = if replicas.len() == 1 {
        "replica"
    } else {
        "each of the replicas"
    };
    format!("{each} {}{more}: {problem}", named.join(", "))
}

/// Holders of a log that are shown: those that hold the most of it.
const HOLDERS: usize = 16;

type Labels = Vec<(&'static str, String)>;

/// A log, and what is known of it at one moment.
struct LogNow {
    label: String,
    stats: NodeLogStats,
    log: LogStats,
    /// Why each replica holds the log.
    replicas: Vec<(String, Holding)>,
    is_full: bool,
}

impl LogNow {
    fn of(log: &NodeLog) -> Self {
        let replicas = log.replicas().into_iter();
        let why = |replica: ReplicaLog| {
            (
                replica_holder(replica.replica(), replica.group()),
                replica.holding(),
            )
        };
        Self {
            replicas: replicas.map(why).collect(),
            label: log.dir().display().to_string(),
            stats: log.stats(),
            log: log.log().stats(),
            is_full: log.shortage().is_some(),
        }
    }

    /// The bytes that each holder keeps in the log.
    fn held(&self) -> impl Iterator<Item = (&str, u64)> {
        let held = self.log.holders.iter();
        held.map(|(name, from)| (&**name, self.log.appended.saturating_sub(*from)))
    }

    /// Why a holder does.
    fn why(&self, holder: &str) -> &'static str {
        let why = self.replicas.iter().find(|(name, _)| name == holder);
        why.map_or("other", |(_, why)| why.name())
    }
}

impl Inner {
    /// All figures of this node.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let logs: Vec<_> = self.node.logs().iter().map(LogNow::of).collect();
        let mut all = self.of_replicas();
        all.extend(of_logs(&logs));
        all.extend(self.of_partitions(&logs));
        all
    }

    fn of_replicas(&self) -> Vec<Figure> {
        let replicas = self.node.replicas();
        let failing = replicas
            .iter()
            .filter(|replica| replica.problem().is_some())
            .count();
        let failed = replicas.iter().filter(|replica| replica.is_quarantined()).count();
        let quarantined = self.node.quarantined().len() + failed;
        vec![
            gauge(
                "collie_cluster_replicas",
                "Replicas on this node.",
                replicas.len(),
            ),
            gauge(
                "collie_cluster_replicas_with_problems",
                "Replicas that wait for room, have failed lately, or are opened no more.",
                failing,
            ),
            gauge(
                "collie_cluster_replicas_quarantined",
                "Replicas that are not run: their log is damaged, or they failed too often.",
                quarantined,
            ),
        ]
    }

    fn of_partitions(&self, logs: &[LogNow]) -> Vec<Figure> {
        let replicas = self.node.replicas();
        let states = replicas.iter().filter_map(|replica| {
            let state = replica.state().ok()?;
            Some((replica.group(), (Arc::clone(replica), state)))
        });
        let states: BTreeMap<GroupId, (Arc<Replica>, ReplicaState)> = states.collect();
        let last = states
            .iter()
            .map(|(group, (_, state))| (*group, state.last.unwrap_or(0)));
        let shown = self.looked.busiest(last.collect());
        let held: BTreeMap<&str, u64> = logs.iter().flat_map(LogNow::held).collect();
        let held =
            |id: ReplicaId, group: GroupId| held.get(&*replica_holder(id, group)).copied().unwrap_or(0);
        let each = |of: &dyn Fn(&Replica, &ReplicaState) -> u64| -> Vec<(Labels, u64)> {
            let shown = shown.iter().filter_map(|group| {
                let (replica, state) = states.get(group)?;
                Some((vec![("group", group.to_string())], of(replica, state)))
            });
            shown.collect()
        };
        let applied = |state: &ReplicaState| state.applied.map_or(0, |id| id.index);
        let mut elections = Vec::new();
        for cause in ElectionCause::ALL {
            let of_cause = each(&|replica, _| replica.elections(cause)).into_iter();
            elections.extend(of_cause.map(|(mut labels, count)| {
                labels.push(("cause", cause.name().to_owned()));
                (labels, count)
            }));
        }
        vec![
            gauges(
                "collie_cluster_partition_leads",
                "1 where this node leads the partition; of the 20 busiest, as all of partitions.",
                each(&|_, state| u64::from(state.leads)),
            ),
            gauges(
                "collie_cluster_partition_lag_entries",
                "Entries of the log that are not applied here.",
                each(&|_, state| state.last.unwrap_or(0).saturating_sub(applied(state))),
            ),
            gauges(
                "collie_cluster_partition_unflushed_entries",
                "Entries that are applied here and not in tables.",
                each(&|_, state| applied(state).saturating_sub(state.snapshot.unwrap_or(0))),
            ),
            gauges(
                "collie_cluster_partition_log_held_bytes",
                "Bytes of the log that are kept for the replica, with all that others appended since.",
                each(&|replica, _| held(replica.id(), replica.group())),
            ),
            counters(
                "collie_cluster_partition_elections_total",
                "Elections that this node has won, by cause.",
                elections,
            ),
        ]
    }
}

fn of_logs(logs: &[LogNow]) -> Vec<Figure> {
    let each = |of: fn(&LogNow) -> u64| -> Vec<(Labels, u64)> {
        let each = logs.iter().map(|log| (vec![("log", log.label.clone())], of(log)));
        each.collect()
    };
    let mut held = Vec::new();
    for log in logs {
        // The first hold the most.
        held.extend(log.held().take(HOLDERS).map(|(holder, bytes)| {
            let labels = vec![
                ("log", log.label.clone()),
                ("holder", holder.to_owned()),
                ("why", log.why(holder).to_owned()),
            ];
            (labels, bytes)
        }));
    }
    vec![
        gauges(
            "collie_cluster_log_bytes",
            "Bytes of a log of the node, from its oldest segment on.",
            each(|log| log.stats.used),
        ),
        gauges(
            "collie_cluster_log_limit_bytes",
            "Bytes that it may have before writes are refused.",
            each(|log| log.stats.limit),
        ),
        gauges(
            "collie_cluster_log_held_bytes",
            "Bytes that the 16 largest holders keep in it, and why: what is not in tables, or is for others.",
            held,
        ),
        gauges(
            "collie_cluster_log_full",
            "1 while its disk is full.",
            each(|log| u64::from(log.is_full)),
        ),
        counters(
            "collie_cluster_log_syncs_total",
            "Syncs of the log.",
            each(|log| log.log.syncs),
        ),
        counters(
            "collie_cluster_log_flushes_total",
            "Flushes of replicas that held the log.",
            each(|log| log.stats.flushes),
        ),
        counters(
            "collie_cluster_log_rewrites_total",
            "Replicas appended anew since they held the log.",
            each(|log| log.stats.rewrites),
        ),
        counters(
            "collie_cluster_log_refused_total",
            "Writes refused since the log or its disk was full.",
            each(|log| log.stats.refused),
        ),
    ]
}

fn gauge(name: &'static str, help: &'static str, value: usize) -> Figure {
    gauges(name, help, vec![(Vec::new(), value as u64)])
}

fn gauges(name: &'static str, help: &'static str, samples: Vec<(Labels, u64)>) -> Figure {
    Figure {
        name,
        help,
        is_counter: false,
        samples,
    }
}

fn counters(name: &'static str, help: &'static str, samples: Vec<(Labels, u64)>) -> Figure {
    Figure {
        is_counter: true,
        ..gauges(name, help, samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_many_replicas_is_one_line_that_names_some() {
        assert_eq!(line("waits", &[7]), "replica 7: waits");
        assert_eq!(line("waits", &[7, 9]), "each of the replicas 7, 9: waits");
        let many: Vec<_> = (1..=32).collect();
        assert_eq!(
            line("waits", &many),
            "each of the replicas 1, 2, 3, 4, 5, 6, 7, 8 and 24 more: waits"
        );
    }
}
