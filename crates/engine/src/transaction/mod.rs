//! Transactions: several reads and writes that happen as if alone, or not at all.
//!
//! A *pessimistic* transaction locks rows as it goes (`locks.rs`); an *optimistic* one takes the same locks at its
//! commit, for as long as that takes, and looks then whether anything that it read was changed (`reads.rs`). Its writes
//! stay with it (`writes.rs`) until they become one commit. What the isolation levels promise, and what each commit mode
//! keeps, is in `docs/transactions.md`.
//!
//! # When locks go
//!
//! A commit has its place in the order when its frame is in the log, and from then on there is no abort: either it is
//! recovered, or nothing after it is. So locks may go as soon as the commit is applied and visible, before it is durable
//! ([`CommitMode::EarlyRelease`]). Whoever gets the row next commits behind it in the log, and is durable only together
//! with it. A failure of the log is final for both. The source of the idea is Johnson et al., *Aether: A Scalable
//! Approach to Logging*, VLDB 2010.
//!
//! Not before it is applied and visible: the next holder would read what was there before.

mod commit;
mod deadlock;
mod locks;
mod options;
mod plain;
mod reads;
mod registry;
mod removals;
mod rows;
mod shard;
mod writes;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::Lsn;

use crate::batch::check_key;
use crate::iter::{Bounds, Iter, bounds, is_empty, prefix_bounds};
use crate::read_point::ReadPoint;
use crate::{Db, Error, Family, Key, Result, Snapshot, Value, read};

pub use commit::Ticket;
pub(crate) use deadlock::Link;
use locks::Held;
pub(crate) use locks::{Denied, LockTable};
pub use options::{CommitMode, Concurrency, Isolation, TransactionOptions};
pub use reads::TransactionIter;
use reads::{RangeRead, is_key_changed};
use registry::Entry;
pub(crate) use registry::Registry;
pub use registry::TransactionInfo;
pub use rows::{RowLocks, RowOwner};
use shard::{Mode, RowRef};
use writes::Writes;

/// A transaction under way. Dropping it rolls it back.
///
/// It may be handed from thread to thread and is used by one at a time. Reads see its own writes. It keeps its store
/// open.
///
/// ```
/// use collie_db::{Db, Options, TransactionOptions};
/// # let dir = tempfile::tempdir().unwrap();
/// let db = Db::open(dir.path(), Options::default())?;
/// let accounts = db.default_family();
/// accounts.put("ann", "70")?;
///
/// let transfer = db.transaction(TransactionOptions::default())?;
/// let ann: u32 = match transfer.get_for_update(&accounts, "ann")? {
///     Some(balance) => String::from_utf8_lossy(&balance).parse().unwrap_or(0),
///     None => 0,
/// };
/// transfer.put(&accounts, "ann", (ann - 20).to_string())?;
/// transfer.put(&accounts, "ben", "20")?;
/// assert_eq!(accounts.get("ben")?, None); // Nobody else sees it yet.
/// transfer.commit()?; // Visible as a whole, and durable.
/// assert_eq!(accounts.get("ann")?.unwrap(), "50");
/// # Ok::<(), collie_db::Error>(())
/// ```
pub struct Transaction {
    inner: RefCell<Inner>,
    options: TransactionOptions,
    entry: Arc<Entry>,
    /// Dropped last: it may be the store's last handle.
    db: Db,
}

struct Inner {
    /// Why nothing more can be done with it, if so.
    aborted: Option<String>,
    held: Held,
    snapshot: Option<Snapshot>,
    writes: Writes,
    /// Keys that must be unchanged at the commit of an optimistic transaction.
    read_keys: BTreeMap<(u32, Key), Family>,
    /// Ranges that were read, likewise; of other transactions those whose iterators are still there.
    read_ranges: Vec<(Family, Arc<RangeRead>)>,
    /// The newest commit that a read saw.
    seen: Lsn,
}

