//! The handle of a store.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use collie_log::{Level, Lsn, RecoveryReport, RingMode};
use parking_lot::Mutex;

use crate::batch::check_key;
use crate::codec::{KIND_COMMIT, KIND_UNLOGGED, Op};
use crate::core::{Core, FamilyState, GATE_OPEN};
use crate::iter::Iter;
use crate::memtable::{At, Write};
use crate::view::FlushCause;
use crate::workers::{Record, Room};
use crate::{
    Batch, Durability, Error, Family, FamilyOptions, Options, Result, Snapshot, Stats, Value, WriteOptions,
    compaction, families, flush, open, read, stall, stats, wal_size,
};

/// The name of the family that every store has.
pub const DEFAULT_FAMILY: &str = "default";

/// An open store. Clones are handles to the same store; all methods may be called from any thread.
///
/// It belongs to the process that opened it. In a child that is forked from it, calls that read or write fail with
/// [`Error::Forked`], and dropping a handle does nothing; a child that executes another program does not notice any of
/// this, but holds the store's lock until it does.
///
/// The store closes when [`Db::close`] is called or the last handle (also of a family, a snapshot) is
/// dropped; only `close` can tell that something went wrong then.
#[derive(Clone)]
pub struct Db(Arc<Handle>);

pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) default_family: Arc<FamilyState>,
}

