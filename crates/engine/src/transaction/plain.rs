//! The store's side of transactions: beginning and listing them, and the writes outside of them, which respect their
//! locks.

use std::sync::Arc;

use super::{Held, Mode, RowRef, Transaction, TransactionInfo, TransactionOptions};
use crate::memtable::At;
use crate::{Db, Error, Lsn, Result, WriteOptions, wal_size};

impl Db {
    /// Begins a transaction.
    ///
    /// From the first on, or the first [`Db::lock_rows`] or [`Db::lock_families`], writes outside of transactions take row locks too, for as long as it takes to apply them, and
    /// may fail for them ([`Error::LockTimeout`], [`Error::Deadlock`], [`Error::TooManyLocks`]).
    ///
    /// # Errors
    /// [`Error::Closed`], and why writes are refused, if they are.
    pub fn transaction(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(self, options)
    }

    /// The transactions that are open, from the oldest on: who holds locks, keeps memory, and is waited for.
    #[must_use]
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        let core = self.core();
        core.transactions.list(core.device.clock().monotonic(), |id| {
            let (family, key) = core.locks.waits_for(id)?;
            Some((core.family_name(family), key))
        })
    }

    /// Locks the rows of a write outside of transactions, in their order.
    pub(crate) fn lock_for_write<'k>(&self, rows: impl Iterator<Item = (u32, &'k [u8])>) -> Result<Held> {
        let core = self.core();
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable();
        rows.dedup();
        let mut held = Held::new(Arc::clone(&core.locks), core.locks.owner("a single write"));
        for (family, key) in rows {
            let row = RowRef { family, key };
            held.lock(row, Mode::Exclusive, core.options.lock_timeout)
                .map_err(|denied| core.denied(&core.family_name(family), Some(key), denied))?;
        }
        Ok(held)
    }

    /// Ends a write that holds locks: they go when it is visible.
    pub(crate) fn finish_locked(&self, at: Option<At>, options: &WriteOptions, locks: Held) -> Result<Lsn> {
        // Whoever has the locks is never asked for them.
        let at = at.ok_or(Error::Closed)?;
        wal_size::check(self.core(), at.end);
        self.core().wait_visible(at.end)?;
        drop(locks);
        self.wait_committed(at.end, options)?;
        Ok(at.end)
    }
}
