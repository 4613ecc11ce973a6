//! `bench commit`: each transaction reads one row for update, adds one, writes it back and commits.
//! The row is one of a few hot ones that all threads share, or one of the thread's own. In the end
//! the rows must add up to the commits.

use collie_db::{Db, Family, Isolation, Transaction, TransactionOptions};
use serde::Serialize;

use super::{CommitKind, Load, TransactionResult, TransactionRun, percentage};
use crate::error::BenchError;
use crate::rng::Rng;

/// Rows of a thread's own.
const OWN_ROWS: u64 = 1_000;

/// What to measure.
#[derive(Debug, Clone)]
pub struct CommitBench {
    /// Rows that all threads share.
    pub hot_keys: u64,
    /// Transactions out of a hundred that take one of them; the others take a row of their thread's
    /// own.
    pub hot_share: u64,
    /// How it is run.
    pub run: TransactionRun,
}

/// One kind of commit: medians over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CommitResult {
    /// Rows that all shared.
    pub hot_keys: u64,
    /// Transactions out of a hundred that took one of them.
    pub hot_share: u64,
    /// How it went.
    #[serde(flatten)]
    pub figures: TransactionResult,
}

impl CommitBench {
    /// Measures; `begins` is called before each measurement.
    ///
    /// # Errors
    /// Options out of range, the store's errors, and commits that are not there in the end.
    pub fn run(&self, begins: impl FnMut(CommitKind)) -> Result<Vec<CommitResult>, BenchError> {
        percentage("hot-share", self.hot_share)?;
        if self.hot_keys == 0 && self.hot_share > 0 {
            return Err(BenchError::Options {
                option: "hot-keys",
                problem: "0, and a share of the transactions is to take one; set --hot-share 0".into(),
            });
        }
        let results = self.run.measure(self, begins)?;
        let result = |figures| CommitResult {
            hot_keys: self.hot_keys,
            hot_share: self.hot_share,
            figures,
        };
        Ok(results.into_iter().map(result).collect())
    }
}

impl Load for CommitBench {
    type Store = Family;
    type Plan = [u8; 16];

    fn prepare(&self, db: &Db) -> Result<Family, BenchError> {
        Ok(db.default_family())
    }

    fn options(&self) -> TransactionOptions {
        TransactionOptions {
            isolation: Isolation::Serializable,
            ..TransactionOptions::default()
        }
    }

    fn plan(&self, rng: &mut Rng, thread: u64) -> [u8; 16] {
        let (owner, row) = if rng.below(100) < self.hot_share {
            (0, rng.below(self.hot_keys))
        } else {
            (1 + thread, rng.below(OWN_ROWS))
        };
        (u128::from(owner) << 64 | u128::from(row)).to_be_bytes()
    }

    fn attempt(&self, rows: &Family, tx: &Transaction, row: &[u8; 16]) -> Result<bool, BenchError> {
        let before = tx.get_for_update(rows, row)?;
        let count = before.map_or(0, |value| number(&value)) + 1;
        tx.put(rows, row, count.to_le_bytes())?;
        Ok(true)
    }

    /// Every commit added one to a row.
    fn check(&self, rows: &Family, written: u64) -> Result<(), BenchError> {
        let mut sum = 0;
        for row in rows.iter()? {
            sum += number(&row?.1);
        }
        if sum != written {
            return Err(BenchError::Inconsistent {
                what: format!("{written} transactions each added one, and the rows add up to {sum}"),
            });
        }
        Ok(())
    }
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}
