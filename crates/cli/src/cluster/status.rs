//! `collie cluster status`: what the nodes say of themselves and of each other.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use collie_server::cluster::SLOTS;
use serde::Serialize;

use super::PATIENCE;
use super::local::Local;
use crate::Outcome;
use crate::args::StatusArgs;
use crate::output::{Results, grouped};
use crate::resp::{Client, Reply};

/// Lines of `name:value`, as `CLUSTER INFO` answers.
#[derive(Debug, Default)]
pub(super) struct Info(BTreeMap<String, String>);

impl Info {
    /// What is wrong with the node, by its own word.
    fn problems(&self) -> Vec<String> {
        let problem = |number: usize| self.0.get(&format!("collie_problem_{number}")).cloned();
        (1..).map_while(problem).collect()
    }

    /// A number; 0 where it is not there.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// What a node says of the cluster.
pub(super) fn info(client: &mut Client) -> io::Result<Info> {
    let lines = text(client, &[b"CLUSTER", b"INFO"])?;
    let pairs = lines.lines().filter_map(|line| line.split_once(':'));
    Ok(Info(
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    ))
}

/// The nodes, as one of them sees them.
pub(super) fn lines(client: &mut Client) -> io::Result<Vec<Line>> {
    let nodes = text(client, &[b"CLUSTER", b"NODES"])?;
    Ok(nodes.lines().filter_map(line).collect())
}

fn text(client: &mut Client, words: &[&[u8]]) -> io::Result<String> {
    match client.call(words)?.good()? {
        Reply::Bulk(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Reply::Text(text) => Ok(text),
        other => Err(io::Error::other(format!("expected a text, found {other:?}"))),
    }
}

/// A node, as one of them sees it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) address: String,
    peer_port: u16,
    /// It answers the node that was asked.
    alive: bool,
    /// How many slots it leads.
    slots: u64,
    /// Which.
    #[serde(skip)]
    pub(super) ranges: Vec<String>,
    /// How many keys are in them; none where it does not answer this program.
    keys: Option<u64>,
    /// What is wrong with it, by its own word.
    problems: Vec<String>,
}

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<Outcome> {
    let addresses = match args.node {
        Some(node) => vec![node],
        None => Local::get(&args.dir)?
            .places()
            .iter()
            .map(|place| place.address)
            .collect(),
    };
    let Some(mut client) = addresses
        .iter()
        .find_map(|at| Client::connect_to(*at, PATIENCE).ok())
    else {
        let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        bail!("no node answers at {}: is the cluster up?", all.join(", "));
    };
    let mut lines = lines(&mut client).context("the node does not show the cluster")?;
    lines.sort_by(|one, other| one.address.cmp(&other.address));
    for line in &mut lines {
        line.ask();
    }
    let served: u64 = lines.iter().map(|line| line.slots).sum();
    let mut results = Results::new();
    if args.json {
        for line in &lines {
            results.json(line)?;
        }
    } else {
        results.line(format_args!(
            "{:<22} {:<8} {:>6} {:>12}",
            "node", "state", "slots", "keys"
        ))?;
        for line in &lines {
            let state = if line.alive { "alive" } else { "silent" };
            let keys = line.keys.map_or_else(|| "-".to_owned(), grouped);
            results.line(format_args!(
                "{:<22} {state:<8} {:>6} {keys:>12}",
                line.address, line.slots
            ))?;
        }
        for line in &lines {
            for problem in &line.problems {
                results.line(format_args!("{}: {problem}", line.address))?;
            }
        }
        if served < u64::from(SLOTS) {
            results.line(format_args!(
                "{} slots are led by no node that is known",
                u64::from(SLOTS) - served
            ))?;
        }
    }
    results.flush()?;
    let is_well = lines.iter().all(|line| line.problems.is_empty());
    Ok(if served == u64::from(SLOTS) && is_well {
        Outcome::Good
    } else {
        Outcome::Bad
    })
}

/// A line of `CLUSTER NODES`: `name address@port flags master ping pong epoch link slots …`.
fn line(text: &str) -> Option<Line> {
    let mut words = text.split(' ');
    let (address, port) = words.nth(1)?.split_once('@')?;
    let flags = words.next()?;
    let ranges: Vec<String> = words.skip(5).map(str::to_owned).collect();
    let slots = ranges.iter().filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<u64>().ok()? + 1 - first.parse::<u64>().ok()?)
    });
    Some(Line {
        address: address.to_owned(),
        peer_port: port.parse().ok()?,
        alive: !flags.contains("fail"),
        slots: slots.sum(),
        ranges,
        keys: None,
        problems: Vec::new(),
    })
}

impl Line {
    /// Asks the node itself for what only it knows, if it answers.
    fn ask(&mut self) {
        let address = self.address.parse::<SocketAddr>().ok();
        let Some(mut client) = address.and_then(|at| Client::connect_to(at, PATIENCE).ok()) else {
            return;
        };
        if let Ok(info) = info(&mut client) {
            self.problems = info.problems();
        }
        if let Ok(Reply::Number(keys)) = client.call(&[b"DBSIZE"]) {
            self.keys = u64::try_from(keys).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cluster_nodes_says_how_many_slots_a_node_leads() {
        let found =
            line("07c3 127.0.0.1:7002@17002 master,fail - 0 0 7 connected 0-9 11 16000-16383").unwrap();
        let expected = Line {
            address: "127.0.0.1:7002".to_owned(),
            peer_port: 17_002,
            alive: false,
            slots: 10 + 1 + 384,
            ranges: ["0-9", "11", "16000-16383"].map(str::to_owned).to_vec(),
            keys: None,
            problems: Vec::new(),
        };
        assert_eq!(found, expected);
        assert_eq!(
            line("07c3 127.0.0.1:7001@17001 myself,slave 07c4 0 0 7 connected")
                .unwrap()
                .slots,
            0
        );
        assert!(line("no such line").is_none());
    }

    #[test]
    fn problems_come_in_their_order_and_nothing_else_is_one() {
        let lines = (1..=11)
            .rev()
            .map(|n| (format!("collie_problem_{n}"), format!("it is {n}")));
        let mut info = Info(lines.collect());
        info.0.insert("cluster_state".to_owned(), "ok".to_owned());
        let expected: Vec<_> = (1..=11).map(|n| format!("it is {n}")).collect();
        assert_eq!(info.problems(), expected);
    }
}
