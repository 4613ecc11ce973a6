//! The cluster as clients of Redis Cluster see it: nodes that are masters of slots, and their replicas.
//!
//! A node is a master of the slots of the partitions that it leads, and the other nodes with replicas of
//! these are its replicas, though they lead other partitions. A node that leads none is the replica of
//! one that leads a partition of which it has a replica.
//!
//! Clients expect the slots of all partitions: if some are missing they query the next node, and some
//! clients fail if its reply differs. So while no leader of a partition is known here, a node that has
//! a replica is named in its place; a client's command waits there for the leader.

use std::fmt::Write as _;
use std::sync::Arc;

use collie_protocol::ReplyBuffer;

use crate::cluster::{DrainedDisk, LeftOnDisk, NodeInfo, PartitionInfo, SLOTS, Topology};
use crate::service::Service;

/// Slots from the first to the last.
type Range = (u16, u16);

/// The disks of the node that are drained, each with what is left on it.
fn drained(disks: &[DrainedDisk]) -> String {
    let disk = |drained: &DrainedDisk| {
        let disk = drained.disk;
        match drained.left {
            LeftOnDisk::Replicas(left) => format!("{disk}={left}"),
            LeftOnDisk::Map => format!("{disk}=map"),
            LeftOnDisk::Absent => format!("{disk}=absent"),
        }
    };
    disks.iter().map(disk).collect::<Vec<_>>().join(" ")
}

/// The topology of the cluster, as the replies of `CLUSTER` show it.
pub(super) struct Shape {
    topology: Arc<Topology>,
}

impl Shape {
    pub(super) fn of(topology: &Arc<Topology>) -> Shape {
        Shape {
            topology: Arc::clone(topology),
        }
    }

    fn node(&self, number: u64) -> Option<&NodeInfo> {
        self.topology.nodes.iter().find(|node| node.number == number)
    }

    fn named(&self, name: &[u8]) -> Option<&NodeInfo> {
        self.topology
            .nodes
            .iter()
            .find(|node| node.name.as_bytes() == name)
    }

    /// The node that is shown as a partition's master: its leader, or the node in its place.
    fn master(&self, partition: &PartitionInfo) -> Option<&NodeInfo> {
        let leader = partition.leader.and_then(|leader| self.node(leader));
        let replicas = || partition.replicas.iter().filter_map(|number| self.node(*number));
        leader
            .or_else(|| replicas().find(|node| node.is_alive))
            .or_else(|| replicas().next())
    }

    fn led_by(&self, number: u64) -> impl Iterator<Item = &PartitionInfo> {
        let is_master = move |node: &NodeInfo| node.number == number;
        let partitions = self.topology.partitions.iter();
        partitions.filter(move |partition| self.master(partition).is_some_and(is_master))
    }

