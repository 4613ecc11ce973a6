//! A family, shared by its handles, the store and the background threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use collie_log::Lsn;
use parking_lot::{Mutex, MutexGuard};

use crate::events::FlushCause;
use crate::key::Edge;
use crate::manifest::{FamilyRecord, Flushed, PendingRecord};
use crate::memtable::gaps::{Gaps, PutSince, Walked};
use crate::memtable::{At, Mem};
use crate::store::view::{AllViews, View};
use crate::tables::{Content, Pinned, Tables};
use crate::write::stall::{Stall, StallState};
use crate::{Error, FamilyOptions, Result};

/// Entries of memtables that are searched for puts, for each removed row of a gap that is noted.
const SEARCHED_FOR_EACH: usize = 8;

/// A family, shared by its handles, the store and the background threads. What never changes is
/// read through plain accessors; what does changes by rotation, publication and withdrawal alone.
pub(crate) struct FamilyState {
    /// The id of the [`Store`](crate::store::Store) that it belongs to.
    store_id: u64,
    id: u32,
    name: Arc<str>,
    options: ArcSwap<FamilyOptions>,
    /// As there: each commit looks at it.
    write_buffer_bytes: AtomicU64,
    tables: Tables,
    counters: FamilyCounters,
    flushes: Work,
    compactions: Work,
    whole_merges: Work,
    view: ArcSwap<View>,
    /// Those of all families, with this one.
    views: Arc<AllViews>,
    gaps: Arc<Gaps>,
    /// Held while the view is replaced: for a rotation, or for the moment of a publication.
    edit: Mutex<()>,
    /// A rotation has begun: later commits must not choose a memtable before it has published its
    /// view.
    rotating: AtomicBool,
    /// Held from pinning a version to publishing it, so that an older one never replaces a newer
    /// one.
    publish: Mutex<()>,
    /// Held by the one flush of this family that runs.
    flushing: Mutex<PendingRecord>,
    /// Held by the one compaction of this family that runs.
    compacting: Mutex<()>,
    stall: StallState,
    /// Level-0 runs as the last flush or compaction left them.
    level0: AtomicUsize,
    dropped: AtomicBool,
    flushed: Flushed,
}

/// The background work of one kind that a family needs: whether it is queued, and how it went.
#[derive(Default)]
pub(crate) struct Work {
    queued: AtomicBool,
    /// How often it is queued or under way.
    pending: AtomicU32,
    /// How often it failed since it last succeeded.
    failures: AtomicU32,
    /// Why it failed last; cleared when it succeeds.
    error: Mutex<Option<Error>>,
}

impl Work {
    /// Marks it queued. Returns whether the caller is to queue it: it was not queued yet.
    pub(crate) fn enqueue(&self) -> bool {
        // AcqRel, as in `dequeue`: the thread that clears the flag afterwards sees the work that
        // this call is made for.
        let is_new = !self.queued.swap(true, Ordering::AcqRel);
        if is_new {
            // Release: with `is_idle`. Before the thread that queues it again from within ends.
            self.pending.fetch_add(1, Ordering::Release);
        }
        is_new
    }

    /// A thread begins to do it: work that arises from here on queues it again.
    pub(crate) fn dequeue(&self) -> Running<'_> {
        self.queued.swap(false, Ordering::AcqRel);
        Running(self)
    }

    /// Whether none is queued or under way in the background.
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: with `enqueue` and `Running`: what the work did is seen.
        self.pending.load(Ordering::Acquire) == 0
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Notes how an attempt went.
    pub(crate) fn note(&self, done: &Result<()>) {
        *self.error.lock() = done.as_ref().err().cloned();
        if done.is_ok() {
            // Relaxed: a number on its own.
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure. Returns how many there were in a row before it.
    pub(crate) fn failed_again(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.error.lock().clone()
    }
}

/// Work that a thread does.
#[must_use = "when it is dropped the work has ended"]
pub(crate) struct Running<'a>(&'a Work);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Release: with `Work::is_idle`.
        self.0.pending.fetch_sub(1, Ordering::Release);
    }
}

