//! Row and range locks that many want: a writer beside readers of ranges, a small range beside many
//! rows, many ranges in one commit.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_db::{
    Db, Durability, Family, FamilyOptions, Isolation, Options, TransactionOptions, WriteOptions,
};
use collie_io::{Clock, Nanos, RealClock};
use serde::Serialize;

use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary, median};
use crate::rng::Rng;

/// Small ranges that are locked alone, and beside many rows, in one measurement.
const SMALL_RANGES: u64 = 2_000;

/// What is measured, all in one store.
#[derive(Debug, Clone)]
pub struct LocksBench {
    /// Numbers of serializable readers of the whole table, beside each of which a writer works.
    pub scanners: Vec<usize>,
    /// Rows of the table.
    pub rows: u64,
    /// Rows that are locked beside a small range.
    pub locked: u64,
    /// Small ranges that one commit locks.
    pub ranges: u64,
    /// How long a writer works beside scanners.
    pub duration: Duration,
    /// How often each is repeated, all interleaved.
    pub repeat: usize,
    /// Where the store's directory is made.
    pub dir: PathBuf,
}

/// A writer beside scanners. Medians over the repeats; of the longest the longest.
#[derive(Debug, Clone, Serialize)]
pub struct BesideScanners {
    /// How many there are.
    pub scanners: usize,
    /// Writes per second.
    pub puts_per_sec: f64,
    /// Latencies of a write.
    pub put: LatencySummary,
    /// Scans of all scanners per second.
    pub scans_per_sec: f64,
    /// Latencies of a scan, from the beginning of its transaction to its end.
    pub scan: LatencySummary,
}

/// Medians over the repeats.
#[derive(Debug, Clone, Serialize)]
pub struct LocksResult {
    /// A writer beside scanners.
    pub scanners: Vec<BesideScanners>,
    /// A transaction that reads a small range, in µs: alone, and beside rows that another has
    /// locked elsewhere.
    pub range_us: [f64; 2],
    /// How many rows those are.
    pub locked: u64,
    /// The commit of an optimistic transaction that has read many small ranges, in ms.
    pub ranges_ms: f64,
    /// How many ranges those are.
    pub ranges: u64,
}

fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

fn ms_since(begin: Nanos) -> f64 {
    RealClock.monotonic().saturating_sub(begin) as f64 / 1e6
}

fn panicked<T>(what: &str) -> Result<T, BenchError> {
    Err(BenchError::Stopped {
        cause: format!("a thread that {what} panicked"),
    })
}

impl LocksBench {
    /// How many measurements there are.
    #[must_use]
    pub fn steps(&self) -> usize {
        (self.scanners.len() + 2) * self.repeat
    }

    /// Measures; calls `begins` before each measurement.
    ///
    /// # Errors
    ///
    /// An option out of its range, and what a store reports.
    pub fn run(&self, mut begins: impl FnMut(&str)) -> Result<LocksResult, BenchError> {
        let at_least_one = [
            ("--rows", self.rows),
            ("--ranges", self.ranges),
            ("--repeat", self.repeat as u64),
        ];
        for (option, value) in at_least_one {
            if value == 0 {
                let problem = "must be at least 1".to_owned();
                return Err(BenchError::Options { option, problem });
            }
        }
        let db = Db::open(
            self.dir.join("locks"),
            Options {
                durability: Durability::Process,
                max_row_locks: usize::try_from(2 * (self.locked + self.ranges) + 10_000)
                    .unwrap_or(usize::MAX),
                ..Options::default()
            },
        )?;
        let table = db.open_family("table", FamilyOptions::default())?;
        for row in 0..self.rows {
            table.put(key(row), [1; 100])?;
        }
        let mut beside: Vec<Vec<BesideScanners>> = self.scanners.iter().map(|_| Vec::new()).collect();
        let mut ranges = Vec::new();
        let mut commits = Vec::new();
        for _ in 0..self.repeat {
            for (&scanners, runs) in self.scanners.iter().zip(&mut beside) {
                begins(&format!("a writer beside {scanners} scanners"));
                runs.push(self.beside(&db, &table, scanners)?);
            }
            begins("a small range");
            ranges.push(self.small_range(&db, &table)?);
            begins("many ranges");
            commits.push(self.many_ranges(&db, &table)?);
        }
        db.close()?;
        Ok(LocksResult {
            scanners: beside.iter().map(|runs| summary(runs)).collect(),
            range_us: [0, 1].map(|at| median(ranges.iter().map(|both: &[f64; 2]| both[at]))),
            locked: self.locked,
            ranges_ms: median(commits),
            ranges: self.ranges,
        })
    }

