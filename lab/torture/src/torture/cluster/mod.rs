//! `collie-lab torture cluster`: real nodes in processes of their own, under clients that note when
//! they call, when they return, and what they were answered. Nodes are killed and held, links
//! between them are cut, their power goes, their disks are slow or full; afterwards the histories
//! are checked for linearizability.
//!
//! Each round has new keys, so that a history is short enough to be searched; the keys of all
//! rounds are read once more at the end, as a rule after all nodes were killed or lost their power.

mod client;
mod disk_faults;
mod disks;
mod duplicate;
mod faults;
mod links;
mod load;
mod memory;
mod nodes;
mod notes;
mod operation;
mod pair;
mod plan;
mod report;
mod shared;
mod sockets;
mod target;
mod upgrades;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use collie_cli::Outcome;
use collie_cli::output::{grouped, note};
use collie_io::{Clock, RealClock};
use collie_sim::Rng;

use crate::args::ClusterArgs;
use crate::figures;
use crate::temporary::Temporary;
use faults::{kill_all, strike};
use load::{Board, Round};
use nodes::{Nodes, wait};
use notes::Notes;
pub(crate) use plan::{Entries, Fault, Product, Reads};
use plan::{FAULTS_MAX, Plan, ROUND};
use report::Report;
use target::Surroundings;

pub(crate) fn run(args: &ClusterArgs, seed: u64) -> anyhow::Result<Outcome> {
    let plan = Plan {
        product: args.system,
        program: args.program.clone(),
        before: args.before.clone(),
        fault: args.fault,
        nodes: args.nodes.parse().context("--nodes")?,
        clients: args.clients.into(),
        reads: args.reads,
        entries: args.durability,
        rounds: args.rounds,
        operations: args.operations,
        seed,
    };
    let temporary = Temporary::new("collie-cluster-", &std::env::temp_dir())?;
    let (board, mut report) = (Board::default(), Report::default());
    let bar = figures::progress("cluster", plan.rounds);
    let began = RealClock.monotonic();
    let (rng, dir) = (Rng::new(seed), temporary.path());
    let done = |report: &Report| {
        bar.set_position(report.rounds);
        bar.set_message(format!("{} acknowledged", grouped(board.acknowledged())));
    };
    let ran = match plan.fault {
        Fault::Duplicate => duplicate::run(&plan, dir, rng, &board, &mut report, done),
        _ => alone(&plan, dir, rng, &board, &mut report, done)
            .inspect_err(|_| note(format_args!("replay: {}", plan.replay())))?,
    };
    bar.finish_and_clear();
    report.took(Duration::from_nanos(RealClock.monotonic().saturating_sub(began)));
    report.wrong(ran.err().map(|error| format!("{error:#}")));
    report.unexpected(&board);
    if report.holds() {
        temporary.close()?;
    } else {
        report.words().iter().for_each(note);
        note(format_args!(
            "what the nodes had and said is kept in {}",
            temporary.keep().display()
        ));
        note(format_args!("replay: {}", plan.replay()));
    }
    report.print(&plan, &board, args.seeded.json)?;
    Ok(if report.holds() {
        Outcome::Good
    } else {
        Outcome::Bad
    })
}

/// Runs one cluster. The outer error: it cannot begin, or not be looked at afterwards.
fn alone(
    plan: &Plan,
    dir: &Path,
    mut rng: Rng,
    board: &Board,
    report: &mut Report,
    done: impl FnMut(&Report),
) -> anyhow::Result<anyhow::Result<()>> {
    let mut nodes = Nodes::start(plan, dir, &mut rng)?;
    let mut history = History {
        plan,
        dir,
        rng,
        board,
        rounds: Vec::new(),
    };
    let ran = history.run(&mut nodes, report, done);
    report.wrong(nodes.panics()?);
    report.strangers = nodes.processes.strangers();
    report.restarts = nodes.restarts;
    if ran.is_err() || board.unexpected() > 0 || !report.holds() {
        nodes.keep(dir)?;
    }
    Ok(ran)
}

/// The rounds of a run.
struct History<'a> {
    plan: &'a Plan,
    /// Where histories go that do not fit.
    dir: &'a Path,
    rng: Rng,
    board: &'a Board,
    rounds: Vec<Round>,
}

