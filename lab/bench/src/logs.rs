//! `bench log`: Collie's log beside three that take locks, on the same work, in one run.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use collie_io::{Clock, Device, RealClock, RealDevice};
use collie_log::{Level, LogOptions, RingMode, WritePath};
use serde::Serialize;

use crate::baselines::{Baseline, BaselineOptions, InsertLocks, Insertion, LinkBuffer, OneMutex};
use crate::contender::{Appender, Collie, Contender};
use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary, Sampler, median, spread};
use crate::names::{level_name, ring_name};

/// Runs before the measurement begins, so that the ring's pages are there and the threads run.
const WARM_UP: Duration = Duration::from_millis(200);
/// How often segments are released while it runs.
const TIDY: Duration = Duration::from_millis(5);
/// Frames larger than this would not fit the rings of all.
const SIZE_MAX: usize = 1 << 20;
/// More threads than this have no worker slot.
const THREADS_MAX: usize = 240;

/// The logs that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogKind {
    /// Collie's.
    Collie,
    /// One mutex around the log buffer.
    Mutex,
    /// Eight insertion locks, as in PostgreSQL.
    InsertLocks,
    /// A link buffer, as in MySQL 8.
    LinkBuffer,
}

impl LogKind {
    /// All, Collie's first.
    pub const ALL: [Self; 4] = [Self::Collie, Self::Mutex, Self::InsertLocks, Self::LinkBuffer];

    /// The name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Collie => "collie",
            Self::Mutex => OneMutex::NAME,
            Self::InsertLocks => InsertLocks::NAME,
            Self::LinkBuffer => LinkBuffer::NAME,
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct LogBench {
    /// Numbers of threads, each measured for itself.
    pub threads: Vec<usize>,
    /// Bytes of a payload.
    pub size: usize,
    /// What each append waits for.
    pub durability: Level,
    /// Appends that a thread has under way before it waits for the oldest one; 1: it waits for
    /// each.
    pub in_flight: usize,
    /// The logs.
    pub logs: Vec<LogKind>,
    /// How long one measurement takes.
    pub duration: Duration,
    /// How often each is repeated, all interleaved.
    pub repeat: usize,
    /// Where the rings lie.
    pub ring: RingMode,
    /// Bytes of a ring.
    pub ring_bytes: usize,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// How groups are written.
    pub write_path: WritePath,
    /// Where the log files go for the time of the measurement: a new directory in here.
    pub dir: PathBuf,
}

impl Default for LogBench {
    fn default() -> Self {
        let log = LogOptions::default();
        Self {
            threads: vec![1, 4, 16, 64],
            size: 100,
            durability: Level::Disk,
            in_flight: 1,
            logs: LogKind::ALL.to_vec(),
            duration: Duration::from_secs(2),
            repeat: 3,
            ring: log.ring,
            ring_bytes: log.ring_bytes,
            segment_bytes: log.segment_bytes,
            // What each open finds out for itself would make unlike runs.
            write_path: WritePath::Direct,
            dir: std::env::temp_dir(),
        }
    }
}

/// A log at one number of threads: medians over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogResult {
    /// The log's name.
    pub log: &'static str,
    /// Threads that appended.
    pub threads: usize,
    /// Bytes of a payload.
    pub size: usize,
    /// Appends that a thread had under way.
    pub in_flight: usize,
    /// Whether the ring drained to files while each repeat was measured. Where it did not, which
    /// happens when little is appended and no thread waits for it, an insertion costs nothing but
    /// itself.
    pub drains: bool,
    /// What each append waited for.
    pub durability: &'static str,
    /// Where the ring lay.
    pub ring: &'static str,
    /// How groups were written: "direct" or "fdatasync".
    pub write_path: &'static str,
    /// The median of the repeats.
    pub appends_per_sec: f64,
    /// The slowest repeat.
    pub appends_per_sec_min: f64,
    /// The fastest repeat.
    pub appends_per_sec_max: f64,
    /// From the append's call to its durability. Medians over the repeats; the longest of all.
    #[serde(flatten)]
    pub latency: LatencySummary,
    /// One append in so many was timed.
    pub timed_one_in: u32,
    /// How often it was measured.
    pub repeats: usize,
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct Measured {
    per_sec: f64,
    latency: LatencySummary,
    /// Whether files grew meanwhile.
    drained: bool,
}

impl LogBench {
    fn check(&self) -> Result<(), BenchError> {
        let bad = |option, problem: String| Err(BenchError::Options { option, problem });
        if let Some(threads) = self.threads.iter().find(|t| !(1..=THREADS_MAX).contains(*t)) {
            return bad("threads", format!("{threads} is not from 1 to {THREADS_MAX}"));
        }
        if self.size > SIZE_MAX {
            return bad("size", format!("{} is above {SIZE_MAX} bytes", self.size));
        }
        if self.in_flight == 0 || self.in_flight > 1 << 16 {
            return bad("in-flight", format!("{} is not from 1 to 65,536", self.in_flight));
        }
        if self.repeat == 0 || self.duration.is_zero() || self.logs.is_empty() || self.threads.is_empty() {
            return bad("repeat", "there is nothing to measure".into());
        }
        Ok(())
    }