    /// A writer of random rows of the table beside so many readers of all of it.
    fn beside(&self, db: &Db, table: &Family, scanners: usize) -> Result<BesideScanners, BenchError> {
        let over = AtomicBool::new(false);
        let begin = RealClock.monotonic();
        let end = begin + self.duration.as_nanos() as Nanos;
        let write = || -> Result<(Latencies, u64), BenchError> {
            let (mut rng, mut latencies, mut puts) = (Rng::new(1, 0), Latencies::new()?, 0);
            let options = WriteOptions::buffered();
            loop {
                let begin = RealClock.monotonic();
                let put = table.put_with(key(rng.below(self.rows)), [2; 100], &options);
                let now = RealClock.monotonic();
                latencies.add(now.saturating_sub(begin));
                // A wait that ended for its time is as long as it is.
                match put {
                    Ok(_) => puts += 1,
                    Err(collie_db::Error::LockTimeout { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                if now >= end {
                    return Ok((latencies, puts));
                }
            }
        };
        let scan = || -> Result<Latencies, BenchError> {
            let mut latencies = Latencies::new()?;
            // Relaxed: a scan more or less does no harm.
            while !over.load(Ordering::Relaxed) {
                let begin = RealClock.monotonic();
                let tx = db.transaction(TransactionOptions {
                    lock_timeout: Duration::from_secs(60),
                    ..TransactionOptions::serializable()
                })?;
                let rows = tx.iter(table)?.count() as u64;
                if rows != self.rows {
                    return Err(BenchError::Inconsistent {
                        what: format!("a scan saw {rows} of {} rows", self.rows),
                    });
                }
                drop(tx);
                latencies.add(RealClock.monotonic().saturating_sub(begin));
            }
            Ok(latencies)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..scanners).map(|_| scope.spawn(scan)).collect();
            let written = write();
            let seconds = ms_since(begin) / 1e3;
            over.store(true, Ordering::Relaxed);
            let mut scans = Latencies::new()?;
            for thread in threads {
                scans.merge(&thread.join().unwrap_or_else(|_| panicked("scans"))?);
            }
            let (puts, count) = written?;
            Ok(BesideScanners {
                scanners,
                puts_per_sec: count as f64 / seconds,
                put: puts.summary(),
                scans_per_sec: scans.count() as f64 / seconds,
                scan: scans.summary(),
            })
        })
    }

    /// µs of a transaction that reads two rows as a range: alone, and beside locked rows.
    fn small_range(&self, db: &Db, table: &Family) -> Result<[f64; 2], BenchError> {
        let measure = || -> Result<f64, BenchError> {
            let mut rng = Rng::new(1, 0);
            let begin = RealClock.monotonic();
            for _ in 0..SMALL_RANGES {
                let tx = db.transaction(TransactionOptions::serializable())?;
                let low = rng.below(self.rows);
                tx.range(table, key(low)..key(low + 2))?.count();
                tx.commit()?;
            }
            Ok(ms_since(begin) * 1e3 / SMALL_RANGES as f64)
        };
        let alone = measure()?;
        let other = db.transaction(TransactionOptions::serializable())?;
        for row in 0..self.locked {
            // Behind the table's rows.
            other.get(table, key(self.rows + 10 + row))?;
        }
        Ok([alone, measure()?])
    }

    /// ms of the commit of a transaction that has read many ranges and writes one row.
    fn many_ranges(&self, db: &Db, table: &Family) -> Result<f64, BenchError> {
        let tx = db.transaction(TransactionOptions {
            isolation: Isolation::Serializable,
            ..TransactionOptions::optimistic()
        })?;
        for n in 0..self.ranges {
            // Beyond the table's rows, so that locks are measured and not reads.
            let low = 2 * self.rows + 4 * n;
            tx.range(table, key(low)..key(low + 2))?.count();
        }
        tx.put(table, key(0), [3; 100])?;
        let begin = RealClock.monotonic();
        tx.commit()?;
        Ok(ms_since(begin))
    }
}

fn summary(runs: &[BesideScanners]) -> BesideScanners {
    let of = |figure: fn(&BesideScanners) -> f64| median(runs.iter().map(figure));
    let latency = |figure: fn(&BesideScanners) -> LatencySummary| {
        let each: Vec<_> = runs.iter().map(figure).collect();
        LatencySummary::over(&each)
    };
    BesideScanners {
        scanners: runs.first().map_or(0, |run| run.scanners),
        puts_per_sec: of(|run| run.puts_per_sec),
        put: latency(|run| run.put),
        scans_per_sec: of(|run| run.scans_per_sec),
        scan: latency(|run| run.scan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let bench = LocksBench {
            scanners: vec![0, 2],
            rows: 200,
            locked: 1_000,
            ranges: 20,
            duration: Duration::from_millis(100),
            repeat: 2,
            dir: dir.path().into(),
        };
        let mut begun = 0;
        let result = bench.run(|_| begun += 1).unwrap();
        assert_eq!(begun, bench.steps());
        let seen: Vec<_> = result.scanners.iter().map(|beside| beside.scanners).collect();
        assert_eq!(seen, [0, 2]);
        let alone = &result.scanners[0];
        assert!(alone.scans_per_sec == 0.0 && alone.puts_per_sec > 0.0);
        assert!(result.scanners[1].scans_per_sec > 0.0 && result.scanners[1].put.max_us > 0.0);
        assert!(result.range_us[0] > 0.0 && result.range_us[1] > 0.0 && result.ranges_ms > 0.0);
        let none = LocksBench { rows: 0, ..bench };
        assert!(none.run(|_| ()).unwrap_err().to_string().starts_with("--rows"));
    }
}
