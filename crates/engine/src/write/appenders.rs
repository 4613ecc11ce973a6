//! The appenders: a bounded pool of log workers, each with its slot for the visible boundary.
//!
//! A thread has an appender from the reservation until the commit is applied, and never waits
//! meanwhile for anything that needs another appender. Each thread starts its search at an index of
//! its own, so without contention every thread finds the same free appender again and no two of
//! them touch the same lock.
//!
//! # The visible boundary
//!
//! It is the largest LSN below which every commit is in its memtables: a second completion boundary
//! over the log's reservation counter. A commit's slot is pending from before the log reserves for
//! it until its writes are in the memtables. So below the boundary every commit is there wholly: no
//! read sees a part of a batch, and what a boundary shows is a prefix of the commit order.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use collie_io::{Clock, RealClock};
use collie_log::{AppendHook, CompletionBoundary, Lsn, SlotId, Span};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::memtable::At;
use crate::write::encoding::{self, KIND_PART, Op};
use crate::write::order::{LogRoom, Sequencer, SequencerWorker};
use crate::{Error, Result};

/// What a commit's frame holds.
#[derive(Clone, Copy)]
pub(crate) enum Record<'a> {
    /// One operation, to be encoded.
    One(Op<'a>),
    /// Operations that a batch has encoded already.
    Encoded(&'a [u8]),
    /// Nothing: it takes a position in the order.
    Empty,
    /// Nothing: it has so many bytes, and its position from an external journal.
    Placed { seq: Lsn, bytes: usize },
}

/// One worker of the log with its slot for the visible boundary.
pub(crate) struct Appender {
    sequencer: SequencerWorker,
    slot: SlotId,
    staging: Vec<u8>,
    /// Its slot is pending for good: a commit ended before it was applied, and the boundary may
    /// never pass it.
    stuck: bool,
    pub(crate) commits: u64,
    pub(crate) bytes: u64,
}

/// A staging buffer that grew beyond this for one commit is freed.
const STAGING_KEPT: usize = 1 << 20;

impl Appender {
    pub(crate) fn new(sequencer: &Sequencer, visible: &Visible) -> Result<Self> {
        let worker = sequencer.worker()?;
        let slot = visible.register().ok_or_else(|| {
            // There is one slot per appender.
            Error::Background {
                cause: "no slot is left for a worker".into(),
            }
        })?;
        Ok(Self {
            sequencer: worker,
            slot,
            staging: Vec::new(),
            stuck: false,
            commits: 0,
            bytes: 0,
        })
    }

    /// Reserves a position, copies the record there, and applies it with `apply`. On return the
    /// commit is in its memtables, but older ones may not be yet. An error from before the
    /// reservation leaves nothing behind. An error after it, or a panic in `apply`, leaves the slot
    /// pending: the visible boundary stays below the commit for good, and the error comes with
    /// `true`.
    pub(crate) fn commit(
        &mut self,
        sequencer: &Sequencer,
        visible: &Visible,
        kind: u8,
        record: Record<'_>,
        room: LogRoom,
        apply: impl FnOnce(At),
    ) -> std::result::Result<At, (Error, bool)> {
        let Self {
            sequencer: worker,
            slot,
            staging,
            stuck,
            commits,
            bytes,
        } = self;
        if *stuck {
            let cause = "an earlier commit ended before it was applied".into();
            return Err((Error::Background { cause }, false));
        }
        let payload = match record {
            Record::One(op) => {
                staging.clear();
                encoding::encode(staging, op);
                &**staging
            }
            Record::Encoded(payload) => payload,
            Record::Empty | Record::Placed { .. } => &[],
        };
        let size = match record {
            Record::Placed { bytes, .. } => bytes,
            _ => payload.len(),
        };
        // Cleared at the end; a panic before that leaves it set.
        *stuck = true;
        let mut hook = VisibleSlot {
            visible,
            slot,
            pending: false,
        };
        let reserved = match record {
            Record::Placed { seq, .. } => sequencer.place(seq, &mut hook),
            _ => sequencer.append(worker, kind, payload, room, &mut hook),
        };
        let span = match reserved {
            Ok(span) => span,
            Err(error) => {
                *stuck = hook.pending;
                return Err((error, hook.pending));
            }
        };
        *commits += u64::from(kind != KIND_PART);
        *bytes += size as u64;
        reach!("appended");
        // Pairs with the Release of a rotation's reservation: if that has a smaller LSN than ours,
        // its `rotating` flag is seen from here on (see `FamilyState::with_mem`).
        std::sync::atomic::fence(Ordering::Acquire);
        let at = At {
            start: span.start,
            end: span.end,
        };
        apply(at);
        visible.complete(slot, at.end, sequencer);
        *stuck = false;
        if staging.capacity() > STAGING_KEPT {
            *staging = Vec::new();
        }
        Ok(at)
    }
}

/// Marks the slot pending around the log's reservation.
struct VisibleSlot<'a> {
    visible: &'a Visible,
    slot: &'a SlotId,
    pending: bool,
}

