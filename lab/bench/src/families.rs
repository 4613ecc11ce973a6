//! What many families cost: a snapshot, a small transaction, a batch over all of them, and another
//! thread's writes beside such batches.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_db::{Batch, Db, Durability, Family, FamilyOptions, Options, TransactionOptions, WriteOptions};
use collie_io::{Clock, Nanos, RealClock};
use serde::Serialize;

use crate::error::BenchError;
use crate::latency::{Latencies, LatencySummary, median};
use crate::rng::Rng;

/// Snapshots of one measurement.
const SNAPSHOTS: u64 = 100_000;
/// Transactions of one measurement.
const TRANSACTIONS: u64 = 5_000;
/// Rows that transactions use, in all families together; one for each where families are more.
const ROWS: u64 = 1_000;
/// Bytes of a memtable: so many families have a small one each.
const WRITE_BUFFER: u64 = 1 << 20;

/// What is measured: stores with so many families each, side by side.
#[derive(Debug, Clone)]
pub struct FamiliesBench {
    /// Numbers of families, one of which is written by a batch's put in turn.
    pub families: Vec<usize>,
    /// Puts of a batch.
    pub batch: usize,
    /// How long batches are written beside another thread's puts.
    pub duration: Duration,
    /// How often each is repeated, interleaved; batches come after all that is small, so that their
    /// flushes and memtables are not measured with it.
    pub repeat: usize,
    /// Where the stores' directories are made.
    pub dir: PathBuf,
}

/// Medians over the repeats; of the longest put the longest.
#[derive(Debug, Clone, Serialize)]
pub struct FamiliesResult {
    /// How many there are.
    pub families: usize,
    /// Taking a snapshot and giving it back, in µs.
    pub snapshot_us: f64,
    /// A transaction that reads and writes one row, visible and not awaited, in µs. The rows exist,
    /// and all families together have the same number of them, however many families there are.
    pub transaction_us: f64,
    /// Puts of a batch.
    pub batch: usize,
    /// Building a batch of new rows, over all families by turns, and writing it, in ms.
    pub batch_ms: f64,
    /// Puts of another thread meanwhile, to 1,000 rows of the first family.
    pub put: LatencySummary,
}

/// A store that is measured, and its figures, one of each repeat.
struct Measured {
    db: Db,
    families: Vec<Family>,
    snapshot_us: Vec<f64>,
    transaction_us: Vec<f64>,
    batch_ms: Vec<f64>,
    put: Vec<LatencySummary>,
}

fn us_since(begin: Nanos) -> f64 {
    RealClock.monotonic().saturating_sub(begin) as f64 / 1e3
}

impl FamiliesBench {
    /// How many measurements there are.
    #[must_use]
    pub fn steps(&self) -> usize {
        2 * self.families.len() * self.repeat
    }

    /// Measures; calls `begins` with the number of families before each measurement.
    ///
    /// # Errors
    ///
    /// An option out of its range, and what a store reports.
    pub fn run(&self, mut begins: impl FnMut(usize)) -> Result<Vec<FamiliesResult>, BenchError> {
        let fewest = self.families.iter().copied().min().unwrap_or(0);
        let at_least_one = [
            ("--families", fewest),
            ("--batch", self.batch),
            ("--repeat", self.repeat),
        ];
        for (option, value) in at_least_one {
            if value == 0 {
                let problem = "must be at least 1".to_owned();
                return Err(BenchError::Options { option, problem });
            }
        }
        let mut stores: Vec<_> = self
            .families
            .iter()
            .map(|&count| self.store(count))
            .collect::<Result<_, _>>()?;
        for _ in 0..self.repeat {
            for store in &mut stores {
                begins(store.families.len());
                self.small(store)?;
            }
        }
        for _ in 0..self.repeat {
            for store in &mut stores {
                begins(store.families.len());
                let (batch_ms, put) = self.beside(&store.db, &store.families)?;
                store.batch_ms.push(batch_ms);
                store.put.push(put);
            }
        }
        Ok(stores.iter().map(|store| self.summary(store)).collect())
    }

    fn store(&self, count: usize) -> Result<Measured, BenchError> {
        let db = Db::open(
            self.dir.join(format!("{count}-families")),
            Options {
                durability: Durability::Process,
                ..Options::default()
            },
        )?;
        let options = FamilyOptions {
            write_buffer_bytes: WRITE_BUFFER,
            ..FamilyOptions::default()
        };
        let open = |n| db.open_family(&format!("{n}"), options.clone());
        let families = (0..count).map(open).collect::<Result<_, _>>()?;
        Ok(Measured {
            db,
            families,
            snapshot_us: Vec::new(),
            transaction_us: Vec::new(),
            batch_ms: Vec::new(),
            put: Vec::new(),
        })
    }

