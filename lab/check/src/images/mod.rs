//! Crash images of the log: programs that append, flush, release and die, images of every moment of
//! theirs, and a recovery of each that the [`Ledger`](crate::Ledger) judges.
//!
//! A *round* is one program, made from a seed, and the images taken of it. [`run`] goes through
//! random programs; [`enumerate`] through every short one and every sync point of it.

mod commits;
mod judge;
mod process;
mod program;

use std::collections::BTreeMap;
use std::fmt;

use crate::Verdict;
use collie_sim::mix;

pub use commits::{DIR, commit, find};
pub use judge::{CHOICES, Kind};
pub use program::{Program, Setup, Step, Writes};

/// What to test.
#[derive(Debug, Clone, Copy)]
pub struct ImagesConfig {
    /// Crash images to make, about.
    pub images: u64,
    /// Everything follows from it, save where threads race.
    pub seed: u64,
    /// One program in so many runs on several threads; 0 for none.
    pub threaded_one_in: u64,
}

impl Default for ImagesConfig {
    fn default() -> Self {
        Self {
            images: 2_000,
            seed: 1,
            threaded_one_in: 8,
        }
    }
}

/// What was tested and found.
#[derive(Debug, Clone, Default)]
pub struct ImagesReport {
    /// Crash images that were recovered.
    pub rounds: u64,
    /// Programs that they were taken of.
    pub programs: u64,
    /// What was found, over all images.
    pub verdict: Verdict,
    /// Images that recovery refused as corrupt, which only damaged ones may be.
    pub refused: u64,
    /// How often each fault really struck.
    pub faults: BTreeMap<&'static str, u64>,
    /// The seed.
    pub seed: u64,
    /// What went wrong, the first few with the way to replay them.
    pub failures: Vec<String>,
    /// How many things went wrong.
    pub failed: u64,
}

/// Offsets of simulated files fit into memory, since the files do.
fn as_index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Every fault that [`run`] inflicts, by the names in [`ImagesReport::faults`].
pub const FAULTS: [&str; 30] = [
    "process death",
    "lost",
    "kept",
    "any sectors",
    "any blocks",
    "torn sectors",
    "torn blocks",
    "fresh garbage",
    "length only",
    "data without length",
    "names lost",
    "names only",
    "missing ring",
    "foreign ring",
    "stale ring",
    "ring of another boot",
    "bit rot",
    "recovery interrupted",
    "life after recovery",
    "recovery failed and tried again",
    "operation fails",
    "read fails",
    "write fails",
    "sync fails",
    "interrupted",
    "short read",
    "short write",
    "no space",
    "stale sector",
    "misdirected sector",
];

/// Failures that a report describes; the others it counts.
const FAILURES_MAX: usize = 10;

impl ImagesReport {
    fn count(&mut self, fault: &'static str, times: u64) {
        *self.faults.entry(fault).or_default() += times;
    }

    /// Says more about the last failure.
    fn detail(&mut self, text: &str) {
        if self.failed <= FAILURES_MAX as u64
            && let Some(last) = self.failures.last_mut()
        {
            last.push_str("\n  ");
            last.push_str(text);
        }
    }

    fn fail(&mut self, text: String) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(text);
        }
    }
}

impl fmt::Display for ImagesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "images: {} of {} programs · {} · refused {} · failed {} · seed {} ·",
            self.rounds,
            self.programs,
            self.verdict.counts(),
            self.refused,
            self.failed,
            self.seed
        )?;
        self.faults
            .iter()
            .try_for_each(|(fault, n)| write!(f, " {fault}: {n},"))?;
        self.failures.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

/// Images taken of one random program.
const IMAGES_PER_PROGRAM: u64 = 8;

/// Random programs and images of them, until there are enough. `progress` is called after
/// every program.
#[must_use]
pub fn run(config: &ImagesConfig, mut progress: impl FnMut(&ImagesReport)) -> ImagesReport {
    let mut report = ImagesReport {
        seed: config.seed,
        ..ImagesReport::default()
    };
    let mut round = 0;
    while report.rounds < config.images {
        // The first round's seed is the configuration's own, so that a printed seed replays its
        // round.
        let seed = if round == 0 {
            config.seed
        } else {
            mix(config.seed ^ round << 32)
        };
        let threaded = config.threaded_one_in > 0 && mix(seed).is_multiple_of(config.threaded_one_in);
        let program = Program::random(seed, threaded);
        let before = report.failed;
        explore(&program, seed, IMAGES_PER_PROGRAM, false, &mut report);
        if report.failed > before {
            report.detail(&format!(
                "replay: COLLIE_SEED={seed} COLLIE_IMAGES=1 cargo test -p collie-log --test crash images::random"
            ));
        }
        report.programs += 1;
        round += 1;
        progress(&report);
    }
    report
}

/// As [`judge::explore`]; what panics has failed, and the next program still has its turn.
fn explore(program: &Program, seed: u64, images: u64, cycle: bool, report: &mut ImagesReport) {
    let explore = || judge::explore(program, seed, images, cycle, report);
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(explore)).is_err() {
        // Counted here, lest a program that panics before its first image goes on for ever.
        report.rounds += 1;
        report.failed += 1;
        report.detail("it panicked: see above");
    }
}

/// Every program of up to `steps` steps, and at each of its sync points one image of every kind in
/// turn. Where that makes more than `images`, programs are passed over evenly.
#[must_use]
pub fn enumerate(steps: u32, images: u64, mut progress: impl FnMut(&ImagesReport)) -> ImagesReport {
    let mut report = ImagesReport::default();
    let programs = Program::all(steps);
    let total = programs.len() as u64;
    for (number, program) in (0..).zip(&programs) {
        // As many images per program as are left for those that are left.
        let left = images.saturating_sub(report.rounds);
        let share = left.div_ceil(total - number);
        if share == 0 {
            break;
        }
        let before = report.failed;
        explore(program, number, share, true, &mut report);
        if report.failed > before {
            report.detail(&format!("short program {number} of {total}"));
        }
        report.programs += 1;
        progress(&report);
    }
    report
}
