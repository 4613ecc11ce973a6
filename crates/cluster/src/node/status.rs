//! What a node says of itself and of its cluster: for operators, what is wrong and has to be put right; and its
//! metrics. `docs/book/src/operations.md` lists every name of these; a test compares the two.

use std::collections::BTreeMap;
use std::sync::Arc;

use collie_log::LogStats;
use collie_server::cluster::{Figure, LeftOnDisk};

use crate::ids::{GroupId, ReplicaId};
use crate::node::shared::ClusterInner;
use crate::raft::{ElectionCause, Replica, ReplicaState, Sending};
use crate::raftlog::{Holding, NodeLog, NodeLogStats, ReplicaLog};

/// Replicas with the same problem are named up to this number.
const NAMED: usize = 8;

impl ClusterInner {
    /// What is wrong, each with what it is about.
    pub(super) fn all_problems(&self) -> Vec<(String, String)> {
        let clock = self.clock_problems();
        let clock = clock.map(|problem| ("the clock".to_owned(), problem));
        let level = self.level_problem();
        let level = level.map(|problem| ("the feature level".to_owned(), problem));
        let logs = self.node.log_moves().problem();
        let logs = logs.map(|problem| ("the layout".to_owned(), problem));
        clock
            .chain(level)
            .chain(logs)
            .chain(self.problems())
            .chain(self.lag_problems())
            .chain(self.refused_by())
            .collect()
    }

    /// That other nodes refuse this one: of several the first says why.
    fn refused_by(&self) -> Option<(String, String)> {
        let states = self.peers().states();
        let states = states.borrow();
        let refusing = states.iter().filter(|(_, state)| state.refuses);
        let nodes: Vec<_> = refusing.clone().map(|(node, _)| node.to_string()).collect();
        let problem = refusing.clone().find_map(|(_, state)| state.problem.clone())?;
        Some((format!("the connection to node {}", nodes.join(", ")), problem))
    }

    /// A line for each thing that is wrong, with what to do; replicas with the same problem share one.
    pub(super) fn problem_lines(&self) -> Vec<String> {
        let problems = self.all_problems().into_iter();
        let mut all: Vec<_> = problems
            .map(|(about, problem)| format!("{about}: {problem}"))
            .collect();
        let mut by_problem = BTreeMap::<String, Vec<(ReplicaId, GroupId)>>::new();
        for replica in self.node.replicas() {
            if let Some(problem) = replica.problem() {
                let replicas = by_problem.entry(problem).or_default();
                replicas.push((replica.id(), replica.group()));
            }
        }
        for lost in self.node.quarantined() {
            let problem = format!(
                "quarantined, since damage to the log took frames of it ({}); what is left is kept, and the others of its \
                 group go on",
                lost.lost
            );
            let replicas = by_problem.entry(problem).or_default();
            replicas.push((lost.replica, lost.group));
        }
        let line = |(problem, replicas): (String, Vec<_>)| line(&problem, &replicas);
        all.extend(by_problem.into_iter().map(line));
        all
    }
}

fn line(problem: &str, replicas: &[(ReplicaId, GroupId)]) -> String {
    let named = replicas.iter().take(NAMED);
    let named: Vec<_> = named
        .map(|(id, group)| format!("{id} (partition {group})"))
        .collect();
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
    /// By which name each replica holds the log, and why.
    replicas: Vec<(ReplicaId, String, Holding)>,
    is_full: bool,
}

impl LogNow {
    fn of(log: &NodeLog) -> Self {
        let replicas = log.replicas().into_iter();
        let why = |replica: ReplicaLog| (replica.replica(), replica.holder(), replica.holding());
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
        let why = self.replicas.iter().find(|(_, name, _)| name == holder);
        why.map_or("other", |(_, _, why)| why.name())
    }

    /// The bytes that each replica keeps in the log.
    fn held_by_replicas(&self) -> BTreeMap<ReplicaId, u64> {
        let held: BTreeMap<_, _> = self.held().collect();
        let replicas = self.replicas.iter();
        let held = replicas.filter_map(|(id, name, _)| Some((*id, *held.get(&**name)?)));
        held.collect()
    }
}

