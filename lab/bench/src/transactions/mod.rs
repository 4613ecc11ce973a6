//! Transactions by how their commits end: what it costs to keep locks until a commit is durable,
//! and what early lock release makes of it.
//!
//! Each kind of commit runs the same load for itself: `bench commit` adds to hot rows
//! (`hot_rows.rs`), `bench orders` enters orders (`orders/`). After each run what is there must be
//! what was committed.

mod hot_rows;
mod measure;
mod orders;

use std::path::PathBuf;
use std::time::Duration;

use collie_db::{CommitMode, Db, Transaction, TransactionOptions};
use collie_log::RingMode;
use serde::Serialize;

use crate::error::BenchError;
use crate::latency::{LatencySummary, median, spread};
use crate::rng::Rng;
pub use hot_rows::{CommitBench, CommitResult};
use measure::Measured;
pub use orders::{OrdersBench, OrdersResult};

/// More threads than this have no worker.
const THREADS_MAX: usize = 1_024;
/// More commits than this a thread cannot have under way: each keeps a ticket.
const IN_FLIGHT_MAX: usize = 1 << 20;

/// How commits end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitKind {
    /// [`CommitMode::Sync`].
    Sync,
    /// [`CommitMode::EarlyRelease`].
    EarlyRelease,
    /// [`CommitMode::Async`].
    Async,
    /// Locks go early, and then each thread flushes the log for itself, one at a time, unless
    /// another's flush has covered its commit: what the first attempt of S4's source did in
    /// PostgreSQL.
    OwnFlush,
}

impl CommitKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sync, Self::EarlyRelease, Self::Async, Self::OwnFlush];

    /// The name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::EarlyRelease => "early-release",
            Self::Async => "async",
            Self::OwnFlush => "own-flush",
        }
    }

    fn mode(self) -> CommitMode {
        match self {
            Self::Sync => CommitMode::Sync,
            Self::EarlyRelease => CommitMode::EarlyRelease,
            Self::Async | Self::OwnFlush => CommitMode::Async,
        }
    }
}

/// How a load of transactions is run, whatever the transactions do.
#[derive(Debug, Clone)]
pub struct TransactionRun {
    /// Threads that run transactions.
    pub threads: usize,
    /// How commits end, each measured for itself.
    pub kinds: Vec<CommitKind>,
    /// Commits with early release that a thread has under way before it waits for the oldest. The
    /// other kinds wait for each, or for none.
    pub in_flight: usize,
    /// How much longer each sync of the log takes.
    pub sync_delay: Duration,
    /// How long one measurement takes.
    pub duration: Duration,
    /// How often each is repeated, all interleaved.
    pub repeat: usize,
    /// Where the ring lies.
    pub ring: RingMode,
    /// Where the stores go for the time of the measurement: new directories in here.
    pub dir: PathBuf,
}

/// One kind of commit: medians over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TransactionResult {
    /// The kind's name.
    pub mode: &'static str,
    /// Threads that ran transactions.
    pub threads: usize,
    /// Commits that a thread had under way.
    pub in_flight: usize,
    /// How much longer each sync took, in microseconds.
    pub sync_delay_us: u64,
    /// Transactions per second: acknowledged ones, of asynchronous ones committed ones.
    pub commits_per_sec: f64,
    /// The slowest run.
    pub commits_per_sec_min: f64,
    /// The fastest run.
    pub commits_per_sec_max: f64,
    /// Times that a transaction was run again for a conflict, a deadlock or a lock that was not to
    /// be had, per commit.
    pub retries_per_commit: f64,
    /// Syncs of the log, in one run.
    pub flushes: f64,
    /// How long one took, with its write, in microseconds.
    pub flush_us_mean: f64,
    /// The share of the threads' time that was spent waiting for commits to be durable.
    pub flush_share: f64,
    /// The share of the threads' time that was spent waiting for locks.
    pub lock_wait_share: f64,
    /// How long a transaction held its locks, in microseconds.
    pub locks_held_us_mean: f64,
    /// Processor time, of one core, in percent: 100 is one core all the time.
    pub cpu_percent: f64,
    /// Processor time per transaction, in microseconds.
    pub cpu_us_per_op: f64,
    /// Commits that wrote, in all runs with their warm-ups, and that were looked for afterwards.
    pub checked: u64,
    /// From the beginning of a transaction to its acknowledgement, with all its attempts.
    #[serde(flatten)]
    pub latency: LatencySummary,
}