impl History<'_> {
    /// All rounds, until a violation is found, and a last look at the keys of all of them. `done` is
    /// called after each round.
    fn run(
        &mut self,
        nodes: &mut Nodes,
        report: &mut Report,
        mut done: impl FnMut(&Report),
    ) -> anyhow::Result<()> {
        for number in 0..self.plan.rounds {
            self.round(number, nodes, report)
                .with_context(|| format!("round {number}"))?;
            done(report);
            if !report.holds() {
                return Ok(());
            }
        }
        if self.plan.kills_at_the_end() {
            report.note(self.last_blow(nodes)?);
            nodes.wait_until_served().context("after the last kill")?;
        }
        for round in &self.rounds {
            round.read(self.board, &nodes.ports())?;
            self.judge(round, report, true)?;
        }
        nodes.end()
    }

    /// All nodes lose their power, or are killed where they have disks that remember or entries that do not wait
    /// for disks.
    fn last_blow(&mut self, nodes: &mut Nodes) -> anyhow::Result<Notes> {
        let notes = Notes::default();
        if self.plan.needs_disks()? && self.plan.entries == Entries::Disk {
            let all: Vec<usize> = (0..nodes.len()).collect();
            notes.cut(nodes.cut_power(&all, &mut self.rng)?);
            all.iter().try_for_each(|&node| nodes.restart(node))?;
            notes.struck("power all at the end");
        } else {
            kill_all(nodes)?;
            notes.struck("kill all at the end");
        }
        Ok(notes)
    }

    fn round(&mut self, number: u64, nodes: &mut Nodes, report: &mut Report) -> anyhow::Result<()> {
        let round = Round::new(number, self.plan.product != Product::Redis);
        let (ports, stop, notes) = (nodes.ports(), AtomicBool::new(false), Notes::default());
        let struck = std::thread::scope(|scope| {
            for client in (0..).take(self.plan.clients) {
                let (round, board, rng) = (&round, self.board, self.rng.fork());
                let (ports, stop) = (&ports, &stop);
                scope.spawn(move || round.work(board, client, rng, ports, stop));
            }
            let around = Surroundings {
                scope,
                round: &round,
                board: self.board,
                stop: &stop,
                notes: &notes,
            };
            let struck = self.strike_all(number, nodes, &around);
            // Relaxed: it orders nothing.
            stop.store(true, Ordering::Relaxed);
            struck
        });
        report.note(notes);
        struck?;
        nodes.wait_until_served()?;
        round.read(self.board, &ports)?;
        self.judge(&round, report, false)?;
        report.rounds += 1;
        self.rounds.push(round);
        Ok(())
    }

    /// Checks a round, and keeps its histories where they do not fit. `again`: it was checked before.
    fn judge(&self, round: &Round, report: &mut Report, again: bool) -> anyhow::Result<()> {
        let checked = round.check()?;
        if !checked.words.is_empty() {
            round.keep(self.dir)?;
        }
        report.checked(round.objects.len(), checked, again);
        Ok(())
    }

    /// Does what the plan says while the clients work, spread over the operations of the round.
    fn strike_all(
        &mut self,
        number: u64,
        nodes: &mut Nodes,
        around: &Surroundings<'_, '_>,
    ) -> anyhow::Result<()> {
        let kinds = self.plan.kinds();
        if self.plan.fault == Fault::Upgrade && number == self.plan.rounds / 2 {
            upgrades::finalize(nodes, around)?;
        }
        let count = if kinds.is_empty() {
            0
        } else {
            1 + self.rng.below(FAULTS_MAX)
        };
        let first = self.finished();
        for n in 0..count {
            let at = (self.plan.operations * n + self.rng.below(self.plan.operations)) / (count + 1);
            self.wait_for_operations(nodes, first + at)?;
            let kind = kinds
                .get(self.rng.index(kinds.len()))
                .copied()
                .unwrap_or(Fault::None);
            strike(kind, nodes, &mut self.rng, around)?;
        }
        self.wait_for_operations(nodes, first + self.plan.operations)
    }

    /// Operations that were acknowledged, or whose outcome is unknown.
    fn finished(&self) -> u64 {
        self.board.acknowledged() + self.board.unknown()
    }

    fn wait_for_operations(&self, nodes: &mut Nodes, number: u64) -> anyhow::Result<()> {
        let came = wait(ROUND, || {
            nodes.look_for_ends()?;
            Ok(self.finished() >= number)
        })?;
        ensure!(
            came,
            "{} operations were to be done within {ROUND:?}, and {} are; {} were refused",
            number,
            self.finished(),
            self.board.refused()
        );
        Ok(())
    }
}
