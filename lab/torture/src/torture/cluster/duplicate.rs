//! Two clusters, each of which duplicates its rows to the other one, under clients of both.
//!
//! Some keys are written in one cluster alone, and their histories there are checked as those of any cluster. Others
//! are written in both, where the later write wins. Once nothing is written any more and each cluster says that the
//! other one has all, both have the same keys and values: what was acknowledged is lost and stale on neither side.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context, ensure};
use collie_io::{Clock, RealClock};
use collie_sim::Rng;

use super::client::{Attempt, ClusterClient, Ports};
use super::faults::{kill_all, strike};
use super::links::Flow;
use super::load::{Board, Round};
use super::nodes::{Nodes, wait};
use super::notes::Notes;
use super::pair::Pair;
use super::plan::{FAULTS_MAX, Fault, Plan, ROUND};
use super::report::Report;
use super::shared::{self, SharedKeys};
use super::target::{Surroundings, pause};

/// How long what goes from one cluster to the other is cut, or paused.
const HELD_MS: std::ops::Range<u64> = 500..5_000;
/// How slow it is.
const SLOW_MS: std::ops::Range<u64> = 10..100;
/// What is written while a target is away beyond the log: more than that may have.
const FILLER_BYTES: usize = 512 << 10;
const FILLERS: u64 = 200;
/// How long that may take, and how long it is looked for the copy of all rows then.
const FILLED: Duration = Duration::from_secs(90);
const COPIED: Duration = Duration::from_secs(30);
/// Of so many rounds the first has a target that is away beyond the log.
const BEYOND_EACH: u64 = 3;

/// Does all rounds, until a violation is found, and looks at all keys once more after all nodes were killed.
pub(super) fn run(
    plan: &Plan,
    dir: &Path,
    mut rng: Rng,
    board: &Board,
    report: &mut Report,
    mut done: impl FnMut(&Report),
) -> anyhow::Result<()> {
    let pair = Pair::start(plan, dir, &mut rng).context("the start")?;
    let mut torture = Torture {
        plan,
        dir,
        rng,
        board,
        pair,
        rounds: Vec::new(),
    };
    let ran = torture.all(report, &mut done);
    for nodes in &torture.pair.clusters {
        report.wrong(nodes.panics()?);
        report.strangers += nodes.processes.strangers();
    }
    ran
}

/// What clients of both clusters work on in a round.
struct Keys {
    /// Of each cluster alone.
    own: [Round; 2],
    shared: SharedKeys,
}

struct Torture<'a> {
    plan: &'a Plan,
    dir: &'a Path,
    rng: Rng,
    board: &'a Board,
    pair: Pair,
    rounds: Vec<Keys>,
}

