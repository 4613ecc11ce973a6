//! The handle of a store.

use std::future::Future;
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_log::{Level, Lsn, RecoveryReport};
use parking_lot::Mutex;

use crate::background::threads::Handle;
use crate::background::{compaction, flush};
use crate::batch::Commit;
use crate::events::FlushCause;
use crate::iter::{Iter, Keys};
use crate::memtable::Write;
use crate::recovery::open;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::write::encoding::Op;
use crate::{
    Batch, DEFAULT_FAMILY, Durability, Error, Family, FamilyOptions, Key, NotSwapped, Options, Read,
    ReadOptions, Result, Snapshot, Stall, Stats, Value, WriteOptions, catalog, snapshot, stats,
};

/// An open store. Clones are handles to the same store; all methods may be called from any thread.
///
/// It belongs to the process that opened it. In a child that is forked from it, calls fail with
/// [`Error::Forked`], those that have no error find nothing, and dropping a handle does nothing. None
/// of them waits, whatever threads of the parent held. A child that executes another program does not
/// notice any of this, but holds the store's lock until it does.
///
/// The store closes when [`Db::close`] is called or the last handle (also of a family, a snapshot)
/// is dropped; only `close` reports an error.
#[derive(Clone)]
pub struct Db(Arc<Handle>);

