//! Transactions: reads and writes that take effect together and in isolation, or not at all.
//!
//! A *pessimistic* transaction locks rows as it reads and writes (`locks/`); an *optimistic* one
//! takes the same locks during its commit, and checks then whether anything that it read was
//! changed (`reads.rs`). Its writes stay in memory of its own (`writes.rs`) until they become one
//! commit. `docs/book/src/transactions.md` has what the isolation levels and commit modes guarantee.
//!
//! # When locks are released
//!
//! A commit has its position in the order when its frame is in the log, and from then on it cannot
//! abort: either it is recovered, or nothing after it is. So locks may be released as soon as the
//! commit is applied and visible, before it is durable ([`CommitMode::EarlyRelease`]). The next
//! owner of a row commits behind it in the log, and is durable only together with it. A failure of
//! the log is final for both. The source of the idea is Johnson et al., *Aether: A Scalable
//! Approach to Logging*, VLDB 2010.
//!
//! They are not released before that: the next owner would read the state from before the commit.

mod commit;
mod options;
mod reads;
mod registry;
mod retry;
mod rows;
mod writes;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::Lsn;

use crate::iter::{Iter, Keys};
use crate::key::{Bounds, bounds, is_empty, prefix_bounds};
use crate::locks::entry::{Mode, RowRef};
use crate::locks::held::Held;
use crate::locks::table::Denied;
use crate::store::read_point::ReadPoint;
pub use crate::transaction::commit::Ticket;
use crate::transaction::options::Rerun;
pub use crate::transaction::options::{CommitMode, Concurrency, Isolation, TransactionOptions};
pub use crate::transaction::reads::TransactionIter;
use crate::transaction::reads::{RangeRead, is_key_changed};
use crate::transaction::registry::OpenTransaction;
pub(crate) use crate::transaction::registry::Registry;
pub use crate::transaction::registry::TransactionInfo;
pub use crate::transaction::rows::{OwnedRowLocks, RowLocks, RowOwner};
use crate::transaction::writes::Writes;
use crate::write::encoding::check_key;
use crate::{Db, Error, Family, Key, Result, Snapshot, Value, snapshot};

/// A transaction under way. Dropping it rolls it back.
///
/// It may be sent from thread to thread and is used by one at a time. Reads see its own writes. It
/// keeps its store open.
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
/// assert_eq!(accounts.get("ben")?, None); // Not visible to others yet.
/// transfer.commit()?; // Visible as a whole, and durable.
/// assert_eq!(accounts.get("ann")?.unwrap(), "50");
/// # Ok::<(), collie_db::Error>(())
/// ```
pub struct Transaction {
    inner: RefCell<TransactionState>,
    options: TransactionOptions,
    entry: Arc<OpenTransaction>,
    /// Dropped last: it may be the store's last handle.
    db: Db,
}

struct TransactionState {
    /// Why it was aborted, if it was.
    aborted: Option<String>,
    held: Held,
    snapshot: Option<Snapshot>,
    writes: Writes,
    /// Keys that must be unchanged at the commit of an optimistic transaction.
    read_keys: BTreeMap<(u32, Key), Family>,
    /// Ranges that were read, likewise; of other transactions those whose iterators live.
    read_ranges: Vec<(Family, Arc<RangeRead>)>,
    /// The newest commit that a read saw.
    seen: Lsn,
    /// For [`Db::transact`].
    rerun: Rerun,
}

impl Db {
    /// Begins a transaction.
    ///
    /// From the first on, or the first [`Db::lock_rows`] or [`Db::lock_families`], writes outside
    /// of transactions take row locks too, until they are applied, and may fail with the errors of
    /// locks ([`Error::LockTimeout`],
    /// [`Error::Deadlock`],
    /// [`Error::TooManyLocks`]).
    ///
    /// # Errors
    /// [`Error::Closed`], and the error with which writes are refused, if
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
}

