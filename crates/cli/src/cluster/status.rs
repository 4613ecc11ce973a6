//! `collie cluster status`: the views of all nodes, and what follows from them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use collie_cli::Outcome;
use collie_cli::output::{self, Results, grouped};
use collie_io::{Clock, RealClock};

use super::access::Access;
use super::local::LocalCluster;
use super::verdict::{Health, NOT_ASKED, Node, Verdict};
use super::view::{self, View, ask, words};
use crate::args::StatusArgs;

/// While leaders change, clients wait as long before they get an error.
const LEADERS_WITHIN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<Outcome> {
    match Asker::of(args).and_then(|asker| asker.look()) {
        Ok(verdict) => {
            let mut results = Results::new();
            show(&mut results, args, &verdict)?;
            results.flush()?;
            Ok(Outcome::Code(verdict.state.code()))
        }
        Err(error) => Ok(not_asked(&error)),
    }
}

/// The end where no node can be asked.
pub(super) fn not_asked(error: &anyhow::Error) -> Outcome {
    output::complain(error);
    Outcome::Code(NOT_ASKED)
}

/// Which nodes are asked, and how.
pub(super) struct Asker {
    access: Access,
    seeds: Vec<SocketAddr>,
    /// The nodes of the cluster, as far as an earlier look has shown them.
    known: Vec<SocketAddr>,
}

impl Asker {
    pub(super) fn of(args: &StatusArgs) -> anyhow::Result<Self> {
        let access = Access::of(&args.access)?;
        let seeds = match &args.node[..] {
            [] => LocalCluster::get(&args.dir)?
                .nodes()
                .iter()
                .map(|node| node.address)
                .collect(),
            nodes => nodes.to_vec(),
        };
        Ok(Self {
            access,
            seeds,
            known: Vec::new(),
        })
    }

    /// Has the next look ask these at once, and not only when another one has named them.
    pub(super) fn know(&mut self, nodes: &[Node]) {
        let addresses = nodes.iter().filter_map(|node| node.address.parse().ok());
        self.known = addresses.collect();
    }

    /// Asks all nodes, again for a moment where slots seem to have no leader: one may just be elected.
    pub(super) fn look(&self) -> anyhow::Result<Verdict> {
        let began = RealClock.monotonic();
        loop {
            let asked = ask_all(&self.access, self.seeds.iter().chain(&self.known));
            if asked.values().all(Result::is_err) {
                let why = asked.iter().filter_map(|(at, asked)| {
                    let problem = asked.as_ref().err()?;
                    Some(format!("{at}: {problem}"))
                });
                bail!("no node can be asked: {}", why.collect::<Vec<_>>().join("; "));
            }
            let verdict = Verdict::of(&asked);
            let waited = RealClock.monotonic().saturating_sub(began);
            if verdict.state != Health::Down || u128::from(waited) >= LEADERS_WITHIN.as_nanos() {
                return Ok(verdict);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Asks these nodes, and all that they name, at the same time.
fn ask_all<'a>(
    access: &Access,
    seeds: impl Iterator<Item = &'a SocketAddr>,
) -> BTreeMap<String, Result<View, String>> {
    let mut asked = BTreeMap::new();
    let mut next: Vec<SocketAddr> = seeds.copied().collect();
    next.sort_unstable();
    next.dedup();
    while !next.is_empty() {
        let views: Vec<_> = thread::scope(|scope| {
            let asking: Vec<_> = next
                .iter()
                .map(|at| {
                    scope.spawn(move || ask(access, *at).map_err(|error| words(&error, view::PATIENCE)))
                })
                .collect();
            let answer = |asking: thread::ScopedJoinHandle<'_, Result<View, String>>| {
                asking
                    .join()
                    .unwrap_or_else(|_| Err("asking it has failed".to_owned()))
            };
            asking.into_iter().map(answer).collect()
        });
        asked.extend(next.iter().map(ToString::to_string).zip(views));
        let named = asked.values().filter_map(|asked| asked.as_ref().ok());
        let named = named.flat_map(|view| &view.lines);
        let new = named.filter(|line| !asked.contains_key(&line.address));
        let mut new: Vec<SocketAddr> = new.filter_map(|line| line.address.parse().ok()).collect();
        new.sort();
        new.dedup();
        next = new;
    }
    asked
}

pub(super) fn show(results: &mut Results, args: &StatusArgs, verdict: &Verdict) -> anyhow::Result<()> {
    if args.json {
        for node in &verdict.nodes {
            results.json(node)?;
        }
        return Ok(results.json(verdict)?);
    }
    results.line(format_args!(
        "{:<22} {:<9} {:>6} {:>12}",
        "node", "state", "slots", "keys"
    ))?;
    for node in &verdict.nodes {
        let keys = node.keys.map_or_else(|| "-".to_owned(), grouped);
        results.line(format_args!(
            "{:<22} {:<9} {:>6} {keys:>12}",
            node.address,
            node.state(),
            node.slots
        ))?;
    }
    for node in &verdict.nodes {
        for problem in node.unanswered.iter().chain(&node.problems) {
            results.line(format_args!("{}: {problem}", node.address))?;
        }
    }
    for line in verdict.moves() {
        results.line(format_args!("{line}"))?;
    }
    for line in verdict.drained_disks() {
        results.line(format_args!("{line}"))?;
    }
    if let Some(line) = verdict.leases() {
        results.line(format_args!("{line}"))?;
    }
    if let Some(line) = verdict.entries_in_memory() {
        results.line(format_args!("{line}"))?;
    }
    for name in &verdict.paused {
        results.line(format_args!(
            "the duplication to {name} is paused by command: `collie cluster duplicate resume {name}` ends that"
        ))?;
    }
    if verdict.splits > 0 {
        results.line(format_args!(
            "{} of {} partitions are being split",
            verdict.splits, verdict.partitions
        ))?;
    }
    // At 0 no node that answers knows the cluster: it begins, or was removed.
    if verdict.level > 0 && verdict.newest_level > verdict.level {
        results.line(format_args!(
            "the cluster has feature level {}, and these nodes speak {}: once all run this version to stay, `collie cluster \
             finalize` has it used",
            verdict.level, verdict.newest_level
        ))?;
    }
    if !verdict.unserved.is_empty() {
        results.line(format_args!(
            "not served: slots {}: no node that answers leads them, confirmed by a majority of their replicas",
            verdict.unserved.join(" ")
        ))?;
    }
    Ok(())
}