impl FamilyState {
    /// A family as the manifest has it, with an empty memtable.
    pub(crate) fn new(
        store_id: u64,
        record: &FamilyRecord,
        tables: Tables,
        pinned: Arc<Pinned>,
        mem: Mem,
        views: &Arc<AllViews>,
    ) -> Self {
        let gaps = Arc::clone(mem.gaps());
        let view = View {
            active: Arc::new(mem),
            sealed: Vec::new(),
            tables: pinned,
        };
        Self {
            store_id,
            id: record.id,
            name: record.name.as_str().into(),
            options: ArcSwap::from_pointee(record.options.clone()),
            write_buffer_bytes: AtomicU64::new(record.options.write_buffer_bytes),
            level0: AtomicUsize::new(tables.level0_runs()),
            tables,
            counters: FamilyCounters::default(),
            flushes: Work::default(),
            compactions: Work::default(),
            whole_merges: Work::default(),
            view: ArcSwap::from_pointee(view),
            views: Arc::clone(views),
            gaps,
            edit: Mutex::new(()),
            rotating: AtomicBool::new(false),
            publish: Mutex::new(()),
            flushing: Mutex::default(),
            compacting: Mutex::new(()),
            stall: StallState::default(),
            dropped: AtomicBool::new(false),
            flushed: Flushed::found(record.flushed),
        }
    }

    pub(super) fn store_id(&self) -> u64 {
        self.store_id
    }

    /// No other family of the store ever had this id or will have it.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Those in force: the ones of its tables are as they were when it was opened, whatever is here.
    pub(crate) fn options(&self) -> arc_swap::Guard<Arc<FamilyOptions>> {
        self.options.load()
    }

    pub(crate) fn set_options(&self, options: FamilyOptions) {
        // Relaxed: a number by itself.
        self.write_buffer_bytes
            .store(options.write_buffer_bytes, Ordering::Relaxed);
        self.options.store(Arc::new(options));
    }

    /// The option of that name.
    pub(crate) fn write_buffer_bytes(&self) -> u64 {
        self.write_buffer_bytes.load(Ordering::Relaxed)
    }

    /// The family's tree. What of it reads see changes by [`FamilyState::publication`] alone.
    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    pub(crate) fn counters(&self) -> &FamilyCounters {
        &self.counters
    }

    pub(crate) fn flushes(&self) -> &Work {
        &self.flushes
    }

    pub(crate) fn compactions(&self) -> &Work {
        &self.compactions
    }

    /// What reads see: memtables and one version of the tables. Borrowed from the family, so that
    /// readers share no reference count.
    pub(crate) fn view(&self) -> arc_swap::Guard<Arc<View>> {
        self.view.load()
    }

    /// Stretches of keys without a live one.
    pub(crate) fn gaps(&self) -> &Arc<Gaps> {
        &self.gaps
    }

    /// Notes a gap; see there.
    pub(crate) fn note_gap(&self, walked: &Walked) {
        // No more than what was walked over, about.
        let mut left = SEARCHED_FOR_EACH * walked.passed as usize;
        self.gaps.note(walked, |low, high| {
            let bounds = Edge::between(low, high);
            let view = self.view();
            if view.tables.may_have_newer(&bounds, walked.since) {
                return PutSince::Unknown;
            }
            let (low, high) = (
                bounds.0.as_ref().map(|key| &**key),
                bounds.1.as_ref().map(|key| &**key),
            );
            let mut first = PutSince::No;
            for mem in view.mems() {
                match (mem.put_since(low, high, walked.since, &mut left), &first) {
                    (PutSince::No, _) => {}
                    (PutSince::Unknown, _) => return PutSince::Unknown,
                    (PutSince::Key(key), PutSince::Key(before)) if *before <= key => {}
                    (found, _) => first = found,
                }
            }
            first
        });
    }

    /// Replaces the view, for reads of the family and for snapshots. The caller holds `edit`.
    fn set_view(&self, view: View) {
        let view = Arc::new(view);
        self.gaps.change_view(|| self.view.store(Arc::clone(&view)));
        self.views.replace(self.id, view);
    }

    /// Applies a commit to the memtable that its start belongs to, also while a rotation runs. The
    /// caller's slot is pending at `start`, and the caller has passed an Acquire fence after the
    /// reservation.
    pub(crate) fn with_mem<T>(&self, start: Lsn, apply: impl FnOnce(&Mem) -> T) -> T {
        // A rotation at R sets `rotating` before it reserves R with Release. If R < start, our
        // reservation read from that release sequence, so the fence makes the flag visible: we
        // either see it set, and wait, or see it cleared again (Acquire, pairs with the Release in
        // `rotate`), and then the view that the rotation published. If R > start, either view has
        // the memtable for `start`.
        while self.rotating.load(Ordering::Acquire) {
            reach!("waits for a rotation");
            drop(self.edit.lock());
        }
        apply(self.view.load().mem_for(start))
    }

    /// Whether the active memtable has reached its size and is to be sealed.
    pub(crate) fn is_memtable_full(&self) -> bool {
        self.view().active.bytes() >= self.write_buffer_bytes()
    }