impl ClusterInner {
    /// All figures of this node.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let logs: Vec<_> = self.node.logs().iter().map(LogNow::of).collect();
        let mut all = self.of_replicas();
        all.extend(of_logs(&logs));
        all.extend(self.duplication_figures());
        let level = self.map().map_or(0, |map| map.cluster.level as usize);
        all.push(gauge(
            "collie_cluster_level",
            "The feature level of the cluster; 0: not known yet.",
            level,
        ));
        all.push(gauge(
            "collie_cluster_logs_to_move",
            "Replicas whose logs are elsewhere than the layout has them.",
            self.node.log_moves().to_move(),
        ));
        all.push(counters(
            "collie_cluster_log_moves_total",
            "Logs of replicas that moved to where the layout has them.",
            vec![(Vec::new(), self.node.log_moves().moved())],
        ));
        all.push(gauge(
            "collie_cluster_problems",
            "Problems that the status shows of this node.",
            self.problem_lines().len(),
        ));
        all.push(self.of_drained_disks());
        all.extend(self.of_moves());
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
        let parked = replicas.iter().filter(|replica| replica.is_parked()).count();
        let quarantined = self.node.quarantined().len() + failed;
        vec![
            gauge(
                "collie_cluster_replicas",
                "Replicas on this node.",
                replicas.len(),
            ),
            gauge(
                "collie_cluster_replicas_parked",
                "Replicas that had nothing to do for some seconds, and neither send nor expect heartbeats.",
                parked,
            ),
            gauge(
                "collie_cluster_replicas_with_problems",
                "Replicas that wait for room, have failed lately, or are opened no more.",
                failing + self.node.unopened().len(),
            ),
            gauge(
                "collie_cluster_replicas_without_vote",
                "Replicas that may have lost what they had acknowledged, and do not vote before they have caught up.",
                self.node.losses().open().len(),
            ),
            gauge(
                "collie_cluster_replicas_lagging",
                "Replicas on nodes that answer, which lack what leaders on this one had seconds ago.",
                self.lagging_replicas(),
            ),
            gauge(
                "collie_cluster_replicas_quarantined",
                "Replicas that are not run: their log is damaged, or they failed too often.",
                quarantined,
            ),
        ]
    }

    fn of_drained_disks(&self) -> Figure {
        let disks = self.disks.shown().into_iter();
        let samples = disks.map(|drained| {
            let left = match drained.left {
                LeftOnDisk::Replicas(left) => left as u64,
                LeftOnDisk::Map | LeftOnDisk::Absent => 0,
            };
            (vec![("disk", drained.disk.to_string())], left)
        });
        gauges(
            "collie_cluster_drained_disk_replicas",
            "Replicas of partitions that are left on a disk that is drained.",
            samples.collect(),
        )
    }

    /// What moves: replicas, and their tables from here to other nodes.
    fn of_moves(&self) -> Vec<Figure> {
        let moving = self.map().map_or(0, |map| {
            let partitions = map.partitions.values();
            partitions
                .filter(|partition| !partition.wanted.is_empty())
                .count()
        });
        let transfers = self.node.transfers();
        let sending = transfers.sending();
        let each = |of: fn(&Sending) -> u64| -> Vec<(Labels, u64)> {
            let each = sending.values().map(|sending| {
                let labels = vec![
                    ("group", sending.group.to_string()),
                    ("to", sending.node.to_string()),
                ];
                (labels, of(sending))
            });
            each.collect()
        };
        vec![
            gauge(
                "collie_cluster_moves",
                "Partitions of the cluster of which a replica moves, by the map.",
                moving,
            ),
            counters(
                "collie_cluster_sent_bytes_total",
                "Bytes of tables that were sent to other nodes.",
                vec![(Vec::new(), transfers.sent())],
            ),
            gauges(
                "collie_cluster_transfer_bytes",
                "Bytes of tables that are being sent to a replica on another node.",
                each(|sending| sending.bytes),
            ),
            gauges(
                "collie_cluster_transfer_there_bytes",
                "Bytes of them that are there.",
                each(|sending| sending.sent),
            ),
        ]
    }

    fn of_partitions(&self, logs: &[LogNow]) -> Vec<Figure> {
        let mut replicas = self.node.replicas();
        // Of two, while one takes the place of another, the one that leads.
        replicas.sort_by_key(|replica| replica.leads_in().is_some());
        let states = replicas.iter().filter_map(|replica| {
            let state = replica.state().ok()?;
            Some((replica.group(), (Arc::clone(replica), state)))
        });
        let states: BTreeMap<GroupId, (Arc<Replica>, ReplicaState)> = states.collect();
        let last = states
            .iter()
            .map(|(group, (_, state))| (*group, state.last.unwrap_or(0)));
        let shown = self.looked.busiest(last.collect());
        let held: BTreeMap<_, _> = logs.iter().flat_map(LogNow::held_by_replicas).collect();
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
                each(&|replica, _| held.get(&replica.id()).copied().unwrap_or(0)),
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
        assert_eq!(line("waits", &[(7, 3)]), "replica 7 (partition 3): waits");
        assert_eq!(
            line("waits", &[(7, 3), (9, 4)]),
            "each of the replicas 7 (partition 3), 9 (partition 4): waits"
        );
        let many: Vec<_> = (1..=32).map(|id| (id, id)).collect();
        let many = line("waits", &many);
        assert!(many.ends_with(", 8 (partition 8) and 24 more: waits"), "{many}");
    }
}
