//! One kind of commit, once: threads, clocks and counters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use collie_db::{Db, Durability, Error, Options, Stats, Ticket, TransactionOptions};
use collie_io::{Clock, Device, Nanos, RealClock, RealDevice};

use super::{CommitKind, Load, TransactionRun};
use crate::dirs::fresh;
use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary};
use crate::rng::Rng;
use crate::syncs::SyncDevice;
use crate::usage::cpu_time;

/// Runs before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(200);
/// Between two checks whether a client has committed, where the time is up and none has.
const LOOK: Duration = Duration::from_millis(5);
/// No transaction should wait for a lock so long.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Measured {
    pub(super) per_sec: f64,
    pub(super) retries: f64,
    pub(super) flushes: f64,
    pub(super) flush_us: f64,
    pub(super) flush_share: f64,
    pub(super) lock_wait_share: f64,
    pub(super) held_us: f64,
    pub(super) cpu_percent: f64,
    pub(super) cpu_us: f64,
    pub(super) written: u64,
    pub(super) latency: LatencySummary,
}

/// What threads do now.
#[derive(Default)]
struct Phase {
    now: AtomicU8,
    /// Whether a commit has been counted.
    counted: AtomicBool,
}

impl Phase {
    // Before it, 0: the threads warm up.
    const MEASURE: u8 = 1;
    const STOP: u8 = 2;

    // Relaxed: a thread that sees it a moment late measures a moment more or less.
    fn set(&self, phase: u8) {
        self.now.store(phase, Ordering::Relaxed);
    }

    fn get(&self) -> u8 {
        self.now.load(Ordering::Relaxed)
    }
}

/// What threads did while they were measured, and what they wrote in all.
struct Done {
    commits: u64,
    retries: u64,
    written: u64,
    flush_ns: u64,
    latencies: Latencies,
}

impl Done {
    fn new() -> Result<Self, BenchError> {
        Ok(Self {
            commits: 0,
            retries: 0,
            written: 0,
            flush_ns: 0,
            latencies: Latencies::new()?,
        })
    }

    fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.retries += other.retries;
        self.written += other.written;
        self.flush_ns += other.flush_ns;
        self.latencies.merge(&other.latencies);
    }
}

/// Runs the load in a new store, checks what came of it, and removes it.
pub(super) fn measure<L: Load>(
    run: &TransactionRun,
    load: &L,
    kind: CommitKind,
) -> Result<Measured, BenchError> {
    let dir = fresh(&run.dir)?;
    let device: Arc<dyn Device> = match run.sync_delay {
        Duration::ZERO => Arc::new(RealDevice::new()),
        delay => Arc::new(SyncDevice::new(delay)),
    };
    let options = Options {
        device,
        ring: run.ring.clone(),
        durability: Durability::Disk,
        ..Options::default()
    };
    let db = Db::open(dir.path().join("store"), options)?;
    let store = load.prepare(&db)?;
    let (phase, flushing) = (Phase::default(), Mutex::new(()));
    let (before, after, cpu, ns, threads) = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..run.threads)
            .map(|thread| {
                let worker = Worker {
                    load,
                    store: &store,
                    kind,
                    in_flight: run.in_flight(kind),
                    db: &db,
                    phase: &phase,
                    flushing: &flushing,
                    thread,
                };
                scope.spawn(move || worker.run())
            })
            .collect();
        std::thread::sleep(WARM_UP);
        let (before, cpu, begin) = (db.stats(), cpu_time(), RealClock.monotonic());
        phase.set(Phase::MEASURE);
        std::thread::sleep(run.duration);
        // On a busy machine no thread may have come so far. Relaxed: it is looked at again.
        while !phase.counted.load(Ordering::Relaxed) && handles.iter().any(|handle| !handle.is_finished()) {
            std::thread::sleep(LOOK);
        }
        phase.set(Phase::STOP);
        let ns = RealClock.monotonic() - begin;
        let (after, cpu) = (db.stats(), cpu_time() - cpu);
        let threads: Vec<_> = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or(Err(BenchError::Panicked)))
            .collect();
        (before, after, cpu, ns, threads)
    });
    let mut done = Done::new()?;
    for thread in threads {
        done.add(&thread?);
    }
    load.check(&store, done.written)?;
    drop(store);
    db.close()?;
    dir.remove()?;
    Ok(figures(&done, run.threads, &before, &after, cpu, ns))
}

