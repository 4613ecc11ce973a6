//! `CLUSTER`, and the commands `ASKING`, `READONLY` and `READWRITE` of clients of a cluster.

use collie_protocol::Request;

use super::cluster_keys::{count_in_slot, keys_in_slot};
use super::numbers::{integer, is};
use super::row::{self, Command, container};
use super::shape::Shape;
use crate::cluster::{SLOTS, slot_of};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("asking", 1, asking)
        .about("3.0.0", "cluster", "Does nothing: clients are never sent by ASK.")
        .flags(&["fast"])
        .categories(&["@fast", "@connection"]),
    Command::new("cluster", -2, container)
        .about("3.0.0", "cluster", "Commands about the cluster.")
        .categories(&["@slow"])
        .subcommands(SUBCOMMANDS),
    Command::new("readonly", 1, read_only)
        .about(
            "3.0.0",
            "cluster",
            "Lets replicas that may lag behind answer reads of the connection.",
        )
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast", "@connection"]),
    Command::new("readwrite", 1, read_write)
        .about("3.0.0", "cluster", "Ends READONLY.")
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast", "@connection"]),
];

const ADMIN: &[&str] = &["admin", "stale", "no_async_loading"];
const ADMIN_READ: &[&str] = &["admin", "stale"];
const ADMIN_CATEGORIES: &[&str] = &["@admin", "@slow", "@dangerous"];

/// The subcommands of `CLUSTER`.
const SUBCOMMANDS: &[Command] = &[
    Command::new("cluster|addslots", -3, refused)
        .about("3.0.0", "cluster", "Refused: the cluster assigns slots itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|addslotsrange", -4, refused)
        .about("7.0.0", "cluster", "Refused: the cluster assigns slots itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|bumpepoch", 2, refused)
        .about(
            "3.0.0",
            "cluster",
            "Refused: the cluster counts its changes itself.",
        )
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES)
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|count-failure-reports", 3, count_failure_reports)
        .about("3.0.0", "cluster", "Returns 0: nodes do not report each other.")
        .flags(ADMIN_READ)
        .categories(ADMIN_CATEGORIES)
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|countkeysinslot", 3, count_keys_in_slot)
        .about("3.0.0", "cluster", "Counts the keys in a slot.")
        .flags(&["stale"])
        .categories(&["@slow"])
        .everywhere(),
    Command::new("cluster|delslots", -3, refused)
        .about("3.0.0", "cluster", "Refused: the cluster assigns slots itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|delslotsrange", -4, refused)
        .about("7.0.0", "cluster", "Refused: the cluster assigns slots itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|failover", -2, failover)
        .about(
            "3.0.0",
            "cluster",
            "Asks the leaders of all partitions that this node has replicas of to hand over to it.",
        )
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|flushslots", 2, refused)
        .about("3.0.0", "cluster", "Refused: the cluster assigns slots itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|forget", 3, refused)
        .about(
            "3.0.0",
            "cluster",
            "Refused: the cluster keeps its list of nodes itself.",
        )
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|getkeysinslot", 4, get_keys_in_slot)
        .about("3.0.0", "cluster", "Lists keys in a slot.")
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"])
        .everywhere(),
    Command::new("cluster|help", 2, help)
        .about("5.0.0", "cluster", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("cluster|info", 2, info)
        .about("3.0.0", "cluster", "Returns the state of the cluster.")
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|keyslot", 3, key_slot)
        .about("3.0.0", "cluster", "Returns the slot of a key.")
        .flags(&["stale"])
        .categories(&["@slow"]),
    Command::new("cluster|links", 2, links)
        .about(
            "7.0.0",
            "cluster",
            "Returns an empty list: nodes have other connections.",
        )
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|meet", -4, refused)
        .about("3.0.0", "cluster", "Refused: nodes join by themselves.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|myid", 2, my_id)
        .about("3.0.0", "cluster", "Returns the name of this node.")
        .flags(&["stale"])
        .categories(&["@slow"]),
    Command::new("cluster|nodes", 2, nodes)
        .about("3.0.0", "cluster", "Lists the nodes, as text.")
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|replicas", 3, replicas)
        .about(
            "5.0.0",
            "cluster",
            "Lists the nodes with replicas of what a node leads.",
        )
        .flags(ADMIN_READ)
        .categories(ADMIN_CATEGORIES)
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|replicate", 3, refused)
        .about("3.0.0", "cluster", "Refused: the cluster places replicas itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|reset", -2, refused)
        .about("3.0.0", "cluster", "Refused: a node does not leave by itself.")
        .flags(&["admin", "noscript", "stale"])
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|saveconfig", 2, refused)
        .about("3.0.0", "cluster", "Refused: the cluster keeps its state itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|set-config-epoch", 3, refused)
        .about(
            "3.0.0",
            "cluster",
            "Refused: the cluster counts its changes itself.",
        )
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|setslot", -4, refused)
        .about("3.0.0", "cluster", "Refused: the cluster assigns slots itself.")
        .flags(ADMIN)
        .categories(ADMIN_CATEGORIES),
    Command::new("cluster|shards", 2, shards)
        .about("7.0.0", "cluster", "Lists which nodes have which slots.")
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|slaves", 3, replicas)
        .about(
            "3.0.0",
            "cluster",
            "Lists the nodes with replicas of what a node leads.",
        )
        .flags(ADMIN_READ)
        .categories(ADMIN_CATEGORIES)
        .tips(&["nondeterministic_output"]),
    Command::new("cluster|slots", 2, slots)
        .about("3.0.0", "cluster", "Lists which nodes have which slots, by slot.")
        .flags(&["stale"])
        .categories(&["@slow"])
        .tips(&["nondeterministic_output"]),
];

