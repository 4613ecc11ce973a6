//! `collie cluster nodes`, `drain`, `serve`, `remove` and `replace`: which nodes have replicas, and which are to.
//! `collie cluster finalize`: all speak a newer feature level. `collie cluster layout`: which logs their replicas have.
//! `collie cluster split`: a partition becomes two.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_cli::resp::{Client, Reply};
use serde::Serialize;

use super::access::Access;
use super::local::LocalCluster;
use super::view::{info, words};
use crate::args::{LayoutArgs, NodesArgs, SplitArgs, WhereArgs};

/// A change of the map is decided within this time, or the node says that it was not.
const PATIENCE: Duration = Duration::from_secs(15);

/// What an answer ends with that may be another one a moment later, as while a leader of the map is elected.
const AGAIN: &str = ": ask again";
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(500);

/// A node, as `COLLIE.NODE LIST` has it.
#[derive(Debug, Default, Serialize)]
struct NodeRow {
    number: i64,
    address: String,
    role: String,
    health: String,
    replicas: i64,
    leads: i64,
    joining: i64,
    leaving: i64,
}

pub(super) fn nodes(args: &NodesArgs) -> anyhow::Result<Outcome> {
    // One that does not hear most of the others may know an old map.
    let hears_most = |nodes: &Vec<NodeRow>| {
        let online = nodes.iter().filter(|node| node.health == "online");
        2 * online.count() > nodes.len()
    };
    let nodes = ask(&args.at, list, hears_most)?;
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
    results.flush()?;
    Ok(Outcome::Good)
}

/// Asks for a change of the map, in these words, and says what follows. One node that cannot say, as it does not hear
/// the others, is no answer.
pub(super) fn change(at: &WhereArgs, request: &[&str], follows: &str) -> anyhow::Result<Outcome> {
    let words: Vec<&[u8]> = [&b"COLLIE.NODE"[..]]
        .into_iter()
        .chain(request.iter().map(|word| word.as_bytes()))
        .collect();
    ask(at, |client| client.call(&words)?.good(), |_| true)?;
    say(format_args!(
        "{follows}: `collie cluster nodes` shows how far that is"
    ))
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
    ask(&args.at, |client| client.call(&words)?.good(), |_| true)?;
    say(format_args!(
        "logs of node {node} move to the layout {layout}: `collie cluster status` shows how many are left"
    ))
}

/// Has a partition split at a slot.
pub(super) fn split(args: &SplitArgs) -> anyhow::Result<Outcome> {
    let slot = args.slot.to_string();
    let words: [&[u8]; 3] = [b"COLLIE.NODE", b"SPLIT", slot.as_bytes()];
    ask(&args.at, |client| client.call(&words)?.good(), |_| true)?;
    say(format_args!(
        "slot {slot} and those behind it, of the same partition, go to a new one; `collie cluster status` says so where \
         that does not go on"
    ))
}

/// Has the cluster use the newest feature level.
pub(super) fn finalize(at: &WhereArgs) -> anyhow::Result<Outcome> {
    let raised = |client: &mut Client| {
        client.call(&[b"COLLIE.NODE", b"FINALIZE"])?.good()?;
        Ok(info(client)?.number("collie_newest_level"))
    };
    let level = ask(at, raised, |_| true)?;
    say(format_args!("the cluster has feature level {level}"))
}

fn say(line: std::fmt::Arguments<'_>) -> anyhow::Result<Outcome> {
    let mut results = Results::new();
    results.line(line)?;
    results.flush()?;
    Ok(Outcome::Good)
}

/// Asks one node after the other until one gives a good answer; of others the first.
fn ask<T>(
    at: &WhereArgs,
    mut question: impl FnMut(&mut Client) -> io::Result<T>,
    is_good: impl Fn(&T) -> bool,
) -> anyhow::Result<T> {
    let access = Access::of(&at.access)?;
    let seeds: Vec<SocketAddr> = match &at.node[..] {
        [] => {
            let cluster = LocalCluster::get(&at.dir)?;
            cluster.nodes().iter().map(|node| node.address).collect()
        }
        nodes => nodes.to_vec(),
    };
    for attempt in 1.. {
        let (mut other, mut why) = (None, Vec::new());
        for seed in &seeds {
            let asked = access.connect(*seed, PATIENCE);
            match asked.and_then(|mut client| question(&mut client)) {
                Ok(answer) if is_good(&answer) => return Ok(answer),
                Ok(answer) => other = other.or(Some(answer)),
                Err(error) => why.push(format!("{seed}: {}", words(&error))),
            }
        }
        match other {
            Some(answer) => return Ok(answer),
            None if attempt < ATTEMPTS && why.iter().any(|why| why.ends_with(AGAIN)) => thread::sleep(PAUSE),
            None => bail!("{}", why.join("; ")),
        }
    }
    bail!("no node was asked")
}

fn list(client: &mut Client) -> io::Result<Vec<NodeRow>> {
    let unexpected = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    let nodes = match client.call(&[b"COLLIE.NODE", b"LIST"])?.good()? {
        Reply::Array(nodes) => nodes,
        found => return Err(unexpected(format!("expected a list of nodes, found {found:?}"))),
    };
    let node = |reply| node(reply).map_err(|error| unexpected(error.to_string()));
    nodes.iter().map(node).collect()
}

fn node(reply: &Reply) -> anyhow::Result<NodeRow> {
    let Reply::Array(fields) = reply else {
        bail!("expected the fields of a node, found {reply:?}");
    };
    let pairs = fields.chunks_exact(2).filter_map(|pair| match pair {
        [Reply::Bulk(name), value] => Some((String::from_utf8_lossy(name).into_owned(), value)),
        _ => None,
    });
    let fields: BTreeMap<_, _> = pairs.collect();
    let text = |name: &str| match fields.get(name) {
        Some(Reply::Bulk(text)) => Ok(String::from_utf8_lossy(text).into_owned()),
        found => bail!("expected the text {name} of a node, found {found:?}"),
    };
    let number = |name: &str| match fields.get(name) {
        Some(Reply::Number(number)) => Ok(*number),
        found => bail!("expected the number {name} of a node, found {found:?}"),
    };
    Ok(NodeRow {
        number: number("number")?,
        address: text("address")?,
        role: text("role")?,
        health: text("health")?,
        replicas: number("replicas")?,
        leads: number("leads")?,
        joining: number("joining")?,
        leaving: number("leaving")?,
    })
}
