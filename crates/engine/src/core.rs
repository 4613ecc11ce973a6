//! A store's state, shared by its handles and its background threads.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use collie_io::{Device, File, Opener};
use collie_log::Lsn;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::codec::KIND_MARK;
use crate::garbage::Garbage;
use crate::journal::Journal;
use crate::manifest_file::{ManifestError, ManifestFile};
use crate::memtable::{At, Chunks, Mem};
use crate::read_point::ReadPoint;
use crate::registered::{Flushed, Kept};
use crate::reserve::Reserve;
use crate::stats::{Counters, FamilyCounters};
use crate::tables::{Pinned, Shared, Tables};
use crate::tasks::Tasks;
use crate::transaction::{Denied, Link, LockTable, Registry};
use crate::view::{FlushCause, View};
use crate::visible::Visible;
use crate::workers::{Hand, Record, Room, Workers};
use crate::{DeadlockLink, Error, FamilyOptions, Key, Options, Result};

/// Writes to the family go on as they come.
pub(crate) const GATE_OPEN: u8 = 0;
/// Each write is delayed.
pub(crate) const GATE_SLOW: u8 = 1;
/// Writes wait until background work has caught up.
pub(crate) const GATE_STOP: u8 = 2;

/// A family, shared by its handles, the store and the background threads.
pub(crate) struct FamilyState {
    /// The id of the [`Core`] that it belongs to.
    pub(crate) store: u64,
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    pub(crate) options: FamilyOptions,
    pub(crate) tables: Tables,
    pub(crate) view: ArcSwap<View>,
    /// Held by whoever replaces the view: for a rotation, or for the moment of a publication.
    pub(crate) edit: Mutex<()>,
    /// A rotation has begun: later commits must not choose a memtable before it has published its view.
    pub(crate) rotating: AtomicBool,
    /// Held from pinning a version to publishing it, so that an older one never replaces a newer one.
    pub(crate) publish: Mutex<()>,
    /// Held by the one flush of this family that runs; see [`Flush`](crate::registered::Flush).
    pub(crate) flushing: Mutex<Kept>,
    /// Held by the one compaction of this family that runs.
    pub(crate) compacting: Mutex<()>,
    pub(crate) gate: AtomicU8,
    /// Level-0 runs as the last flush or compaction left them.
    pub(crate) level0: AtomicUsize,
    pub(crate) flush_queued: AtomicBool,
    pub(crate) compaction_queued: AtomicBool,
    pub(crate) dropped: AtomicBool,
    /// Only [`record`](crate::registered::record) moves it.
    pub(crate) flushed: Flushed,
    /// Why the last flush failed; cleared by the next that succeeds.
    pub(crate) flush_error: Mutex<Option<Error>>,
    /// Why the last compaction failed; cleared by the next that succeeds.
    pub(crate) compaction_error: Mutex<Option<Error>>,
    /// Flushes, and compactions, that failed one after the other.
    pub(crate) flush_failures: AtomicU32,
    pub(crate) compaction_failures: AtomicU32,
    pub(crate) counters: FamilyCounters,
}

impl FamilyState {
    /// The memtable for a commit at `start`. The caller holds a BLACK slot at `start`, and has passed an
    /// Acquire fence after the reservation.
    pub(crate) fn with_mem<T>(&self, start: Lsn, apply: impl FnOnce(&Mem) -> T) -> T {
        // A rotation at R sets `rotating` before it reserves R with Release. If R < start, our reservation
        // read from that release sequence, so the fence makes the flag visible: we either see it set, and
        // wait, or see it cleared again (Acquire, pairs with the Release in `rotate`), and then the view
        // that the rotation published. If R > start, either view has the memtable for `start`.
        while self.rotating.load(Ordering::Acquire) {
            reach!("waits for a rotation");
            drop(self.edit.lock());
        }
        apply(self.view.load().mem_for(start))
    }

