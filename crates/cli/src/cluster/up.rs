//! `collie cluster up` and `down`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Child;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use collie_cli::Outcome;
use collie_cli::output::{self, Results};
use collie_io::{Clock, RealClock};
use collie_server::cluster::SLOTS;
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process};

use super::local::{LocalCluster, LocalNode, Shape, check};
use super::view;
use crate::args::{DownArgs, UpArgs};

/// The time between two checks of a condition that is waited for.
const PAUSE: Duration = Duration::from_millis(50);
const NODES: u16 = 3;
const PORT: u16 = 7001;
/// A cluster that does not serve all keys within this time has a problem.
const UP_WITHIN: Duration = Duration::from_secs(60);
/// A node ends within this time: what it has in memory is written meanwhile.
const DOWN_WITHIN: Duration = Duration::from_secs(60);

pub(super) fn up(args: &UpArgs) -> anyhow::Result<Outcome> {
    let local = find_or_make(args)?;
    let nodes = local.nodes();
    let began = RealClock.monotonic();
    let bar = output::spinner("starting");
    // Whatever listens at its address may be another program: a node of this directory has its lock.
    let idle: Vec<_> = nodes.iter().filter(|node| !node.is_in_use()).collect();
    idle.iter().try_for_each(|node| node.check_ports())?;
    let mut started = Started::default();
    for node in idle {
        let process = start_args(node, &local).and_then(|mut start_args| {
            if let Some(limit) = args.log_limit {
                start_args.extend(["--log-limit".into(), limit.to_string().into()]);
            }
            if let Some(reads) = args.reads {
                let reads = collie_server::cluster::Reads::from(reads).name();
                start_args.extend(["--reads", reads].map(OsString::from));
            }
            if let Some(durability) = args.durability {
                start_args.extend(["--durability", durability.name()].map(OsString::from));
            }
            node.start(&start_args)
        });
        match process {
            Ok(process) => started.0.push((node, process)),
            Err(error) => return Err(started.end(error)),
        }
    }
    let count = started.0.len();
    wait_until_served(&nodes, started, &bar)?;
    bar.finish_and_clear();
    let took = Duration::from_nanos(RealClock.monotonic().saturating_sub(began));
    let mut results = Results::new();
    let running = nodes.len() - count;
    results.line(format_args!(
        "{} nodes serve all {SLOTS} slots after {:.1} s{}",
        nodes.len(),
        took.as_secs_f64(),
        match running {
            0 => String::new(),
            n => format!(" ({n} of them ran already)"),
        }
    ))?;
    for node in &nodes {
        results.line(format_args!(
            "  {}  {}  diagnostics: {}",
            node.address,
            node.dir.display(),
            node.diagnostics.display()
        ))?;
    }
    let dir = args.dir.display();
    results.line(format_args!(
        "try:     redis-cli -c -p {}\nstate:   collie cluster status --dir {dir}\nend:     collie cluster down --dir {dir}",
        local.shape.port
    ))?;
    results.flush()?;
    Ok(Outcome::Good)
}

fn find_or_make(args: &UpArgs) -> anyhow::Result<LocalCluster> {
    let Some(found) = LocalCluster::find(&args.dir)? else {
        let shape = Shape {
            nodes: args.nodes.unwrap_or(NODES),
            port: args.port.unwrap_or(PORT),
        };
        check(shape)?;
        return LocalCluster::make(&args.dir, shape);
    };
    let Shape { nodes, port } = found.shape;
    let dir = args.dir.display();
    ensure!(
        args.nodes.is_none_or(|asked| asked == nodes) && args.port.is_none_or(|asked| asked == port),
        "the cluster in {dir} has {nodes} nodes from port {port} on, which stays so: leave --nodes and --port out, or \
         choose another --dir"
    );
    check(found.shape)?;
    Ok(found)
}

/// The arguments that a node is started with besides its addresses: none, if it is a member already.
fn start_args(node: &LocalNode, local: &LocalCluster) -> anyhow::Result<Vec<OsString>> {
    let nodes = local.nodes();
    let first = nodes.first().map(|first| first.peer.to_string());
    let words: Vec<String> = match first {
        _ if node.is_member()? => Vec::new(),
        Some(first) if node.index > 1 => vec!["--join".to_owned(), first],
        _ => {
            // Of two, no majority survives the loss of one: more replicas would only cost.
            let replicas = if local.shape.nodes < 3 { 1 } else { 3 };
            vec![
                "--bootstrap".to_owned(),
                "--replicas".to_owned(),
                replicas.to_string(),
            ]
        }
    };
    Ok(words.into_iter().map(OsString::from).collect())
}

/// The nodes that were started, and their processes.
#[derive(Default)]
struct Started<'a>(Vec<(&'a LocalNode, Child)>);