impl AppendHook for VisibleSlot<'_> {
    fn before_reserve(&mut self, next: Lsn) {
        self.pending = true;
        self.visible.set_pending(self.slot, next);
    }

    fn reserved(&mut self, span: Span) {
        reach!("reserved");
        self.visible.set_pending(self.slot, span.start);
    }
}

/// An appender in the pool, alone on its cache lines.
#[repr(align(128))]
struct PoolSlot(Mutex<Option<Appender>>);

/// The appenders of a store, each of which one thread has at a time.
pub(crate) struct Appenders {
    slots: Box<[PoolSlot]>,
    /// Threads start their search in the first so many slots. More threads than these share them:
    /// only so many run at once, and each commit scans the slots of all appenders in use.
    spread: usize,
}

impl Appenders {
    pub(crate) fn new(slots: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(4, std::num::NonZero::get);
        Self {
            slots: (0..slots).map(|_| PoolSlot(Mutex::new(None))).collect(),
            spread: (4 * cores).clamp(1, slots),
        }
    }

    /// A free appender; waits where all are busy.
    pub(crate) fn take(&self) -> MutexGuard<'_, Option<Appender>> {
        let first = thread_number() % self.spread;
        let (before, from) = self.slots.split_at(first);
        from.iter()
            .chain(before)
            .find_map(|PoolSlot(appender)| appender.try_lock())
            .unwrap_or_else(|| self.slots[first].0.lock())
    }

    /// Waits until every commit that is under way is applied.
    pub(crate) fn wait_until_applied(&self) {
        for PoolSlot(appender) in &self.slots {
            drop(appender.lock());
        }
    }

    /// Commits and their bytes so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.slots
            .iter()
            .fold((0, 0), |(commits, bytes), PoolSlot(appender)| {
                appender.lock().as_ref().map_or((commits, bytes), |appender| {
                    (commits + appender.commits, bytes + appender.bytes)
                })
            })
    }

    /// Drops all appenders, so that the log can close. Later commits find none.
    pub(crate) fn clear(&self) {
        for PoolSlot(appender) in &self.slots {
            drop(appender.lock().take());
        }
    }
}

/// What brings commits into the order, and makes them visible.
pub(crate) struct Pipeline {
    pub(crate) sequencer: Sequencer,
    pub(crate) visible: Visible,
    pub(crate) appenders: Appenders,
    /// The appender for marks. No thread waits for a rotation while it has this one, so a rotation
    /// always gets it, even if every other appender waits for that rotation.
    pub(crate) system: Mutex<Option<Appender>>,
    /// The largest payload of a frame.
    pub(crate) max_payload: usize,
}

impl Pipeline {
    pub(crate) fn new(sequencer: Sequencer, max_workers: usize, max_payload: usize) -> Result<Self> {
        // One appender is the system's.
        let appenders = max_workers - 1;
        let visible = Visible::new(max_workers, sequencer.appended());
        let system = Appender::new(&sequencer, &visible)?;
        Ok(Self {
            sequencer,
            visible,
            appenders: Appenders::new(appenders),
            system: Mutex::new(Some(system)),
            max_payload,
        })
    }
}

/// A small number of the calling thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            // Relaxed: only uniqueness counts.
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// Scans before a waiter sleeps. A commit that is being applied on another core is done in about
/// that time; for one whose thread is not running the waiter sleeps.
const SCANS: usize = 16;
/// A sleeper checks again after this long at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The visible boundary, and the threads that wait for it.
pub(crate) struct Visible {
    slots: CompletionBoundary,
    /// Threads that sleep or are about to.
    waiting: AtomicUsize,
    generation: Mutex<u64>,
    advanced: Condvar,
    /// How long threads slept here, in nanoseconds.
    slept_ns: AtomicU64,
}

