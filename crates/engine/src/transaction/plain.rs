//! Beginning and listing transactions, and the row locks of writes outside of them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::bounds::key_to_key;
use crate::locks::held::Held;
use crate::locks::row::{Mode, RowRef};
use crate::transaction::{Transaction, TransactionInfo, TransactionOptions, denied};
use crate::{Db, Result};

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
        if store.check_process().is_err() {
            return Vec::new();
        }
        store.transactions().list(store.now(), |id| {
            let (family, key) = store.locks().waits_for(id)?;
            Some((store.family_name(family), key))
        })
    }

    /// Locks the rows of a write outside of transactions, in the order of all requests for several
    /// rows. Very many rows of a family are locked as one range.
    pub(crate) fn lock_for_write(&self, mut rows: SmallVec<[(u32, &[u8]); 1]>) -> Result<Held> {
        let store = self.store();
        rows.sort_unstable();
        rows.dedup();
        let mut held = Held::new(Arc::clone(store.locks()), store.locks().owner("a single write"));
        let timeout = store.options().lock_timeout;
        let most = store.locks().most_rows();
        for of_family in rows.chunk_by(|a, b| a.0 == b.0) {
            if let [(family, first), .., (_, last)] = of_family
                && of_family.len() > most
            {
                held.lock_all_between(*family, key_to_key(first, last), timeout)
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
