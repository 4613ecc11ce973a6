//! A store's state, shared by its handles and its background threads.
//!
//! # Order of the locks
//!
//! A thread that has one of these may take those below it, and none above.
//!
//! | | lock | held | several at once |
//! |---|---|---|---|
//! | 1 | `StoreHealth::directory` | for reading by calls that write to the directory on their caller's thread; for writing by `close` | |
//! | 2 | `External::turn` | while an external journal's commit is applied, or all tables are replaced | |
//! | 3 | `FamilyState::flushing` | by the flush of a family, until it is recorded | in the order of the families' names; an idle family's is only tried |
//! | 4 | `FamilyState::compacting` | by the compaction of a family | never |
//! | 5 | `Families::manifest` | from reading the manifest until memory agrees with it | |
//! | 6 | `FamilyState::publish` | from registering or pinning a version until it is in the view | never |
//! | 7 | an appender of `Appenders` | from before the reservation until the commit is applied | never |
//! | 8 | `FamilyState::edit` | while the view is replaced; a commit waits for it during a rotation | by a large commit, in the order of the families' ids |
//! | 9 | `Pipeline::system` | while a mark is appended | |
//! | 10 | `Throttle::checking` | from the check of a stall until a writer waits | |
//! | 11 | `Families::named` | while families are looked up, or one is published | |
//!
//! No thread has 4 and 5 together, nor 5 or 6 and 7. A rotation takes 8 and then 9; a thread with 7
//! waits at 8, so no thread waits for 7 with 8. A failure is noted ([`Store::fail`]) with any of
//! 2 to 9, and takes 10.
//!
//! Below all of these, and with nothing of the engine's below them but what is named: the queues
//! of tasks and of the thread pool (one after the other), `StoreReserve`'s file (it calls the log),
//! `AllViews::edit`, `Gaps::edit`, `WalState::large`, `Registry::open`, `Families::dropped`,
//! `Storage`, `Events::to`, a bucket's mutex (then the directory's and the spare chunks'), and a tree's version lock
//! (then its orphans and what is verified).
//!
//! `Budget::sealing` is only tried. Who has it takes 8 to 11 of each store that shares it. The lock
//! table has an order of its own (`locks/table.rs`) and takes none of these.

mod families;
pub(crate) mod family;
mod health;
pub(crate) mod read_point;
pub(crate) mod reserve;
mod room;
pub(crate) mod view;
pub(crate) mod wal;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use collie_io::{Device, Nanos};
use collie_log::Lsn;
use parking_lot::Mutex;

use crate::background::threads::queue::TaskQueue;
use crate::background::threads::shared::Resources;
use crate::events::Events;
use crate::locks::table::LockTable;
use crate::manifest::file::ManifestFile;
use crate::memtable::chunks::Reclaim;
use crate::memtable::gaps::Gaps;
use crate::memtable::{Chunks, Mem};
use crate::recovery::store_lock::StoreLock;
use crate::store::families::Families;
pub(crate) use crate::store::families::ManifestGuard;
use crate::store::family::FamilyState;
use crate::store::health::StoreHealth;
use crate::store::reserve::StoreReserve;
use crate::store::room::RoomWatch;
pub(crate) use crate::store::view::Views;
use crate::store::wal::{Replayed, WalState};
use crate::tables::{Pinned, Tables, TreeContext};
use crate::transaction::Registry;
use crate::write::appenders::Pipeline;
use crate::write::order::Sequencer;
use crate::write::stall::Throttle;
use crate::{FamilyOptions, Options, Result};

/// An open store. Its parts are private to this folder, but for what writes are made with: others ask
/// the store to do something, and the method says what it keeps true.
pub(crate) struct Store {
    /// Unique among the stores of this process.
    id: u64,
    path: PathBuf,
    options: Options,
    pub(crate) pipeline: Pipeline,
    families: Families,
    room: RoomWatch,
    queue: TaskQueue,
    health: StoreHealth,
    pub(crate) throttle: Throttle,
    wal: WalState,
    locks: Arc<LockTable>,
    transactions: Registry,
    storage: Storage,
    events: Arc<Events>,
}

/// What the memtables and trees of families are made with.
struct Storage {
    trees: TreeContext,
    reclaim: Mutex<Option<Sender<Reclaim>>>,
    /// Memory for memtables.
    chunks: Arc<Chunks>,
    /// The store's lock file, shared with everything that may still remove files of its own: see
    /// `Pinned`.
    lock: Mutex<Option<StoreLock>>,
}

