//! `collie-lab torture kill`: a writer is killed again and again, some of the time while it recovers
//! from the kill before, and what was acknowledged must be there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use collie_check::ledger::Clients;
use collie_check::{Promise, Survives, Verdict};
use collie_db::Db;
use collie_io::{Clock, RealClock};
use collie_sim::Rng;

use super::child::{Heard, Writer};
use super::history::{self, Counts, THREADS};
use super::messages::Message;

/// One kill in so many is left unchecked, so that the next writer recovers what this one left.
const UNCHECKED_ONE_IN: u64 = 4;
/// Of ten kills, how many are aimed at a writer that is opening the store; one in four of them
/// comes too late.
const IN_RECOVERY_OF_TEN: u64 = 4;
/// One in so many writers is killed whether anything was acknowledged or not.
const UNHEARD_ONE_IN: u64 = 4;
/// How long a writer writes before it is killed.
const LIFE_MS: std::ops::Range<u64> = 2..120;

/// What became of all rounds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) rounds: u64,
    /// Kills that came before the writer had opened the store.
    pub(crate) in_recovery: u64,
    /// Times that the whole store was read.
    pub(crate) checks: u64,
    /// What all checks found. `recovered` is of the last one alone: the commits that are there at
    /// the end, or were before they were removed on purpose.
    pub(crate) verdict: Verdict,
}

/// A store and the ledger of what was acknowledged in it.
pub(crate) struct Kills {
    dir: PathBuf,
    /// Where the ring's file goes, if not where it does by default.
    rings: Option<PathBuf>,
    rng: Rng,
    threads: Clients<THREADS>,
    /// How many commits of each thread were acknowledged, the highest number ever.
    acknowledged: Counts,
    /// How long the last recovery took that was not killed, in µs.
    opening_us: u64,
    pub(crate) report: Report,
}

impl Kills {
    /// Kills for a store in `dir`, which may be empty, with its ring in `rings`.
    pub(crate) fn new(dir: &Path, rings: Option<&Path>, seed: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            rings: rings.map(Path::to_owned),
            rng: Rng::new(seed),
            threads: history::threads(),
            acknowledged: [0; THREADS],
            opening_us: 5_000,
            report: Report::default(),
        }
    }

    /// So many kills, and a check of the store after most of them and after the last. Ends early
    /// where a check finds a violation. `done` is called after each.
    pub(crate) fn run(&mut self, rounds: u64, mut done: impl FnMut(&Report)) -> anyhow::Result<()> {
        let mut in_recovery = false;
        for round in 0..rounds {
            self.round(in_recovery)
                .with_context(|| format!("round {round} of the store in {}", self.dir.display()))?;
            // The first round has nothing to recover from; a round in recovery needs what a kill
            // has left.
            in_recovery = self.rng.below(10) < IN_RECOVERY_OF_TEN;
            let unchecked = in_recovery || self.rng.one_in(UNCHECKED_ONE_IN);
            if !unchecked || round + 1 == rounds {
                self.check()?;
            }
            done(&self.report);
            if !self.report.verdict.holds() {
                break;
            }
        }
        Ok(())
    }

    /// One writer's life, and its end.
    fn round(&mut self, in_recovery: bool) -> anyhow::Result<()> {
        let writer = Writer::start(&self.dir, self.rings.as_deref())?;
        writer.wait_for(Message::Opening)?;
        let opening = RealClock.monotonic();
        if in_recovery {
            let span = self.rng.below(self.opening_us * 3 / 4 + 1);
            std::thread::sleep(Duration::from_micros(span));
        } else {
            writer.wait_for(Message::Open)?;
            self.opening_us = (RealClock.monotonic() - opening) / 1000;
            // Most lives come to something, however slow the machine is.
            if !self.rng.one_in(UNHEARD_ONE_IN) {
                writer.wait_for_acknowledgement()?;
            }
            let life = LIFE_MS.start + self.rng.below(LIFE_MS.end - LIFE_MS.start);
            std::thread::sleep(Duration::from_millis(life));
        }
        let heard = writer.kill()?;
        self.note(&heard);
        Ok(())
    }

    /// Enters in the ledger what a writer has said.
    pub(crate) fn note(&mut self, heard: &Heard) {
        self.report.rounds += 1;
        match heard.found {
            None => self.report.in_recovery += 1,
            Some(counts) => {
                // It goes on from what it found: what is lost must be counted now.
                self.threads.sent(&counts);
                let verdict = self.threads.check_counts(Survives::Process, &counts);
                self.count(&verdict);
            }
        }
        self.threads.acknowledged(&heard.acknowledged, Promise::Process);
        for (highest, &heard) in self.acknowledged.iter_mut().zip(&heard.acknowledged) {
            *highest = (*highest).max(heard);
        }
        self.report.verdict.acknowledged = self.acknowledged.iter().sum();
    }

    /// Opens the store here and judges everything in it.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let db = Db::open(&self.dir, history::options_with(self.rings.as_deref()))
            .with_context(|| format!("the store in {} does not open after a kill", self.dir.display()))?;
        let found = history::read(&db)?;
        db.close()?;
        self.threads.sent(&found.counts);
        let verdict = self.threads.check(Survives::Process, &found);
        self.report.checks += 1;
        self.count(&verdict);
        Ok(())
    }

    fn count(&mut self, verdict: &Verdict) {
        let (acknowledged, recovered) = (self.report.verdict.acknowledged, verdict.recovered);
        self.report.verdict.add(verdict);
        self.report.verdict.acknowledged = acknowledged;
        self.report.verdict.recovered = recovered;
    }
}