    /// Seals the active memtable at an LSN that `position` gets; later commits go to a new one,
    /// which `mem` makes. Returns that LSN, below which the family's commits are in sealed
    /// memtables or tables.
    ///
    /// `only_if` decides while no other rotation runs.
    pub(crate) fn rotate(
        &self,
        cause: FlushCause,
        only_if: impl FnOnce(&View) -> bool,
        position: impl FnOnce() -> Result<At>,
        mem: impl FnOnce(Lsn) -> Mem,
    ) -> Result<Option<At>> {
        let edit = self.edit.lock();
        let view = self.view.load_full();
        if !only_if(&view) {
            return Ok(None);
        }
        // Ordered before the reservation by that one's Release; see `with_mem`.
        self.rotating.store(true, Ordering::Relaxed);
        let reserved = position();
        reach!("rotation has its LSN");
        if let Ok(at) = reserved {
            self.set_view(view.sealed_at(at, cause, mem(at.start)));
        }
        // Release pairs with the Acquire in `with_mem`: a commit that sees it cleared sees the new
        // view.
        self.rotating.store(false, Ordering::Release);
        drop(edit);
        reserved.map(Some)
    }

    /// Keeps later commits from choosing a memtable until the result is dropped: a large commit is
    /// to be linked at an LSN that is reserved meanwhile. A thread that does this for several
    /// families has its appender already, and takes them in the order of their ids.
    pub(crate) fn begin_link(&self) -> ViewLink<'_> {
        let edit = self.edit.lock();
        // Ordered before the reservation by that one's Release; see `with_mem`.
        self.rotating.store(true, Ordering::Relaxed);
        ViewLink {
            family: self,
            _edit: edit,
        }
    }

    /// As [`ViewLink::publish`], for replay, during which nothing commits.
    pub(crate) fn link(&self, at: At, commit: Mem, mem: Mem) {
        self.begin_link().publish(at, commit, mem);
    }

    /// Seals the active memtable at an LSN that a frame of the log has already. For replay, during
    /// which nothing commits.
    pub(crate) fn seal(&self, at: At, cause: FlushCause, mem: Mem) {
        let _edit = self.edit.lock();
        let view = self.view.load_full();
        self.set_view(view.sealed_at(at, cause, mem));
    }

    /// Waits for the exclusive right to publish a version of the tables.
    pub(crate) fn publication(&self) -> Publication<'_> {
        Publication {
            family: self,
            _publish: self.publish.lock(),
        }
    }

    /// Whether a publication is under way.
    #[cfg(test)]
    pub(crate) fn is_publishing(&self) -> bool {
        self.publish.try_lock().is_none()
    }

    /// Releases memtables and tables: reads find nothing any more. For a store that has closed.
    pub(crate) fn empty(&self, mem: impl FnOnce(Lsn) -> Mem) {
        let _edit = self.edit.lock();
        let view = self.view.load_full();
        self.set_view(View {
            active: Arc::new(mem(view.active.from())),
            sealed: Vec::new(),
            tables: Arc::new(Pinned::nothing()),
        });
    }

    /// Waits until no other flush of the family runs, and keeps others out. The guard has what
    /// flushes registered and the manifest does not say yet.
    pub(crate) fn lock_flushes(&self) -> MutexGuard<'_, PendingRecord> {
        self.flushing.lock()
    }

    /// As [`FamilyState::lock_flushes`], if no flush of the family runs.
    pub(crate) fn try_lock_flushes(&self) -> Option<MutexGuard<'_, PendingRecord>> {
        self.flushing.try_lock()
    }

    pub(crate) fn whole_merges(&self) -> &Work {
        &self.whole_merges
    }

    /// Keeps other compactions of the family out, if none runs.
    pub(crate) fn try_lock_compactions(&self) -> Option<MutexGuard<'_, ()>> {
        self.compacting.try_lock()
    }

    /// Waits until no other compaction of the family runs, and keeps others out.
    pub(crate) fn lock_compactions(&self) -> MutexGuard<'_, ()> {
        self.compacting.lock()
    }

    /// The LSN below which the manifest calls its commits flushed.
    pub(crate) fn flushed(&self) -> &Flushed {
        &self.flushed
    }

    /// What it does to writes now.
    pub(crate) fn stall(&self) -> Stall {
        self.stall.get()
    }

    pub(crate) fn stall_state(&self) -> &StallState {
        &self.stall
    }

    /// Keys by what tables and memtables say of themselves, as if each was written once, and removed
    /// once at most.
    pub(crate) fn approximate_len(&self) -> u64 {
        self.approximate_len_with(&self.tables.content())
    }

    /// The same, with what the tables hold.
    pub(crate) fn approximate_len_with(&self, content: &Content) -> u64 {
        let in_tables = (content.entries - content.tombstones, content.tombstones);
        let view = self.view();
        let (written, removed) = view.mems().fold(in_tables, |(written, removed), mem| {
            let count = mem.count();
            let removals = count.removals as u64;
            (written + count.entries as u64 - removals, removed + removals)
        });
        written.saturating_sub(removed)
    }

    /// Level-0 runs in the tables that reads see.
    pub(crate) fn level0_runs(&self) -> usize {
        self.level0.load(Ordering::Relaxed)
    }

    pub(crate) fn is_dropped(&self) -> bool {
        // Relaxed: a write that races with the drop of its family may count either way.
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn check_not_dropped(&self) -> Result<()> {
        if self.is_dropped() {
            return Err(Error::FamilyDropped {
                name: self.name.to_string(),
            });
        }
        Ok(())
    }

    /// The manifest has dropped it. Its files are removed with their last user.
    pub(super) fn set_dropped(&self) {
        self.dropped.store(true, Ordering::Relaxed);
        self.tables.remove_when_unused();
    }
}