/// What the transactions do.
trait Load: Sync {
    /// The families, open.
    type Store: Sync;
    /// What one transaction is to do: chosen before its first attempt, so that all attempts do the
    /// same.
    type Plan;

    /// Makes the families, and what is in them at the beginning.
    fn prepare(&self, db: &Db) -> Result<Self::Store, BenchError>;
    /// Options of the transactions, but for their commit mode and lock timeout.
    fn options(&self) -> TransactionOptions;
    fn plan(&self, rng: &mut Rng, thread: u64) -> Self::Plan;
    /// Does all but the commit. Returns whether there is anything to be looked for afterwards.
    fn attempt(&self, store: &Self::Store, tx: &Transaction, plan: &Self::Plan) -> Result<bool, BenchError>;
    /// Looks for what was committed: `written` transactions that said so.
    fn check(&self, store: &Self::Store, written: u64) -> Result<(), BenchError>;
}

impl TransactionRun {
    fn check(&self) -> Result<(), BenchError> {
        range("threads", self.threads as u64, 1, THREADS_MAX as u64)?;
        range("in-flight", self.in_flight as u64, 1, IN_FLIGHT_MAX as u64)?;
        range("repeat", self.repeat as u64, 1, u64::MAX)
    }

    /// Measurements that a run makes.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.kinds.len() * self.repeat
    }

    /// Measures; `begins` is called before each measurement.
    fn measure(
        &self,
        load: &impl Load,
        mut begins: impl FnMut(CommitKind),
    ) -> Result<Vec<TransactionResult>, BenchError> {
        self.check()?;
        let mut measured: Vec<Vec<Measured>> = self.kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.repeat {
            for (kind, runs) in self.kinds.iter().zip(&mut measured) {
                begins(*kind);
                runs.push(measure::measure(self, load, *kind)?);
            }
        }
        let results = self.kinds.iter().zip(&measured);
        Ok(results.map(|(kind, runs)| self.result(*kind, runs)).collect())
    }

    /// Commits that a thread has under way. With sync it would wait for itself; the others wait for
    /// none.
    fn in_flight(&self, kind: CommitKind) -> usize {
        match kind {
            CommitKind::EarlyRelease => self.in_flight,
            _ => 1,
        }
    }

    fn result(&self, kind: CommitKind, runs: &[Measured]) -> TransactionResult {
        let median_of = |figure: fn(&Measured) -> f64| median(runs.iter().map(figure));
        let (min, max) = spread(runs.iter().map(|run| run.per_sec));
        let latencies: Vec<_> = runs.iter().map(|run| run.latency).collect();
        TransactionResult {
            mode: kind.name(),
            threads: self.threads,
            in_flight: self.in_flight(kind),
            sync_delay_us: u64::try_from(self.sync_delay.as_micros()).unwrap_or(u64::MAX),
            commits_per_sec: median_of(|run| run.per_sec),
            commits_per_sec_min: min,
            commits_per_sec_max: max,
            retries_per_commit: median_of(|run| run.retries),
            flushes: median_of(|run| run.flushes),
            flush_us_mean: median_of(|run| run.flush_us),
            flush_share: median_of(|run| run.flush_share),
            lock_wait_share: median_of(|run| run.lock_wait_share),
            locks_held_us_mean: median_of(|run| run.held_us),
            cpu_percent: median_of(|run| run.cpu_percent),
            cpu_us_per_op: median_of(|run| run.cpu_us),
            checked: runs.iter().map(|run| run.written).sum(),
            latency: LatencySummary::over(&latencies),
        }
    }
}

/// Refuses an option that is out of its range.
fn range(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), BenchError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let problem = match max {
        u64::MAX => format!("{value} is less than {min}"),
        _ => format!("{value} is not from {min} to {max}"),
    };
    Err(BenchError::Options { option, problem })
}

/// Refuses a share that is more than all.
fn percentage(option: &'static str, value: u64) -> Result<(), BenchError> {
    if value > 100 {
        let problem = format!("{value} is more than 100 of 100");
        return Err(BenchError::Options { option, problem });
    }
    Ok(())
}
