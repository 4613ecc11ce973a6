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
use super::verdict::{Health, NOT_ASKED, Verdict};
use super::view::{View, ask, words};
use crate::args::StatusArgs;

/// While leaders change, clients wait as long before they get an error.
const LEADERS_WITHIN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<Outcome> {
    match look(args) {
        Ok(verdict) => {
            show(args, &verdict)?;
            Ok(Outcome::Code(verdict.state.code()))
        }
        Err(error) => {
            output::complain(&error);
            Ok(Outcome::Code(NOT_ASKED))
        }
    }
}

/// Asks all nodes, again for a moment where slots seem to have no leader: one may just be elected.
fn look(args: &StatusArgs) -> anyhow::Result<Verdict> {
    let access = Access::of(&args.access)?;
    let seeds = match &args.node[..] {
        [] => LocalCluster::get(&args.dir)?
            .nodes()
            .iter()
            .map(|node| node.address)
            .collect(),
        nodes => nodes.to_vec(),
    };
    let began = RealClock.monotonic();
    loop {
        let asked = ask_all(&access, &seeds);
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

/// Asks these nodes, and all that they name, at the same time.
fn ask_all(access: &Access, seeds: &[SocketAddr]) -> BTreeMap<String, Result<View, String>> {
    let mut asked = BTreeMap::new();
    let mut next: Vec<SocketAddr> = seeds.to_vec();
    while !next.is_empty() {
        let views: Vec<_> = thread::scope(|scope| {
            let asking: Vec<_> = next
                .iter()
                .map(|at| scope.spawn(move || ask(access, *at).map_err(|error| words(&error))))
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

fn show(args: &StatusArgs, verdict: &Verdict) -> anyhow::Result<()> {
    let mut results = Results::new();
    if args.json {
        for node in &verdict.nodes {
            results.json(node)?;
        }
        results.json(verdict)?;
        return Ok(results.flush()?);
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
    for node in verdict.nodes.iter().filter(|node| node.logs_to_move > 0) {
        results.line(format_args!(
            "{}: the logs of {} replicas are to move to where the layout has them",
            node.address, node.logs_to_move
        ))?;
    }
    if verdict.newest_level > verdict.level {
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
    Ok(results.flush()?)
}