/// The exclusive right to link a large commit's memtable into the family's view.
pub(crate) struct ViewLink<'a> {
    family: &'a FamilyState,
    _edit: MutexGuard<'a, ()>,
}

impl ViewLink<'_> {
    /// Links the commit at `at`; later commits of the family go to `mem`, which begins at its end.
    pub(crate) fn publish(&self, at: At, mut commit: Mem, mem: Mem) {
        commit.place(at);
        let view = self.family.view.load_full();
        self.family.set_view(view.with_commit(at, commit, mem));
        // With its keys in the view, and before they are visible.
        self.family.gaps.clear();
    }
}

impl Drop for ViewLink<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `with_mem`, as in `rotate`: a commit that sees it
        // cleared sees the new view, if there is one.
        self.family.rotating.store(false, Ordering::Release);
    }
}

/// The exclusive right to publish a version of the family's tables.
pub(crate) struct Publication<'a> {
    family: &'a FamilyState,
    _publish: MutexGuard<'a, ()>,
}

impl Publication<'_> {
    /// Pins the newest version of the tables and replaces the one that reads see by it. Its tables
    /// hold the `flushed` oldest sealed memtables, which leave the view in the same step.
    pub(crate) fn publish(self, pin: impl FnOnce(&Tables) -> Arc<Pinned>, flushed: usize) {
        let family = self.family;
        let tables = pin(&family.tables);
        // Counted under `publish`: a count from before a compaction must not replace the one from
        // after it.
        let level0 = family.tables.level0_runs();
        reach!("level 0 is counted");
        family.level0.store(level0, Ordering::Relaxed);
        let _edit = family.edit.lock();
        let view = family.view.load();
        for sealed in view.sealed.iter().take(flushed) {
            sealed.mem.flushed();
        }
        family.set_view(View {
            active: Arc::clone(&view.active),
            sealed: view.sealed.iter().skip(flushed).cloned().collect(),
            tables,
        });
    }
}

/// A number that only grows. Relaxed throughout: nothing else is read on the strength of it.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A family's counters.
#[derive(Default)]
pub(crate) struct FamilyCounters {
    flushes: Mutex<BTreeMap<u8, (FlushCause, u64)>>,
    pub(crate) flushed_bytes: Counter,
    pub(crate) flush_ns: Counter,
    pub(crate) flush_failures: Counter,
    pub(crate) compactions: Counter,
    pub(crate) compaction_ns: Counter,
    pub(crate) compaction_failures: Counter,
    pub(crate) whole_merges: Counter,
    pub(crate) delays: Counter,
    pub(crate) delay_ns: Counter,
    pub(crate) stops: Counter,
    pub(crate) stop_ns: Counter,
    pub(crate) seal_ns: Counter,
}

impl FamilyCounters {
    pub(crate) fn count_flush(&self, cause: FlushCause, bytes: u64, ns: u64) {
        self.flushes.lock().entry(cause as u8).or_insert((cause, 0)).1 += 1;
        self.flushed_bytes.add(bytes);
        self.flush_ns.add(ns);
    }

    /// Flushes by cause.
    pub(crate) fn flushes(&self) -> Vec<(FlushCause, u64)> {
        self.flushes.lock().values().copied().collect()
    }
}