    /// Snapshots, and small transactions.
    fn small(&self, store: &mut Measured) -> Result<(), BenchError> {
        let Measured { db, families, .. } = store;
        let begin = RealClock.monotonic();
        for _ in 0..SNAPSHOTS {
            drop(std::hint::black_box(db.snapshot()));
        }
        store.snapshot_us.push(us_since(begin) / SNAPSHOTS as f64);
        // Of the run's stores each has as many rows.
        let rows = self
            .families
            .iter()
            .fold(ROWS, |most, &count| most.max(count as u64));
        let row = |n: u64| (&families[n as usize % families.len()], n.to_be_bytes());
        let mut all = Batch::new();
        for (family, key) in (0..rows).map(row) {
            all.put(family, key, [0; 20])?;
        }
        db.write(all, &WriteOptions::buffered())?;
        let options = TransactionOptions {
            durability: Some(Durability::Buffered),
            ..TransactionOptions::default()
        };
        let mut rng = Rng::new(1, 0);
        let begin = RealClock.monotonic();
        for _ in 0..TRANSACTIONS {
            let (family, key) = row(rng.below(rows));
            let tx = db.transaction(options.clone())?;
            tx.get_for_update(family, key)?;
            tx.put(family, key, [1; 20])?;
            tx.commit()?;
        }
        store.transaction_us.push(us_since(begin) / TRANSACTIONS as f64);
        Ok(())
    }

    /// Batches over all families on one thread, and puts to the first on another.
    fn beside(&self, db: &Db, families: &[Family]) -> Result<(f64, LatencySummary), BenchError> {
        let over = AtomicBool::new(false);
        let put = || -> Result<LatencySummary, BenchError> {
            let (mut latencies, mut rng) = (Latencies::new()?, Rng::new(2, 0));
            // Relaxed: a put more or less does no harm.
            while !over.load(Ordering::Relaxed) {
                let begin = RealClock.monotonic();
                let key = rng.below(1000).to_be_bytes();
                families[0].put_with(key, [1; 20], &WriteOptions::buffered())?;
                latencies.add(RealClock.monotonic().saturating_sub(begin));
            }
            Ok(latencies.summary())
        };
        let write = || -> Result<f64, BenchError> {
            let end = RealClock.monotonic() + self.duration.as_nanos() as Nanos;
            let (mut each, mut rng) = (Vec::new(), Rng::new(3, 0));
            while each.is_empty() || RealClock.monotonic() < end {
                let begin = RealClock.monotonic();
                let mut batch = Batch::new();
                for n in 0..self.batch {
                    batch.put(&families[n % families.len()], rng.next().to_be_bytes(), [1; 20])?;
                }
                db.write(batch, &WriteOptions::buffered())?;
                each.push(us_since(begin) / 1e3);
            }
            Ok(median(each))
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(put);
            let written = write();
            over.store(true, Ordering::Relaxed);
            let put = other.join().unwrap_or_else(|_| {
                Err(BenchError::Stopped {
                    cause: "the thread that writes beside batches panicked".into(),
                })
            });
            Ok((written?, put?))
        })
    }

    fn summary(&self, store: &Measured) -> FamiliesResult {
        let of = |figures: &[f64]| median(figures.iter().copied());
        FamiliesResult {
            families: store.families.len(),
            snapshot_us: of(&store.snapshot_us),
            transaction_us: of(&store.transaction_us),
            batch: self.batch,
            batch_ms: of(&store.batch_ms),
            put: LatencySummary::over(&store.put),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_measured() {
        let dir = tempfile::tempdir().unwrap();
        let bench = FamiliesBench {
            families: vec![1, 12],
            batch: 100,
            duration: Duration::from_millis(30),
            repeat: 2,
            dir: dir.path().into(),
        };
        let mut begun = Vec::new();
        let results = bench.run(|families| begun.push(families)).unwrap();
        assert_eq!(begun, [1, 12].repeat(4));
        assert_eq!(begun.len(), bench.steps());
        for (result, families) in results.iter().zip([1, 12]) {
            assert_eq!((result.families, result.batch), (families, 100));
            assert!(
                result.snapshot_us > 0.0 && result.transaction_us > 0.0,
                "{result:?}"
            );
            assert!(result.batch_ms > 0.0 && result.put.max_us > 0.0, "{result:?}");
        }
        let none = FamiliesBench {
            families: vec![0],
            ..bench
        };
        assert!(
            none.run(|_| ())
                .unwrap_err()
                .to_string()
                .starts_with("--families")
        );
    }
}
