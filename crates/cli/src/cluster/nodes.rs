//! `collie cluster nodes`, `drain`, `serve`, `remove` and `replace`: which nodes have replicas, and which are to.
//! `collie cluster finalize`: all speak a newer feature level. `collie cluster layout`: which logs their replicas have.
//! `collie cluster split`: a partition becomes two.

use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_cli::resp::Client;
use serde::Serialize;

use super::asking::{self, Fields};
use super::view::info;
use crate::args::{AcceptLossArgs, DiskArgs, LayoutArgs, NodesArgs, SplitArgs, WhereArgs};

/// A node, as `COLLIE.NODE LIST` has it.
#[derive(Debug, Serialize)]
struct NodeRow {
    number: i64,
    address: String,
    role: String,
    health: String,
    replicas: i64,
    leads: i64,
    joining: i64,
    leaving: i64,
    drained: Vec<DiskRow>,
}

/// A disk that is drained, and how many replicas are on it.
#[derive(Debug, Serialize)]
struct DiskRow {
    disk: i64,
    replicas: i64,
}

impl NodeRow {
    fn of(fields: &Fields) -> std::io::Result<Self> {
        Ok(Self {
            number: fields.number("number")?,
            address: fields.text("address")?,
            role: fields.text("role")?,
            health: fields.text("health")?,
            replicas: fields.number("replicas")?,
            leads: fields.number("leads")?,
            joining: fields.number("joining")?,
            leaving: fields.number("leaving")?,
            drained: drained(&fields.numbers("drained").unwrap_or_default()),
        })
    }
}

/// Pairs of a disk and a number. Nodes of earlier versions say nothing of them.
fn drained(numbers: &[i64]) -> Vec<DiskRow> {
    let (pairs, _) = numbers.as_chunks::<2>();
    let row = |[disk, replicas]: &[i64; 2]| DiskRow {
        disk: *disk,
        replicas: *replicas,
    };
    pairs.iter().map(row).collect()
}

pub(super) fn nodes(args: &NodesArgs) -> anyhow::Result<Outcome> {
    // One that does not hear most of the others may know an old map.
    let hears_most = |nodes: &Vec<NodeRow>| {
        let online = nodes.iter().filter(|node| node.health == "online");
        2 * online.count() > nodes.len()
    };
    let list = |client: &mut Client| {
        let nodes = asking::list(client, &[b"COLLIE.NODE", b"LIST"])?;
        nodes.iter().map(NodeRow::of).collect()
    };
    let nodes = asking::look(&args.at, list, hears_most)?;
    let mut results = Results::new();
    if args.json {
        for node in &nodes {
            results.json(node)?;
        }
        results.flush()?;
        return Ok(Outcome::Good);
    }
    results.line(format_args!(
        "{:>4} {:<22} {:<8} {:<7} {:>8} {:>6} {:>7} {:>7}",
        "node", "address", "role", "health", "replicas", "leads", "joining", "leaving"
    ))?;
    for node in &nodes {
        results.line(format_args!(
            "{:>4} {:<22} {:<8} {:<7} {:>8} {:>6} {:>7} {:>7}",
            node.number,
            node.address,
            node.role,
            node.health,
            node.replicas,
            node.leads,
            node.joining,
            node.leaving
        ))?;
    }
    for (node, disk) in nodes
        .iter()
        .flat_map(|node| node.drained.iter().map(move |disk| (node, disk)))
    {
        let (number, disk, replicas) = (node.number, disk.disk, disk.replicas);
        results.line(format_args!(
            "disk {disk} of node {number} is drained: the map has {replicas} replicas there"
        ))?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

/// Asks for a change of the map, in these words, and says what follows.
pub(super) fn change(at: &WhereArgs, request: &[&str], follows: &str) -> anyhow::Result<Outcome> {
    let words: Vec<&[u8]> = [&b"COLLIE.NODE"[..]]
        .into_iter()
        .chain(request.iter().map(|word| word.as_bytes()))
        .collect();
    asking::change(at, |client| client.call(&words)?.good())?;
    say(format_args!(
        "{follows}: `collie cluster nodes` shows how far that is"
    ))
}

/// Asks that a node, or a disk of it, is drained or serves.
pub(super) fn change_disk(request: &str, args: &DiskArgs, follows: &str) -> anyhow::Result<Outcome> {
    let number = args.number.to_string();
    let disk = args.disk.map(|disk| disk.to_string());
    let disk = disk.iter().flat_map(|disk| ["DISK", disk]);
    let words: Vec<_> = [request, &number].into_iter().chain(disk).collect();
    change(&args.at, &words, follows)
}

/// Has logs of a node's replicas moved.
pub(super) fn layout(args: &LayoutArgs) -> anyhow::Result<Outcome> {
    let node = args.number.to_string();
    let layout = collie_server::cluster::LogLayout::from(args.layout).name();
    let which = match (args.disk, args.partition) {
        (Some(disk), _) => Some(("DISK", disk.to_string())),
        (None, Some(group)) => Some(("PARTITION", group.to_string())),
        (None, None) => None,
    };
    let mut words = vec!["COLLIE.NODE", "LAYOUT", &node, layout];
    words.extend(which.iter().flat_map(|(of, number)| [*of, number]));
    let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
    asking::change(&args.at, |client| client.call(&words)?.good())?;
    say(format_args!(
        "logs of node {node} move to the layout {layout}: `collie cluster status` shows how many are left"
    ))
}

/// Has a partition split at a slot.
pub(super) fn split(args: &SplitArgs) -> anyhow::Result<Outcome> {
    let slot = args.slot.to_string();
    let words: [&[u8]; 3] = [b"COLLIE.NODE", b"SPLIT", slot.as_bytes()];
    asking::change(&args.at, |client| client.call(&words)?.good())?;
    say(format_args!(
        "slot {slot} and those behind it, of the same partition, go to a new one; `collie cluster status` says so where \
         that does not go on"
    ))
}

/// Has replicas go on with what they have.
pub(super) fn accept_loss(args: &AcceptLossArgs) -> anyhow::Result<Outcome> {
    let without: Vec<_> = args.without.iter().map(u64::to_string).collect();
    let mut words = vec!["COLLIE.NODE", "ACCEPT-LOSS"];
    if !without.is_empty() {
        words.push("WITHOUT");
        words.extend(without.iter().map(String::as_str));
    }
    let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
    asking::change(&args.at, |client| client.call(&words)?.good())?;
    say(format_args!(
        "replicas that may have lost entries, if there are any, go on with what they have: `collie cluster status` shows \
         when all slots are served"
    ))
}

/// Has the cluster use the newest feature level.
pub(super) fn finalize(at: &WhereArgs) -> anyhow::Result<Outcome> {
    let raised = |client: &mut Client| {
        client.call(&[b"COLLIE.NODE", b"FINALIZE"])?.good()?;
        Ok(info(client)?.number("collie_newest_level"))
    };
    let level = asking::change(at, raised)?;
    say(format_args!("the cluster has feature level {level}"))
}

pub(super) fn say(line: std::fmt::Arguments<'_>) -> anyhow::Result<Outcome> {
    let mut results = Results::new();
    results.line(line)?;
    results.flush()?;
    Ok(Outcome::Good)
}
