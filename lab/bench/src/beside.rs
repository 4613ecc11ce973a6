//! Durable writes beside a family that is flushed and merged all the while.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_db::{Db, Family, FamilyOptions, IoPolicy, Options, WriteOptions};
use collie_io::{Clock, Nanos, RealClock};
use serde::Serialize;

use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary, median};
use crate::rng::Rng;

/// A value of the family that is filled, in bytes.
const VALUE: usize = 1000;
/// Writes between two looks at the clock.
const BURST: u64 = 100;
/// How long a thread waits after a durable write.
const PAUSE: Duration = Duration::from_micros(500);

/// What is measured: each policy in a store of its own, in turn.
#[derive(Debug, Clone)]
pub struct BesideBench {
    /// How the background work of a store shares the device.
    pub policies: Vec<IoPolicy>,
    /// Threads that make durable writes.
    pub threads: usize,
    /// What is written to the other family, without the log, in bytes per second; `None`: as much
    /// as there is time for.
    pub fill: Option<u64>,
    /// Its keys.
    pub keys: u64,
    /// Its memtables, in bytes.
    pub write_buffer: u64,
    /// Whether another thread compacts it all the while.
    pub compact: bool,
    /// How long one measurement takes.
    pub duration: Duration,
    /// How often each is repeated, all interleaved.
    pub repeat: usize,
    /// Where the stores' directories are made.
    pub dir: PathBuf,
}

/// Medians over the repeats; of the longest latencies the longest.
#[derive(Debug, Clone, Serialize)]
pub struct BesideResult {
    /// The policy: none, fair, classes.
    pub policy: &'static str,
    /// Durable writes of all threads while nothing else is written.
    pub alone: LatencySummary,
    /// And beside the family that is filled.
    pub beside: LatencySummary,
    /// Durable writes per second then.
    pub puts_per_sec: f64,
    /// Bytes per second that the family took.
    pub fill_per_sec: f64,
    /// How long writes to it were stopped, of all the time, in per cent.
    pub stopped_percent: f64,
    /// Compactions in all repeats.
    pub compactions: u64,
}

/// One run.
struct Run {
    alone: LatencySummary,
    beside: LatencySummary,
    puts_per_sec: f64,
    fill_per_sec: f64,
    stopped_percent: f64,
    compactions: u64,
}

fn name(policy: IoPolicy) -> &'static str {
    match policy {
        IoPolicy::None => "none",
        IoPolicy::Fair => "fair",
        IoPolicy::Classes => "classes",
    }
}