impl Transaction {
    pub(crate) fn begin(db: &Db, options: TransactionOptions) -> Result<Self> {
        let store = db.store();
        if let Some(refusal) = store.refusal() {
            return Err(refusal);
        }
        store.sequencer().check_own("a transaction")?;
        store.use_locks();
        let owner = store.locks().owner(&options.name);
        let visible = store.visible_boundary();
        let entry = store
            .transactions()
            .enter(&owner, store.device().clock(), visible);
        let transaction = Self {
            inner: RefCell::new(TransactionState {
                aborted: None,
                held: Held::new(Arc::clone(store.locks()), owner),
                snapshot: None,
                writes: Writes::default(),
                read_keys: BTreeMap::new(),
                read_ranges: Vec::new(),
                seen: 0,
                rerun: Rerun::No,
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

    /// Its number, unique among the transactions of this open store.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.entry.id()
    }

    /// The value of `key`, as the transaction sees it.
    ///
    /// A pessimistic serializable transaction locks the key, shared, and may have to wait for that;
    /// all others read their snapshot.
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::FamilyTooNew`], [`Error::ForeignFamily`],
    /// [`Error::Closed`], [`Error::Table`]; [`Error::InDoubt`] where the log has failed and the
    /// key's last write may be lost (of those that read their snapshot: where it had failed when
    /// that was taken). Where it locks: [`Error::LockTimeout`], [`Error::Deadlock`],
    /// [`Error::TooManyLocks`]. [`Error::TransactionAborted`] after a deadlock.
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

    /// Whether there is a value for `key`; as [`Transaction::get`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(family, key)?.is_some())
    }

    /// The values of `keys`, in their order; as [`Transaction::get`] of each, from the smallest key on.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        family: &Family,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        snapshot::multi_get(keys, |key| self.get(family, key))
    }

    /// The value of `key`, for a later write: no other transaction can write the key until this one
    /// ends.
    ///
    /// A pessimistic transaction locks the key, exclusively; the commit of an optimistic one fails
    /// if another commit has written it.
    ///
    /// # Errors
    /// As [`Transaction::get`], for pessimistic transactions always as where it locks;
    /// [`Error::EmptyKey`], [`Error::KeyTooLong`]; with snapshot isolation [`Error::Conflict`]
    /// where the key was written since the snapshot.
    pub fn get_for_update(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_locked(family, key.as_ref(), Mode::Exclusive)
    }

    /// As [`Transaction::get_for_update`], but other transactions may lock the key in the same way
    /// (`SELECT … FOR SHARE`).
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

    /// Sets `key` to `value`. Others see it when the transaction commits.
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`]; [`Error::BatchTooLarge`] where the transaction would
    /// pass [`TransactionOptions::max_bytes`] or the largest commit. The transaction stays as it
    /// was.
    pub fn put(&self, family: &Family, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(family, key.as_ref(), Some(value.as_ref()))
    }

    /// Removes `key`. Others see it when the transaction commits.
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
            // Other commits that write the key from here on are conflicts.
            Concurrency::Optimistic => {
                inner.snapshot(&self.db);
            }
        }
        let store_limit = usize::try_from(self.db.store().max_commit_bytes()).unwrap_or(usize::MAX);
        let limit = self.options.max_bytes.min(store_limit);
        inner.writes.write(family.state(), key, value, limit)?;
        self.entry.bytes.store(inner.writes.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// The first key, and its value, as the transaction sees them; as [`Transaction::range`] of the
    /// keys up to that one.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn first(&self, family: &Family) -> Result<Option<(Key, Value)>> {
        self.iter(family)?.next().transpose()
    }

    /// The last key, and its value; as [`Transaction::first`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn last(&self, family: &Family) -> Result<Option<(Key, Value)>> {
        self.iter(family)?.next_back().transpose()
    }

