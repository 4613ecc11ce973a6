//! `bench commit`: what it costs to keep locks until a commit is durable, and what early lock release makes of it.
//!
//! Each transaction reads one row for update, adds one, writes it back and commits. The row is one of a few hot ones that
//! all threads share, or one of the thread's own. In the end the rows must add up to the commits.

mod slow;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use collie_db::{
    CommitMode, Concurrency, Db, Durability, Family, Isolation, Options, Ticket, Transaction,
    TransactionOptions,
};
use collie_io::{Clock, Device, RealClock, RealDevice};
use collie_log::RingMode;
use serde::Serialize;

use crate::dirs::fresh;
use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary, median, spread};
use crate::usage::cpu_time;
use slow::SlowSync;

/// Runs before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(200);
/// Rows of a thread's own.
const OWN_ROWS: u64 = 1_000;
/// More threads than this have no worker.
const THREADS_MAX: usize = 1_024;

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
    /// Locks go early, and then each thread flushes the log for itself, one at a time, unless somebody else's flush
    /// has covered its commit: what the first attempt of S4's source did in PostgreSQL.
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

/// What to measure.
#[derive(Debug, Clone)]
pub struct CommitBench {
    /// Threads that run transactions.
    pub threads: usize,
    /// Rows that all threads share.
    pub hot_keys: u64,
    /// Transactions out of a hundred that take one of them; the others take a row of their thread's own.
    pub hot_share: u64,
    /// How commits end, each measured for itself.
    pub kinds: Vec<CommitKind>,
    /// Commits with early release that a thread has under way before it waits for the oldest. The other kinds wait for
    /// each, or for none.
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
pub struct CommitResult {
    /// The kind's name.
    pub mode: &'static str,
    /// Threads that ran transactions.
    pub threads: usize,
    /// Commits that a thread had under way.
    pub in_flight: usize,
    /// Rows that all shared.
    pub hot_keys: u64,
    /// Transactions out of a hundred that took one of them.
    pub hot_share: u64,
    /// How much longer each sync took, in microseconds.
    pub sync_delay_us: u64,
    /// Transactions per second: acknowledged ones, of asynchronous ones committed ones.
    pub commits_per_sec: f64,
    /// The slowest run.
    pub commits_per_sec_min: f64,
    /// The fastest run.
    pub commits_per_sec_max: f64,
    /// Syncs of the log, in one run.
    pub flushes: f64,
    /// How long one took, in microseconds.
    pub flush_us_mean: f64,
    /// The share of response time that was spent waiting for the commit to be durable.
    pub flush_share: f64,
    /// How long a transaction held its locks, in microseconds.
    pub locks_held_us_mean: f64,
    /// Processor time per transaction, in microseconds.
    pub cpu_us_per_op: f64,
    /// From the beginning of a transaction to its acknowledgement.
    #[serde(flatten)]
    pub latency: LatencySummary,
}

struct Measured {
    per_sec: f64,
    flushes: f64,
    flush_us: f64,
    flush_share: f64,
    held_us: f64,
    cpu_us: f64,
    latency: LatencySummary,
}

/// What threads do now.
#[derive(Default)]
struct Phase(AtomicU8);

impl Phase {
    // Before it, 0: the threads warm up.
    const MEASURE: u8 = 1;
    const STOP: u8 = 2;