    pub(crate) fn is_dropped(&self) -> bool {
        // Relaxed: a write that races with the drop of its family may count either way.
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The families by name and by id.
#[derive(Default)]
pub(crate) struct Families {
    pub(crate) by_name: BTreeMap<Arc<str>, Arc<FamilyState>>,
}

impl Families {
    pub(crate) fn all(&self) -> Vec<Arc<FamilyState>> {
        self.by_name.values().cloned().collect()
    }
}

/// Whether the store takes writes, and what of it can be read.
#[derive(Default)]
pub(crate) struct Health {
    /// Set once, together with `cause`.
    failed: AtomicBool,
    cause: Mutex<Option<Error>>,
    /// A commit has its place in the order and will never be applied: the visible boundary does not pass it.
    unapplied: OnceLock<Error>,
    /// A thread panicked in mid-commit: what it has left in the memtables nobody knows.
    half_applied: OnceLock<Arc<str>>,
    closed: AtomicBool,
}

/// See the module's page.
pub(crate) struct Core {
    /// Tells open stores of one process apart.
    pub(crate) id: u64,
    pub(crate) path: PathBuf,
    /// The process that all of this belongs to: a child that it forks has only copies.
    opener: Opener,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: Options,
    pub(crate) max_payload: usize,
    pub(crate) journal: Journal,
    pub(crate) visible: Visible,
    pub(crate) workers: Workers,
    /// The hand for marks. Nobody who holds it waits for a rotation, so a rotation always gets it, even if
    /// every other hand waits for that rotation.
    system: Mutex<Option<Hand>>,
    pub(crate) families: RwLock<Families>,
    pub(crate) manifest: Mutex<ManifestFile>,
    pub(crate) reserve: Reserve,
    pub(crate) tasks: Tasks,
    pub(crate) garbage: Mutex<Option<Sender<Garbage>>>,
    /// Memory for memtables.
    chunks: Arc<Chunks>,
    pub(crate) shared: Shared,
    health: Health,
    /// Writers that stop wait here; notified whenever a gate may have opened.
    pub(crate) stalls: Mutex<()>,
    pub(crate) gates: Condvar,
    /// The log's end at which its size is looked at again.
    pub(crate) wal_check_at: AtomicU64,
    /// The log was full for a commit, and nobody has looked yet whether something can be let go.
    pub(crate) log_full: AtomicBool,
    /// What there is to warn of about the log's limit was said.
    pub(crate) warned: AtomicBool,
    pub(crate) snapshots: AtomicUsize,
    /// The log is being replayed: only replay itself seals memtables, at the frame that it has come to. A
    /// mark would be at the log's end and would count frames as flushed that replay has yet to reach.
    pub(crate) replaying: AtomicBool,
    pub(crate) locks: Arc<LockTable>,
    pub(crate) transactions: Registry,
    /// Held for reading by calls that write to the directory on their caller's thread, and for writing by
    /// `close`: once that has it, nothing of this store touches the directory any more.
    pub(crate) life: RwLock<()>,
    /// The store's lock, shared with everything that may still remove files of its own: see `Pinned`.
    pub(crate) lock: Mutex<Option<Arc<dyn File>>>,
    pub(crate) counters: Counters,
}

/// What a new core starts from.
pub(crate) struct Start {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) journal: Journal,
    pub(crate) manifest: ManifestFile,
    pub(crate) reserve: Reserve,
    pub(crate) garbage: Sender<Garbage>,
    pub(crate) chunks: Arc<Chunks>,
    pub(crate) shared: Shared,
    pub(crate) lock: Arc<dyn File>,
}

impl Core {
    pub(crate) fn new(start: Start) -> Result<Self> {
        let Start {
            path,
            options,
            journal,
            manifest,
            reserve,
            garbage,
            chunks,
            shared,
            lock,
        } = start;
        // One hand is the system's.
        let hands = options.max_workers - 1;
        let visible = Visible::new(options.max_workers, journal.reserved());
        let system = Hand::new(&journal, &visible)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            // Relaxed: only uniqueness counts.
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            path,
            opener: Opener::here(),
            device: Arc::clone(&options.device),
            max_payload: collie_log::LogOptions {
                ring_bytes: options.ring_bytes,
                pad_to_block: options.pad_to_block,
                ..collie_log::LogOptions::default()
            }
            .max_payload(),
            locks: Arc::new(LockTable::new(options.max_row_locks)),
            transactions: Registry::new(options.max_row_locks),
            options,
            visible,
            workers: Workers::new(hands),
            system: Mutex::new(Some(system)),
            journal,
            families: RwLock::default(),
            manifest: Mutex::new(manifest),
            reserve,
            tasks: Tasks::default(),
            garbage: Mutex::new(Some(garbage)),
            chunks,
            shared,
            health: Health::default(),
            stalls: Mutex::new(()),
            gates: Condvar::new(),
            wal_check_at: AtomicU64::new(Lsn::MAX),
            log_full: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            snapshots: AtomicUsize::new(0),
            replaying: AtomicBool::new(false),
            life: RwLock::new(()),
            lock: Mutex::new(Some(lock)),
            counters: Counters::default(),
        })
    }

    /// Why writes are refused, if they are.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if let Err(forked) = self.check_process() {
            return Some(forked);
        }
        // Relaxed: the cause is read under its lock.
        if self.health.closed.load(Ordering::Relaxed) {
            return Some(Error::Closed);
        }
        if self.health.failed.load(Ordering::Relaxed) {
            return self.health.cause.lock().clone();
        }
        None
    }

    /// Fails in a child of the process that opened the store.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.opener.is_here() {
            return Ok(());
        }
        Err(Error::Forked {
            path: self.path.clone(),
            opener: self.opener.pid(),
        })
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.health.closed.load(Ordering::Relaxed)
    }

    /// Returns whether this call closed it.
    pub(crate) fn set_closed(&self) -> bool {
        !self.health.closed.swap(true, Ordering::Relaxed)
    }

    /// Refuses writes from now on. The first cause stays.
    pub(crate) fn fail(&self, cause: Error) {
        tracing::error!(path = %self.path.display(), %cause, "writes are refused from now on");
        self.health.cause.lock().get_or_insert(cause);
        self.health.failed.store(true, Ordering::Relaxed);
        self.visible.wake();
        self.open_gates();
    }

    /// The error of a change of the manifest. Where nobody knows whether the manifest says so, no write may rely on either,
    /// and writes are refused from now on.
    pub(crate) fn manifest_failed(&self, error: ManifestError) -> Error {
        if let ManifestError::InDoubt(error) = &error {
            self.fail(Error::Background {
                cause: error.to_string(),
            });
        }
        error.into()
    }

    /// Lets stopped writers look again.
    pub(crate) fn open_gates(&self) {
        drop(self.stalls.lock());
        self.gates.notify_all();
    }

    /// A commit that has its place in the order will never be applied.
    fn leave_unapplied(&self, cause: Error) {
        // Its waiters look when `fail` wakes them.
        self.health.unapplied.get_or_init(|| cause.clone());
        self.fail(cause);
    }

    /// Waits until everything below `end` is in its memtables. Neither a failure nor closing ends that by itself: what
    /// is under way is applied all the same.
    pub(crate) fn wait_visible(&self, end: Lsn) -> Result<()> {
        let unapplied = || self.health.unapplied.get().cloned();
        self.visible.wait(end, &self.journal, unapplied)
    }

    /// What a read shows that begins now.
    pub(crate) fn read_point(&self, durable: bool) -> ReadPoint {
        // First: as long as no failure is seen below, what is visible here was so before any.
        let visible = self.visible.boundary();
        reach!("read has its boundary");
        if let Some(cause) = self.health.half_applied.get() {
            return ReadPoint::nothing_certain(visible, cause);
        }
        if let Some(failure) = self.journal.failure() {
            return ReadPoint::certain_below(visible.min(failure.durable), &failure.cause);
        }
        match self.journal.durable() {
            Some(durable_boundary) if durable => ReadPoint::at(visible.min(durable_boundary)),
            _ => ReadPoint::at(visible),
        }
    }

    /// Takes the room again that the reserve gave up, where there is some.
    pub(crate) fn fill_reserve(&self) {
        self.reserve.fill(Some(&self.journal));
    }

    /// Takes a place in the order for something that is no commit.
    pub(crate) fn mark(&self) -> Result<At> {
        self.mark_in(Room::Relief)
    }

    fn mark_in(&self, room: Room) -> Result<At> {
        let mut system = self.system.lock();
        let hand = system.as_mut().ok_or(Error::Closed)?;
        let unfinished = Unfinished(self);
        let mark = hand.commit(
            &self.journal,
            &self.visible,
            KIND_MARK,
            Record::Place,
            room,
            |_| (),
        );
        std::mem::forget(unfinished);
        self.settle(mark)
    }

    /// A hand for a commit. `None` where row locks must be taken first: the caller says whether it has.
    pub(crate) fn turn(&self, has_locks: bool) -> Result<Option<Turn<'_>>> {
        let mut place = self.workers.take();
        // Under the hand: `use_locks` takes every hand once after it has set this.
        if !has_locks && self.locks.in_use() {
            return Ok(None);
        }
        if place.is_none() {
            self.check_open()?;
            *place = Some(Hand::new(&self.journal, &self.visible)?);
        }
        Ok(Some(Turn { core: self, place }))
    }

    /// Has writes outside of transactions take row locks from now on. On return all that did not are applied.
    pub(crate) fn use_locks(&self) {
        self.locks.use_from_now_on(|| self.workers.pass());
    }

    /// The error for a lock that was not given, for a request in the family of that name.
    pub(crate) fn denied(&self, family: &str, key: Option<&[u8]>, denied: Denied) -> Error {
        match denied {
            Denied::Timeout { waited } => Error::LockTimeout {
                family: family.to_owned(),
                key: key.map(Key::from),
                waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            },
            Denied::TooMany { limit } => Error::TooManyLocks { limit },
            Denied::Deadlock(ring) => Error::Deadlock {
                cycle: ring.into_iter().map(|link| self.deadlock_link(link)).collect(),
            },
        }
    }

    fn deadlock_link(&self, link: Link) -> DeadlockLink {
        DeadlockLink {
            transaction: link.owner.id,
            name: link.owner.name.to_string(),
            family: self.family_name(link.family),
            key: link.key,
        }
    }

    /// The name of the family with that id, or the id where it was dropped.
    pub(crate) fn family_name(&self, id: u32) -> String {
        let families = self.families.read();
        let found = families.by_name.values().find(|family| family.id == id);
        found.map_or_else(|| format!("number {id}"), |family| family.name.to_string())
    }

    fn settle(&self, committed: std::result::Result<At, (Error, bool)>) -> Result<At> {
        committed.map_err(|(error, reserved)| {
            if reserved {
                self.leave_unapplied(error.clone());
            }
            error
        })
    }

    /// Seals the family's active memtable at an LSN of its own; later commits go to a new one. Returns the
    /// LSN, below which the family's commits are in sealed memtables or tables.
    ///
    /// `only_if` is asked when no other rotation is under way.
    pub(crate) fn rotate(
        &self,
        family: &FamilyState,
        cause: FlushCause,
        only_if: impl FnOnce(&View) -> bool,
    ) -> Result<Option<At>> {
        let edit = family.edit.lock();
        let view = family.view.load_full();
        if !only_if(&view) {
            return Ok(None);
        }
        // Ordered before the mark's reservation by that one's Release; see `FamilyState::with_mem`.
        family.rotating.store(true, Ordering::Relaxed);
        let mark = self.mark_in(Room::Mark);
        reach!("rotation has its LSN");
        if let Ok(at) = mark {
            family
                .view
                .store(Arc::new(self.rotated(family, &view, at, cause)));
        }
        // Release: whoever sees it cleared sees the new view.
        family.rotating.store(false, Ordering::Release);
        drop(edit);
        mark.map(Some)
    }

    fn rotated(&self, family: &FamilyState, view: &View, at: At, cause: FlushCause) -> View {
        let mut sealed = view.sealed.clone();
        sealed.push(crate::view::Sealed {
            mem: Arc::clone(&view.active),
            until: at.start,
            until_end: at.end,
            cause,
        });
        View {
            active: Arc::new(self.new_mem(at.start, &family.options)),
            sealed,
            tables: Arc::clone(&view.tables),
        }
    }

    pub(crate) fn new_mem(&self, from: Lsn, options: &FamilyOptions) -> Mem {
        let garbage = self.garbage_sender();
        Mem::new(from, options.write_buffer_bytes, &self.chunks, garbage)
    }

    /// Where garbage goes; nowhere once the store is closed, and then it is freed on the spot.
    pub(crate) fn garbage_sender(&self) -> Sender<Garbage> {
        self.garbage
            .lock()
            .clone()
            .unwrap_or_else(|| std::sync::mpsc::channel().0)
    }

    /// Gives all workers back to the log, which can close then.
    pub(crate) fn release_hands(&self) {
        self.workers.clear();
        drop(self.system.lock().take());
    }

    /// Lets go of what outlives a closed store's last handle: workers, memtables, tables, the lock. What
    /// snapshots and iterators still pin keeps the lock until they are gone.
    pub(crate) fn release(&self) {
        self.release_hands();
        for family in self.families.read().all() {
            let _edit = family.edit.lock();
            let view = family.view.load_full();
            family.view.store(Arc::new(View {
                active: Arc::new(self.new_mem(view.active.from(), &family.options)),
                sealed: Vec::new(),
                tables: Arc::new(Pinned::nothing()),
            }));
        }
        drop(self.garbage.lock().take());
        drop(self.lock.lock().take());
    }

    /// A version of the family's tables for a view. The caller holds `publish`, or nobody else knows the
    /// family yet.
    pub(crate) fn pin(&self, tables: &Tables) -> Arc<Pinned> {
        Arc::new(tables.pin(self.lock.lock().clone()))
    }

    /// A view and a point that fit together; see `view.rs` for the argument. The view is borrowed from
    /// the family, so that readers share no reference count.
    pub(crate) fn read_at(
        &self,
        family: &FamilyState,
        durable: bool,
    ) -> (arc_swap::Guard<Arc<View>>, ReadPoint) {
        let mut view = family.view.load();
        reach!("read has its view");
        loop {
            let point = self.read_point(durable);
            let again = family.view.load();
            if Arc::ptr_eq(&view, &again) {
                reach!("read has its point");
                return (view, point);
            }
            view = again;
        }
    }
}

/// The right to make one commit.
pub(crate) struct Turn<'a> {
    core: &'a Core,
    place: MutexGuard<'a, Option<Hand>>,
}

impl Turn<'_> {
    /// Commits a record; on return it is applied and the visible boundary is on its way.
    pub(crate) fn commit(
        mut self,
        kind: u8,
        record: Record<'_>,
        room: Room,
        apply: impl FnOnce(At),
    ) -> Result<At> {
        let core = self.core;
        let hand = self.place.as_mut().ok_or(Error::Closed)?;
        let unfinished = Unfinished(core);
        let committed = hand.commit(&core.journal, &core.visible, kind, record, room, apply);
        std::mem::forget(unfinished);
        drop(self.place);
        if let Err((Error::StorageFull { .. }, _)) = &committed {
            crate::wal_size::make_room_in_log(core);
        }
        core.settle(committed)
    }
}

/// Dropped only by a panic before the end of the application. The commit may be complete in the log by then.
struct Unfinished<'a>(&'a Core);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let cause = "a thread panicked in mid-commit";
        self.0.health.half_applied.get_or_init(|| cause.into());
        self.0.leave_unapplied(Error::Background { cause: cause.into() });
    }
}
