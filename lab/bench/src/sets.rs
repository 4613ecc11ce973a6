//! What many small logs in one process cost: with the threads of one set, and with threads of their
//! own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_io::{Clock, Nanos, RealClock};
use collie_log::{Level, Log, LogOptions, LogSet, LogSetOptions, RingMode, Worker};
use serde::Serialize;

use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary};
use crate::rng::Rng;
use crate::usage::{self, Process};

/// How many logs are opened at a time.
const AT_A_TIME: usize = 8;
/// Bytes of a frame's payload.
const PAYLOAD: usize = 100;

/// What is measured.
#[derive(Debug, Clone)]
pub struct SetBench {
    /// How many logs.
    pub logs: usize,
    /// Whether they share the threads of a set.
    pub in_set: bool,
    /// Bytes of a ring, which is private.
    pub ring_bytes: usize,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Threads that commit, each to logs at random.
    pub threads: usize,
    /// How long they do.
    pub duration: Duration,
    /// How long the logs are then idle, for the processor's time.
    pub idle: Duration,
    /// Where the logs' directories are made.
    pub dir: PathBuf,
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct SetResult {
    /// How many logs.
    pub logs: usize,
    /// Whether they shared the threads of a set.
    pub in_set: bool,
    /// Making and opening all of them, in seconds.
    pub open_s: f64,
    /// From one append to each, not waited for, until all are durable, in seconds.
    pub all_durable_s: f64,
    /// Durable commits of all threads, per second.
    pub commits_per_sec: f64,
    /// Each of them.
    pub commit: LatencySummary,
    /// Threads of the process while the logs are idle, and what they add to its memory, in bytes.
    pub threads: usize,
    /// See `threads`.
    pub resident_bytes: u64,
    /// File descriptors of the process then.
    pub descriptors: usize,
    /// Bytes that the directories take.
    pub disk_bytes: u64,
    /// Processor time of all logs while they are idle, in percent of one core.
    pub idle_percent: f64,
    /// Closing all, one after the other, in seconds.
    pub close_s: f64,
    /// Opening all again, in seconds.
    pub reopen_s: f64,
}

impl SetBench {
    /// How many steps a measurement has.
    pub const STEPS: u64 = 6;

    /// Measures; calls `begins` with what comes next.
    ///
    /// # Errors
    /// An option out of its range, and what a log reports.
    pub fn run(&self, mut begins: impl FnMut(&'static str)) -> Result<SetResult, BenchError> {
        for (option, value) in [("--logs", self.logs), ("--threads", self.threads)] {
            if value == 0 {
                let problem = "must be at least 1".to_owned();
                return Err(BenchError::Options { option, problem });
            }
        }
        let before = Process::now()?;
        begins("open");
        let clock = RealClock;
        let (logs, open_s) = self.open()?;
        begins("append");
        let start = clock.monotonic();
        self.touch(&logs)?;
        let all_durable_s = seconds_since(start);
        begins("commit");
        let (commit, commits_per_sec) = self.commit(&logs)?;
        begins("idle");
        // Until each has its seal.
        std::thread::sleep(Duration::from_secs(1));
        let (cpu, start) = (usage::cpu_time(), clock.monotonic());
        std::thread::sleep(self.idle);
        let idle_percent = (usage::cpu_time() - cpu) as f64 / (clock.monotonic() - start) as f64 * 100.0;
        let during = Process::now()?;
        let disk_bytes = usage::disk_bytes(&self.dir)?;
        begins("close");
        let start = clock.monotonic();
        logs.into_iter().try_for_each(Log::close)?;
        let close_s = seconds_since(start);
        begins("reopen");
        let (logs, reopen_s) = self.open()?;
        drop(logs);
        Ok(SetResult {
            logs: self.logs,
            in_set: self.in_set,
            open_s,
            all_durable_s,
            commits_per_sec,
            commit,
            threads: during.threads,
            resident_bytes: during.resident_bytes.saturating_sub(before.resident_bytes),
            descriptors: during.descriptors,
            disk_bytes,
            idle_percent,
            close_s,
            reopen_s,
        })
    }

    /// Opens all, and says how long that took.
    fn open(&self) -> Result<(Vec<Log>, f64), BenchError> {
        let set = match self.in_set {
            true => Some(LogSet::new(LogSetOptions::default())?),
            false => None,
        };
        let options = LogOptions {
            set,
            ring: RingMode::Private,
            ring_bytes: self.ring_bytes,
            segment_bytes: self.segment_bytes,
            max_workers: self.threads.max(2),
            reserve_bytes: Some(0),
            ..LogOptions::default()
        };
        let dirs = (0..self.logs).map(|n| (self.dir.join(format!("{n}")), options.clone()));
        let start = RealClock.monotonic();
        let opened = Log::open_all(dirs.collect(), AT_A_TIME);
        let logs = opened.into_iter().collect::<Result<_, _>>()?;
        Ok((logs, seconds_since(start)))
    }

    /// Appends to each, and waits until the background threads have made all of it durable.
    fn touch(&self, logs: &[Log]) -> Result<(), BenchError> {
        for log in logs {
            log.worker()?.append(0, 1, &[1; PAYLOAD])?;
        }
        for log in logs {
            while log.durable() < log.appended() {
                if let Some(error) = log.poisoned() {
                    return Err(error.into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn commit(&self, logs: &[Log]) -> Result<(LatencySummary, f64), BenchError> {
        let stop = AtomicBool::new(false);
        let start = RealClock.monotonic();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let stop = &stop;
                    scope.spawn(move || commit_until(logs, stop, thread))
                })
                .collect();
            std::thread::sleep(self.duration);
            // Relaxed: it orders nothing.
            stop.store(true, Ordering::Relaxed);
            let mut all = Latencies::new()?;
            for thread in threads {
                all.merge(&thread.join().unwrap_or(Err(BenchError::Panicked))?);
            }
            Ok::<_, BenchError>(all)
        })?;
        let summary = all.summary();
        let per_sec = all.count() as f64 / seconds_since(start);
        Ok((summary, per_sec))
    }
}

fn commit_until(logs: &[Log], stop: &AtomicBool, thread: usize) -> Result<Latencies, BenchError> {
    let mut workers: Vec<Worker> = logs.iter().map(Log::worker).collect::<Result<_, _>>()?;
    let mut rng = Rng::new(1, thread);
    let mut latencies = Latencies::new()?;
    // Relaxed: see where it is stored.
    while !stop.load(Ordering::Relaxed) {
        let at = rng.below(logs.len() as u64) as usize;
        let (Some(log), Some(worker)) = (logs.get(at), workers.get_mut(at)) else {
            continue;
        };
        let begin = RealClock.monotonic();
        let span = worker.append(0, 1, &[2; PAYLOAD])?;
        log.wait(span.end, Level::Disk)?;
        latencies.add(RealClock.monotonic() - begin);
    }
    Ok(latencies)
}

fn seconds_since(start: Nanos) -> f64 {
    (RealClock.monotonic() - start) as f64 / 1e9
}
