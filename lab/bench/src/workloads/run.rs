//! One workload, once: threads, clocks and counters.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_db::{Db, Family, WriteOptions};
use collie_io::{Clock, Nanos, RealClock};

use super::data::{Keys, Values};
use super::longest::{LongWrite, Longest, longer};
use super::{Open, Workload, WorkloadBench};
use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary, Sampler};
use crate::rng::Rng;
use crate::usage;

/// How often progress is reported.
const REPORT_EVERY: Duration = Duration::from_millis(50);
/// How long compaction must have had nothing to do to be over.
const SETTLED: Duration = Duration::from_millis(200);
/// Operations between two looks at the clock, where a time is given.
const LOOK: u64 = 32;

/// What one run of one workload came to.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) ops: u64,
    pub(crate) seconds: f64,
    /// The sum over all threads, as db_bench counts microseconds per operation.
    pub(crate) thread_seconds: f64,
    pub(crate) found: u64,
    pub(crate) latency: LatencySummary,
    /// Of the writes that were timed.
    pub(crate) longest: Option<LongWrite>,
    /// How often everything was merged meanwhile.
    pub(crate) merges: Option<u64>,
    pub(crate) cpu_us_per_op: f64,
    pub(crate) syncs: Option<u64>,
    /// By cause, over all families.
    pub(crate) flushes: BTreeMap<&'static str, u64>,
    pub(crate) max_total_wal_size: u64,
    pub(crate) waf: Option<f64>,
    pub(crate) saf: Option<f64>,
    pub(crate) drain_seconds: Option<f64>,
    /// Bytes of log, for recovery.
    pub(crate) replayed_bytes: Option<u64>,
}

/// What a thread brings back.
struct Share {
    thread: usize,
    ops: u64,
    found: u64,
    began: Nanos,
    ended: Nanos,
    latencies: Latencies,
    longest: Option<LongWrite>,
}

/// What the threads share.
struct Run<'a> {
    bench: &'a WorkloadBench,
    workload: Workload,
    db: &'a Db,
    families: &'a [Family],
    start: Barrier,
    stop: AtomicBool,
    done: AtomicU64,
}

pub(crate) fn run(
    bench: &WorkloadBench,
    workload: Workload,
    db: &Db,
    families: &[Family],
    progress: &mut dyn FnMut(u64),
) -> Result<Measured, BenchError> {
    let syncs = |db: &Db| db.stats().log.map(|log| log.syncs);
    let run = Run {
        bench,
        workload,
        db,
        families,
        start: Barrier::new(bench.threads + 1),
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
    };
    let syncs_before = syncs(db);
    let flushes_before = flushes(db);
    let device_before = usage::device_bytes();
    let (shares, cpu, merges) = run.on_all_threads(progress)?;
    let drain_seconds = if bench.drain { Some(drain(db)?) } else { None };

    let mut latencies = Latencies::new()?;
    shares.iter().for_each(|share| latencies.merge(&share.latencies));
    let ops: u64 = shares.iter().map(|share| share.ops).sum();
    let began = shares.iter().map(|share| share.began).min().unwrap_or(0);
    let ended = shares.iter().map(|share| share.ended).max().unwrap_or(0);
    let written = ops as f64 * (bench.key_size + bench.value_size) as f64;
    let device = usage::device_bytes()
        .zip(device_before)
        .map(|(after, before)| after - before);
    Ok(Measured {
        ops,
        seconds: secs(ended - began),
        thread_seconds: shares.iter().map(|share| secs(share.ended - share.began)).sum(),
        found: shares.iter().map(|share| share.found).sum(),
        latency: latencies.summary(),
        longest: shares.iter().map(|share| share.longest).fold(None, longer),
        merges,
        cpu_us_per_op: cpu as f64 / 1e3 / ops.max(1) as f64,
        syncs: syncs(db).zip(syncs_before).map(|(after, before)| after - before),
        flushes: since(&flushes_before, flushes(db)),
        max_total_wal_size: if bench.disable_wal {
            0
        } else {
            db.stats().max_total_wal_size
        },
        waf: device
            .filter(|_| workload.writes() && ops > 0)
            .map(|bytes| bytes as f64 / written),
        saf: run.space_amplification(db.path(), &shares)?,
        drain_seconds,
        replayed_bytes: None,
    })
}

