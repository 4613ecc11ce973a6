//! `COLLIE.NODE`: the nodes of the cluster for its operator, and which of them are to have replicas.

use std::collections::BTreeSet;

use collie_protocol::Request;
use collie_protocol::number::parse_i64;
use tokio::runtime::Handle;

use super::numbers::is;
use super::row::{self, Command, container};
use crate::cluster::{LogLayout, LogsOf, NodeInfo, NodeRequest, NodeRole, PartitionInfo, SLOTS, Topology};
use crate::cost::Aside;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::partitions::Partitions;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("collie.node", -2, container)
    .about("7.0.0", "cluster", "Commands about the nodes of the cluster.")
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

pub(super) const CHANGES: &[&str] = &["admin", "stale", "no_async_loading", "no_multi"];
pub(super) const CATEGORIES: &[&str] = &["@admin", "@slow", "@dangerous"];

const SUBCOMMANDS: &[Command] = &[
    Command::new("collie.node|accept-loss", -2, accept_loss)
        .about(
            "7.0.0",
            "cluster",
            "Lets replicas lead again that may have lost entries: what no other has is given up.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.node|drain", -3, change)
        .about(
            "7.0.0",
            "cluster",
            "Moves the replicas of a node to other nodes, or of a disk to its other disks.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.node|finalize", 2, finalize)
        .about(
            "7.0.0",
            "cluster",
            "Has the cluster use what all of its nodes know by now; older versions cannot come back.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.node|help", 2, help)
        .about("7.0.0", "cluster", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("collie.node|layout", -4, layout)
        .about(
            "7.0.0",
            "cluster",
            "Moves the logs of replicas of a node to one log or to several.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.node|list", 2, list)
        .about("7.0.0", "cluster", "Lists the nodes and what they have.")
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
    Command::new("collie.node|partitions", 2, list_partitions)
        .about(
            "7.0.0",
            "cluster",
            "Lists the partitions, and which nodes have them.",
        )
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
    Command::new("collie.node|remove", 3, change)
        .about(
            "7.0.0",
            "cluster",
            "Moves the replicas of a node to other nodes, and removes it from the cluster.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.node|replace", 4, change)
        .about(
            "7.0.0",
            "cluster",
            "Moves the replicas of a node to another one, and removes it from the cluster.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.node|serve", -3, change)
        .about(
            "7.0.0",
            "cluster",
            "Lets a node, or a disk of it, have replicas that was drained, or was to be removed.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
    Command::new("collie.node|split", 3, split)
        .about(
            "7.0.0",
            "cluster",
            "Has the partition of a slot give it, and all slots behind it, to a new partition.",
        )
        .flags(CHANGES)
        .categories(CATEGORIES),
];

pub(super) fn partitions<'a>(exec: &'a Exec<'_>) -> Result<&'a Partitions, Failure> {
    exec.shared
        .partitions
        .as_ref()
        .ok_or_else(|| text::NO_CLUSTER.into())
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    partitions(exec)?;
    row::help(exec, "collie.node", SUBCOMMANDS)
}

fn number(arg: &[u8]) -> Result<u64, Failure> {
    let number = parse_i64(arg).and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| "ERR a node is named by its number, as COLLIE.NODE LIST shows it".into())
}

fn disk(arg: &[u8]) -> Result<u32, Failure> {
    let disk = parse_i64(arg).and_then(|disk| u32::try_from(disk).ok());
    disk.ok_or_else(|| "ERR a disk is named by its number, counted from 0".into())
}

/// `COLLIE.NODE DRAIN|SERVE node [DISK disk]`, `REMOVE node`, `REPLACE node by`.
fn change(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (what, node) = (request.at(1), number(request.at(2))?);
    let disk = match request.len() {
        5 if is(request.at(3), "DISK") => Some(disk(request.at(4))?),
        4 if is(what, "REPLACE") => None,
        3 => None,
        _ => return Err(text::SYNTAX.into()),
    };
    let wanted = if let Some(disk) = disk {
        match is(what, "DRAIN") {
            true => NodeRequest::DrainDisk { node, disk },
            false => NodeRequest::ServeDisk { node, disk },
        }
    } else if is(what, "DRAIN") {
        NodeRequest::Drain(node)
    } else if is(what, "REMOVE") {
        NodeRequest::Remove(node)
    } else if is(what, "REPLACE") {
        let by = number(request.at(3))?;
        NodeRequest::Replace { node, by }
    } else {
        NodeRequest::Serve(node)
    };
    ask(exec, wanted)
}

/// `COLLIE.NODE ACCEPT-LOSS [WITHOUT node [node ...]]`.
fn accept_loss(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let without = match request.len() {
        2 => BTreeSet::new(),
        4.. if is(request.at(2), "WITHOUT") => (3..request.len())
            .map(|at| number(request.at(at)))
            .collect::<Result<_, _>>()?,
        _ => return Err(text::SYNTAX.into()),
    };
    ask(exec, NodeRequest::AcceptLoss { without })
}

fn finalize(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    ask(exec, NodeRequest::Finalize)
}

fn split(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let slot = parse_i64(request.at(2)).and_then(|slot| u16::try_from(slot).ok());
    let slot = slot.filter(|slot| *slot < SLOTS);
    ask(
        exec,
        NodeRequest::Split(slot.ok_or("ERR a slot is a number from 0 to 16383")?),
    )
}

/// `COLLIE.NODE LAYOUT node layout [DISK disk | PARTITION group]`.
fn layout(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let node = number(request.at(2))?;
    let name = request.at(3).to_ascii_lowercase();
    let mut all = LogLayout::ALL.into_iter();
    let layout = all.find(|layout| layout.name().as_bytes() == name);
    let layout = layout.ok_or("ERR a layout is shared, per-disk or private")?;
    let of = match request.len() {
        4 => LogsOf::Node,
        6 if is(request.at(4), "DISK") => LogsOf::Disk(disk(request.at(5))?),
        6 if is(request.at(4), "PARTITION") => {
            let group = parse_i64(request.at(5)).and_then(|group| u64::try_from(group).ok());
            LogsOf::Partition(group.ok_or("ERR a partition is named by the number of its group")?)
        }
        _ => return Err(text::SYNTAX.into()),
    };
    ask(exec, NodeRequest::Layout { node, of, layout })
}

/// Asks for a change of the map, and replies that it is made.
pub(super) fn ask(exec: &mut Exec<'_>, wanted: NodeRequest) -> Outcome {
    let asked = changed(exec, wanted)?;
    if matches!(asked, Flow::Next) {
        exec.reply.ok();
    }
    Ok(asked)
}

/// Waits until the map is changed, or is not.
pub(super) fn changed(exec: &mut Exec<'_>, wanted: NodeRequest) -> Outcome {
    let partitions = partitions(exec)?;
    if !exec.may_block {
        return Ok(Flow::Aside(Aside::Waits));
    }
    match Handle::current().block_on(partitions.cluster.change_node(wanted)) {
        Ok(()) => Ok(Flow::Next),
        Err(problem) => Err(format!("ERR {problem}").into()),
    }
}

fn list(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let topology = partitions(exec)?.cluster.topology();
    exec.reply.array(topology.nodes.len());
    for node in &topology.nodes {
        push(exec, &topology, node);
    }
    Ok(Flow::Next)
}

fn list_partitions(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let topology = partitions(exec)?.cluster.topology();
    exec.reply.array(topology.partitions.len());
    for partition in &topology.partitions {
        push_partition(exec, partition);
    }
    Ok(Flow::Next)
}

fn push_partition(exec: &mut Exec<'_>, partition: &PartitionInfo) {
    let reply = &mut exec.reply;
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let numbers = [
        ("partition", Some(number(partition.group))),
        ("first", Some((*partition.slots.start()).into())),
        ("last", Some((*partition.slots.end()).into())),
        ("leader", partition.leader.map(number)),
        ("split_at", partition.split_at.map(i64::from)),
    ];
    let nodes = [
        ("nodes", &partition.replicas),
        ("joining", &partition.joining),
        ("leaving", &partition.leaving),
    ];
    reply.map(numbers.len() + 1 + nodes.len());
    for (name, value) in numbers {
        reply.bulk(name.as_bytes());
        match value {
            Some(value) => reply.integer(value),
            None => reply.null(),
        }
    }
    reply.bulk(b"served");
    reply.bulk(if partition.is_served { b"yes" } else { b"no" });
    for (name, nodes) in nodes {
        reply.bulk(name.as_bytes());
        reply.array(nodes.len());
        for node in nodes {
            reply.integer(number(*node));
        }
    }
}

fn push(exec: &mut Exec<'_>, topology: &Topology, node: &NodeInfo) {
    let count = |is_of: &dyn Fn(&PartitionInfo) -> bool| {
        let of_node = topology.partitions.iter().filter(|partition| is_of(partition));
        i64::try_from(of_node.count()).unwrap_or(i64::MAX)
    };
    let number = node.number;
    let role = match node.role {
        NodeRole::Serves => "serves",
        NodeRole::Drains => "drains",
        NodeRole::Leaves => "leaves",
    };
    let texts = [
        ("address", node.client.to_string()),
        ("peer", node.peer.to_string()),
        ("name", node.name.clone()),
        ("role", role.to_owned()),
        ("health", if node.is_alive { "online" } else { "fail" }.to_owned()),
    ];
    let counts = [
        (
            "replicas",
            count(&|partition| partition.replicas.contains(&number)),
        ),
        ("leads", count(&|partition| partition.leader == Some(number))),
        ("joining", count(&|partition| partition.joining.contains(&number))),
        ("leaving", count(&|partition| partition.leaving.contains(&number))),
    ];
    exec.reply.map(2 + texts.len() + counts.len());
    exec.reply.bulk(b"number");
    exec.reply.integer(i64::try_from(number).unwrap_or(i64::MAX));
    for (name, value) in texts {
        exec.reply.bulk(name.as_bytes());
        exec.reply.bulk(value.as_bytes());
    }
    for (name, value) in counts {
        exec.reply.bulk(name.as_bytes());
        exec.reply.integer(value);
    }
    // Of each disk that is drained its number, and how many replicas are on it.
    exec.reply.bulk(b"drained");
    exec.reply.array(2 * node.drained.len());
    for (disk, replicas) in &node.drained {
        exec.reply.integer(i64::from(*disk));
        exec.reply.integer(i64::try_from(*replicas).unwrap_or(i64::MAX));
    }
}
