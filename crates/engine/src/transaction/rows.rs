//! Row locks without a transaction, for a read, a decision and a write in one step that needs no
//! snapshot.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use crate::key::key_to_key;
use crate::locks::entry::{Mode, RowRef};
use crate::locks::held::Held;
use crate::locks::owner::Owner;
use crate::locks::table::{Denied, LockTable, WaitEdge};
use crate::store::Store;
use crate::{Db, DeadlockLink, Error, Family, Key, Result};

/// An owner of row locks, which locks rows of one store with [`Db::lock_rows`] again and again, for
/// one step at a time.
#[derive(Debug)]
pub struct RowOwner {
    owner: Arc<Owner>,
    table: Arc<LockTable>,
}

/// Rows that are locked. Dropping it releases them.
///
/// Transactions, and writes that do not say
/// [`skip_row_locks`](crate::WriteOptions::skip_row_locks), wait for them, also on the thread that
/// has locked them.
#[must_use = "the rows are locked as long as it lives"]
pub struct RowLocks<'a> {
    held: Held<&'a LockTable>,
}

/// As [`RowLocks`], of [`Db::lock_rows_owned`]: it borrows nothing, may go to another thread, and
/// does not keep the store open.
#[must_use = "the rows are locked as long as it lives"]
pub struct OwnedRowLocks {
    held: Held,
}

impl fmt::Debug for RowLocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowLocks")
            .field("locks", &self.held.len())
            .finish()
    }
}

impl fmt::Debug for OwnedRowLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRowLocks")
            .field("locks", &self.held.len())
            .finish()
    }
}

impl Drop for RowLocks<'_> {
    fn drop(&mut self) {
        release(&mut self.held);
    }
}

impl Drop for OwnedRowLocks {
    fn drop(&mut self) {
        release(&mut self.held);
    }
}

fn release<T: Deref<Target = LockTable>>(held: &mut Held<T>) {
    held.release();
    // Release: pairs with the swap of `Db::take_owner`, which may be another thread's.
    held.owner().has_row_locks.store(false, Ordering::Release);
}

impl RowLocks<'_> {
    /// Whether a row is among them, itself or with its whole family.
    #[must_use]
    pub fn covers(&self, family: &Family, key: &[u8]) -> bool {
        let row = RowRef {
            family: family.id(),
            key,
        };
        self.held.is_of(family.db().store().locks()) && self.held.covers(row)
    }
}

impl OwnedRowLocks {
    /// As [`RowLocks::covers`].
    #[must_use]
    pub fn covers(&self, family: &Family, key: &[u8]) -> bool {
        let row = RowRef {
            family: family.id(),
            key,
        };
        self.held.is_of(family.db().store().locks()) && self.held.covers(row)
    }
}

impl Db {
    /// Creates an owner of row locks. Reports of deadlocks show its name.
    #[must_use]
    pub fn row_owner(&self, name: &str) -> RowOwner {
        let table = self.store().locks();
        RowOwner {
            owner: table.owner(name),
            table: Arc::clone(table),
        }
    }