    /// Whether the family has no key, as the transaction sees it; as [`Transaction::first`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn is_empty(&self, family: &Family) -> Result<bool> {
        Ok(self.first(family)?.is_none())
    }

    /// The number of keys, as the transaction sees them. Reads the whole family, as
    /// [`Transaction::iter`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn len(&self, family: &Family) -> Result<u64> {
        self.keys(family)?
            .try_fold(0, |count, key| key.map(|_| count + 1))
    }

    /// All keys of a family, in order; as [`Transaction::iter`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn keys(&self, family: &Family) -> Result<Keys<TransactionIter>> {
        Ok(Keys::new(self.iter(family)?))
    }

    /// All keys and values of a family, as the transaction sees them.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn iter(&self, family: &Family) -> Result<TransactionIter> {
        self.range::<&[u8]>(family, ..)
    }

    /// The keys and values in `range`, as the transaction sees them now, without its later writes.
    ///
    /// A pessimistic serializable transaction locks the whole range, absent keys included: no other
    /// transaction can write any of them until it ends. The commit of an optimistic serializable
    /// one fails if another commit wrote in the part that was read.
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
            let nothing = Iter::new(&family.state().view(), bounds, &point, family.state())?;
            return Ok(TransactionIter::new(nothing, Vec::new(), read));
        }
        // Before the lock is taken, so that a refused read leaves none.
        self.make_room_for_a_read(inner)?;
        let own = inner.writes.range(family.id(), &bounds);
        let committed = if self.is_two_phase() {
            let locked = inner
                .held
                .lock_range(family.id(), bounds.clone(), self.options.lock_timeout);
            self.locked(inner, family, None, locked)?;
            let (view, point) = family.read_at(false)?;
            Iter::new(&view, bounds, &point, family.state())?
        } else {
            inner.snapshot(&self.db).scan(family, bounds)?
        };
        inner.read_ranges.push((family.clone(), Arc::clone(&read)));
        Ok(TransactionIter::new(committed, own, read))
    }

    /// Sets a savepoint for [`Transaction::rollback_to_savepoint`]. Savepoints nest.
    pub fn set_savepoint(&self) {
        self.inner.borrow_mut().writes.set_savepoint();
    }

    /// Undoes what was written since the last savepoint, and removes that savepoint. Locks are
    /// kept: the caller may have relied on what was read under them.
    ///
    /// # Errors
    /// [`Error::NoSavepoint`].
    pub fn rollback_to_savepoint(&self) -> Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        inner.writes.roll_back()?;
        self.entry.bytes.store(inner.writes.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Removes the last savepoint, and keeps what was written since.
    ///
    /// # Errors
    /// [`Error::NoSavepoint`].
    pub fn pop_savepoint(&self) -> Result<()> {
        self.inner.borrow_mut().writes.pop_savepoint()
    }

    /// Ends the transaction and discards its writes; so does dropping it.
    pub fn rollback(self) {}

    fn is_two_phase(&self) -> bool {
        self.options.concurrency == Concurrency::Pessimistic
            && self.options.isolation == Isolation::Serializable
    }

    fn active(&self, family: &Family) -> Result<std::cell::RefMut<'_, TransactionState>> {
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

    /// Locks a key, and with snapshot isolation checks that it is unchanged since the snapshot.
    fn lock_current(
        &self,
        inner: &mut TransactionState,
        family: &Family,
        key: &[u8],
        mode: Mode,
    ) -> Result<()> {
        self.lock(inner, family, key, mode)?;
        if self.options.isolation == Isolation::Snapshot {
            // Where this is the transaction's first step, the snapshot is taken only now, and
            // nothing can have changed since.
            let snapshot = inner.snapshot(&self.db).clone();
            if is_key_changed(&snapshot, family, key)? {
                return Err(self.conflict(inner, family, Some(key)));
            }
        }
        Ok(())
    }

    fn lock(&self, inner: &mut TransactionState, family: &Family, key: &[u8], mode: Mode) -> Result<()> {
        let row = RowRef {
            family: family.id(),
            key,
        };
        let locked = inner.held.lock_or_merge(row, mode, self.options.lock_timeout);
        self.locked(inner, family, Some(key), locked)
    }

    /// Handles the result of a request for a lock. The victim of a deadlock is aborted here, which
    /// releases all its locks.
    fn locked(
        &self,
        inner: &mut TransactionState,
        family: &Family,
        key: Option<&[u8]>,
        locked: std::result::Result<(), Denied>,
    ) -> Result<()> {
        self.entry.locks.store(inner.held.len(), Ordering::Relaxed);
        let error = match locked {
            Ok(()) => {
                if inner.rerun == Rerun::AfterTimeout {
                    inner.rerun = Rerun::No;
                }
                return Ok(());
            }
            Err(denied) => rows::lock_error(self.db.store(), family.name(), key, denied),
        };
        match error {
            Error::Deadlock { .. } => {
                inner.abort(error.to_string());
                inner.rerun = Rerun::Needed;
            }
            Error::LockTimeout { .. } if inner.rerun == Rerun::No => inner.rerun = Rerun::AfterTimeout,
            _ => {}
        }
        Err(error)
    }

    fn note_read(&self, inner: &mut TransactionState, family: &Family, key: &[u8]) -> Result<()> {
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

    /// Fails where no other read can be noted.
    fn make_room_for_a_read(&self, inner: &mut TransactionState) -> Result<()> {
        let limit = self.db.store().options().max_row_locks;
        let validates = self.options.concurrency == Concurrency::Optimistic
            && self.options.isolation == Isolation::Serializable;
        if !validates {
            // Of a range whose iterator is dropped only the newest commit that it saw is needed.
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

    fn conflict(&self, inner: &mut TransactionState, family: &Family, key: Option<&[u8]>) -> Error {
        inner.rerun = Rerun::Needed;
        let counters = &self.db.store().transactions().counters;
        counters.conflicts.fetch_add(1, Ordering::Relaxed);
        Error::Conflict {
            family: family.name().to_owned(),
            key: key.map(Key::from),
        }
    }
}

impl TransactionState {
    fn check_active(&self) -> Result<()> {
        match &self.aborted {
            Some(cause) => Err(Error::TransactionAborted { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// The snapshot; the first call takes it.
    fn snapshot(&mut self, db: &Db) -> &Snapshot {
        self.snapshot.get_or_insert_with(|| db.snapshot())
    }

    fn at_snapshot(&mut self, db: &Db, family: &Family, key: &[u8]) -> Result<Option<Value>> {
        let read = self.snapshot(db).get_with(family, key)?;
        self.seen = self.seen.max(read.seen);
        Ok(read.value)
    }

    /// The key's current value. The caller holds the key's lock.
    fn latest(&mut self, family: &Family, key: &[u8]) -> Result<Option<Value>> {
        // Where the log has failed since an earlier read, both still agree: this returns a value
        // that is certain, or fails.
        let (view, point) = family.read_at(false)?;
        let read = snapshot::get(&view, &point, family.name(), key)?;
        self.seen = self.seen.max(read.seen);
        Ok(read.value)
    }

    /// Aborts it: releases its locks and discards its writes.
    fn abort(&mut self, cause: String) {
        self.held.release();
        self.aborted = Some(cause);
        self.writes = Writes::default();
        self.snapshot = None;
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.db.store().check_process().is_err() {
            return;
        }
        // The locks first: when the transaction is not listed any more, its rows are free.
        self.inner.get_mut().held.release();
        self.db.store().transactions().leave(&self.entry);
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