impl Db {
    /// Opens the store in `path`, or creates it, and recovers what is not yet in its tables from the log.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::WrongDirectory`], [`Error::NotFound`], [`Error::Version`],
    /// [`Error::Corrupt`], [`Error::OtherLog`], [`Error::InvalidOption`]: what was there is as it was.
    /// [`Error::Io`], [`Error::Table`], [`Error::Log`], [`Error::StorageFull`]: opening again starts over.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        open::open(path.as_ref(), options).map(|handle| Self(Arc::new(handle)))
    }

    /// Ends the background work, brings to tables what no log holds, and closes the log. Calls on other
    /// handles get [`Error::Closed`] from then on.
    ///
    /// # Errors
    /// The first failure; what was acknowledged as durable is safe all the same.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }

    /// The store's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.core().path
    }

    /// The family that every store has, [`DEFAULT_FAMILY`].
    #[must_use]
    pub fn default_family(&self) -> Family {
        Family::new(self.clone(), Arc::clone(&self.0.default_family))
    }

    /// The family of that name.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<Family> {
        let families = self.core().families.read();
        families
            .by_name
            .get(name)
            .map(|state| Family::new(self.clone(), Arc::clone(state)))
    }

    /// The names of all families, sorted.
    #[must_use]
    pub fn families(&self) -> Vec<String> {
        self.core()
            .families
            .read()
            .by_name
            .keys()
            .map(ToString::to_string)
            .collect()
    }

    /// The family of that name, which is created with these options where it is not there yet. When this returns it is
    /// there for good, whatever happens.
    ///
    /// A family that is there keeps the options that it was created with, whatever is given here; to change them, name
    /// it in [`Options::family_options`](crate::Options::family_options) when the store is opened. Of several threads
    /// that open the same new family one creates it, and all get it.
    ///
    /// # Errors
    /// [`Error::FamilyName`] and [`Error::InvalidOption`], where the family is there too; where it is not, as for a write.
    pub fn open_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        let _life = self.core().life.read();
        self.core().check_open()?;
        let state = families::open(self.core(), name, options)?;
        Ok(Family::new(self.clone(), state))
    }

    /// As [`Db::open_family`], where the family must not be there yet.
    ///
    /// # Errors
    /// [`Error::FamilyExists`], [`Error::FamilyName`], [`Error::InvalidOption`], and as for a write.
    pub fn create_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        let _life = self.core().life.read();
        self.core().check_open()?;
        let core = self.core();
        let created = core
            .reserve
            .relieve(|| families::create(core, name, options.clone()));
        core.fill_reserve();
        let state = created?;
        Ok(Family::new(self.clone(), state))
    }

    /// Drops a family and all that is in it. Reads and writes through its handles fail from then on;
    /// snapshots and iterators that are open go on, and its files go with the last of them.
    ///
    /// # Errors
    /// [`Error::FamilyDropped`], [`Error::FamilyName`] for the default family, [`Error::ForeignFamily`],
    /// and the errors of writing the manifest.
    pub fn drop_family(&self, family: &Family) -> Result<()> {
        let _life = self.core().life.read();
        self.core().check_open()?;
        if !family.db().is(self) {
            return Err(Error::ForeignFamily {
                name: family.name().into(),
            });
        }
        let core = self.core();
        let removed = core.reserve.relieve(|| families::remove(core, family.state()));
        core.fill_reserve();
        removed
    }

    /// Commits a batch: on return all of it is visible, and as durable as the options ask; nobody ever sees
    /// a part of it. Returns the commit's end, or the visible boundary for an empty batch.
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
        self.admit_batch(batch)?;
        if batch.is_empty() {
            self.core().check_open()?;
            return Ok(self.core().visible.boundary());
        }
        let Some(at) = self.commit_batch(batch, options.disable_wal, options.skip_row_locks)? else {
            let rows = batch.ops().map(|op| (op.family, op.key));
            let locks = self.lock_for_write(rows)?;
            let at = self.commit_batch(batch, options.disable_wal, true)?;
            return self.finish_locked(at, options, locks);
        };
        self.finish(at, options)
    }

    /// Lets a batch in, or holds it up.
    pub(crate) fn admit_batch(&self, batch: &Batch) -> Result<()> {
        self.check_size(batch.size_bytes())?;
        for family in batch.families() {
            // It may have been filled for another store.
            if family.store != self.core().id {
                return Err(Error::ForeignFamily {
                    name: family.name.to_string(),
                });
            }
            self.check_family(family)?;
            self.admit(family, batch.size_bytes(), batch.room())?;
        }
        Ok(())
    }

    /// Commits a batch that was let in. `None` where row locks must be taken first.
    pub(crate) fn commit_batch(
        &self,
        batch: &Batch,
        disable_wal: bool,
        has_locks: bool,
    ) -> Result<Option<At>> {
        let core = self.core();
        let Some(turn) = core.turn(has_locks)? else {
            return Ok(None);
        };
        let unlogged = disable_wal || core.options.disable_wal;
        let (kind, record) = frame(Record::Encoded(batch.payload()), disable_wal);
        let at = turn.commit(kind, record, batch.room(), |at| batch.apply(at, unlogged))?;
        for family in batch.families() {
            self.see_to_size(family);
        }
        Ok(Some(at))
    }

    pub(crate) fn write_one(
        &self,
        family: &Arc<FamilyState>,
        op: Op<'_>,
        options: &WriteOptions,
    ) -> Result<Lsn> {
        check_key(op.key)?;
        let value = if let Write::Put(value) = op.write {
            value.len()
        } else {
            0
        };
        let size = op.key.len() + value;
        self.check_family(family)?;
        self.admit(family, size, room_of(op))?;
        if options.disable_wal || self.core().options.disable_wal {
            self.check_size(size + ENCODING)?;
        }
        let Some(at) = self.commit_one(family, op, options.disable_wal, options.skip_row_locks)? else {
            let locks = self.lock_for_write(std::iter::once((op.family, op.key)))?;
            let at = self.commit_one(family, op, options.disable_wal, true)?;
            return self.finish_locked(at, options, locks);
        };
        self.finish(at, options)
    }

    /// As [`Db::commit_batch`], for one write.
    fn commit_one(
        &self,
        family: &Arc<FamilyState>,
        op: Op<'_>,
        disable_wal: bool,
        has_locks: bool,
    ) -> Result<Option<At>> {
        let Some(turn) = self.core().turn(has_locks)? else {
            return Ok(None);
        };
        let unlogged = disable_wal || self.core().options.disable_wal;
        let (kind, record) = frame(Record::One(op), disable_wal);
        let mut full = false;
        let at = turn.commit(kind, record, room_of(op), |at| {
            family.with_mem(at.start, |mem| {
                if unlogged {
                    mem.note_unlogged();
                }
                mem.insert(op.key, at, op.write);
                full = mem.bytes() >= family.options.write_buffer_bytes;
            });
        })?;
        if full {
            self.see_to_size(family);
        }
        Ok(Some(at))
    }

    /// The log checks this too; with the log off nobody else does.
    fn check_size(&self, size: usize) -> Result<()> {
        let limit = self.core().max_payload;
        if size > limit {
            return Err(Error::BatchTooLarge {
                size: size as u64,
                limit: limit as u64,
            });
        }
        Ok(())
    }

    fn check_family(&self, family: &FamilyState) -> Result<()> {
        if family.is_dropped() {
            return Err(Error::FamilyDropped {
                name: family.name.to_string(),
            });
        }
        Ok(())
    }

    /// Lets a write in, or holds it up.
    fn admit(&self, family: &FamilyState, bytes: usize, room: Room) -> Result<()> {
        let core = self.core();
        if let Some(refusal) = core.refusal() {
            return Err(refusal);
        }
        if room == Room::Commit {
            core.reserve.admit(&core.journal)?;
        }
        // Relaxed: a write that passes a gate that is about to close changes little.
        if family.gate.load(Ordering::Relaxed) != GATE_OPEN {
            stall::hold_up(self.core(), family, bytes)?;
        }
        Ok(())
    }

    /// Seals the family's memtable if it is full, or closes the gate where there is no room for another.
    /// The write that filled it has succeeded whatever comes of this.
    fn see_to_size(&self, family: &Arc<FamilyState>) {
        if family.view.load().active.bytes() < family.options.write_buffer_bytes {
            return;
        }
        let clock = self.core().device.clock();
        let started = clock.monotonic();
        if let Err(error) = flush::rotate_if_full(self.core(), family) {
            tracing::debug!(family = %family.name, %error, "a full memtable is not sealed yet");
        }
        stall::update(self.core(), family);
        let took = clock.monotonic().saturating_sub(started);
        family.counters.seal_ns.fetch_add(took, Ordering::Relaxed);
    }

    /// Waits for what was asked.
    fn finish(&self, at: At, options: &WriteOptions) -> Result<Lsn> {
        let core = self.core();
        wal_size::check(core, at.end);
        // First, for it takes longest: commits that were in flight before this one are applied by then.
        self.wait_committed(at.end, options)?;
        core.wait_visible(at.end)?;
        Ok(at.end)
    }

    /// Waits for the durability that a commit was asked for.
    pub(crate) fn wait_committed(&self, end: Lsn, options: &WriteOptions) -> Result<()> {
        if !options.disable_wal && !self.is_left_to_flush_wal(options.durability) {
            self.core().journal.wait(end, options.durability)?;
        }
        Ok(())
    }

    /// Whether a write at `level` leaves the log to whoever flushes it.
    pub(crate) fn is_left_to_flush_wal(&self, level: Durability) -> bool {
        let options = &self.core().options;
        match level {
            Durability::Buffered => true,
            // By the option and not by the ring there is: where a shared one was asked for and could not be
            // had, the level keeps its promise at the price of write calls.
            Durability::Process => options.manual_wal_flush && options.ring == RingMode::Private,
            Durability::Disk => false,
        }
    }

    pub(crate) fn default_write(&self) -> WriteOptions {
        WriteOptions {
            durability: self.core().options.durability,
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
        self.core().visible.boundary()
    }

    /// Everything below this LSN is on the device. With the log off nothing waits for that, and this is
    /// what is visible. It does not move any more once the log has failed.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.core().journal.durable().unwrap_or_else(|| self.visible())
    }

    /// Blocks until everything below `end`, the end of a commit, is as safe as `level` says. With the log
    /// off it returns at once.
    ///
    /// # Errors
    /// [`Error::Poisoned`] and [`Error::Log`] where it never will be.
    pub fn wait(&self, end: Lsn, level: Durability) -> Result<()> {
        self.core().journal.wait(end, level)
    }

    /// As [`Db::wait`], to be awaited on any executor.
    pub fn when(&self, end: Lsn, level: Durability) -> impl Future<Output = Result<()>> + Send + 'static {
        self.core().journal.when(end, level)
    }

    /// Makes everything that was written before the call as safe as `level` says; returns its end.
    ///
    /// [`Durability::Disk`] is RocksDB's `FlushWAL(true)`, [`Durability::Process`] its `FlushWAL(false)`: one
    /// write call, or with a shared ring none, since there every write is that safe already.
    /// [`Durability::Buffered`] does nothing. With the log off there is nothing to flush.
    ///
    /// # Errors
    /// As [`Db::wait`].
    pub fn flush_wal(&self, level: Level) -> Result<Lsn> {
        self.core().journal.flush(level)
    }

    /// Brings everything that was written before the call to tables, durably.
    ///
    /// # Errors
    /// As [`Family::flush`].
    pub fn flush(&self) -> Result<()> {
        self.for_each_family(|core, family| flush::flush_all_of(core, family, FlushCause::Manual))
    }

    /// Runs what writes to the directory on this thread; closing waits for it.
    fn for_each_family(&self, run: impl Fn(&Core, &Arc<FamilyState>) -> Result<()>) -> Result<()> {
        let core = self.core();
        let _life = core.life.read();
        core.check_open()?;
        let all = core.families.read().all();
        all.iter().try_for_each(|family| run(core, family))
    }

    /// Flushes, and merges each family's tables into one level.
    ///
    /// # Errors
    /// As [`Family::flush`].
    pub fn compact(&self) -> Result<()> {
        self.for_each_family(|core, family| {
            flush::flush_all_of(core, family, FlushCause::Manual)?;
            compaction::compact_all(core, family)
        })
    }

    /// What opening found in the log, and what it did about it; `None` with the log off.
    #[must_use]
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.core().journal.recovery()
    }

    /// Figures of the store, its log and its families.
    #[must_use]
    pub fn stats(&self) -> Stats {
        stats::collect(self.core())
    }

    /// [`Family::get`] on the default family.
    ///
    /// # Errors
    /// As [`Family::get_with`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let family = &self.0.default_family;
        let (view, point) = self.core().read_at(family, false);
        // After the view was loaded: closing empties views, and says that it does before.
        self.core().check_open()?;
        Ok(read::get(&view, &point, &family.name, key.as_ref())?.value)
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
        let family = &self.0.default_family;
        self.write_one(
            family,
            Op {
                family: family.id,
                key,
                write,
            },
            &self.default_write(),
        )
    }

    /// [`Family::iter`] on the default family.
    ///
    /// # Errors
    /// As [`Family::iter`].
    pub fn iter(&self) -> Result<Iter> {
        self.default_family().iter()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Bytes of an operation that are neither key nor value, at most.
const ENCODING: usize = 16;

/// A write that takes data away has room where others have none.
fn room_of(op: Op<'_>) -> Room {
    match op.write {
        Write::Put(_) => Room::Commit,
        Write::Delete => Room::Relief,
    }
}

/// The frame's kind and content.
fn frame(record: Record<'_>, disable_wal: bool) -> (u8, Record<'_>) {
    if disable_wal {
        (KIND_UNLOGGED, Record::Place)
    } else {
        (KIND_COMMIT, record)
    }
}

impl Handle {
    pub(crate) fn close(&self) -> Result<()> {
        let core = &self.core;
        core.check_process()?;
        if !core.set_closed() {
            return Err(Error::Closed);
        }
        core.open_gates();
        core.visible.wake();
        // Compactions, also on callers' threads, give up; then nobody else writes to the directory.
        core.shared.stop.store(true, Ordering::Relaxed);
        let alone = core.life.write();
        // Commits that were under way are complete; later ones find no worker.
        core.workers.clear();
        let flushed = flush_unlogged(core);
        core.tasks.stop();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
        core.release_hands();
        let closed = core.journal.close();
        core.release();
        drop(alone);
        flushed.and(closed)
    }
}

/// Brings to tables what no log holds; tries every family and tells the first failure.
fn flush_unlogged(core: &Core) -> Result<()> {
    let families = core.families.read().all();
    let mut first = Ok(());
    for family in families {
        let view = family.view.load_full();
        if view.mems().any(|mem| mem.has_unlogged() && !mem.is_empty()) {
            let flushed = flush::flush_all_of(core, &family, FlushCause::Close);
            first = first.and(flushed);
        }
    }
    first
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.check_process().is_err() {
            // Threads, files and locks are the parent's, and so are tables that go with their last user: nothing of all
            // this may end here.
            std::mem::forget(Arc::clone(&self.core));
            std::mem::forget(std::mem::take(&mut *self.threads.lock()));
            return;
        }
        if !self.core.is_closed()
            && let Err(error) = self.close()
        {
            tracing::error!(path = %self.core.path.display(), %error, "the store did not close cleanly");
        }
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db")
            .field("path", &self.core().path)
            .finish_non_exhaustive()
    }
}