impl Torture<'_> {
    fn all(&mut self, report: &mut Report, done: &mut impl FnMut(&Report)) -> anyhow::Result<()> {
        for number in 0..self.plan.rounds {
            self.round(number, report)
                .with_context(|| format!("round {number}"))?;
            done(report);
            if !report.holds() {
                return Ok(());
            }
        }
        let notes = Notes::default();
        for nodes in &mut self.pair.clusters {
            kill_all(nodes)?;
            notes.struck("kill all at the end");
        }
        report.note(notes);
        for nodes in &mut self.pair.clusters {
            nodes.wait_until_served().context("after the last kill")?;
        }
        let rounds = std::mem::take(&mut self.rounds);
        self.judge(&rounds, report, true)?;
        let mut clusters = self.pair.clusters.iter_mut();
        clusters.try_for_each(Nodes::end)
    }

    fn round(&mut self, number: u64, report: &mut Report) -> anyhow::Result<()> {
        let keys = Keys {
            own: [Round::new(2 * number, true), Round::new(2 * number + 1, true)],
            shared: SharedKeys::new(number),
        };
        let (stop, notes) = (AtomicBool::new(false), Notes::default());
        let struck = std::thread::scope(|scope| {
            self.work(&keys, scope, &stop);
            let struck = self.strike_all(number, &keys, scope, &stop, &notes);
            // Relaxed: it orders nothing.
            stop.store(true, Ordering::Relaxed);
            struck
        });
        report.note(notes);
        struck?;
        std::thread::sleep(shared::EXPIRED);
        for nodes in &mut self.pair.clusters {
            nodes.wait_until_served()?;
        }
        self.judge(std::slice::from_ref(&keys), report, false)?;
        report.rounds += 1;
        self.rounds.push(keys);
        Ok(())
    }

    /// Starts the clients: of each cluster half for its own keys, and half for those of both.
    fn work<'s, 'e>(&mut self, keys: &'e Keys, scope: &'s Scope<'s, 'e>, stop: &'e AtomicBool)
    where
        Self: 'e,
    {
        for (cluster, own) in keys.own.iter().enumerate() {
            let ports = self.pair.clusters[cluster].ports();
            for client in (0..).take(self.plan.clients.div_ceil(2)) {
                let (rng, board, ports) = (self.rng.fork(), self.board, ports.clone());
                scope.spawn(move || own.work(board, client, rng, &ports, stop));
            }
            for _ in 0..self.plan.clients.div_ceil(2) {
                let (rng, board, ports) = (self.rng.fork(), self.board, ports.clone());
                scope.spawn(move || keys.shared.work(board, cluster, rng, &ports, stop));
            }
        }
    }

    /// Looks at all keys, once each cluster says that the other one has what it has. `again`: these rounds were
    /// judged before.
    fn judge(&mut self, rounds: &[Keys], report: &mut Report, again: bool) -> anyhow::Result<()> {
        let (content, wrong) = self.pair.compared()?;
        report.compared += content.len() as u64;
        report.wrong(wrong);
        for keys in rounds {
            for (nodes, own) in self.pair.clusters.iter().zip(&keys.own) {
                own.read(self.board, &nodes.ports())?;
                let checked = own.check()?;
                if !checked.words.is_empty() {
                    own.keep(self.dir)?;
                }
                report.checked(own.objects.len(), checked, again);
            }
            report.wrong(keys.shared.judge(|key| content.get(key).cloned()));
        }
        Ok(())
    }

    /// Does what is drawn while the clients work, spread over the operations of the round.
    fn strike_all<'s, 'e>(
        &mut self,
        number: u64,
        keys: &'e Keys,
        scope: &'s Scope<'s, 'e>,
        stop: &'e AtomicBool,
        notes: &'e Notes,
    ) -> anyhow::Result<()>
    where
        Self: 'e,
    {
        let first = self.finished();
        let count = 1 + self.rng.below(FAULTS_MAX);
        for n in 0..count {
            let at = (self.plan.operations * n + self.rng.below(self.plan.operations)) / (count + 1);
            self.wait_for_operations(first + at)?;
            let cluster = self.rng.index(2);
            let around = Surroundings {
                scope,
                round: &keys.own[cluster],
                board: self.board,
                stop,
                notes,
            };
            let nodes = &mut self.pair.clusters[cluster];
            match self.rng.below(4) {
                0 => strike(Fault::Kill, nodes, &mut self.rng, &around)?,
                1 => strike(Fault::Stop, nodes, &mut self.rng, &around)?,
                2 => self.cut(cluster, notes),
                _ => self.pause(cluster, notes)?,
            }
        }
        match number.is_multiple_of(BEYOND_EACH) {
            true => self.beyond_the_log(notes)?,
            false => self.cut_both(notes),
        }
        self.wait_for_operations(first + self.plan.operations)
    }

    /// Nothing goes from this cluster to the other one for a while, or it is slow; every other time both ways.
    fn cut(&mut self, from: usize, notes: &Notes) {
        let (name, flow) = match self.rng.below(4) {
            0 => ("stalled way to the other", Flow::Stalls),
            1 => (
                "slow way to the other",
                Flow::Delays(pause(SLOW_MS, &mut self.rng)),
            ),
            _ => ("cut way to the other", Flow::Loses),
        };
        notes.struck(name);
        for from in self.one_or_both(from) {
            self.pair.set_way(from, flow);
        }
        std::thread::sleep(pause(HELD_MS, &mut self.rng));
        (0..2).for_each(|from| self.pair.set_way(from, Flow::Passes));
    }

    /// Nothing goes either way: older values of one meet keys that the other has removed meanwhile.
    fn cut_both(&mut self, notes: &Notes) {
        notes.struck("cut both ways");
        (0..2).for_each(|from| self.pair.set_way(from, Flow::Loses));
        std::thread::sleep(pause(HELD_MS, &mut self.rng));
        (0..2).for_each(|from| self.pair.set_way(from, Flow::Passes));
    }

    fn pause(&mut self, cluster: usize, notes: &Notes) -> anyhow::Result<()> {
        notes.struck("pause by command");
        let paused = self.one_or_both(cluster);
        paused
            .iter()
            .try_for_each(|cluster| self.pair.pause(*cluster, true))?;
        std::thread::sleep(pause(HELD_MS, &mut self.rng));
        paused
            .iter()
            .try_for_each(|cluster| self.pair.pause(*cluster, false))
    }

    /// This cluster; every other time the other one as well.
    fn one_or_both(&mut self, cluster: usize) -> Vec<usize> {
        let count = 1 + usize::from(self.rng.coin());
        [cluster, 1 - cluster].into_iter().take(count).collect()
    }

    /// A target is away, or paused, while more is written than the log may have: it gets all rows again.
    fn beyond_the_log(&mut self, notes: &Notes) -> anyhow::Result<()> {
        let from = self.rng.index(2);
        let is_paused = self.rng.one_in(3);
        notes.struck(match is_paused {
            true => "paused beyond the log",
            false => "away beyond the log",
        });
        match is_paused {
            true => self.pair.pause(from, true)?,
            false => self.pair.set_way(from, Flow::Loses),
        }
        fill(&self.pair.clusters[from].ports())?;
        match is_paused {
            true => self.pair.pause(from, false)?,
            false => self.pair.set_way(from, Flow::Passes),
        }
        let copies = wait(COPIED, || {
            let sent = self.pair.sent(from);
            Ok(sent.is_some_and(|sent| sent.copying > 0))
        })?;
        notes.struck(match copies {
            true => "copy of all rows",
            false => "copy of all rows, not seen",
        });
        Ok(())
    }

    /// Operations that were acknowledged, or whose outcome is unknown.
    fn finished(&self) -> u64 {
        self.board.acknowledged() + self.board.unknown()
    }

    fn wait_for_operations(&mut self, number: u64) -> anyhow::Result<()> {
        let came = wait(ROUND, || {
            for nodes in &mut self.pair.clusters {
                nodes.look_for_ends()?;
            }
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

/// Writes large values to a few keys, again and again.
fn fill(ports: &Ports) -> anyhow::Result<()> {
    let clock = RealClock;
    let began = clock.monotonic();
    let mut connections = ClusterClient::new(ports, 8, 0);
    let mut filled = 0;
    for number in (0..8).cycle() {
        if filled == FILLERS {
            break;
        }
        let took = Duration::from_nanos(clock.monotonic().saturating_sub(began));
        ensure!(
            took < FILLED,
            "of {FILLERS} large values {filled} were taken within {FILLED:?}"
        );
        let mut value = vec![b'f'; FILLER_BYTES];
        value.extend(filled.to_string().into_bytes());
        let command = vec![vec![
            b"SET".to_vec(),
            format!("filler:{number}").into_bytes(),
            value,
        ]];
        match connections.attempt(number, &command) {
            Attempt::Executed(_) => filled += 1,
            Attempt::NotExecuted(text) if text.starts_with("MOVED") => {}
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}