impl Db {
    /// Opens the store in `path`, or creates it, and recovers what is not yet in its tables from
    /// the log.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::WrongDirectory`], [`Error::NotFound`], [`Error::Version`],
    /// [`Error::Corrupt`], [`Error::LogIdMismatch`], [`Error::InvalidOption`] (also where the store
    /// was not made with this kind of [`Options::journal`]): the directory is left as it was, but
    /// that the manifest may have been written anew with the same content, and of families whose
    /// tables were opened before what is not needed is gone. [`Error::Io`], [`Error::Table`],
    /// [`Error::Log`], [`Error::StorageFull`]: opening again starts over.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        open::open(path.as_ref(), options).map(|handle| Self(Arc::new(handle)))
    }

    /// Opens many stores, up to so many at a time, each as [`Db::open`]; the answers are in the order
    /// of what was given. Most of an opening is waiting for the device: a few at a time take a
    /// fraction of what one after the other does. The calling thread does a share.
    #[must_use]
    pub fn open_all(stores: Vec<(PathBuf, Options)>, at_a_time: usize) -> Vec<Result<Self>> {
        let threads = at_a_time.clamp(1, stores.len().max(1));
        let mut opened: Vec<_> = stores.iter().map(|_| None).collect();
        let left = Mutex::new(stores.into_iter().zip(&mut opened));
        let next = || left.lock().next();
        let work = || {
            while let Some(((path, options), answer)) = next() {
                *answer = Some(Self::open(path, options));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Where no further thread can be started, those that are there open all.
                let _ = std::thread::Builder::new()
                    .name("collie-open".to_owned())
                    .spawn_scoped(scope, work);
            }
            work();
        });
        drop(left);
        let answers = opened.into_iter();
        answers
            .map(|answer| answer.unwrap_or(Err(Error::Closed)))
            .collect()
    }

    /// Ends the background work, brings to tables what no log holds, and closes the log. Calls on
    /// other handles get [`Error::Closed`] from then on. No handle of a family and no batch keeps the
    /// directory locked; snapshots and iterators do, until they are dropped, and once the log has
    /// failed every handle does.
    ///
    /// With an [external journal](crate::Journal::External) nothing is brought to tables: what was
    /// applied and not flushed is in the journal, and is to be applied again after the next opening.
    /// [`Db::flush`] before it makes that short.
    ///
    /// # Errors
    /// Why not all could be brought to tables or the log not be closed, or else why the store has
    /// refused writes before. What was acknowledged as durable is safe all the same.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }

    /// The store's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.store().path()
    }

    /// The family that every store has, [`DEFAULT_FAMILY`](crate::DEFAULT_FAMILY).
    #[must_use]
    pub fn default_family(&self) -> Family {
        Family::new(self.clone(), self.0.default_family.load_full())
    }

    /// The family of that name.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<Family> {
        self.store().check_process().ok()?;
        let state = self.store().family(name)?;
        Some(Family::new(self.clone(), state))
    }

    /// The names of all families, sorted.
    #[must_use]
    pub fn families(&self) -> Vec<String> {
        if self.store().check_process().is_err() {
            return Vec::new();
        }
        let families = self.store().families();
        families.iter().map(|family| family.name().to_string()).collect()
    }

    /// Opens the family of that name, or creates it with these options. When this returns, the
    /// family survives any crash.
    ///
    /// An existing family keeps the options that it was created with; to change them, name it in
    /// [`Options::family_options`](crate::Options::family_options) when the store is opened. Of
    /// several threads that open the same new family one creates it, and all get it.
    ///
    /// # Errors
    /// [`Error::FamilyName`] and [`Error::InvalidOption`], also where the family exists; where it
    /// is created, those of a write.
    pub fn open_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        let _used = self.store().use_directory()?;
        let state = catalog::open(self.store(), name, options)?;
        Ok(Family::new(self.clone(), state))
    }

    /// Creates a family, which must not exist yet.
    ///
    /// # Errors
    /// [`Error::FamilyExists`], [`Error::FamilyName`], [`Error::InvalidOption`], and as for a
    /// write.
    pub fn create_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        let store = self.store();
        let _used = store.use_directory()?;
        let created = store.relieve(|| catalog::create(store, name, options.clone()));
        store.fill_reserve();
        let state = created?;
        Ok(Family::new(self.clone(), state))
    }

    /// Drops a family and all that is in it. Reads and writes through its handles fail from then
    /// on; snapshots and iterators that are open go on, and its files are removed with the last of
    /// them.
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::FamilyName`] for the default family,
    /// [`Error::ForeignFamily`], [`Error::Poisoned`] and [`Error::Background`] once the store takes no
    /// more writes, and the errors of writing the manifest. [`Error::StorageFull`] where the device is
    /// full and a flush or a merge has the reserve's room: the family is still there, and can be dropped
    /// when that has ended.
    pub fn drop_family(&self, family: &Family) -> Result<()> {
        let store = self.store();
        let _used = store.use_directory()?;
        if !family.db().is(self) {
            return Err(Error::ForeignFamily {
                name: family.name().into(),
            });
        }
        let removed = store.relieve(|| catalog::remove(store, family.state()));
        store.fill_reserve();
        removed
    }

    /// [`Family::clear`] of the default family.
    ///
    /// # Errors
    /// As [`Family::clear`].
    pub fn clear(&self) -> Result<()> {
        self.default_family().clear().map(drop)
    }

    pub(crate) fn clear_family(&self, family: &Arc<FamilyState>) -> Result<Family> {
        let store = self.store();
        let _used = store.use_directory()?;
        let cleared = store.relieve(|| catalog::clear(store, family));
        store.fill_reserve();
        let state = cleared?;
        if &**state.name() == DEFAULT_FAMILY {
            self.replace_default_family(Arc::clone(&state));
        }
        Ok(Family::new(self.clone(), state))
    }

    /// Commits a batch: on return all of it is visible, and as durable as the options ask; no
    /// reader ever sees a part of it. Returns the commit's end, or the visible boundary for an
    /// empty batch.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn write(&self, batch: Batch, options: &WriteOptions) -> Result<Lsn> {
        self.write_ref(&batch, options)
    }

    /// As [`Db::write`], for a batch that is used again.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn write_ref(&self, batch: &Batch, options: &WriteOptions) -> Result<Lsn> {
        if batch.is_empty() {
            self.store().check_open()?;
            return Ok(self.visible());
        }
        self.commit(Commit::Batch(batch), options)
    }

    pub(crate) fn default_write(&self) -> WriteOptions {
        WriteOptions {
            durability: self.store().options().durability,
            ..WriteOptions::default()
        }
    }

    /// The state of all families, now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self)
    }

    /// Everything below this LSN is visible.
    #[must_use]
    pub fn visible(&self) -> Lsn {
        self.store().visible_boundary()
    }

    /// Everything below this LSN is on the device. With the log off nothing is ever waited for, and
    /// this is the visible boundary. Once the log has failed it stays where it is.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.store()
            .sequencer()
            .durable()
            .unwrap_or_else(|| self.visible())
    }

    /// Blocks until everything below `end`, the end of a commit, is as safe as `level` says. With
    /// the log off it returns at once.
    ///
    /// # Errors
    /// [`Error::Poisoned`] and [`Error::Log`] where it never will be.
    pub fn wait(&self, end: Lsn, level: Durability) -> Result<()> {
        self.store().check_process()?;
        self.store().sequencer().wait(end, level)
    }

    /// As [`Db::wait`], to be awaited on any executor. With an [external
    /// journal](crate::Journal::External) it never waits: [`Error::ExternalJournal`] where the journal
    /// is not durable that far yet.
    pub fn wait_async(
        &self,
        end: Lsn,
        level: Durability,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let forked = self.store().check_process();
        let waiting = self.store().sequencer().wait_async(end, level);
        async move {
            forked?;
            waiting.await
        }
    }

    /// Makes everything that was written before the call as safe as `level` says; returns its end.
    ///
    /// [`Durability::Disk`] is RocksDB's `FlushWAL(true)`, [`Durability::Process`] its
    /// `FlushWAL(false)`: one write call, or with a shared ring none, since there every write is
    /// that safe already. [`Durability::Buffered`] does nothing. With the log off there is nothing
    /// to flush.
    ///
    /// # Errors
    /// As [`Db::wait`].
    pub fn flush_wal(&self, level: Level) -> Result<Lsn> {
        self.store().check_process()?;
        self.store().sequencer().flush(level)
    }

    /// Brings everything that was written before the call to tables, durably.
    ///
    /// # Errors
    /// As [`Family::flush`].
    pub fn flush(&self) -> Result<()> {
        self.for_each_family(|store, family| flush::flush_all_of(store, family, FlushCause::Manual))
    }

    /// Runs work that writes to the directory on this thread; closing waits for it.
    fn for_each_family(&self, run: impl Fn(&Store, &Arc<FamilyState>) -> Result<()>) -> Result<()> {
        let store = self.store();
        let _used = store.use_directory()?;
        store.families().iter().try_for_each(|family| run(store, family))
    }

    /// Flushes, and merges each family's tables into one level.
    ///
    /// # Errors
    /// As [`Family::flush`]; [`Error::Closed`] also where [`Db::close`] ended it early, with nothing
    /// lost.
    pub fn compact(&self) -> Result<()> {
        self.for_each_family(|store, family| {
            flush::flush_all_of(store, family, FlushCause::Manual)?;
            compaction::compact_all(store, family)
        })
    }

    /// What opening found in the log, and how it recovered; `None` with the log off.
    #[must_use]
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.store().sequencer().recovery()
    }

    /// Statistics of the store, its log and its families. In a forked child all figures are 0, and
    /// [`Stats::refusal`] says why.
    #[must_use]
    pub fn stats(&self) -> Stats {
        stats::collect(self.store())
    }

    /// The most that the store does to writes now: what one of its families does, or the limit on all
    /// memtables. Waits for nothing, other than [`Db::stats`].
    #[must_use]
    pub fn stall(&self) -> Stall {
        if self.store().check_process().is_err() {
            return Stall::None;
        }
        self.store().stall()
    }

    /// The store is to make room on its device: its owner has something there, such as an external
    /// journal, that finds none. Flushes of removals and merges follow that free some, in the background,
    /// until some is available and [`Options::disk_reserve`](crate::Options::disk_reserve) is complete.
    /// Call it as long as there is none. Waits for nothing.
    pub fn look_for_room(&self) {
        if self.store().check_open().is_ok() {
            self.store().request_room();
        }
    }

    /// [`Family::get`] on the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let family = self.0.default_family.load();
        let (view, point) = self.store().read_at(&family, false);
        // After the view was loaded: a store is marked closed before it empties its views.
        self.store().check_open()?;
        Ok(snapshot::get(&view, &point, family.name(), key.as_ref())?.value)
    }

    /// [`Family::contains`] on the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// [`Family::get_with`] on the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Read<Option<Value>>> {
        self.default_family().get_with(key, options)
    }

    /// [`Family::multi_get`] on the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        self.default_family().multi_get(keys)
    }

    /// [`Family::first`] of the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn first(&self) -> Result<Option<(Key, Value)>> {
        self.default_family().first()
    }

    /// [`Family::last`] of the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn last(&self) -> Result<Option<(Key, Value)>> {
        self.default_family().last()
    }

    /// [`Family::is_empty`] of the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn is_empty(&self) -> Result<bool> {
        self.default_family().is_empty()
    }

    /// [`Family::len`] of the default family: reads all of it.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn len(&self) -> Result<u64> {
        self.default_family().len()
    }

    /// [`Family::approximate_len`] of the default family.
    ///
    /// # Errors
    /// As [`Family::approximate_len`].
    pub fn approximate_len(&self) -> Result<u64> {
        self.default_family().approximate_len()
    }

    /// [`Family::approximate_size`] of the default family.
    ///
    /// # Errors
    /// As [`Family::approximate_size`].
    pub fn approximate_size<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        self.default_family().approximate_size(range)
    }

    /// [`Family::put`] on the default family.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Lsn> {
        self.write_default(key.as_ref(), Write::Put(value.as_ref()))
    }

    /// [`Family::delete`] on the default family.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Lsn> {
        self.write_default(key.as_ref(), Write::Delete)
    }

    fn write_default(&self, key: &[u8], write: Write<'_>) -> Result<Lsn> {
        loop {
            let family = &*self.0.default_family.load();
            let op = Op {
                family: family.id(),
                key,
                write,
            };
            match self.commit(Commit::One(family, op), &self.default_write()) {
                // Another thread has cleared it, and this write comes after that.
                Err(Error::FamilyDropped { .. })
                    if self
                        .store()
                        .family(DEFAULT_FAMILY)
                        .is_some_and(|now| now.id() != family.id()) => {}
                done => return done,
            }
        }
    }

    /// [`Family::put_with`] on the default family.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<Lsn> {
        self.default_family().put_with(key, value, options)
    }

    /// [`Family::delete_with`] on the default family.
    ///
    /// # Errors
    /// As [`Family::put_with`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: &WriteOptions) -> Result<Lsn> {
        self.default_family().delete_with(key, options)
    }

    /// [`Family::compare_and_swap`] on the default family.
    ///
    /// # Errors
    /// As [`Family::compare_and_swap`].
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<std::result::Result<Lsn, NotSwapped>> {
        self.default_family().compare_and_swap(key, expected, new)
    }

    /// [`Family::range`] on the default family.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Iter> {
        self.default_family().range(range)
    }

    /// [`Family::prefix`] on the default family.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.default_family().prefix(prefix)
    }

    /// [`Family::keys`] of the default family.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn keys(&self) -> Result<Keys> {
        self.default_family().keys()
    }

    /// [`Family::iter`] on the default family.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn iter(&self) -> Result<Iter> {
        self.default_family().iter()
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// All calls that name no family are for this one from now on.
    pub(crate) fn replace_default_family(&self, family: Arc<FamilyState>) {
        self.0.default_family.store(family);
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db")
            .field("path", &self.store().path())
            .finish_non_exhaustive()
    }
}
