//! The handle of a family.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, RealClock};

use crate::background::{compaction, flush};
use crate::batch::Commit;
use crate::catalog;
use crate::events::FlushCause;
use crate::iter::{Iter, Keys};
use crate::key::{Bounds, bounds, is_empty, prefix_bounds};
use crate::memtable::Write;
use crate::snapshot::{self, Read};
use crate::store::family::FamilyState;
use crate::store::read_point::ReadPoint;
use crate::store::view::View;
use crate::write::encoding::Op;
use crate::{
    Db, Error, FamilyOptions, Key, Lsn, ReadOptions, Result, TransactionOptions, Value, WriteOptions,
};

/// A family of keys (RocksDB: a column family; fjall: a keyspace), with options and tables of its
/// own.
///
/// Cheap to clone; may be used from any thread. It keeps its store open.
#[derive(Clone)]
pub struct Family {
    db: Db,
    state: Arc<FamilyState>,
}

impl Family {
    pub(crate) fn new(db: Db, state: Arc<FamilyState>) -> Self {
        Self { db, state }
    }

    pub(crate) fn state(&self) -> &Arc<FamilyState> {
        &self.state
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.state.name()
    }

    /// Its id. No other family of the store ever had it or will have it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.state.id()
    }

    /// Its options: those that it was created or opened with, or that were
    /// [set](Family::set_options) since.
    #[must_use]
    pub fn options(&self) -> FamilyOptions {
        FamilyOptions::clone(&self.state.options())
    }

    /// Sets its options, while it is used. (RocksDB: `SetOptions`.)
    ///
    /// The sizes and numbers of memtables and of level 0 are in force when this returns, and writes
    /// that they had stopped go on. `block_bytes`, `bloom_bits`, `compression` and `table_bytes` are
    /// of new tables from the next opening on. All are kept with the family, durably; but those of
    /// the family `default` are [`Options::default_family`](crate::Options::default_family) at every
    /// opening. Of two threads that set them at once one is the last. Blocks on the device.
    ///
    /// ```
    /// # fn main() -> collie_db::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = collie_db::Db::open(dir.path().join("store"), collie_db::Options::default())?;
    /// let events = db.open_family("events", collie_db::FamilyOptions::default())?;
    /// events.set_options(collie_db::FamilyOptions {
    ///     write_buffer_bytes: 256 << 20,
    ///     ..events.options()
    /// })?;
    /// assert_eq!(events.options().write_buffer_bytes, 256 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::StorageFull`], and then nothing has changed;
    /// [`Error::FamilyDropped`], [`Error::Closed`], and what the store refuses writes for.
    pub fn set_options(&self, options: FamilyOptions) -> Result<()> {
        self.db.store().check_process()?;
        catalog::set_options(self.db.store(), &self.state, options)
    }

    /// The store that it belongs to.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        Ok(self.get_with(key, &ReadOptions::default())?.value)
    }

    /// Whether there is a value for `key`.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// The values of `keys`, in their order, all as of one moment. (RocksDB: `MultiGet`.)
    ///
    /// ```
    /// # fn main() -> collie_db::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = collie_db::Db::open(dir.path().join("store"), collie_db::Options::default())?;
    /// db.put("anna", "1")?;
    /// db.put("carla", "3")?;
    /// let found = db.multi_get(["carla", "berta", "anna"])?;
    /// assert_eq!(found, [Some("3".into()), None, Some("1".into())]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        let (view, point) = self.read_at(false)?;
        snapshot::multi_get(keys, |key| {
            Ok(snapshot::get(&view, &point, self.name(), key)?.value)
        })
    }

    /// The first key, and its value.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn first(&self) -> Result<Option<(Key, Value)>> {
        self.iter()?.next().transpose()
    }

    /// The last key, and its value.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn last(&self) -> Result<Option<(Key, Value)>> {
        self.iter()?.next_back().transpose()
    }

    /// Whether it has no key.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.first()?.is_none())
    }

    /// The number of keys. Reads the whole family: takes as long as walking over it;
    /// [`Family::approximate_len`] takes next to nothing.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn len(&self) -> Result<u64> {
        self.keys()?.try_fold(0, |count, key| key.map(|_| count + 1))
    }

    /// The number of keys by what tables and memtables say of themselves: right where each key was
    /// written once, and otherwise off by what was written over and not merged yet. Reads nothing.
    /// (RocksDB: `rocksdb.estimate-num-keys`.)
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::Closed`], [`Error::Forked`].
    pub fn approximate_len(&self) -> Result<u64> {
        self.db.store().check_process()?;
        self.check()?;
        Ok(self.state.approximate_len())
    }

    /// About how many bytes the keys of `range`, and their values, take in table files, compressed as
    /// they are there. A table that lies in the range in part counts half; what is in memtables does
    /// not count. Reads nothing. (RocksDB: `GetApproximateSizes`.)
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::Closed`], [`Error::Forked`].
    pub fn approximate_size<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let (view, _) = self.read_at(false)?;
        view.tables.check_process()?;
        let bounds = bounds(&range);
        Ok(if is_empty(&bounds) {
            0
        } else {
            view.tables.size(&bounds)
        })
    }

    /// All keys, in order.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn keys(&self) -> Result<Keys> {
        Ok(Keys::new(self.iter()?))
    }

    /// The value of `key`, and the commit that it comes from.
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::Closed`]; [`Error::Table`] where a table cannot be read;
    /// [`Error::InDoubt`] where the log has failed and the key's last write may be lost.
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Read<Option<Value>>> {
        let (view, point) = self.read_at(options.durable)?;
        snapshot::get(&view, &point, self.name(), key.as_ref())
    }

    /// Fails where any write to the family is in doubt. For callers that keep figures about its
    /// content.
    ///
    /// # Errors
    /// [`Error::InDoubt`] where the log has failed, and the last write of some key may be lost.
    /// [`Error::FamilyDropped`], [`Error::Closed`].
    pub fn check_certain(&self) -> Result<()> {
        let (view, point) = self.read_at(false)?;
        point.check_all(self.name(), &view)
    }

    /// Sets `key` to `value` and waits for the store's default durability. Returns the commit's
    /// end.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Lsn> {
        self.put_with(key, value, &self.db.default_write())
    }

    /// Sets `key` to `value`. On return the write is visible to every read that begins later, and
    /// as durable as the options ask. Returns the commit's end, for [`Db::wait`] and
    /// [`Db::wait_async`].
    ///
    /// # Errors
    /// [`Error::EmptyKey`], [`Error::KeyTooLong`], [`Error::BatchTooLarge`],
    /// [`Error::StorageFull`], [`Error::Unprepared`], [`Error::FamilyDropped`], [`Error::Closed`],
    /// [`Error::Forked`]: nothing was written. Once transactions are in use also those of locks, as
    /// [`Db::transaction`] says: [`Error::LockTimeout`], [`Error::Deadlock`], and
    /// [`Error::TooManyLocks`] where more rows would be locked at once than
    /// [`Options::max_row_locks`](crate::Options::max_row_locks), those of other owners included.
    /// [`Error::Io`], [`Error::Table`]: writes are stopped until a flush or a compaction has caught up,
    /// and that fails; nothing was written.
    /// [`Error::Poisoned`], [`Error::Background`], [`Error::Log`]: the write may or may not survive
    /// a restart.
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<Lsn> {
        self.db
            .commit(self.op(key.as_ref(), Write::Put(value.as_ref())), options)
    }

    /// Removes `key` and waits for the store's default durability. Returns the commit's end.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Lsn> {
        self.delete_with(key, &self.db.default_write())
    }

    /// Removes `key`; as [`Family::put_with`].
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: &WriteOptions) -> Result<Lsn> {
        self.db.commit(self.op(key.as_ref(), Write::Delete), options)
    }

    /// Sets `key` to `new`, or removes it, if its value is `expected`; `None` is no value. Returns the
    /// commit's end, or what the value is. Waits for the store's default durability, also where it
    /// finds another value: what is returned survives a restart as well as a write would.
    ///
    /// It is a transaction of one row: the row is locked meanwhile, and what [`Db::transaction`] says
    /// of writes outside of transactions is true from the first call on.
    ///
    /// ```
    /// # fn main() -> collie_db::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = collie_db::Db::open(dir.path().join("store"), collie_db::Options::default())?;
    /// let jobs = db.default_family();
    /// assert!(jobs.compare_and_swap("job 7", None, Some(b"worker 1"))?.is_ok());
    /// let taken = jobs.compare_and_swap("job 7", None, Some(b"worker 2"))?.unwrap_err();
    /// assert_eq!(taken.current, Some("worker 1".into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Family::put_with`], and those of locks.
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<std::result::Result<Lsn, NotSwapped>> {
        let key = key.as_ref();
        let (not_swapped, committed) = self.db.transact_ticket(&TransactionOptions::default(), |tx| {
            let current = tx.get_for_update(self, key)?;
            if current.as_deref() != expected {
                return Ok(Some(NotSwapped { current }));
            }
            match new {
                Some(value) => tx.put(self, key, value)?,
                None => tx.delete(self, key)?,
            }
            Ok::<_, Error>(None)
        })?;
        let end = committed.wait()?;
        Ok(not_swapped.map_or(Ok(end), Err))
    }

    /// Waits as a write of so many bytes does while background work lags behind. For what was
    /// written with [`HardLimitsOnly`](crate::ThrottleMode::HardLimitsOnly), after the locks are released. Where the
    /// background work fails it returns, and the next write says why.
    pub fn throttle(&self, bytes: usize) {
        let families = std::slice::from_ref(&self.state);
        self.db.store().throttle_after(families, bytes);
    }

    fn op<'a>(&'a self, key: &'a [u8], write: Write<'a>) -> Commit<'a> {
        let op = Op {
            family: self.state.id(),
            key,
            write,
        };
        Commit::One(&self.state, op)
    }

    /// All keys and values.
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::Closed`]. The iterator itself gives [`Error::Table`], and
    /// where the log has failed [`Error::InDoubt`] instead of a key whose last write may be lost.
    pub fn iter(&self) -> Result<Iter> {
        self.range::<&[u8]>(..)
    }

    /// All keys and values, as of the moment that the options ask for.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn iter_with(&self, options: &ReadOptions) -> Result<Iter> {
        self.range_with::<&[u8]>(.., options)
    }

    /// The keys and values in `range`, now.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Iter> {
        self.range_with(range, &ReadOptions::default())
    }

    /// The keys and values in `range`, as of the moment that the options ask for.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn range_with<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        options: &ReadOptions,
    ) -> Result<Iter> {
        self.scan(bounds(&range), options)
    }

    /// The keys that start with `prefix`, and their values, now.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.prefix_with(prefix, &ReadOptions::default())
    }

    /// The keys that start with `prefix`, and their values, as of the moment that the options ask
    /// for.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn prefix_with(&self, prefix: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Iter> {
        self.scan(prefix_bounds(prefix.as_ref()), options)
    }

    fn scan(&self, bounds: Bounds, options: &ReadOptions) -> Result<Iter> {
        let (view, point) = self.read_at(options.durable)?;
        Iter::new(&view, bounds, &point, &self.state)
    }

    /// Removes all keys at once, durably, whatever their number, by replacing the family with an empty
    /// one of its name and options, and returns that one. As after [`Db::drop_family`] reads and writes
    /// through earlier handles fail, with [`Error::FamilyDropped`], so do transactions that wrote to it;
    /// snapshots and iterators that are open go on, and its files are removed with the last of them.
    /// A write that is under way in another thread comes before it. (fjall: `Keyspace::clear`;
    /// PostgreSQL: `TRUNCATE`.)
    ///
    /// # Errors
    /// As [`Db::drop_family`], but that the default family can be cleared;
    /// [`Error::ExternalJournal`] with such a journal. Nothing was removed.
    pub fn clear(&self) -> Result<Self> {
        self.db.clear_family(&self.state)
    }

    /// Brings everything that was written before the call to tables, durably.
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::Closed`], [`Error::StorageFull`], [`Error::Table`],
    /// [`Error::Io`], [`Error::Poisoned`].
    pub fn flush(&self) -> Result<()> {
        let store = self.db.store();
        let _used = store.use_directory()?;
        self.state.check_not_dropped()?;
        flush::flush_all_of(store, &self.state, FlushCause::Manual)
    }

    /// Flushes, and merges all tables into one level. Writes go on meanwhile, and what they flush is
    /// merged later: until then reads look through more tables than usual.
    ///
    /// # Errors
    /// As [`Family::flush`].
    pub fn compact(&self) -> Result<()> {
        let store = self.db.store();
        let _used = store.use_directory()?;
        self.state.check_not_dropped()?;
        flush::flush_all_of(store, &self.state, FlushCause::Manual)?;
        compaction::compact_all(store, &self.state)
    }

    /// Waits until no flush and no compaction of the family is to be done or under way; what is in
    /// its active memtable is not flushed for that. `false`: after `timeout` there still is one. Writes
    /// of others make new work meanwhile. (RocksDB: `WaitForCompact`.)
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::Closed`], [`Error::Forked`]; the error of the last flush or
    /// compaction where it failed, which is tried again.
    pub fn wait_for_compact(&self, timeout: Duration) -> Result<bool> {
        /// Nothing wakes a waiter when the work ends.
        const LOOK: Duration = Duration::from_millis(2);
        let begun = RealClock.monotonic();
        let kinds = [
            self.state.flushes(),
            self.state.compactions(),
            self.state.whole_merges(),
        ];
        loop {
            self.db.store().check_process()?;
            self.check()?;
            if let Some(error) = kinds.iter().find_map(|work| work.error()) {
                return Err(error);
            }
            if kinds.iter().all(|work| work.is_idle()) {
                return Ok(true);
            }
            let waited = Duration::from_nanos(RealClock.monotonic().saturating_sub(begun));
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    pub(crate) fn read_at(&self, durable: bool) -> Result<(arc_swap::Guard<Arc<View>>, ReadPoint)> {
        let read = self.db.store().read_at(&self.state, durable);
        // After the view was loaded: a store is marked closed before it empties its views.
        self.check()?;
        Ok(read)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.db.store().check_open()?;
        self.state.check_not_dropped()
    }
}

/// Why [`Family::compare_and_swap`] changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotSwapped {
    /// The value; `None` where there is none.
    pub current: Option<Value>,
}

impl std::fmt::Display for NotSwapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.current {
            Some(value) => write!(f, "the value is {value:?}"),
            None => write!(f, "there is no value"),
        }
    }
}

impl std::error::Error for NotSwapped {}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Family")
            .field("name", &self.name())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