    /// Locks rows exclusively, whether they exist or not. Callers that lock rows only by this never
    /// deadlock: all lock in the same order.
    ///
    /// What is then written with [`skip_row_locks`](crate::WriteOptions::skip_row_locks) is visible
    /// when the write returns, and so when the locks are released, whether it is durable or not.
    ///
    /// It costs less than a [transaction](Db::transaction): it has no snapshot, buffers no writes,
    /// and is not listed. As with the first transaction, from the first call on other writes take
    /// row locks too.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use collie_db::{Db, Options, WriteOptions};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let db = Db::open(dir.path(), Options::default())?;
    /// let counters = db.default_family();
    /// let mut owner = db.row_owner("a counter");
    /// let locked = db.lock_rows(&mut owner, [(&counters, &b"visits"[..])], Duration::from_secs(1))?;
    /// let visits = match counters.get("visits")? {
    ///     Some(stored) => std::str::from_utf8(&stored)?.parse::<u64>()?,
    ///     None => 0,
    /// };
    /// let own = WriteOptions { skip_row_locks: true, ..WriteOptions::buffered() };
    /// let end = counters.put_with("visits", (visits + 1).to_string(), &own)?;
    /// drop(locked); // Others may lock the row while this waits for the disk.
    /// db.wait(end, collie_db::Durability::Disk)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Where the owner still has locks, or is another store's.
    ///
    /// # Errors
    /// [`Error::LockTimeout`] where a row was not free within `timeout` (which is for each of
    /// them), [`Error::Deadlock`] (with transactions, and where others lock families),
    /// [`Error::TooManyLocks`], [`Error::ForeignFamily`]: nothing is locked.
    pub fn lock_rows<'k>(
        &self,
        owner: &mut RowOwner,
        rows: impl IntoIterator<Item = (&'k Family, &'k [u8])>,
        timeout: Duration,
    ) -> Result<RowLocks<'_>> {
        self.store().check_process()?;
        let mut locks = self.no_rows(owner);
        self.lock_in_order(&mut locks.held, rows, timeout)?;
        Ok(locks)
    }

    /// As [`Db::lock_rows`], for a step that one function begins and another ends: the locks borrow
    /// nothing. They exclude those of [`Db::lock_rows`], and are taken in the same order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use collie_db::{Db, Error, Options};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let db = Db::open(dir.path(), Options::default())?;
    /// let family = db.default_family();
    /// let rows = [(&family, &b"visits"[..])];
    /// let locked = db.lock_rows_owned(&mut db.row_owner("a step"), rows, Duration::ZERO)?;
    /// let refused = db.lock_rows_owned(&mut db.row_owner("another"), rows, Duration::ZERO);
    /// assert!(matches!(refused, Err(Error::LockTimeout { .. })));
    /// std::thread::spawn(move || drop(locked)).join().unwrap();
    /// drop(db.lock_rows_owned(&mut db.row_owner("another"), rows, Duration::ZERO)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Db::lock_rows`].
    ///
    /// # Panics
    /// As [`Db::lock_rows`].
    pub fn lock_rows_owned<'k>(
        &self,
        owner: &mut RowOwner,
        rows: impl IntoIterator<Item = (&'k Family, &'k [u8])>,
        timeout: Duration,
    ) -> Result<OwnedRowLocks> {
        self.store().check_process()?;
        let owner = self.take_owner(owner);
        let mut locks = OwnedRowLocks {
            held: Held::untimed(Arc::clone(self.store().locks()), owner),
        };
        self.lock_in_order(&mut locks.held, rows, timeout)?;
        Ok(locks)
    }

    fn lock_in_order<'k, T: Deref<Target = LockTable>>(
        &self,
        held: &mut Held<T>,
        rows: impl IntoIterator<Item = (&'k Family, &'k [u8])>,
        timeout: Duration,
    ) -> Result<()> {
        let mut rows: smallvec::SmallVec<[(&Family, &[u8]); 1]> = rows.into_iter().collect();
        if rows.len() > 1 {
            rows.sort_unstable_by_key(|(family, key)| (family.id(), *key));
            rows.dedup_by_key(|(family, key)| (family.id(), *key));
        }
        for (family, key) in rows {
            self.check_own(family)?;
            let row = RowRef {
                family: family.id(),
                key,
            };
            let locked = held.lock(row, Mode::Exclusive, timeout);
            locked.map_err(|denied| lock_error(self.store(), family.name(), Some(key), denied))?;
        }
        Ok(())
    }

    /// Locks families as a whole, exclusively: no other owner writes any row of them, has locked
    /// the same family, or has locked a row or a range of it to read. An owner that locks several
    /// rows at the same time, or writes a batch, may deadlock with this; the victim gets
    /// [`Error::Deadlock`] and may try again.
    ///
    /// # Errors
    /// As [`Db::lock_rows`].
    ///
    /// # Panics
    /// As [`Db::lock_rows`].
    pub fn lock_families<'k>(
        &self,
        owner: &mut RowOwner,
        families: impl IntoIterator<Item = &'k Family>,
        timeout: Duration,
    ) -> Result<RowLocks<'_>> {
        self.store().check_process()?;
        let mut families: Vec<&Family> = families.into_iter().collect();
        families.sort_unstable_by_key(|family| family.id());
        families.dedup_by_key(|family| family.id());
        let mut locks = self.no_rows(owner);
        for family in families {
            self.check_own(family)?;
            let locked = locks.held.lock_family(family.id(), timeout);
            locked.map_err(|denied| lock_error(self.store(), family.name(), None, denied))?;
        }
        Ok(locks)
    }

    fn no_rows(&self, owner: &mut RowOwner) -> RowLocks<'_> {
        let owner = self.take_owner(owner);
        RowLocks {
            held: Held::untimed(&**self.store().locks(), owner),
        }
    }

    fn take_owner(&self, RowOwner { owner, table }: &mut RowOwner) -> Arc<Owner> {
        let store = self.store();
        // The numbers of owners are unique in one table only.
        assert!(
            Arc::ptr_eq(table, store.locks()),
            "the owner of row locks is another store's"
        );
        // Acquire pairs with the store of `release`. Two sets of locks of one owner would
        // not exclude each other.
        let has_locks = owner.has_row_locks.swap(true, Ordering::Acquire);
        assert!(!has_locks, "the owner of row locks has some already");
        store.use_locks();
        Arc::clone(owner)
    }

    fn check_own(&self, family: &Family) -> Result<()> {
        if family.db().is(self) {
            return Ok(());
        }
        Err(Error::ForeignFamily {
            name: family.name().to_owned(),
        })
    }
}

impl Db {
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
                    .map_err(|denied| lock_error(store, &store.family_name(*family), None, denied))?;
                continue;
            }
            for &(family, key) in of_family {
                let row = RowRef { family, key };
                held.lock(row, Mode::Exclusive, timeout)
                    .map_err(|denied| lock_error(store, &store.family_name(family), Some(key), denied))?;
            }
        }
        Ok(held)
    }
}

/// The error for a lock that was denied, for a request in the family of that name.
pub(crate) fn lock_error(store: &Store, family: &str, key: Option<&[u8]>, denied: Denied) -> Error {
    match denied {
        Denied::Timeout { waited } => Error::LockTimeout {
            family: family.to_owned(),
            key: key.map(Key::from),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        },
        Denied::TooMany { limit } => Error::TooManyLocks { limit },
        Denied::Deadlock(ring) => Error::Deadlock {
            cycle: ring.into_iter().map(|link| deadlock_link(store, link)).collect(),
        },
    }
}

fn deadlock_link(store: &Store, link: WaitEdge) -> DeadlockLink {
    DeadlockLink {
        transaction: link.owner.id,
        name: link.owner.name.to_string(),
        family: store.family_name(link.family),
        key: link.key(),
    }
}