impl Transaction {
    pub(crate) fn begin(db: &Db, options: TransactionOptions) -> Result<Self> {
        let core = db.core();
        if let Some(refusal) = core.refusal() {
            return Err(refusal);
        }
        core.use_locks();
        let owner = core.locks.owner(&options.name);
        let visible = core.visible.boundary();
        let entry = core.transactions.enter(&owner, core.device.clock(), visible);
        let transaction = Self {
            inner: RefCell::new(Inner {
                aborted: None,
                held: Held::new(Arc::clone(&core.locks), owner),
                snapshot: None,
                writes: Writes::default(),
                read_keys: BTreeMap::new(),
                read_ranges: Vec::new(),
                seen: 0,
            }),
            options,
            entry,
            db: db.clone(),
        };
        if transaction.options.snapshot_at_begin {
            transaction.inner.borrow_mut().snapshot(db);
        }
        Ok(transaction)
    }

    /// Its number, which no other transaction of this open store has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.entry.id()
    }

    /// The value of `key`, as the transaction sees it.
    ///
    /// A pessimistic serializable transaction locks the key, shared, and may have to wait for that; all others read
    /// their snapshot.
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::FamilyTooNew`], [`Error::ForeignFamily`], [`Error::Closed`],
    /// [`Error::Table`]; [`Error::InDoubt`] where the log has failed and the key's last write may be lost (of those
    /// that read their snapshot: where it had failed when that was taken). Where it locks: [`Error::LockTimeout`],
    /// [`Error::Deadlock`], [`Error::TooManyLocks`]. [`Error::TransactionAborted`] after a deadlock.
    pub fn get(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        let inner = &mut *self.active(family)?;
        if let Some(own) = inner.writes.get(family.id(), key) {
            return Ok(own);
        }
        match (self.options.concurrency, self.options.isolation) {
            (Concurrency::Pessimistic, Isolation::Serializable) => {
                self.lock(inner, family, key, Mode::Shared)?;
                inner.latest(family, key)
            }
            (Concurrency::Optimistic, Isolation::Serializable) => {
                self.note_read(inner, family, key)?;
                inner.at_snapshot(&self.db, family, key)
            }
            (_, Isolation::Snapshot) => inner.at_snapshot(&self.db, family, key),
        }
    }

    /// The value of `key`, which nobody else can write until the transaction ends, as it means to write it.
    ///
    /// A pessimistic transaction locks the key, exclusively; an optimistic one does not commit if somebody else writes
    /// it.
    ///
    /// # Errors
    /// As [`Transaction::get`], for pessimistic transactions always as where it locks; [`Error::EmptyKey`],
    /// [`Error::KeyTooLong`]; with snapshot isolation [`Error::Conflict`] where the key was written since the snapshot.
    pub fn get_for_update(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_locked(family, key.as_ref(), Mode::Exclusive)
    }

    /// As [`Transaction::get_for_update`], but others may read it so, too (`SELECT … FOR SHARE`).
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn get_for_share(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_locked(family, key.as_ref(), Mode::Shared)
    }

    fn get_locked(&self, family: &Family, key: &[u8], mode: Mode) -> Result<Option<Value>> {
        check_key(key)?;
        let inner = &mut *self.active(family)?;
        match self.options.concurrency {
            Concurrency::Pessimistic => self.lock_current(inner, family, key, mode)?,
            Concurrency::Optimistic => self.note_read(inner, family, key)?,
        }
        if let Some(own) = inner.writes.get(family.id(), key) {
            return Ok(own);
        }
        if self.is_two_phase() {
            inner.latest(family, key)
        } else {
            inner.at_snapshot(&self.db, family, key)
        }
    }

    /// Sets `key` to `value`, for others when the transaction commits.
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`]; [`Error::BatchTooLarge`] where the transaction would pass
    /// [`TransactionOptions::max_bytes`] or the largest commit. The transaction stays as it was.
    pub fn put(&self, family: &Family, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(family, key.as_ref(), Some(value.as_ref()))
    }

    /// Removes `key`, for others when the transaction commits.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(family, key.as_ref(), None)
    }

    fn write(&self, family: &Family, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        check_key(key)?;
        let inner = &mut *self.active(family)?;
        match self.options.concurrency {
            Concurrency::Pessimistic => self.lock_current(inner, family, key, Mode::Exclusive)?,
            // From here on at the latest, others' writes of the key are conflicts.
            Concurrency::Optimistic => {
                inner.snapshot(&self.db);
            }
        }
        let limit = self.options.max_bytes.min(self.db.core().max_payload);
        inner.writes.write(family.state(), key, value, limit)?;
        self.entry.bytes.store(inner.writes.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// All keys and values of a family, as the transaction sees them.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn iter(&self, family: &Family) -> Result<TransactionIter> {
        self.range::<&[u8]>(family, ..)
    }

    /// The keys and values in `range`, as the transaction sees them now; later writes of its own do not show.
    ///
    /// A pessimistic serializable transaction locks the whole range, with the keys that are not there: nobody else can
    /// write any of them until it ends. An optimistic serializable one does not commit if somebody else wrote in the
    /// part that was read.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn range<K: AsRef<[u8]>>(
        &self,
        family: &Family,
        range: impl RangeBounds<K>,
    ) -> Result<TransactionIter> {
        self.scan(family, bounds(&range))
    }

    /// The keys that start with `prefix`, and their values; as [`Transaction::range`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn prefix(&self, family: &Family, prefix: impl AsRef<[u8]>) -> Result<TransactionIter> {
        self.scan(family, prefix_bounds(prefix.as_ref()))
    }

    fn scan(&self, family: &Family, bounds: Bounds) -> Result<TransactionIter> {
        let inner = &mut *self.active(family)?;
        let read = RangeRead::new(bounds.clone());
        if is_empty(&bounds) {
            let point = ReadPoint::at(0);
            let nothing = Iter::new(&family.state().view.load(), bounds, &point, &family.state().name)?;
            return Ok(TransactionIter::new(nothing, Vec::new(), read));
        }
        // Before a lock is taken for it.
        self.make_room_for_a_read(inner)?;
        let own = inner.writes.range(family.id(), &bounds);
        let committed = if self.is_two_phase() {
            let locked = inner
                .held
                .lock_range(family.id(), bounds.clone(), self.options.lock_timeout);
            self.locked(inner, family, None, locked)?;
            let (view, point) = family.read_at(false)?;
            Iter::new(&view, bounds, &point, &family.state().name)?
        } else {
            inner.snapshot(&self.db).scan(family, bounds)?
        };
        inner.read_ranges.push((family.clone(), Arc::clone(&read)));
        Ok(TransactionIter::new(committed, own, read))
    }

    /// Marks a place to go back to with [`Transaction::rollback_to_savepoint`]. Savepoints nest.
    pub fn set_savepoint(&self) {
        self.inner.borrow_mut().writes.set_savepoint();
    }

    /// Takes back what was written since the last savepoint, and forgets that savepoint. Locks stay: what was read
    /// under them may have been acted upon.
    ///
    /// # Errors
    /// [`Error::NoSavepoint`].
    pub fn rollback_to_savepoint(&self) -> Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        inner.writes.roll_back()?;
        self.entry.bytes.store(inner.writes.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Forgets the last savepoint, and keeps what was written since.
    ///
    /// # Errors
    /// [`Error::NoSavepoint`].
    pub fn pop_savepoint(&self) -> Result<()> {
        self.inner.borrow_mut().writes.pop_savepoint()
    }

    /// Ends the transaction as if it had never been; so does dropping it.
    pub fn rollback(self) {}

    fn is_two_phase(&self) -> bool {
        self.options.concurrency == Concurrency::Pessimistic
            && self.options.isolation == Isolation::Serializable
    }

    fn active(&self, family: &Family) -> Result<std::cell::RefMut<'_, Inner>> {
        if !family.db().is(&self.db) {
            return Err(Error::ForeignFamily {
                name: family.name().to_owned(),
            });
        }
        let inner = self.inner.borrow_mut();
        inner.check_active()?;
        family.check()?;
        Ok(inner)
    }

    /// Locks a key, and makes sure that it is as the snapshot shows it.
    fn lock_current(&self, inner: &mut Inner, family: &Family, key: &[u8], mode: Mode) -> Result<()> {
        self.lock(inner, family, key, mode)?;
        if self.options.isolation == Isolation::Snapshot {
            // Taken only now, where this is the transaction's first step: nothing can have changed since.
            let snapshot = inner.snapshot(&self.db).clone();
            if is_key_changed(&snapshot, family, key)? {
                return Err(self.conflict(family, Some(key)));
            }
        }
        Ok(())
    }

    fn lock(&self, inner: &mut Inner, family: &Family, key: &[u8], mode: Mode) -> Result<()> {
        let row = RowRef {
            family: family.id(),
            key,
        };
        let locked = inner.held.lock(row, mode, self.options.lock_timeout);
        self.locked(inner, family, Some(key), locked)
    }

    /// What a request for a lock came to. Who is the victim of a deadlock lets go of everything here.
    fn locked(
        &self,
        inner: &mut Inner,
        family: &Family,
        key: Option<&[u8]>,
        locked: std::result::Result<(), Denied>,
    ) -> Result<()> {
        self.entry.locks.store(inner.held.len(), Ordering::Relaxed);
        let Err(denied) = locked else { return Ok(()) };
        let error = self.db.core().denied(family.name(), key, denied);
        if let Error::Deadlock { .. } = error {
            inner.abort(error.to_string());
        }
        Err(error)
    }

    fn note_read(&self, inner: &mut Inner, family: &Family, key: &[u8]) -> Result<()> {
        if inner.read_keys.contains_key(&(family.id(), Key::from(key))) {
            return Ok(());
        }
        self.make_room_for_a_read(inner)?;
        inner
            .read_keys
            .insert((family.id(), Key::from(key)), family.clone());
        self.entry.locks.store(inner.read_keys.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Makes sure that another read can be noted.
    fn make_room_for_a_read(&self, inner: &mut Inner) -> Result<()> {
        let limit = self.db.core().options.max_row_locks;
        let validates = self.options.concurrency == Concurrency::Optimistic
            && self.options.isolation == Isolation::Serializable;
        if !validates {
            // All that counts of a range whose iterator is gone is what it saw.
            let seen = &mut inner.seen;
            inner.read_ranges.retain(|(_, read)| {
                *seen = (*seen).max(read.seen());
                Arc::strong_count(read) > 1
            });
        }
        if inner.read_keys.len() + inner.read_ranges.len() >= limit {
            return Err(Error::TooManyLocks { limit });
        }
        Ok(())
    }

    fn conflict(&self, family: &Family, key: Option<&[u8]>) -> Error {
        let counters = &self.db.core().transactions.counters;
        counters.conflicts.fetch_add(1, Ordering::Relaxed);
        Error::Conflict {
            family: family.name().to_owned(),
            key: key.map(Key::from),
        }
    }
}

impl Inner {
    fn check_active(&self) -> Result<()> {
        match &self.aborted {
            Some(cause) => Err(Error::TransactionAborted { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// The snapshot, taken now if this is the first that needs it.
    fn snapshot(&mut self, db: &Db) -> &Snapshot {
        self.snapshot.get_or_insert_with(|| db.snapshot())
    }

    fn at_snapshot(&mut self, db: &Db, family: &Family, key: &[u8]) -> Result<Option<Value>> {
        let read = self.snapshot(db).get_with(family, key)?;
        self.seen = self.seen.max(read.seen);
        Ok(read.value)
    }

    /// What is there now. The caller holds the key's lock.
    fn latest(&mut self, family: &Family, key: &[u8]) -> Result<Option<Value>> {
        // Where the log has failed since the read before, this is still of the same moment: what is read now has its
        // last value since then, or is refused.
        let (view, point) = family.read_at(false)?;
        let read = read::get(&view, &point, family.name(), key)?;
        self.seen = self.seen.max(read.seen);
        Ok(read.value)
    }

    /// Ends it before its time: others may have its locks.
    fn abort(&mut self, cause: String) {
        self.held.release();
        self.aborted = Some(cause);
        self.writes = Writes::default();
        self.snapshot = None;
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // The snapshot and the locks go first: whoever looks at the list after this finds the rows free.
        self.inner.get_mut().held.release();
        self.db.core().transactions.leave(&self.entry);
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("id", &self.id())
            .field("name", &self.options.name)
            .finish_non_exhaustive()
    }
}