/// Opens a store; what that took, and what it replayed.
pub(crate) fn recover(
    open: impl FnOnce() -> Result<Open, BenchError>,
) -> Result<(Open, Measured), BenchError> {
    let (cpu_before, began) = (usage::cpu_time(), RealClock.monotonic());
    let store = open()?;
    let seconds = secs(RealClock.monotonic() - began);
    let cpu = usage::cpu_time() - cpu_before;
    let stats = store.db.stats();
    let ops = stats.replayed_commits;
    let measured = Measured {
        ops,
        seconds,
        thread_seconds: seconds,
        found: 0,
        latency: Latencies::new()?.summary(),
        longest: None,
        merges: None,
        cpu_us_per_op: cpu as f64 / 1e3 / ops.max(1) as f64,
        syncs: None,
        flushes: flushes(&store.db),
        max_total_wal_size: stats.max_total_wal_size,
        waf: None,
        saf: None,
        drain_seconds: None,
        replayed_bytes: Some(stats.replayed_bytes),
    };
    Ok((store, measured))
}

impl Run<'_> {
    /// What the threads bring back, the processor time, and how often everything was merged
    /// meanwhile.
    fn on_all_threads(
        &self,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Vec<Share>, Nanos, Option<u64>), BenchError> {
        let cpu_before = usage::cpu_time();
        let over = AtomicBool::new(false);
        let (shares, merges) = std::thread::scope(|scope| {
            let merging = self
                .bench
                .compacting
                .then(|| scope.spawn(|| merge_until(self.db, &over)));
            let handles: Vec<_> = (0..self.bench.threads)
                .map(|thread| scope.spawn(move || self.on_thread(thread)))
                .collect();
            self.start.wait();
            let until = self
                .bench
                .duration
                .map(|span| RealClock.monotonic() + nanos(span));
            while handles.iter().any(|handle| !handle.is_finished()) {
                let left = until.map(|until| until.saturating_sub(RealClock.monotonic()));
                if left == Some(0) {
                    // Relaxed: the threads may learn of it a little later.
                    self.stop.store(true, Ordering::Relaxed);
                }
                let nap = left
                    .filter(|left| *left > 0)
                    .map_or(REPORT_EVERY, Duration::from_nanos);
                std::thread::sleep(nap.min(REPORT_EVERY).min(Duration::from_millis(self.nap_ms())));
                progress(self.done.load(Ordering::Relaxed));
            }
            let shares: Vec<_> = handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or(Err(BenchError::Panicked)))
                .collect();
            over.store(true, Ordering::Relaxed);
            let merges = merging.map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)));
            (shares, merges)
        });
        let shares = shares.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok((shares, usage::cpu_time() - cpu_before, merges.transpose()?))
    }

    /// Small runs are not to last as long as a nap.
    fn nap_ms(&self) -> u64 {
        if self.bench.num < 100_000 { 1 } else { 50 }
    }

    fn on_thread(&self, thread: usize) -> Result<Share, BenchError> {
        let bench = self.bench;
        let mut rng = bench.rng(self.workload, thread);
        let mut values = Values::new(bench.value_size, &mut Rng::new(bench.seed, thread));
        let mut keys = Keys::new(bench.key_size);
        let mut sampler = Sampler::new(bench.timed_one_in());
        let mut latencies = Latencies::new()?;
        let mut longest = Longest::of(self.db, bench.is_durable());
        let options = bench.write_options();
        let (first, limit) = bench.share_of(thread);
        let (mut ops, mut found) = (0, 0);
        self.start.wait();
        let began = RealClock.monotonic();
        while bench.duration.is_some() || ops < limit {
            if ops.is_multiple_of(LOOK) {
                self.done.fetch_add(LOOK, Ordering::Relaxed);
                // A thread that comes to run after the time is up measures a little all the same.
                if ops > 0 && self.stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            let number = self.workload.number(&mut rng, first, limit, ops, bench.num);
            let started = sampler.begin();
            if let Some(family) = self.family_of(number) {
                found += u64::from(self.operate(family, keys.key(number), &mut values, &options)?);
            }
            if let Some(started) = started {
                let took = RealClock.monotonic() - started;
                latencies.add(took);
                if self.workload.writes() {
                    longest.see(took);
                }
            }
            ops += 1;
        }
        Ok(Share {
            thread,
            ops,
            found,
            began,
            ended: RealClock.monotonic(),
            latencies,
            longest: longest.found(),
        })
    }

    /// One operation; whether a key was found.
    fn operate(
        &self,
        family: &Family,
        key: &[u8],
        values: &mut Values,
        options: &WriteOptions,
    ) -> Result<bool, BenchError> {
        if self.workload.writes() {
            family.put_with(key, values.value(), options)?;
            Ok(false)
        } else {
            Ok(family.get(key)?.is_some())
        }
    }

    fn family_of(&self, number: u64) -> Option<&Family> {
        self.families.get((number % self.families.len() as u64) as usize)
    }

    /// Disk bytes ÷ live bytes. Which keys are live follows from the seed: the choices are made
    /// once more.
    fn space_amplification(&self, path: &Path, shares: &[Share]) -> Result<Option<f64>, BenchError> {
        if !self.workload.begins_anew() {
            // What earlier commands left is not known.
            return Ok(None);
        }
        let mut live = vec![0_u64; (self.bench.num / 64 + 1) as usize];
        for share in shares {
            let mut rng = self.bench.rng(self.workload, share.thread);
            let (first, limit) = self.bench.share_of(share.thread);
            for op in 0..share.ops {
                let number = self.workload.number(&mut rng, first, limit, op, self.bench.num);
                if let Some(word) = live.get_mut((number / 64) as usize) {
                    *word |= 1 << (number % 64);
                }
            }
        }
        let keys: u64 = live.iter().map(|word| u64::from(word.count_ones())).sum();
        let live_bytes = keys * (self.bench.key_size + self.bench.value_size) as u64;
        Ok(Some(usage::disk_bytes(path)? as f64 / live_bytes.max(1) as f64))
    }
}