    /// How many measurements there will be.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.threads.len() * self.logs.len() * self.repeat
    }

    /// Reading the clock for each append would slow it by half where nothing is waited for.
    fn timed_one_in(&self) -> u32 {
        let waits = match self.durability {
            Level::Disk => true,
            Level::Process => self.ring == RingMode::Private,
            Level::Buffered => false,
        };
        match (waits, self.in_flight) {
            (true, 1) => 1,
            (true, _) => 16,
            (false, _) => 64,
        }
    }

    /// Measures. `step` is called before each measurement, `done` with each result: when all
    /// repeats of a number of threads are over, for each log.
    ///
    /// # Errors
    /// The first failure of a log or of a file.
    pub fn run(
        &self,
        mut step: impl FnMut(LogKind, usize),
        mut done: impl FnMut(LogResult),
    ) -> Result<(), BenchError> {
        self.check()?;
        for &threads in &self.threads {
            let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); self.logs.len()];
            for round in 0..self.repeat {
                // Each repeat begins with another log, so that none always follows the same one.
                for turn in 0..self.logs.len() {
                    let which = (turn + round) % self.logs.len();
                    if let (Some(&kind), Some(runs)) = (self.logs.get(which), measured.get_mut(which)) {
                        step(kind, threads);
                        runs.push(self.measure(kind, threads, self.duration, &AtomicU64::new(0))?);
                    }
                }
            }
            for (&kind, runs) in self.logs.iter().zip(&measured) {
                done(self.result(kind, threads, runs));
            }
        }
        Ok(())
    }

    /// Measures one log at one number of threads, once, and counts its appends for a thread that
    /// watches.
    ///
    /// # Errors
    /// As [`LogBench::run`].
    pub fn run_one(
        &self,
        kind: LogKind,
        threads: usize,
        appended: &AtomicU64,
    ) -> Result<LogResult, BenchError> {
        let measured = self.measure(kind, threads, self.duration, appended)?;
        Ok(self.result(kind, threads, &[measured]))
    }

    fn result(&self, kind: LogKind, threads: usize, runs: &[Measured]) -> LogResult {
        let rates = || runs.iter().map(|run| run.per_sec);
        let (min, max) = spread(rates());
        let latencies: Vec<_> = runs.iter().map(|run| run.latency).collect();
        LogResult {
            log: kind.name(),
            threads,
            size: self.size,
            in_flight: self.in_flight,
            drains: runs.iter().all(|run| run.drained),
            durability: level_name(self.durability),
            ring: ring_name(&self.ring),
            write_path: match self.write_path {
                WritePath::Direct => "direct",
                _ => "fdatasync",
            },
            appends_per_sec: median(rates()),
            appends_per_sec_min: min,
            appends_per_sec_max: max,
            latency: LatencySummary::over(&latencies),
            timed_one_in: self.timed_one_in(),
            repeats: runs.len(),
        }
    }

    fn measure(
        &self,
        kind: LogKind,
        threads: usize,
        duration: Duration,
        appended: &AtomicU64,
    ) -> Result<Measured, BenchError> {
        let dir = crate::dirs::fresh(&self.dir)?;
        let path = dir.path().join("log");
        let device: Arc<dyn Device> = Arc::new(RealDevice::new());
        let measured = match kind {
            LogKind::Collie => {
                let options = LogOptions {
                    device,
                    ring: self.ring.clone(),
                    ring_bytes: self.ring_bytes,
                    segment_bytes: self.segment_bytes,
                    write_path: self.write_path,
                    ..LogOptions::default()
                };
                self.drive(Collie::open(&path, options)?, threads, duration, appended)
            }
            LogKind::Mutex => self.drive(
                self.baseline::<OneMutex>(&path, device)?,
                threads,
                duration,
                appended,
            ),
            LogKind::InsertLocks => self.drive(
                self.baseline::<InsertLocks>(&path, device)?,
                threads,
                duration,
                appended,
            ),
            LogKind::LinkBuffer => self.drive(
                self.baseline::<LinkBuffer>(&path, device)?,
                threads,
                duration,
                appended,
            ),
        };
        dir.remove()?;
        measured
    }

    fn baseline<I: Insertion>(
        &self,
        path: &Path,
        device: Arc<dyn Device>,
    ) -> Result<Baseline<I>, BenchError> {
        let options = BaselineOptions {
            device,
            ring: self.ring.clone(),
            ring_bytes: self.ring_bytes,
            segment_bytes: self.segment_bytes,
            write_path: self.write_path,
            flush_interval: LogOptions::default().flush_interval,
        };
        Baseline::open(path, &options)
    }

    fn drive(
        &self,
        log: impl Contender,
        threads: usize,
        duration: Duration,
        appended: &AtomicU64,
    ) -> Result<Measured, BenchError> {
        let phase = Phase::default();
        let (seconds, drained, outcomes) = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| self.append_on(&log, &phase, appended)))
                .collect();
            let clock = RealClock;
            tidy_for(&log, WARM_UP);
            let begin = clock.monotonic();
            let written = log.reached(Level::Process);
            phase.set(Phase::MEASURE);
            tidy_for(&log, duration);
            // On a busy machine no thread may have run yet.
            while !phase.counted.load(Ordering::Relaxed) && handles.iter().any(|h| !h.is_finished()) {
                tidy_for(&log, TIDY);
            }
            phase.set(Phase::STOP);
            let seconds = (clock.monotonic() - begin) as f64 / 1e9;
            let drained = log.reached(Level::Process) > written;
            let outcomes: Vec<_> = handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or(Err(BenchError::Panicked)))
                .collect();
            (seconds, drained, outcomes)
        });
        let mut latencies = Latencies::new()?;
        let mut appends = 0;
        for outcome in outcomes {
            let (count, of_thread) = outcome?;
            appends += count;
            latencies.merge(&of_thread);
        }
        log.close()?;
        Ok(Measured {
            per_sec: appends as f64 / seconds,
            latency: latencies.summary(),
            drained,
        })
    }

    /// One thread's work. Counts what was acknowledged while it was measured.
    fn append_on(
        &self,
        log: &impl Contender,
        phase: &Phase,
        appended: &AtomicU64,
    ) -> Result<(u64, Latencies), BenchError> {
        /// Appends between two reports to who watches.
        const REPORT: u64 = 64;
        let mut appender = log.appender()?;
        let payload = vec![b'c'; self.size];
        let mut under_way = UnderWay::new(self.in_flight, self.durability);
        let mut sampler = Sampler::new(self.timed_one_in());
        let mut latencies = Latencies::new()?;
        let (mut count, mut unreported) = (0, 0);
        loop {
            let now = phase.get();
            if now == Phase::STOP {
                return Ok((count, latencies));
            }
            let measuring = now == Phase::MEASURE;
            let started = sampler.begin();
            let end = appender.append(&payload)?;
            let safe = under_way.add(log, end, started, |ns| {
                if measuring {
                    latencies.add(ns);
                }
            })?;
            if measuring {
                if count == 0 && safe > 0 {
                    phase.counted.store(true, Ordering::Relaxed);
                }
                count += safe;
            }
            unreported += safe;
            if unreported >= REPORT || self.durability == Level::Disk {
                appended.fetch_add(std::mem::take(&mut unreported), Ordering::Relaxed);
            }
        }
    }
}

