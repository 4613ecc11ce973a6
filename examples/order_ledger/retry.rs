//! Runs a transaction until it commits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_db::{Db, Error, Transaction, TransactionOptions};

use crate::shop::ShopError;

/// After so many failures another attempt does not help.
const ATTEMPTS_MAX: u32 = 40;
/// The longest pause before the second attempt; each further one may be twice as long.
const PAUSE: Duration = Duration::from_micros(100);
/// The longest pause of all.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// How often something had to be run again, by cause.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    pub(crate) conflicts: AtomicU64,
    pub(crate) deadlocks: AtomicU64,
    pub(crate) timeouts: AtomicU64,
}

impl Retries {
    /// Counts an error after which the same work may well succeed; `false` for every other one.
    ///
    /// All three say that nothing was written. Errors of the store (`Poisoned`, `Background`,
    /// `Log`) are not among them on purpose: a commit that ends so may or may not have survived
    /// when the store is opened again, and doing the work a second time could do it twice. An order
    /// has a name, chosen once, with which its client can ask again.
    fn count(&self, error: &Error) -> bool {
        let counter = match error {
            Error::Conflict { .. } => &self.conflicts,
            Error::Deadlock { .. } => &self.deadlocks,
            Error::LockTimeout { .. } => &self.timeouts,
            _ => return false,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Does `work` in a transaction and commits it; from the beginning again after a conflict with
/// another transaction. What `work` returns is as durable as the commit, and may be reported.
///
/// `work` runs any number of times, so it must change nothing but through its transaction.
pub(crate) fn commit<T>(
    db: &Db,
    options: &TransactionOptions,
    retries: &Retries,
    work: impl Fn(&Transaction) -> Result<T, ShopError>,
) -> Result<T, ShopError> {
    let mut attempt = 1;
    loop {
        let tx = db.transaction(options.clone())?;
        let spread = tx.id();
        // An error drops the transaction, which rolls it back: its locks are free during the pause.
        let done = work(&tx).and_then(|result| {
            tx.commit()?;
            Ok(result)
        });
        match done {
            Err(ShopError::Db(error)) if retries.count(&error) => {
                if attempt == ATTEMPTS_MAX {
                    return Err(ShopError::GaveUp {
                        attempts: attempt,
                        last: error,
                    });
                }
                std::thread::sleep(pause(attempt, spread));
                attempt += 1;
            }
            done => return done,
        }
    }
}

/// Longer after each attempt, and different for each transaction: two that conflicted would
/// conflict again if they began at the same moment.
fn pause(attempt: u32, spread: u64) -> Duration {
    let longest = PAUSE.saturating_mul(1 << attempt.min(16)).min(PAUSE_MAX);
    // The upper bits of a product with an odd constant (Knuth's multiplicative hashing) are as good
    // as random here.
    let share = spread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    longest.mul_f64((share + 1) as f64 / 256.0)
}