/// Merges all tables again and again, as a compaction does, until `over` is set; once at
/// least. Returns how often.
fn merge_until(db: &Db, over: &AtomicBool) -> Result<u64, BenchError> {
    // As the store's own threads do; where there are no I/O classes they do without, too.
    let _ = collie_io::set_io_class(collie_io::IoClass::Background);
    let mut merges = 0;
    loop {
        db.compact()?;
        merges += 1;
        // Relaxed: it may learn of it a little later.
        if over.load(Ordering::Relaxed) {
            return Ok(merges);
        }
    }
}

/// Brings everything to tables and waits until compaction has nothing more to do. Returns the
/// seconds.
fn drain(db: &Db) -> Result<f64, BenchError> {
    let began = RealClock.monotonic();
    db.flush()?;
    let compactions = || db.stats().families.values().map(|f| f.compactions).sum::<u64>();
    let (mut seen, mut quiet_since) = (compactions(), RealClock.monotonic());
    loop {
        std::thread::sleep(SETTLED / 20);
        let now = RealClock.monotonic();
        let stats = db.stats();
        let busy = stats
            .families
            .values()
            .any(|family| family.sealed > 0 || family.level0_runs > usize::from(LEVEL0_QUIET));
        let done = compactions();
        if busy || done != seen {
            (seen, quiet_since) = (done, now);
        } else if now - quiet_since >= nanos(SETTLED) {
            return Ok(secs(quiet_since - began));
        }
    }
}

/// As many level-0 runs start no compaction.
const LEVEL0_QUIET: u8 = 3;

/// Flushes so far by cause, over all families.
fn flushes(db: &Db) -> BTreeMap<&'static str, u64> {
    let mut sum = BTreeMap::new();
    for family in db.stats().families.values() {
        for (cause, count) in &family.flushes {
            *sum.entry(cause.name()).or_default() += count;
        }
    }
    sum
}

fn since(
    before: &BTreeMap<&'static str, u64>,
    mut now: BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    for (cause, count) in &mut now {
        *count -= before.get(cause).copied().unwrap_or(0);
    }
    now.retain(|_, count| *count > 0);
    now
}

fn secs(ns: Nanos) -> f64 {
    ns as f64 / 1e9
}

fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2)
}
