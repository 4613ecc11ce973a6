//! A store's state, shared by its handles and its background threads.

mod closing;
pub(crate) mod counters;
mod families;
pub(crate) mod family_state;
mod health;
mod manifest_guard;
mod memory;
pub(crate) mod order;
pub(crate) mod parts;
pub(crate) mod queue;
pub(crate) mod read_point;
pub(crate) mod reserve;
mod room;
pub(crate) mod stall;
pub(crate) mod view;
mod views;
mod wal_watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use collie_io::{Device, Nanos};
use collie_log::Lsn;
use parking_lot::{Mutex, RwLock};

use crate::gaps::Gaps;
use crate::locks::table::LockTable;
use crate::manifest::file::ManifestFile;
use crate::memtable::reclaim::Reclaim;
use crate::memtable::{Chunks, Mem};
use crate::recovery::store_lock::StoreLock;
use crate::shared::{Budget, Resources};
use crate::store::counters::StoreCounters;
use crate::store::families::Families;
use crate::store::family_state::FamilyState;
use crate::store::health::Health;
pub(crate) use crate::store::manifest_guard::ManifestGuard;
use crate::store::parts::LargeCommits;
use crate::store::queue::TaskQueue;
use crate::store::reserve::StoreReserve;
use crate::store::room::RoomWatch;
use crate::store::stall::StoppedWriters;
use crate::store::views::AllViews;
pub(crate) use crate::store::views::Views;
use crate::store::wal_watch::WalWatch;
use crate::tables::{Pinned, Tables, TreeContext};
use crate::transaction::Registry;
use crate::write::appenders::{Appender, Appenders, Visible};
use crate::write::order::Sequencer;
use crate::{FamilyOptions, Options, Result};

/// See the module's page. Its parts are private to this folder: others ask the store to do
/// something, and the method says what it keeps true.
pub(crate) struct Store {
    /// Unique among the stores of this process.
    id: u64,
    path: PathBuf,
    device: Arc<dyn Device>,
    options: Options,
    /// The size of the file system that the log is on.
    log_disk_bytes: u64,
    /// The largest payload of a frame.
    max_payload: usize,
    sequencer: Sequencer,
    visible: Visible,
    appenders: Appenders,
    /// The appender for marks. No thread waits for a rotation while it has this one, so a rotation
    /// always gets it, even if every other appender waits for that rotation.
    system: Mutex<Option<Appender>>,
    families: Families,
    views: Arc<AllViews>,
    manifest: Mutex<ManifestFile>,
    reserve: StoreReserve,
    queue: TaskQueue,
    reclaim: Mutex<Option<Sender<Reclaim>>>,
    /// Memory for memtables.
    chunks: Arc<Chunks>,
    shared: TreeContext,
    health: Health,
    stopped: StoppedWriters,
    budget: Arc<Budget>,
    /// Flushes that wait for the log.
    log_waits: AtomicUsize,
    wal: WalWatch,
    room: RoomWatch,
    large: LargeCommits,
    snapshots: AtomicUsize,
    /// See [`Store::replay`].
    replaying: AtomicBool,
    locks: Arc<LockTable>,
    transactions: Registry,
    /// Held for reading by calls that write to the directory on their caller's thread, and for
    /// writing by `close`: once that has it, nothing of this store touches the directory any more.
    directory: RwLock<()>,
    /// The store's lock file, shared with everything that may still remove files of its own: see
    /// `Pinned`.
    lock: Mutex<Option<StoreLock>>,
    counters: StoreCounters,
}

/// What a store is opened with.
pub(crate) struct Start {
    pub(crate) path: PathBuf,
    pub(crate) log_disk_bytes: u64,
    pub(crate) options: Options,
    pub(crate) sequencer: Sequencer,
    pub(crate) manifest: ManifestFile,
    pub(crate) reserve: StoreReserve,
    pub(crate) parts: Resources,
    pub(crate) shared: TreeContext,
    pub(crate) lock: StoreLock,
}