/// The shape of the cluster.
///
/// # Errors
/// The server is not in a cluster.
fn shape(exec: &Exec<'_>) -> Result<Shape, Failure> {
    match &exec.shared.partitions {
        Some(partitions) => Ok(Shape::of(&partitions.cluster.topology())),
        None => Err(text::NO_CLUSTER.into()),
    }
}

fn asking(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    shape(exec)?;
    exec.reply.ok();
    Ok(Flow::Next)
}

fn read_only(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    shape(exec)?;
    exec.session.reads_replicas = true;
    exec.reply.ok();
    Ok(Flow::Next)
}

fn read_write(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    shape(exec)?;
    exec.session.reads_replicas = false;
    exec.reply.ok();
    Ok(Flow::Next)
}

fn refused(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    shape(exec)?;
    let name = String::from_utf8_lossy(request.at(1)).to_ascii_uppercase();
    let text = format!("ERR CLUSTER {name} is not offered: the cluster is managed by `collie cluster`");
    Err(text.into())
}

fn failover(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    shape(exec)?;
    match request.get(2) {
        None => {}
        Some(option) if request.len() == 3 && is(option, "FORCE") => {}
        Some(option) if request.len() == 3 && is(option, "TAKEOVER") => {
            let text =
                "ERR CLUSTER FAILOVER TAKEOVER is not offered: a leader without a majority would lose writes";
            return Err(text.into());
        }
        Some(_) => return Err(text::SYNTAX.into()),
    }
    let partitions = exec.shared.partitions.as_ref();
    match partitions.map(|partitions| partitions.cluster.take_over()) {
        Some(Ok(())) => exec.reply.ok(),
        Some(Err(why)) => {
            return Err(format!("ERR You should send CLUSTER FAILOVER to a replica: {why}").into());
        }
        None => return Err(text::NO_CLUSTER.into()),
    }
    Ok(Flow::Next)
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    shape(exec)?;
    row::help(exec, "cluster", SUBCOMMANDS)
}

fn my_id(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let shape = shape(exec)?;
    exec.reply.bulk(shape.own_name().as_bytes());
    Ok(Flow::Next)
}

fn info(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let shape = shape(exec)?;
    let partitions = exec.shared.partitions.as_ref();
    let problems = partitions.map(|partitions| partitions.cluster.problems());
    let duplications = partitions.map(|partitions| partitions.cluster.duplications());
    let duplications = duplications.unwrap_or_default();
    let paused = duplications.iter().filter(|one| one.is_paused);
    let paused: Vec<_> = paused.map(|one| one.name.as_str()).collect();
    let text = shape.info(&problems.unwrap_or_default(), &paused);
    exec.reply.verbatim(*b"txt", text.as_bytes());
    Ok(Flow::Next)
}

fn nodes(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let text = shape(exec)?.lines();
    exec.reply.verbatim(*b"txt", text.as_bytes());
    Ok(Flow::Next)
}

fn slots(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    shape(exec)?.slots(exec.reply);
    Ok(Flow::Next)
}

fn shards(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    shape(exec)?.shards(exec.reply);
    Ok(Flow::Next)
}

fn links(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    shape(exec)?;
    exec.reply.array(0);
    Ok(Flow::Next)
}

fn unknown_node(name: &[u8]) -> Failure {
    Failure::Bytes([b"ERR Unknown node ", name].concat())
}

fn count_failure_reports(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let name = request.at(2);
    if !shape(exec)?.has_node(name) {
        return Err(unknown_node(name));
    }
    exec.reply.integer(0);
    Ok(Flow::Next)
}

fn replicas(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (shape, name) = (shape(exec)?, request.at(2));
    if !shape.has_node(name) {
        return Err(unknown_node(name));
    }
    let Some(lines) = shape.replica_lines(name) else {
        return Err("ERR The specified node is not a master".into());
    };
    exec.reply.array(lines.len());
    for line in &lines {
        exec.reply.bulk(line.as_bytes());
    }
    Ok(Flow::Next)
}

fn key_slot(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    shape(exec)?;
    exec.reply.integer(slot_of(request.at(2)).into());
    Ok(Flow::Next)
}

fn slot_number(arg: &[u8], wrong: &'static str) -> Result<u16, Failure> {
    let slot = u16::try_from(integer(arg)?).ok();
    slot.filter(|slot| *slot < SLOTS).ok_or(wrong.into())
}

fn count_keys_in_slot(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    shape(exec)?;
    let slot = slot_number(request.at(2), "ERR Invalid slot")?;
    count_in_slot(exec, slot)
}

fn get_keys_in_slot(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    shape(exec)?;
    let wrong = "ERR Invalid slot or number of keys";
    let slot = slot_number(request.at(2), wrong)?;
    let count = usize::try_from(integer(request.at(3))?).map_err(|_| Failure::from(wrong))?;
    keys_in_slot(exec, slot, count)
}
