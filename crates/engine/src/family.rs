//! The handle of a family.

use std::ops::RangeBounds;
use std::sync::Arc;

use crate::background::{compaction, flush};
use crate::batch::Commit;
use crate::iter::Iter;
use crate::key::{Bounds, bounds, prefix_bounds};
use crate::memtable::Write;
use crate::snapshot::{self, Read};
use crate::store::family::FamilyState;
use crate::store::read_point::ReadPoint;
use crate::store::view::{FlushCause, View};
use crate::write::encoding::Op;
use crate::{Db, Error, Lsn, ReadOptions, Result, Value, WriteOptions};

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

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Family")
            .field("name", &self.name())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