/// What a run of `ns` nanoseconds came to.
fn figures(done: &Done, threads: usize, before: &Stats, after: &Stats, cpu: Nanos, ns: Nanos) -> Measured {
    let per = |sum: u64, of: u64| sum as f64 / of.max(1) as f64;
    let of_threads = |sum: u64| per(sum, ns) / threads as f64;
    // Past the page cache the write is the sync, so that both together are the flush.
    let flushes = |stats: &Stats| {
        let log = stats.log.as_ref();
        log.map_or((0, 0), |log| {
            (log.syncs, log.stages.write_ns.sum + log.stages.sync_ns.sum)
        })
    };
    let ((flushes, flush_ns), (flushes_before, flush_ns_before)) = (flushes(after), flushes(before));
    let flushes = flushes - flushes_before;
    let (now, then) = (&after.transactions, &before.transactions);
    let holders = now.lock_holders - then.lock_holders;
    Measured {
        per_sec: per(done.commits, ns) * 1e9,
        retries: per(done.retries, done.commits),
        flushes: flushes as f64,
        flush_us: per(flush_ns - flush_ns_before, flushes) / 1000.0,
        flush_share: of_threads(done.flush_ns),
        lock_wait_share: of_threads(now.lock_wait_ns - then.lock_wait_ns),
        held_us: per(now.locks_held_ns - then.locks_held_ns, holders) / 1000.0,
        cpu_percent: per(cpu, ns) * 100.0,
        cpu_us: per(cpu, done.commits) / 1000.0,
        written: done.written,
        latency: done.latencies.summary(),
    }
}

/// A transaction that has its place in the order.
struct Committed {
    ticket: Ticket,
    began: Nanos,
}

struct Worker<'a, L: Load> {
    load: &'a L,
    store: &'a L::Store,
    kind: CommitKind,
    in_flight: usize,
    db: &'a Db,
    phase: &'a Phase,
    /// Held by the one that flushes for itself.
    flushing: &'a Mutex<()>,
    thread: usize,
}

impl<L: Load> Worker<'_, L> {
    fn run(&self) -> Result<Done, BenchError> {
        let mut rng = Rng::new(0, self.thread);
        let options = TransactionOptions {
            commit_mode: self.kind.mode(),
            lock_timeout: LOCK_TIMEOUT,
            ..self.load.options()
        };
        let mut under_way: VecDeque<Committed> = VecDeque::with_capacity(self.in_flight);
        let mut done = Done::new()?;
        loop {
            let phase = self.phase.get();
            if phase == Phase::STOP {
                break;
            }
            let began = RealClock.monotonic();
            let plan = self.load.plan(&mut rng, self.thread as u64);
            let Some((ticket, retries)) = self.commit(&options, &plan, &mut done.written)? else {
                break;
            };
            under_way.push_back(Committed { ticket, began });
            let is_measured = phase == Phase::MEASURE;
            if is_measured {
                done.retries += retries;
            }
            if under_way.len() < self.in_flight {
                continue;
            }
            if let Some(Committed { ticket, began }) = under_way.pop_front() {
                let waits = RealClock.monotonic();
                self.acknowledge(ticket)?;
                let now = RealClock.monotonic();
                if is_measured {
                    if done.commits == 0 {
                        // Relaxed: see `measure`.
                        self.phase.counted.store(true, Ordering::Relaxed);
                    }
                    done.commits += 1;
                    done.flush_ns += now - waits;
                    done.latencies.add(now - began);
                }
            }
        }
        for Committed { ticket, .. } in under_way {
            self.acknowledge(ticket)?;
        }
        Ok(done)
    }

    /// Runs a transaction until it commits; `None` if the measurement was over before. Returns how
    /// often it had to be run again.
    fn commit(
        &self,
        options: &TransactionOptions,
        plan: &L::Plan,
        written: &mut u64,
    ) -> Result<Option<(Ticket, u64)>, BenchError> {
        let mut retries = 0;
        loop {
            let tx = self.db.transaction(options.clone())?;
            let attempt = self
                .load
                .attempt(self.store, &tx, plan)
                .and_then(|writes| Ok((tx.commit_ticket()?, writes)));
            match attempt {
                Ok((ticket, writes)) => {
                    *written += u64::from(writes);
                    return Ok(Some((ticket, retries)));
                }
                Err(BenchError::Db(
                    Error::Conflict { .. } | Error::Deadlock { .. } | Error::LockTimeout { .. },
                )) => {
                    retries += 1;
                    if self.phase.get() == Phase::STOP {
                        return Ok(None);
                    }
                    // The other transaction may want this core.
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for what this kind of commit promises.
    fn acknowledge(&self, ticket: Ticket) -> Result<(), BenchError> {
        match self.kind {
            CommitKind::Async => {}
            CommitKind::OwnFlush => self.flush_for(ticket.end())?,
            CommitKind::Sync | CommitKind::EarlyRelease => {
                ticket.wait()?;
            }
        }
        Ok(())
    }

    /// Flushes the log up to `end`, unless another's flush did meanwhile.
    fn flush_for(&self, end: u64) -> Result<(), BenchError> {
        let _turn = self.flushing.lock().map_err(|_| BenchError::Panicked)?;
        if self.db.durable() < end {
            self.db.flush_wal(Durability::Disk)?;
        }
        Ok(())
    }
}