impl Started<'_> {
    /// Why one of them does not run any more, if there is one.
    fn ended(&mut self) -> Option<anyhow::Error> {
        self.0
            .iter_mut()
            .find_map(|(node, child)| match child.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(anyhow!(
                    "node {} ended by itself ({status}); the end of {}:\n{}",
                    node.index,
                    node.diagnostics.display(),
                    node.log_tail().trim_end()
                )),
                Err(error) => Some(anyhow!(error).context("cannot wait for a node")),
            })
    }

    /// Ends them all, since one of them does not run, and adds to `error` that it did.
    fn end(mut self, error: anyhow::Error) -> anyhow::Error {
        let began = RealClock.monotonic();
        let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.0.retain_mut(|(_, child)| runs(child));
        if self.0.is_empty() {
            return error;
        }
        for (_, child) in &self.0 {
            // One that has ended meanwhile is not waited for.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        while !self.0.is_empty() {
            let waited = RealClock.monotonic().saturating_sub(began);
            if u128::from(waited) >= DOWN_WITHIN.as_nanos() {
                // What it acknowledged is on disk.
                self.0.iter_mut().for_each(|(_, child)| drop(child.kill()));
            }
            std::thread::sleep(PAUSE);
            self.0.retain_mut(|(_, child)| runs(child));
        }
        anyhow!("{error:#}\nthe others that were started have been ended too")
    }
}

/// Waits until every node has all of them in its view, and all agree on a leader for every slot.
fn wait_until_served(nodes: &[LocalNode], mut started: Started<'_>, bar: &ProgressBar) -> anyhow::Result<()> {
    let began = RealClock.monotonic();
    loop {
        // All at one time: an earlier view may be outdated.
        let views: Vec<_> = nodes.iter().map(|node| view(node, nodes.len())).collect();
        let seen = match agreement(&views) {
            Ok(()) => return Ok(()),
            Err(seen) => seen,
        };
        bar.set_position(views.iter().filter(|view| view.is_ok()).count() as u64);
        bar.set_message(format!("of {} nodes serve", nodes.len()));
        if let Some(error) = started.ended() {
            bar.finish_and_clear();
            return Err(started.end(error));
        }
        let waited = RealClock.monotonic().saturating_sub(began);
        ensure!(
            u128::from(waited) < UP_WITHIN.as_nanos(),
            "not all keys are served after {} s ({seen}): `collie cluster status` shows what is there, {} what a node \
             says; the nodes run on",
            UP_WITHIN.as_secs(),
            nodes
                .first()
                .map(|node| node.diagnostics.display().to_string())
                .unwrap_or_default()
        );
        std::thread::sleep(PAUSE);
    }
}

/// A node's view, if it has all nodes and a leader for each slot; or else what it lacks.
fn view(local: &LocalNode, nodes: usize) -> Result<SlotsView, String> {
    let node = local.index;
    let asked = local.connect().and_then(|mut client| {
        let info = view::info(&mut client).ok()?;
        Some((info, view::lines(&mut client).ok()?))
    });
    let Some((info, lines)) = asked else {
        return Err(format!("node {node} does not answer yet"));
    };
    let slots = info.number("cluster_slots_ok");
    let known = info.number("cluster_known_nodes");
    if slots != u64::from(SLOTS) || known != nodes as u64 {
        return Err(format!(
            "node {node} knows {known} of {nodes} nodes, and {slots} of {SLOTS} slots are led"
        ));
    }
    Ok(SlotsView {
        node,
        epoch: info.number("cluster_current_epoch"),
        slots: lines
            .into_iter()
            .map(|line| (line.address, line.ranges))
            .collect(),
    })
}

/// A node's view of who leads which slots.
#[derive(Debug)]
struct SlotsView {
    node: u16,
    epoch: u64,
    /// The slots that each address leads.
    slots: BTreeMap<String, Vec<String>>,
}

/// Whether all views are the same; or else what is missing.
fn agreement(views: &[Result<SlotsView, String>]) -> Result<(), String> {
    let mut first: Option<&SlotsView> = None;
    for view in views {
        let view = view.as_ref().map_err(Clone::clone)?;
        let first = *first.get_or_insert(view);
        if first.epoch != view.epoch || first.slots != view.slots {
            return Err(format!(
                "nodes {} and {} do not agree on who leads which slots",
                first.node, view.node
            ));
        }
    }
    Ok(())
}

pub(super) fn down(args: &DownArgs) -> anyhow::Result<Outcome> {
    let local = LocalCluster::get(&args.dir)?;
    let bar = output::spinner("ending");
    // The lock on its directory is the first that a node takes, and the last that it gives back.
    let mut ending = local.nodes();
    ending.retain(LocalNode::is_in_use);
    let count = ending.len();
    let began = RealClock.monotonic();
    while !ending.is_empty() {
        for node in &ending {
            // One that starts, or waits to join, does not listen yet, and one that was asked does not
            // any more.
            match node.connect() {
                // All end: there is no node to hand over to. It answers nothing: the connection ends with
                // the process.
                Some(mut client) => drop(client.call(&[b"SHUTDOWN", b"NOW"])),
                None => node.terminate()?,
            }
        }
        ending.retain(LocalNode::is_in_use);
        bar.set_position((count - ending.len()) as u64);
        let waited = RealClock.monotonic().saturating_sub(began);
        if let Some(node) = ending.first() {
            ensure!(
                u128::from(waited) < DOWN_WITHIN.as_nanos(),
                "node {} has not ended after {} s: {} says what it does",
                node.index,
                DOWN_WITHIN.as_secs(),
                node.diagnostics.display()
            );
        }
        std::thread::sleep(PAUSE);
    }
    bar.finish_and_clear();
    let mut results = Results::new();
    results.line(match count {
        0 => "no node ran".to_owned(),
        1 => "1 node has ended in order".to_owned(),
        n => format!("{n} nodes have ended in order"),
    })?;
    results.flush()?;
    Ok(Outcome::Good)
}