/// What a store is opened with.
pub(crate) struct Start {
    pub(crate) path: PathBuf,
    pub(crate) log_disk_bytes: u64,
    pub(crate) options: Options,
    pub(crate) events: Arc<Events>,
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
            events,
            sequencer,
            manifest,
            reserve,
            parts,
            shared,
            lock,
        } = start;
        let max_payload = options.one_frame_bytes();
        let pipeline = Pipeline::new(sequencer, options.max_workers, max_payload)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            // Relaxed: only uniqueness counts.
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            path,
            locks: Arc::new(LockTable::new(options.max_row_locks)),
            transactions: Registry::new(options.max_row_locks),
            events,
            options,
            pipeline,
            families: Families::new(manifest),
            room: RoomWatch::new(reserve),
            queue: TaskQueue::default(),
            health: StoreHealth::new(),
            throttle: Throttle::new(parts.budget),
            wal: WalState::new(log_disk_bytes),
            storage: Storage {
                trees: shared,
                reclaim: Mutex::new(Some(parts.reclaim)),
                chunks: parts.chunks,
                lock: Mutex::new(Some(lock)),
            },
        })
    }

    /// The store's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.options.device
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The order of commits, and how durable they are. A commit is made by [`Store::appender`]
    /// alone.
    pub(crate) fn sequencer(&self) -> &Sequencer {
        &self.pipeline.sequencer
    }

    /// The queue of events.
    pub(crate) fn events(&self) -> &Events {
        &self.events
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
        self.device().clock().monotonic()
    }

    pub(crate) fn ns_since(&self, started: Nanos) -> Nanos {
        self.now().saturating_sub(started)
    }

    /// Pieces of tables that went to the device in their turn.
    pub(crate) fn background_pieces(&self) -> u64 {
        self.storage.trees.scheduler.begun().background
    }

    /// The largest commit, in bytes of its operations.
    pub(crate) fn max_commit_bytes(&self) -> u64 {
        match self.options.max_commit_bytes {
            0 => self.pipeline.max_payload as u64,
            most => most,
        }
    }

    /// The largest commit that is one frame of the log; a larger one is made of parts.
    pub(crate) fn max_frame_bytes(&self) -> usize {
        self.pipeline.max_payload
    }

    /// Whether a commit of so many bytes is more than one frame. One from an external journal is none.
    pub(crate) fn is_large(&self, bytes: usize) -> bool {
        bytes > self.max_frame_bytes() && self.sequencer().external().is_none()
    }

    /// An empty memtable for a family's commits from `from` on.
    pub(crate) fn new_mem(&self, from: Lsn, family: &FamilyState) -> Mem {
        self.first_mem(from, &family.options(), family.gaps())
    }

    /// As [`Store::new_mem`], for a family that is being made.
    fn first_mem(&self, from: Lsn, options: &FamilyOptions, gaps: &Arc<Gaps>) -> Mem {
        let reclaim = self.reclaim_sender();
        Mem::new(
            from,
            options.write_buffer_bytes,
            &self.storage.chunks,
            gaps,
            reclaim,
        )
    }

    /// An empty memtable for a large commit's part in a family.
    pub(crate) fn new_commit_mem(&self, family: &FamilyState) -> Mem {
        let bytes = family.options().write_buffer_bytes;
        Mem::for_commit(bytes, &self.storage.chunks, family.gaps(), self.reclaim_sender())
    }

    /// Where memory and directories go whose destruction is deferred. Nowhere once the store is
    /// closed: they are then destroyed where they are dropped.
    fn reclaim_sender(&self) -> Sender<Reclaim> {
        self.storage
            .reclaim
            .lock()
            .clone()
            .unwrap_or_else(|| std::sync::mpsc::channel().0)
    }

    /// Pins the newest version of a family's tables for a view. The caller holds the family's
    /// publication, or the family is not published yet.
    pub(crate) fn pin(&self, tables: &Tables) -> Arc<Pinned> {
        Arc::new(tables.pin(self.storage.lock.lock().clone()))
    }

    /// Bytes of all memtables that wait to be flushed, large commits' own excepted.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.storage.chunks.unflushed()
    }

    /// All that the store counts. The numbers are read one after the other, not at one instant.
    pub(crate) fn counts(&self) -> Counts {
        let (commits, commit_bytes) = self.pipeline.appenders.totals();
        Counts {
            commits,
            commit_bytes,
            apply_wait_ns: self.pipeline.apply_wait_ns.load(Ordering::Relaxed),
            snapshots: self.families.snapshots.load(Ordering::Relaxed),
            wal_size_flushes: self.wal.size_flushes.get(),
            replayed: *self.wal.replayed.lock(),
        }
    }
}

/// A store's counts at one moment.
pub(crate) struct Counts {
    pub(crate) commits: u64,
    /// Bytes of commits as they are encoded for the log.
    pub(crate) commit_bytes: u64,
    /// How long threads waited for earlier commits to be applied, in nanoseconds.
    pub(crate) apply_wait_ns: u64,
    pub(crate) snapshots: usize,
    pub(crate) wal_size_flushes: u64,
    pub(crate) replayed: Replayed,
}