    // Relaxed: a thread that sees it a moment late measures a moment more or less.
    fn set(&self, phase: u8) {
        self.0.store(phase, Ordering::Relaxed);
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one thread did while it was measured.
struct OfThread {
    commits: u64,
    all_commits: u64,
    response_ns: u64,
    flush_ns: u64,
    latencies: Latencies,
}

impl CommitBench {
    fn check(&self) -> Result<(), BenchError> {
        let wrong = |option, problem: String| Err(BenchError::Options { option, problem });
        if self.threads == 0 || self.threads > THREADS_MAX {
            return wrong(
                "threads",
                format!("{} is not from 1 to {THREADS_MAX}", self.threads),
            );
        }
        if self.hot_share > 100 {
            return wrong("hot-share", format!("{} is more than 100 of 100", self.hot_share));
        }
        if self.hot_keys == 0 && self.hot_share > 0 {
            return wrong(
                "hot-keys",
                "0, and a share of the transactions is to take one; set --hot-share 0".into(),
            );
        }
        if self.in_flight == 0 || self.repeat == 0 {
            return wrong("in-flight, repeat", "0: at least 1".into());
        }
        Ok(())
    }

    /// Measurements that [`CommitBench::run`] makes.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.kinds.len() * self.repeat
    }

    /// Measures; `begins` is told before each measurement.
    ///
    /// # Errors
    /// Options out of range, the store's errors, and commits that are not there in the end.
    pub fn run(&self, mut begins: impl FnMut(CommitKind)) -> Result<Vec<CommitResult>, BenchError> {
        self.check()?;
        let mut measured: Vec<Vec<Measured>> = self.kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.repeat {
            for (kind, runs) in self.kinds.iter().zip(&mut measured) {
                begins(*kind);
                runs.push(self.measure(*kind)?);
            }
        }
        let results = self.kinds.iter().zip(&measured);
        Ok(results.map(|(kind, runs)| self.result(*kind, runs)).collect())
    }

    fn in_flight(&self, kind: CommitKind) -> usize {
        match kind {
            CommitKind::EarlyRelease => self.in_flight,
            _ => 1,
        }
    }

    fn result(&self, kind: CommitKind, runs: &[Measured]) -> CommitResult {
        let median_of = |figure: fn(&Measured) -> f64| median(runs.iter().map(figure));
        let (min, max) = spread(runs.iter().map(|run| run.per_sec));
        let latencies: Vec<_> = runs.iter().map(|run| run.latency).collect();
        CommitResult {
            mode: kind.name(),
            threads: self.threads,
            in_flight: self.in_flight(kind),
            hot_keys: self.hot_keys,
            hot_share: self.hot_share,
            sync_delay_us: u64::try_from(self.sync_delay.as_micros()).unwrap_or(u64::MAX),
            commits_per_sec: median_of(|run| run.per_sec),
            commits_per_sec_min: min,
            commits_per_sec_max: max,
            flushes: median_of(|run| run.flushes),
            flush_us_mean: median_of(|run| run.flush_us),
            flush_share: median_of(|run| run.flush_share),
            locks_held_us_mean: median_of(|run| run.held_us),
            cpu_us_per_op: median_of(|run| run.cpu_us),
            latency: LatencySummary::over(&latencies),
        }
    }

    fn measure(&self, kind: CommitKind) -> Result<Measured, BenchError> {
        let dir = fresh(&self.dir)?;
        let device: Arc<dyn Device> = match self.sync_delay {
            Duration::ZERO => Arc::new(RealDevice::new()),
            delay => Arc::new(SlowSync::new(delay)),
        };
        let db = Db::open(
            dir.path().join("store"),
            Options {
                device,
                ring: self.ring.clone(),
                durability: Durability::Disk,
                ..Options::default()
            },
        )?;
        let family = db.default_family();
        let phase = Phase::default();
        let flushing = Mutex::new(());
        let measured = std::thread::scope(|scope| {
            let worker = |thread| Worker {
                bench: self,
                kind,
                db: &db,
                family: family.clone(),
                phase: &phase,
                flushing: &flushing,
                thread,
            };
            let handles: Vec<_> = (0..self.threads as u64)
                .map(|thread| {
                    let worker = worker(thread);
                    scope.spawn(move || worker.run())
                })
                .collect();
            std::thread::sleep(WARM_UP);
            let (before, cpu, begin) = (db.stats(), cpu_time(), RealClock.monotonic());
            phase.set(Phase::MEASURE);
            std::thread::sleep(self.duration);
            phase.set(Phase::STOP);
            let seconds = (RealClock.monotonic() - begin) as f64 / 1e9;
            let (after, cpu) = (db.stats(), cpu_time() - cpu);
            let threads: Vec<_> = handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or(Err(BenchError::Panicked)))
                .collect();
            (before, after, cpu, seconds, threads)
        });
        let (before, after, cpu, seconds, threads) = measured;
        let (mut commits, mut all, mut response, mut flush) = (0, 0, 0, 0);
        let mut latencies = Latencies::new()?;
        for thread in threads {
            let thread = thread?;
            commits += thread.commits;
            all += thread.all_commits;
            response += thread.response_ns;
            flush += thread.flush_ns;
            latencies.merge(&thread.latencies);
        }
        check_sum(&db, all)?;
        db.close()?;
        dir.remove()?;
        let per = |sum: u64, of: u64| sum as f64 / of.max(1) as f64;
        let syncs = |stats: &collie_db::Stats| {
            stats
                .log
                .as_ref()
                .map_or((0, 0), |log| (log.syncs, log.stages.sync_ns.sum))
        };
        let ((syncs, sync_ns), (syncs_before, sync_ns_before)) = (syncs(&after), syncs(&before));
        let (now, then) = (&after.transactions, &before.transactions);
        Ok(Measured {
            per_sec: commits as f64 / seconds,
            flushes: (syncs - syncs_before) as f64,
            flush_us: per(sync_ns - sync_ns_before, syncs - syncs_before) / 1000.0,
            flush_share: per(flush, response),
            held_us: per(
                now.locks_held_ns - then.locks_held_ns,
                now.lock_holders - then.lock_holders,
            ) / 1000.0,
            cpu_us: per(cpu, commits) / 1000.0,
            latency: latencies.summary(),
        })
    }
}

/// Every commit added one to a row.
fn check_sum(db: &Db, commits: u64) -> Result<(), BenchError> {
    let mut sum = 0;
    for row in db.iter()? {
        sum += number(&row?.1);
    }
    if sum != commits {
        return Err(BenchError::Stopped {
            cause: format!("{commits} transactions each added one, and the rows add up to {sum}"),
        });
    }
    Ok(())
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

struct Worker<'a> {
    bench: &'a CommitBench,
    kind: CommitKind,
    db: &'a Db,
    family: Family,
    phase: &'a Phase,
    /// Held by the one that flushes for itself.
    flushing: &'a Mutex<()>,
    thread: u64,
}

impl Worker<'_> {
    fn run(&self) -> Result<OfThread, BenchError> {
        static SEED: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
        // Relaxed: only that they differ counts.
        let mut random = SEED.fetch_add(0x2545_f491_4f6c_dd1d, Ordering::Relaxed) | 1;
        let options = TransactionOptions {
            concurrency: Concurrency::Pessimistic,
            isolation: Isolation::Serializable,
            commit_mode: self.kind.mode(),
            lock_timeout: Duration::from_secs(60),
            ..TransactionOptions::default()
        };
        let limit = self.bench.in_flight(self.kind);
        let mut under_way: VecDeque<(Ticket, u64)> = VecDeque::with_capacity(limit);
        let mut of = OfThread {
            commits: 0,
            all_commits: 0,
            response_ns: 0,
            flush_ns: 0,
            latencies: Latencies::new()?,
        };
        loop {
            let phase = self.phase.get();
            if phase == Phase::STOP {
                break;
            }
            let began = RealClock.monotonic();
            let tx = self.db.transaction(options.clone())?;
            self.add_one(&tx, &mut random)?;
            of.all_commits += 1;
            let committed = match self.kind {
                CommitKind::Async => {
                    tx.commit()?;
                    Some((began, RealClock.monotonic()))
                }
                CommitKind::OwnFlush => {
                    let ticket = tx.commit_ticket()?;
                    let released = RealClock.monotonic();
                    self.flush_for(ticket.end())?;
                    Some((began, released))
                }
                _ => {
                    under_way.push_back((tx.commit_ticket()?, began));
                    let oldest = (under_way.len() >= limit)
                        .then(|| under_way.pop_front())
                        .flatten();
                    match oldest {
                        Some((ticket, began)) => {
                            let waits = RealClock.monotonic();
                            ticket.wait()?;
                            Some((began, waits))
                        }
                        None => None,
                    }
                }
            };
            if let Some((began, waits)) = committed
                && phase == Phase::MEASURE
            {
                let now = RealClock.monotonic();
                of.commits += 1;
                of.response_ns += now - began;
                of.flush_ns += now - waits;
                of.latencies.add(now - began);
            }
        }
        for (ticket, _) in under_way {
            ticket.wait()?;
        }
        Ok(of)
    }

    fn add_one(&self, tx: &Transaction, random: &mut u64) -> Result<(), BenchError> {
        // Marsaglia's xorshift: which row is all that it decides.
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let (choice, row) = (*random % 100, *random / 128);
        let key = if choice < self.bench.hot_share {
            [0, row % self.bench.hot_keys]
        } else {
            [1 + self.thread, row % OWN_ROWS]
        };
        let key = key.map(u64::to_be_bytes).concat();
        let before = tx.get_for_update(&self.family, &key)?;
        let count = before.map_or(0, |value| number(&value)) + 1;
        tx.put(&self.family, &key, count.to_le_bytes())?;
        Ok(())
    }

    /// Flushes the log up to `end`, unless somebody else's flush did meanwhile.
    fn flush_for(&self, end: u64) -> Result<(), BenchError> {
        let _turn = self.flushing.lock().map_err(|_| BenchError::Panicked)?;
        if self.db.durable() < end {
            self.db.flush_wal(Durability::Disk)?;
        }
        Ok(())
    }
}
