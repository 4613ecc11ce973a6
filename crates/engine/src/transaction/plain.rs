//! Beginning and listing transactions, and the row locks of writes outside of them.

use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Transaction, TransactionInfo, TransactionOptions, denied};
use crate::locks::held::Held;
use crate::locks::row::{Mode, RowRef};
use crate::{Db, Key, Result};

/// Of the lock table so large a part is taken by the rows of one family in one write, at most.
const AS_ROWS: usize = 8;

impl Db {
    /// Begins a transaction.
    ///
    /// From the first on, or the first [`Db::lock_rows`] or [`Db::lock_families`], writes outside
    /// of transactions take row locks too, until they are applied, and may fail with the errors of
    /// locks ([`Error::LockTimeout`](crate::Error::LockTimeout),
    /// [`Error::Deadlock`](crate::Error::Deadlock),
    /// [`Error::TooManyLocks`](crate::Error::TooManyLocks)).
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed), and the error with which writes are refused, if
    /// they are.
    pub fn transaction(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(self, options)
    }

    /// The open transactions, from the oldest on, with the locks and the memory that they hold.
    #[must_use]
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        let store = self.store();
        store.transactions().list(store.now(), |id| {
            let (family, key) = store.locks().waits_for(id)?;
            Some((store.family_name(family), key))
        })
    }

    /// Locks the rows of a write outside of transactions, in the order of all requests for several
    /// rows. So many rows of a family that they would take a large part of the lock table are locked
    /// as one range: else a large commit would fail, and the writes of others beside it.
    pub(crate) fn lock_for_write(&self, mut rows: SmallVec<[(u32, &[u8]); 1]>) -> Result<Held> {
        let store = self.store();
        rows.sort_unstable();
        rows.dedup();
        let mut held = Held::new(Arc::clone(store.locks()), store.locks().owner("a single write"));
        let timeout = store.options().lock_timeout;
        let most = (store.options().max_row_locks / AS_ROWS).max(1);
        for of_family in rows.chunk_by(|a, b| a.0 == b.0) {
            if let [(family, first), .., (_, last)] = of_family
                && of_family.len() > most
            {
                let bounds = (
                    Bound::Included(Key::from(*first)),
                    Bound::Included(Key::from(*last)),
                );
                held.lock_all_between(*family, bounds, timeout)
                    .map_err(|denied| denied::error(store, &store.family_name(*family), None, denied))?;
                continue;
            }
            for &(family, key) in of_family {
                let row = RowRef { family, key };
                held.lock(row, Mode::Exclusive, timeout)
                    .map_err(|denied| denied::error(store, &store.family_name(family), Some(key), denied))?;
            }
        }
        Ok(held)
    }
}
