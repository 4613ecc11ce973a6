//! A disk that is filled under load, freed, and filled again; the server is killed while it is
//! full.

use std::time::Duration;

use anyhow::Context;
use collie_sim::Rng;
use serde::Serialize;

use super::stage::Stage;
use super::tmpfs::Tmpfs;
use super::writers::{self, Tally};
use crate::torture::served::{Served, Start};
use crate::torture::soak::ledger::Ledger;

/// The file system's size: room for what the store keeps back, for the log's limit several times
/// and for all keys, so that it is full when it is filled and not before.
const DISK: u64 = 256 << 20;
/// How long the clients work before it is filled.
const WORK: Duration = Duration::from_millis(1_500);
/// How long a full disk is worked on once it has refused something, and how long until it does at
/// most.
const FULL: Duration = Duration::from_millis(2_000);
const UNTIL_FULL: Duration = Duration::from_secs(30);
/// How long writes may take to go on when there is room.
const UNTIL_ROOM: Duration = Duration::from_secs(15);
/// So many of a kind show that it happens.
const SOME: u64 = 50;

/// What was seen.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    /// Changes that were acknowledged and refused, and reads that were answered, in all.
    changed: u64,
    refused: u64,
    read: u64,
    /// Reads that were answered while the disk was full.
    read_when_full: u64,
    /// What a server did that was started on the full disk.
    started_when_full: String,
}

impl Report {
    pub(crate) fn line(&self) -> String {
        format!(
            "full disk: {} changes acknowledged, {} refused, {} reads, {} of them while it was full · a start on the full \
             disk: {}",
            self.changed, self.refused, self.read, self.read_when_full, self.started_when_full
        )
    }
}

pub(crate) fn run(stage: &Stage, rng: &mut Rng, violations: &mut Vec<String>) -> anyhow::Result<Report> {
    let disk = Tmpfs::mount(&stage.dir.join("full"), DISK)?;
    let progress = writers::progress();
    let mut full = Full {
        stage,
        disk,
        ledgers: writers::ledgers(&progress),
        tally: Tally::default(),
        report: Report::default(),
    };
    full.run(rng, violations)?;
    let counts = full.tally.counts();
    full.report.changed = counts.changed;
    full.report.refused = counts.refused;
    full.report.read = counts.read;
    violations.extend(full.tally.wrong());
    Ok(full.report)
}

struct Full<'a> {
    stage: &'a Stage,
    disk: Tmpfs,
    ledgers: Vec<Ledger<'a>>,
    tally: Tally,
    report: Report,
}

impl Full<'_> {
    fn try_start(&self) -> anyhow::Result<Start> {
        let store = self.disk.path().join("store");
        Served::try_start(&self.disk.before(), &self.stage.server(&store)?)
    }

    fn start(&self) -> anyhow::Result<Served> {
        let store = self.disk.path().join("store");
        Served::start(&self.disk.before(), &self.stage.server(&store)?)
    }

    fn run(&mut self, rng: &mut Rng, violations: &mut Vec<String>) -> anyhow::Result<()> {
        let mut server = self.start()?;
        let result = self.filled_and_freed(&server, rng, violations);
        result.with_context(|| format!("the server said:\n{}", server.said()))?;
        self.fill_again(&server, rng, violations)?;
        violations.extend(server.panics());
        server.kill()?;
        self.start_when_full(violations)?;
        self.disk.free()?;
        let mut server = self.start().context("there is room again")?;
        let refused = self.tally.counts().refused;
        writers::look_at_everything(server.port, &mut self.ledgers, &self.tally)?;
        let tally = &self.tally;
        writers::during(server.port, &mut self.ledgers, rng, tally, || {
            std::thread::sleep(WORK);
            Ok(())
        })?;
        if tally.counts().refused > refused {
            violations.push("after a restart with room on the disk writes were refused".to_owned());
        }
        self.stage.end(&mut server, violations)?;
        let mut server = self.start()?;
        writers::look_at_everything(server.port, &mut self.ledgers, &self.tally)?;
        self.stage.end(&mut server, violations)
    }

    /// The disk is filled under load, and freed under load: writes are refused and go on, reads
    /// always.
    fn filled_and_freed(
        &mut self,
        server: &Served,
        rng: &mut Rng,
        violations: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let (disk, tally, report) = (&self.disk, &self.tally, &mut self.report);
        writers::during(server.port, &mut self.ledgers, rng, tally, || {
            std::thread::sleep(WORK);
            let before = tally.counts();
            if before.refused > 0 || before.changed < SOME {
                violations.push(format!("before the disk was full: {before:?}"));
            }
            fill(disk, tally, violations)?;
            let at_first = tally.counts();
            std::thread::sleep(FULL);
            report.read_when_full = tally.counts().read - at_first.read;
            if report.read_when_full < SOME {
                violations.push(format!(
                    "{} reads were answered on the full disk",
                    report.read_when_full
                ));
            }
            disk.free()?;
            let freed = tally.counts();
            if !tally.wait(UNTIL_ROOM, |counts| counts.changed >= freed.changed + SOME) {
                let now = tally.counts();
                violations.push(format!(
                    "there was room again, and after {UNTIL_ROOM:?} {freed:?} had become {now:?}"
                ));
            }
            Ok(())
        })
    }

    /// The disk is full when the clients end.
    fn fill_again(
        &mut self,
        server: &Served,
        rng: &mut Rng,
        violations: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let (disk, tally) = (&self.disk, &self.tally);
        writers::during(server.port, &mut self.ledgers, rng, tally, || {
            std::thread::sleep(WORK);
            fill(disk, tally, violations)
        })
    }

    /// A server that finds a full disk serves what is there, or says what to do.
    fn start_when_full(&mut self, violations: &mut Vec<String>) -> anyhow::Result<()> {
        match self.try_start()? {
            Start::Serves(mut server) => {
                self.report.started_when_full = "serves".to_owned();
                writers::look_at_everything(server.port, &mut self.ledgers, &self.tally)?;
                violations.extend(server.panics());
                server.kill()
            }
            Start::Ended(status, said) => {
                self.report.started_when_full = "refused".to_owned();
                if !said.to_lowercase().contains("no space left") || said.contains("panicked") {
                    violations.push(format!(
                        "a start on the full disk ended with {status} and said:\n{said}"
                    ));
                }
                Ok(())
            }
        }
    }
}

/// Fills the disk again and again, since the server gives back what it can, until writes are
/// refused.
fn fill(disk: &Tmpfs, tally: &Tally, violations: &mut Vec<String>) -> anyhow::Result<()> {
    let refused = tally.counts().refused;
    let mut filled = Ok(());
    let is_full = tally.wait(UNTIL_FULL, |counts| {
        if filled.is_ok() {
            filled = disk.fill();
        }
        counts.refused >= refused + SOME
    });
    filled?;
    if !is_full {
        violations.push(format!(
            "the disk is full, and after {UNTIL_FULL:?}: {:?}",
            tally.counts()
        ));
    }
    Ok(())
}