    /// The slots of which a node is the master, adjacent ranges as one.
    fn ranges(&self, number: u64) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::new();
        for partition in self.led_by(number) {
            let (first, last) = partition.slots.clone().into_inner();
            match ranges.last_mut() {
                Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
                _ => ranges.push((first, last)),
            }
        }
        ranges
    }

    /// The other nodes that have replicas of what a node is the master of.
    fn replicas(&self, number: u64) -> Vec<&NodeInfo> {
        let has_replica = |node: &&NodeInfo| {
            node.number != number
                && self
                    .led_by(number)
                    .any(|partition| partition.replicas.contains(&node.number))
        };
        self.topology.nodes.iter().filter(has_replica).collect()
    }

    /// The node whose replica a node is that leads nothing.
    fn master_of(&self, number: u64) -> Option<&NodeInfo> {
        if self.led_by(number).next().is_some() {
            return None;
        }
        let mut followed = self.topology.partitions.iter().filter_map(|partition| {
            let is_replica = partition.replicas.contains(&number);
            self.master(partition).filter(|_| is_replica)
        });
        followed.next()
    }

    /// The name of this node.
    pub(super) fn own_name(&self) -> &str {
        self.node(self.topology.own).map_or("", |node| &node.name)
    }

    pub(super) fn has_node(&self, name: &[u8]) -> bool {
        self.named(name).is_some()
    }

    /// `CLUSTER INFO`; `problems` are this node's, `paused` the names of clusters that get no rows for now.
    pub(super) fn info(&self, problems: &[String], paused: &[&str]) -> String {
        let service = Service::of(&self.topology);
        let Service {
            served,
            silent,
            leaderless,
            ..
        } = service;
        let assigned = served + silent + leaderless;
        let state = if served == usize::from(SLOTS) {
            "ok"
        } else {
            "fail"
        };
        let nodes = self.topology.nodes.len();
        let is_master = |node: &&NodeInfo| self.led_by(node.number).next().is_some();
        let size = self.topology.nodes.iter().filter(is_master).count();
        let epoch = self.topology.epoch;
        let splits = self.topology.partitions.iter();
        let splits = splits.filter(|partition| partition.split_at.is_some()).count();
        let fields = [
            ("cluster_state", state.to_owned()),
            ("cluster_slots_assigned", assigned.to_string()),
            ("cluster_slots_ok", served.to_string()),
            ("cluster_slots_pfail", silent.to_string()),
            ("cluster_slots_fail", leaderless.to_string()),
            ("cluster_known_nodes", nodes.to_string()),
            ("cluster_size", size.to_string()),
            ("cluster_current_epoch", epoch.to_string()),
            ("cluster_my_epoch", epoch.to_string()),
            ("cluster_stats_messages_sent", "0".to_owned()),
            ("cluster_stats_messages_received", "0".to_owned()),
            ("total_cluster_links_buffer_limit_exceeded", "0".to_owned()),
            ("collie_level", self.topology.level.to_string()),
            ("collie_newest_level", self.topology.newest_level.to_string()),
            ("collie_layout", self.topology.logs.layout.name().to_owned()),
            ("collie_logs_to_move", self.topology.logs.to_move.to_string()),
            ("collie_drained_disks", drained(&self.topology.drained_here)),
            ("collie_reads", self.topology.reads.name().to_owned()),
            ("collie_durability", self.topology.durability.name().to_owned()),
            ("collie_partitions", self.topology.partitions.len().to_string()),
            ("collie_splits", splits.to_string()),
            ("collie_duplications_paused", paused.join(",")),
            ("collie_slots_led", service.led_text()),
        ];
        let fields = fields.iter().map(|(name, value)| format!("{name}:{value}\r\n"));
        let problems = (1..).zip(problems).map(|(number, problem)| {
            let line = problem.replace(['\r', '\n'], " ");
            format!("collie_problem_{number}:{line}\r\n")
        });
        fields.chain(problems).collect()
    }

    /// `CLUSTER NODES`.
    pub(super) fn lines(&self) -> String {
        let nodes = self.topology.nodes.iter();
        nodes.map(|node| self.line(node) + "\n").collect()
    }

    /// The lines of the replicas of a node; `None` if it leads nothing but has a master.
    pub(super) fn replica_lines(&self, name: &[u8]) -> Option<Vec<String>> {
        let master = self.named(name)?;
        if self.master_of(master.number).is_some() {
            return None;
        }
        let replicas = self.replicas(master.number);
        Some(replicas.into_iter().map(|node| self.line(node)).collect())
    }

    fn line(&self, node: &NodeInfo) -> String {
        let master = self.master_of(node.number);
        let mut flags = String::new();
        if node.number == self.topology.own {
            flags.push_str("myself,");
        }
        flags.push_str(if master.is_some() { "slave" } else { "master" });
        if !node.is_alive {
            flags.push_str(",fail");
        }
        let link = if node.is_alive {
            "connected"
        } else {
            "disconnected"
        };
        let mut line = format!(
            "{} {}:{}@{}{} {flags} {} 0 0 {} {link}",
            node.name,
            node.client.address.ip(),
            node.client.address.port(),
            node.peer.port(),
            node.client
                .host
                .as_ref()
                .map_or(String::new(), |host| format!(",{host}")),
            master.map_or("-", |master| &master.name),
            self.topology.epoch,
        );
        for (first, last) in self.ranges(node.number) {
            // Writing to a string cannot fail.
            let _ = if first == last {
                write!(line, " {first}")
            } else {
                write!(line, " {first}-{last}")
            };
        }
        line
    }

    /// `CLUSTER SLOTS`: ranges with the same master and replicas are one if they are adjacent.
    pub(super) fn slots(&self, reply: &mut ReplyBuffer) {
        let mut ranges: Vec<(Range, Vec<&NodeInfo>)> = Vec::new();
        for partition in &self.topology.partitions {
            let Some(master) = self.master(partition) else {
                continue;
            };
            // Clients need not try a replica that does not answer.
            let replicas = self.topology.nodes.iter().filter(|node| {
                node.number != master.number && node.is_alive && partition.replicas.contains(&node.number)
            });
            let nodes: Vec<_> = std::iter::once(master).chain(replicas).collect();
            let (first, last) = partition.slots.clone().into_inner();
            match ranges.last_mut() {
                Some((before, same)) if before.1.checked_add(1) == Some(first) && *same == nodes => {
                    before.1 = last;
                }
                _ => ranges.push(((first, last), nodes)),
            }
        }
        reply.array(ranges.len());
        for ((first, last), nodes) in ranges {
            reply.array(2 + nodes.len());
            reply.integer(first.into());
            reply.integer(last.into());
            for node in nodes {
                reply.array(4);
                let address = node.client.address;
                reply.bulk(node.client.host().as_bytes());
                reply.integer(address.port().into());
                reply.bulk(node.name.as_bytes());
                match node.client.host {
                    None => reply.map(0),
                    Some(_) => {
                        reply.map(1);
                        reply.bulk(b"ip");
                        reply.bulk(address.ip().to_string().as_bytes());
                    }
                }
            }
        }
    }

    /// `CLUSTER SHARDS`: a node with slots and its replicas, or a node that has neither slots nor a
    /// master.
    pub(super) fn shards(&self, reply: &mut ReplyBuffer) {
        let nodes = self.topology.nodes.iter();
        let masters: Vec<_> = nodes
            .filter(|node| self.master_of(node.number).is_none())
            .collect();
        reply.array(masters.len());
        for master in masters {
            let ranges = self.ranges(master.number);
            reply.map(2);
            reply.bulk(b"slots");
            reply.array(2 * ranges.len());
            for (first, last) in ranges {
                reply.integer(first.into());
                reply.integer(last.into());
            }
            let replicas = self.replicas(master.number);
            reply.bulk(b"nodes");
            reply.array(1 + replicas.len());
            push_node(reply, master, "master");
            for replica in replicas {
                push_node(reply, replica, "replica");
            }
        }
    }
}

fn push_node(reply: &mut ReplyBuffer, node: &NodeInfo, role: &str) {
    let address = node.client.address;
    reply.map(7 + usize::from(node.client.host.is_some()));
    reply.bulk(b"id");
    reply.bulk(node.name.as_bytes());
    reply.bulk(b"port");
    reply.integer(address.port().into());
    let named = [
        ("ip", Some(address.ip().to_string())),
        ("endpoint", Some(node.client.host())),
    ];
    for (name, value) in named.into_iter().chain([("hostname", node.client.host.clone())]) {
        if let Some(value) = value {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
    }
    reply.bulk(b"role");
    reply.bulk(role.as_bytes());
    reply.bulk(b"replication-offset");
    reply.integer(0);
    reply.bulk(b"health");
    reply.bulk(if node.is_alive { b"online" } else { b"fail" });
}