/// A thread's appends that it has not yet seen safe.
struct UnderWay {
    limit: usize,
    level: Level,
    queue: VecDeque<(u64, Option<u64>)>,
}

impl UnderWay {
    fn new(limit: usize, level: Level) -> Self {
        Self {
            limit,
            level,
            queue: VecDeque::with_capacity(limit),
        }
    }

    /// Adds one; waits for the oldest where there are as many as may be. Returns how many became
    /// safe, and records the latencies of those that were timed.
    fn add(
        &mut self,
        log: &impl Contender,
        end: u64,
        started: Option<u64>,
        mut timed: impl FnMut(u64),
    ) -> Result<u64, BenchError> {
        if self.limit == 1 {
            log.wait(end, self.level)?;
            if let Some(started) = started {
                timed(RealClock.monotonic() - started);
            }
            return Ok(1);
        }
        self.queue.push_back((end, started));
        let Some(&(oldest, _)) = self.queue.front() else {
            return Ok(0);
        };
        if self.queue.len() < self.limit {
            return Ok(0);
        }
        log.wait(oldest, self.level)?;
        let reached = log.reached(self.level).max(oldest);
        let now = RealClock.monotonic();
        let mut safe = 0;
        while let Some(&(end, started)) = self.queue.front()
            && end <= reached
        {
            self.queue.pop_front();
            safe += 1;
            if let Some(started) = started {
                timed(now - started);
            }
        }
        Ok(safe)
    }
}

