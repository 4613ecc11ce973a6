//! Transactions that are run again after a conflict.

use std::time::Duration;

use crate::transaction::options::Rerun;
use crate::transaction::{CommitMode, Ticket, Transaction, TransactionOptions};
use crate::{Db, Error, Result};

/// The longest pause before the second attempt; each further one may be twice as long.
const PAUSE: Duration = Duration::from_micros(100);
/// The longest pause of all.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

impl Db {
    /// Runs `work` in a transaction and commits it, and does both again after an error that
    /// [`Error::is_retryable`], up to [`TransactionOptions::max_attempts`] times in all. Returns what
    /// `work` returned in the attempt that was committed, when that is as durable as
    /// [`Transaction::commit`] has it.
    ///
    /// `work` must change nothing but through its transaction, for it may run several times. It
    /// returns its own errors too: these roll the transaction back, and are returned unless the
    /// transaction has met a conflict, a deadlock, or the timeout of its last request for a lock.
    /// Between attempts no lock is held and the calling thread sleeps, up to 20 ms, longer after
    /// each attempt.
    ///
    /// ```
    /// use collie_db::{Db, Error, Options, TransactionOptions};
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = Db::open(dir.path(), Options::default())?;
    /// let counters = db.default_family();
    /// let visits = db.transact(&TransactionOptions::default(), |tx| {
    ///     let visits = match tx.get_for_update(&counters, "visits")? {
    ///         Some(stored) => String::from_utf8_lossy(&stored).parse().unwrap_or(0),
    ///         None => 0,
    ///     } + 1;
    ///     tx.put(&counters, "visits", visits.to_string())?;
    ///     Ok::<u64, Error>(visits)
    /// })?;
    /// assert_eq!(visits, 1);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work`; those of [`Db::transaction`] and [`Transaction::commit`], with the meaning
    /// that they have there. After the last attempt the error that ended it.
    pub fn transact<T, E: From<Error>>(
        &self,
        options: &TransactionOptions,
        work: impl FnMut(&Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let (done, ticket) = self.transact_ticket(options, work)?;
        if options.commit_mode != CommitMode::Async {
            ticket.wait()?;
        }
        Ok(done)
    }

    /// As [`Db::transact`], and returns when the commit is visible, with a [`Ticket`] for the wait until
    /// it is as durable as the options ask. What one thread does next need not wait for that, and
    /// [`Ticket::end`] is what others can wait for.
    ///
    /// # Errors
    /// As [`Db::transact`]; those of the wait are the ticket's.
    pub fn transact_ticket<T, E: From<Error>>(
        &self,
        options: &TransactionOptions,
        mut work: impl FnMut(&Transaction) -> Result<T, E>,
    ) -> Result<(T, Ticket), E> {
        let mut attempt = 1;
        loop {
            let tx = self.transaction(options.clone())?;
            let number = tx.id();
            let (error, runs_again) = match work(&tx) {
                Ok(done) => match tx.commit_ticket() {
                    Ok(ticket) => return Ok((done, ticket)),
                    Err(error) => {
                        let runs_again = error.is_retryable();
                        (E::from(error), runs_again)
                    }
                },
                Err(error) => {
                    let runs_again = tx.inner.borrow().rerun != Rerun::No;
                    // Its locks are free during the pause.
                    tx.rollback();
                    (error, runs_again)
                }
            };
            if !runs_again || attempt >= options.max_attempts {
                return Err(error);
            }
            reach!("pauses before it runs again");
            std::thread::sleep(pause(attempt, number));
            attempt += 1;
        }
    }
}

/// Longer after each attempt, and different for each transaction: two that conflicted would conflict
/// again if they began at the same moment.
fn pause(attempt: u32, number: u64) -> Duration {
    let longest = PAUSE
        .saturating_mul(1 << (attempt - 1).min(16))
        .min(LONGEST_PAUSE);
    // Knuth's multiplicative hashing: the upper bits are as good as random here.
    let share = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    longest.mul_f64((share + 1) as f64 / 256.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::hold;
    use crate::test::interleavings::{new_store, put};

    /// A conflict and a timeout leave the transaction its locks, unlike a deadlock.
    #[test]
    fn no_lock_is_held_during_a_pause() {
        let (_dir, db) = new_store();
        let family = db.default_family();
        let again = {
            let (db, family) = (db.clone(), family.clone());
            hold("pauses before it runs again", move || {
                let mut attempts = 0;
                db.transact(&TransactionOptions::default(), |tx| {
                    attempts += 1;
                    tx.put(&family, "locked", "")?;
                    if attempts == 1 {
                        put(&family, "changed", "by another");
                    }
                    tx.put(&family, "changed", "")
                })
            })
            .at_point()
        };
        let impatient = TransactionOptions {
            lock_timeout: Duration::ZERO,
            ..TransactionOptions::default()
        };
        let other = db.transaction(impatient).unwrap();
        other.put(&family, "locked", "other").unwrap();
        drop(other);
        again.finish().unwrap();
    }

    #[test]
    fn pauses_grow_to_the_longest_and_differ_by_transaction() {
        for number in 0..1_000 {
            assert!(pause(1, number) <= PAUSE && pause(2, number) <= 2 * PAUSE);
            assert!(pause(1, number) > Duration::ZERO && pause(u32::MAX, number) <= LONGEST_PAUSE);
        }
        assert_ne!(pause(5, 1), pause(5, 2));
        assert!(pause(9, 7) > pause(3, 7));
    }
}