impl BesideBench {
    /// How many runs there are.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.policies.len() * self.repeat
    }

    /// Measures; calls `begins` with a policy's name before each run. Takes a third of the duration
    /// more for each.
    ///
    /// # Errors
    ///
    /// An option out of its range, and what a store reports.
    pub fn run(&self, mut begins: impl FnMut(&'static str)) -> Result<Vec<BesideResult>, BenchError> {
        let at_least_one = [
            ("--threads", self.threads as u64),
            ("--repeat", self.repeat as u64),
            ("--policy", self.policies.len() as u64),
            ("--keys", self.keys),
            ("--fill", self.fill.unwrap_or(1)),
        ];
        for (option, value) in at_least_one {
            if value == 0 {
                let problem = "must be at least 1".to_owned();
                return Err(BenchError::Options { option, problem });
            }
        }
        let mut runs: Vec<Vec<Run>> = self.policies.iter().map(|_| Vec::new()).collect();
        for repeat in 0..self.repeat {
            for (&policy, runs) in self.policies.iter().zip(&mut runs) {
                begins(name(policy));
                runs.push(self.once(policy, repeat)?);
            }
        }
        let results = self.policies.iter().zip(&runs);
        Ok(results.map(|(&policy, runs)| summary(policy, runs)).collect())
    }

    fn once(&self, policy: IoPolicy, repeat: usize) -> Result<Run, BenchError> {
        let dir = self.dir.join(format!("{}-{repeat}", name(policy)));
        let options = Options {
            background_io: policy,
            ..Options::default()
        };
        let db = Db::open(&dir, options)?;
        let filled = db.open_family(
            "filled",
            FamilyOptions {
                write_buffer_bytes: self.write_buffer,
                ..FamilyOptions::default()
            },
        )?;
        let (alone, _) = self.puts(&db, self.duration / 3)?;
        let (over, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        let begin = RealClock.monotonic();
        let (beside, seconds, fill) = std::thread::scope(|scope| {
            let fill = scope.spawn(|| self.fill(&filled, &over, &bytes));
            let compact = self.compact.then(|| scope.spawn(|| compact(&filled, &over)));
            // It has begun, so that no run counts as beside it that is not.
            while bytes.load(Ordering::Relaxed) == 0 && !fill.is_finished() {
                std::thread::yield_now();
            }
            let beside = self.puts(&db, self.duration);
            // Relaxed, here and where they are read: some writes more or less do no harm.
            let bytes = bytes.load(Ordering::Relaxed);
            let took = Duration::from_nanos(RealClock.monotonic().saturating_sub(begin));
            over.store(true, Ordering::Relaxed);
            let panicked = |_| {
                Err(BenchError::Stopped {
                    cause: "a thread that fills or compacts a family panicked".into(),
                })
            };
            let filled = fill.join().unwrap_or_else(panicked);
            let compacted = compact.map_or(Ok(()), |compact| compact.join().unwrap_or_else(panicked));
            (beside, took.as_secs_f64(), filled.and(compacted).map(|()| bytes))
        });
        let (beside, puts) = beside?;
        let stats = db.stats();
        let stats = stats.families.get("filled");
        let (compactions, stop_ns) = stats.map_or((0, 0), |f| (f.compactions, f.stop_ns));
        db.close()?;
        Ok(Run {
            alone,
            beside,
            puts_per_sec: puts as f64 / seconds,
            fill_per_sec: fill? as f64 / seconds,
            stopped_percent: stop_ns as f64 / 1e7 / seconds,
            compactions,
        })
    }

    /// Durable writes by all threads, at least one by each; gives their latencies, and how many there
    /// were.
    fn puts(&self, db: &Db, duration: Duration) -> Result<(LatencySummary, u64), BenchError> {
        let end = RealClock.monotonic() + duration.as_nanos() as Nanos;
        let one = |thread: usize| -> Result<(Latencies, u64), BenchError> {
            let mut latencies = Latencies::new()?;
            let mut puts = 0;
            loop {
                let begin = RealClock.monotonic();
                db.put(format!("{thread}/{}", puts % 10_000), [1; 100])?;
                let now = RealClock.monotonic();
                latencies.add(now.saturating_sub(begin));
                puts += 1;
                if now >= end {
                    return Ok((latencies, puts));
                }
                std::thread::sleep(PAUSE);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| scope.spawn(move || one(thread)))
                .collect();
            let (mut all, mut puts) = (Latencies::new()?, 0);
            for thread in threads {
                let done = thread.join().unwrap_or_else(|_| {
                    Err(BenchError::Stopped {
                        cause: "a thread that writes panicked".into(),
                    })
                });
                let (latencies, count) = done?;
                all.merge(&latencies);
                puts += count;
            }
            Ok((all.summary(), puts))
        })
    }

    /// Writes random values under random keys until it is over.
    fn fill(&self, family: &Family, over: &AtomicBool, bytes: &AtomicU64) -> Result<(), BenchError> {
        let mut rng = Rng::new(1, 0);
        let mut value = [0; VALUE];
        let begin = RealClock.monotonic();
        while !over.load(Ordering::Relaxed) {
            for _ in 0..BURST {
                for word in value.chunks_exact_mut(8) {
                    word.copy_from_slice(&rng.next().to_le_bytes());
                }
                let key = rng.below(self.keys).to_be_bytes();
                family.put_with(key, value, &WriteOptions::without_wal())?;
            }
            let written = bytes.fetch_add(BURST * VALUE as u64, Ordering::Relaxed) + BURST * VALUE as u64;
            if let Some(rate) = self.fill {
                let due = Duration::from_secs_f64(written as f64 / rate as f64);
                let passed = Duration::from_nanos(RealClock.monotonic().saturating_sub(begin));
                std::thread::sleep(due.saturating_sub(passed));
            }
        }
        Ok(())
    }
}

/// Merges all of it, again and again until it is over.
fn compact(family: &Family, over: &AtomicBool) -> Result<(), BenchError> {
    while !over.load(Ordering::Relaxed) {
        family.compact()?;
    }
    Ok(())
}

fn summary(policy: IoPolicy, runs: &[Run]) -> BesideResult {
    let of = |figure: fn(&Run) -> f64| median(runs.iter().map(figure));
    let latency = |figure: fn(&Run) -> LatencySummary| {
        let each: Vec<_> = runs.iter().map(figure).collect();
        LatencySummary::over(&each)
    };
    BesideResult {
        policy: name(policy),
        alone: latency(|run| run.alone),
        beside: latency(|run| run.beside),
        puts_per_sec: of(|run| run.puts_per_sec),
        fill_per_sec: of(|run| run.fill_per_sec),
        stopped_percent: of(|run| run.stopped_percent),
        compactions: runs.iter().map(|run| run.compactions).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_policies_are_measured_and_a_rate_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let bench = BesideBench {
            policies: vec![IoPolicy::None, IoPolicy::Fair, IoPolicy::Classes],
            threads: 2,
            fill: Some(2_000_000),
            keys: 10_000,
            write_buffer: 1 << 20,
            compact: true,
            duration: Duration::from_millis(600),
            repeat: 1,
            dir: dir.path().into(),
        };
        let mut begun = Vec::new();
        let results = bench.run(|policy| begun.push(policy)).unwrap();
        assert_eq!(begun, ["none", "fair", "classes"]);
        assert_eq!(begun.len(), bench.steps());
        for result in results {
            assert!(
                result.puts_per_sec > 0.0 && result.alone.p50_us > 0.0,
                "{result:?}"
            );
            assert!(result.compactions > 0, "{result:?}");
            // The rate, and a burst that is written before its time; a second one is for rounding.
            let most = 2_000_000.0 + 2.0 * (BURST as usize * VALUE) as f64 / 0.6;
            assert!((1.0..=most).contains(&result.fill_per_sec), "{result:?}");
        }
        let none = BesideBench { threads: 0, ..bench };
        assert!(none.run(|_| ()).unwrap_err().to_string().starts_with("--threads"));
    }
}