fn tidy_for(log: &impl Contender, span: Duration) {
    let clock = RealClock;
    let until = clock.monotonic() + u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2);
    loop {
        let now = clock.monotonic();
        if now >= until {
            return;
        }
        std::thread::sleep(TIDY.min(Duration::from_nanos(until - now)));
        log.tidy();
    }
}

/// Where a measurement stands; it begins with the warm-up.
#[derive(Debug, Default)]
struct Phase {
    now: AtomicU8,
    /// Whether anything has been counted.
    counted: AtomicBool,
}

impl Phase {
    const MEASURE: u8 = 1;
    const STOP: u8 = 2;

    // Relaxed, all of them: a thread may learn of it a little later; nothing else is ordered by it.
    fn set(&self, phase: u8) {
        self.now.store(phase, Ordering::Relaxed);
    }

    fn get(&self) -> u8 {
        self.now.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(durability: Level, ring: RingMode, in_flight: usize) -> LogBench {
        LogBench {
            threads: vec![1, 3],
            durability,
            in_flight,
            duration: Duration::from_millis(40),
            repeat: 1,
            ring,
            ring_bytes: 1 << 20,
            segment_bytes: 4 << 20,
            ..LogBench::default()
        }
    }

    #[test]
    fn every_log_is_measured_at_every_level_and_number_of_threads() {
        for (level, ring, in_flight) in [
            (Level::Buffered, RingMode::default(), 1),
            (Level::Process, RingMode::Private, 1),
            (Level::Disk, RingMode::default(), 1),
            (Level::Disk, RingMode::default(), 32),
        ] {
            let bench = quick(level, ring, in_flight);
            let (mut steps, mut results) = (0, Vec::new());
            bench
                .run(|_, _| steps += 1, |result| results.push(result))
                .unwrap();
            assert_eq!(steps, bench.steps());
            let seen: Vec<_> = results.iter().map(|r| (r.log, r.threads)).collect();
            let logs = ["collie", "mutex", "insert-locks", "link-buffer"];
            let expected: Vec<_> = [1, 3].iter().flat_map(|t| logs.map(|log| (log, *t))).collect();
            assert_eq!(seen, expected);
            for result in results {
                assert!(result.appends_per_sec > 0.0, "{result:?}");
                assert!(result.latency.max_us >= result.latency.p50_us, "{result:?}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |bench: LogBench| match bench.run(|_, _| {}, |_| {}).unwrap_err() {
            BenchError::Options { option, .. } => option,
            other => panic!("{other}"),
        };
        let base = LogBench::default;
        assert_eq!(
            refused(LogBench {
                threads: vec![0],
                ..base()
            }),
            "threads"
        );
        assert_eq!(
            refused(LogBench {
                size: SIZE_MAX + 1,
                ..base()
            }),
            "size"
        );
        assert_eq!(
            refused(LogBench {
                in_flight: 0,
                ..base()
            }),
            "in-flight"
        );
        assert_eq!(refused(LogBench { repeat: 0, ..base() }), "repeat");
    }
}