impl Store {
    pub(crate) fn new(start: Start) -> Result<Self> {
        let Start {
            path,
            log_disk_bytes,
            options,
            sequencer,
            manifest,
            reserve,
            parts,
            shared,
            lock,
        } = start;
        // One appender is the system's.
        let appenders = options.max_workers - 1;
        let visible = Visible::new(options.max_workers, sequencer.appended());
        let system = Appender::new(&sequencer, &visible)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            // Relaxed: only uniqueness counts.
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            path,
            device: Arc::clone(&options.device),
            log_disk_bytes,
            max_payload: options.one_frame_bytes(),
            locks: Arc::new(LockTable::new(options.max_row_locks)),
            transactions: Registry::new(options.max_row_locks),
            options,
            visible,
            appenders: Appenders::new(appenders),
            system: Mutex::new(Some(system)),
            sequencer,
            families: Families::default(),
            views: Arc::default(),
            manifest: Mutex::new(manifest),
            reserve,
            queue: TaskQueue::default(),
            reclaim: Mutex::new(Some(parts.reclaim)),
            chunks: parts.chunks,
            shared,
            health: Health::new(),
            stopped: StoppedWriters::default(),
            budget: parts.budget,
            log_waits: AtomicUsize::new(0),
            wal: WalWatch::default(),
            room: RoomWatch::default(),
            large: LargeCommits::default(),
            snapshots: AtomicUsize::new(0),
            replaying: AtomicBool::new(false),
            directory: RwLock::new(()),
            lock: Mutex::new(Some(lock)),
            counters: StoreCounters::default(),
        })
    }

    /// The store's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The size of the file system that the log is on, in bytes.
    pub(crate) fn log_disk_bytes(&self) -> u64 {
        self.log_disk_bytes
    }

    /// The order of commits, and how durable they are. A commit is made by [`Store::appender`]
    /// alone.
    pub(crate) fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// What the background threads are to do.
    pub(crate) fn queue(&self) -> &TaskQueue {
        &self.queue
    }

    /// Row and range locks.
    pub(crate) fn locks(&self) -> &Arc<LockTable> {
        &self.locks
    }

    /// The transactions that are open.
    pub(crate) fn transactions(&self) -> &Registry {
        &self.transactions
    }

    /// The device's monotonic clock, in nanoseconds.
    pub(crate) fn now(&self) -> Nanos {
        self.device.clock().monotonic()
    }

    pub(crate) fn ns_since(&self, started: Nanos) -> Nanos {
        self.now().saturating_sub(started)
    }

    /// Pieces of tables that went to the device in their turn.
    pub(crate) fn background_pieces(&self) -> u64 {
        self.shared.scheduler.begun().background
    }

    /// The largest commit, in bytes of its operations.
    pub(crate) fn max_commit_bytes(&self) -> u64 {
        match self.options.max_commit_bytes {
            0 => self.max_payload as u64,
            most => most,
        }
    }

    /// The largest commit that is one frame of the log; a larger one is made of parts.
    pub(crate) fn max_frame_bytes(&self) -> usize {
        self.max_payload
    }

    /// Does work that makes room, once more with the reserve's room where the device is full.
    /// [`Store::fill_reserve`] is to follow.
    pub(crate) fn relieve<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.reserve.relieve(Some(&self.sequencer), work)
    }

    /// Does a flush, which may have the reserve's room where the device is full. From a reserve of several
    /// stores it gets some only if it `makes_room`: what others remove is to have it, too.
    pub(crate) fn relieve_flush<T>(
        &self,
        mut work: impl FnMut() -> Result<T>,
        makes_room: impl FnOnce() -> bool,
    ) -> Result<T> {
        if !self.reserve.is_of_disk() {
            return self.relieve(work);
        }
        match work() {
            Err(crate::Error::StorageFull { .. }) if makes_room() => self.in_reserve(work),
            done => done,
        }
    }

    /// Does work that makes room in the reserve's room from the beginning; as [`Store::relieve`].
    pub(crate) fn in_reserve<T>(&self, work: impl FnOnce() -> T) -> T {
        self.reserve.in_its_room(Some(&self.sequencer), work)
    }

    /// Takes the room back that the reserve gave up, as far as the device has it.
    pub(crate) fn fill_reserve(&self) {
        self.reserve.fill(Some(&self.sequencer));
        self.watch_room();
    }

    /// Runs the replay of the log. Until it has succeeded, only replay itself seals memtables, at
    /// the frame that it has come to. A mark would be at the log's end and would count frames as
    /// flushed that replay has yet to reach.
    pub(crate) fn replay<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        // SeqCst, as the load in `is_replaying`: set before replay queues its first flush, cleared
        // when the last frame is in.
        self.replaying.store(true, Ordering::SeqCst);
        let replayed = work()?;
        self.replaying.store(false, Ordering::SeqCst);
        Ok(replayed)
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.replaying.load(Ordering::SeqCst)
    }

    /// An empty memtable for a family's commits from `from` on.
    pub(crate) fn new_mem(&self, from: Lsn, family: &FamilyState) -> Mem {
        self.first_mem(from, family.options(), family.gaps())
    }

    /// As [`Store::new_mem`], for a family that is being made.
    fn first_mem(&self, from: Lsn, options: &FamilyOptions, gaps: &Arc<Gaps>) -> Mem {
        let reclaim = self.reclaim_sender();
        Mem::new(from, options.write_buffer_bytes, &self.chunks, gaps, reclaim)
    }

    /// An empty memtable for a large commit's part in a family.
    pub(crate) fn new_commit_mem(&self, family: &FamilyState) -> Mem {
        let bytes = family.options().write_buffer_bytes;
        Mem::for_commit(bytes, &self.chunks, family.gaps(), self.reclaim_sender())
    }

    /// Where memory and directories go whose destruction is deferred. Nowhere once the store is
    /// closed: they are then destroyed where they are dropped.
    fn reclaim_sender(&self) -> Sender<Reclaim> {
        self.reclaim
            .lock()
            .clone()
            .unwrap_or_else(|| std::sync::mpsc::channel().0)
    }

    /// Pins the newest version of a family's tables for a view. The caller holds the family's
    /// publication, or the family is not published yet.
    fn pin(&self, tables: &Tables) -> Arc<Pinned> {
        Arc::new(tables.pin(self.lock.lock().clone()))
    }
}