impl Visible {
    pub(crate) fn new(slots: usize, start: Lsn) -> Self {
        Self {
            slots: CompletionBoundary::new(slots, start),
            waiting: AtomicUsize::new(0),
            generation: Mutex::new(0),
            advanced: Condvar::new(),
            slept_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn register(&self) -> Option<SlotId> {
        self.slots.register()
    }

    pub(crate) fn set_pending(&self, slot: &SlotId, lsn: Lsn) {
        self.slots.set_pending(slot, lsn);
    }

    /// The commit that ends at `end` is applied.
    pub(crate) fn complete(&self, slot: &SlotId, end: Lsn, sequencer: &Sequencer) {
        self.slots.set_complete(slot, end);
        self.slots.scan(|| sequencer.appended());
        // Pairs with the fence in `wait`: either this thread sees the waiter and wakes it, or the
        // waiter's scan after its fence sees the slot complete.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    #[cfg(test)]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wakes all sleepers, to check again.
    pub(crate) fn wake(&self) {
        *self.generation.lock() += 1;
        self.advanced.notify_all();
    }

    /// The boundary as the last finished commit left it.
    pub(crate) fn boundary(&self) -> Lsn {
        self.slots.boundary()
    }

    /// Returns when the boundary is at or beyond `end`; fails with the error of `failed` where the
    /// boundary will never get there, because a commit before `end` was not applied.
    pub(crate) fn wait(
        &self,
        end: Lsn,
        sequencer: &Sequencer,
        failed: impl Fn() -> Option<Error>,
    ) -> Result<()> {
        for _ in 0..SCANS {
            if self.boundary() >= end || self.slots.scan(|| sequencer.appended()) >= end {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `complete`.
        fence(Ordering::SeqCst);
        let started = RealClock.monotonic();
        let done = self.sleep_until(end, sequencer, failed);
        let slept = RealClock.monotonic().saturating_sub(started);
        self.slept_ns.fetch_add(slept, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        done
    }

    /// How long threads have slept in [`Visible::wait`], in nanoseconds.
    pub(crate) fn slept_ns(&self) -> u64 {
        self.slept_ns.load(Ordering::Relaxed)
    }

    fn sleep_until(&self, end: Lsn, sequencer: &Sequencer, failed: impl Fn() -> Option<Error>) -> Result<()> {
        loop {
            let seen = *self.generation.lock();
            if self.slots.scan(|| sequencer.appended()) >= end {
                return Ok(());
            }
            if let Some(error) = failed() {
                return Err(error);
            }
            let mut generation = self.generation.lock();
            if *generation == seen {
                self.advanced.wait_for(&mut generation, LOOK_AGAIN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_waiter_is_woken_when_the_commit_before_it_is_applied() {
        let sequencer = Arc::new(Sequencer::virtual_from(8));
        let visible = Arc::new(Visible::new(2, 8));
        let slow = visible.register().unwrap();
        visible.set_pending(&slow, 8);
        let waiter = {
            let (sequencer, visible) = (Arc::clone(&sequencer), Arc::clone(&visible));
            if let Sequencer::Virtual(next) = &*sequencer {
                next.fetch_add(64, Ordering::Release);
            }
            std::thread::spawn(move || {
                visible.wait(72, &sequencer, || None).unwrap();
                visible.boundary()
            })
        };
        while visible.waiting.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(visible.boundary(), 8);
        visible.complete(&slow, 40, &sequencer);
        assert!(waiter.join().unwrap() >= 72);
    }

    #[test]
    fn a_waiter_behind_an_endless_commit_fails_with_the_store() {
        let sequencer = Sequencer::virtual_from(8);
        let visible = Visible::new(1, 8);
        let stuck = visible.register().unwrap();
        visible.set_pending(&stuck, 8);
        let failed = || {
            Some(Error::Poisoned {
                cause: "a test".into(),
            })
        };
        assert!(matches!(
            visible.wait(40, &sequencer, failed),
            Err(Error::Poisoned { .. })
        ));
    }
}
