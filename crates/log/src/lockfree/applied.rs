//! The applied boundary: how far what was appended has been applied by who appended it.
//!
//! It is a second completion boundary over the same reservation counter. A worker's slot is pending
//! from before its reservation until it has applied what it appended. So below the boundary every
//! frame is applied wholly, and what a boundary shows is a prefix of the order. Frames that were
//! appended without applying anything count as applied.

use crate::Lsn;
use crate::lockfree::boundary::{CompletionBoundary, Reservations, SlotId};
use crate::lockfree::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::lockfree::wait_word::{ALL, WaitWord};

/// Scans before a waiter sleeps. What another core applies is done in about that time; where its
/// thread is not running, the waiter sleeps.
const SCANS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// Beyond every LSN.
const NOTHING: Lsn = Lsn::MAX;

/// A frame below has its LSN and will never be applied: the boundary does not pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stuck;

/// The applied boundary, and the threads that wait for it.
#[derive(Debug)]
pub(crate) struct Applied {
    slots: CompletionBoundary,
    /// 1 once a slot stays pending for good.
    stuck: AtomicU32,
    /// The smallest end for which a thread sleeps or is about to; [`NOTHING`] where none is.
    wanted: AtomicU64,
    changed: WaitWord,
}

impl Applied {
    /// The boundary of at most `slots` workers, where everything below `start` is applied.
    pub(crate) fn new(slots: usize, start: Lsn) -> Self {
        Self {
            slots: CompletionBoundary::new(slots, start),
            stuck: AtomicU32::new(0),
            wanted: AtomicU64::new(NOTHING),
            changed: WaitWord::new(),
        }
    }

    pub(crate) fn register(&self) -> Option<SlotId> {
        self.slots.register()
    }

    pub(crate) fn unregister(&self, slot: SlotId) {
        self.slots.unregister(slot);
    }

    /// From `lsn` on the slot's worker may have something to apply.
    pub(crate) fn set_pending(&self, slot: &SlotId, lsn: Lsn) {
        self.slots.set_pending(slot, lsn);
    }

    /// Reserves `len` positions for the slot's worker, which has them to apply; returns their start.
    pub(crate) fn reserve(&self, slot: &SlotId, next: &Reservations, len: u64) -> Lsn {
        self.slots.reserve(slot, next, len, |_| ())
    }

    /// Reserves everything below `at + len`, of which what is from `at` on is for the slot's worker to
    /// apply. One thread at a time places, and nothing is reserved beyond `at`.
    pub(crate) fn place(&self, slot: &SlotId, next: &Reservations, at: Lsn, len: u64) {
        self.set_pending(slot, next.glance());
        next.advance_to(at + len);
        self.set_pending(slot, at);
    }

    /// The slot's worker has applied what ends at `end`.
    pub(crate) fn complete(&self, slot: &SlotId, end: Lsn, next: &Reservations) {
        self.slots.set_complete(slot, end);
        // Pairs with the fence in `wait`: either this thread sees what the waiter wants, or the
        // waiter's scan after its fence sees the slot complete. Of the threads that complete what lies
        // below that, the last one scans all of it as complete, and wakes.
        fence(Ordering::SeqCst);
        if self.scan(next) >= self.wanted.load(Ordering::Relaxed) {
            // Relaxed: a waiter that reads the word as bumped comes after this store, and says again
            // what it wants; one that has read it before does not sleep on it.
            self.wanted.store(NOTHING, Ordering::Relaxed);
            self.wake();
        }
    }

    /// A slot stays pending for good: who waits for what lies behind it waits no more.
    pub(crate) fn leave_stuck(&self) {
        // Release pairs with the Acquire in `wait`.
        self.stuck.store(1, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        self.changed.bump();
        self.changed.wake(ALL);
    }

    /// The boundary as the last scan left it.
    pub(crate) fn boundary(&self) -> Lsn {
        self.slots.boundary()
    }

    pub(crate) fn scan(&self, next: &Reservations) -> Lsn {
        self.slots.scan(|| next.cutoff())
    }

    /// Waits until the boundary is at `end` or beyond it. What is under way is waited for, whatever
    /// else has failed.
    pub(crate) fn wait(&self, end: Lsn, next: &Reservations) -> Result<(), Stuck> {
        for _ in 0..SCANS {
            if self.boundary() >= end || self.scan(next) >= end {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            let seen = self.changed.read();
            self.wanted.fetch_min(end, Ordering::Relaxed);
            // Pairs with the fence in `complete`.
            fence(Ordering::SeqCst);
            if self.scan(next) >= end {
                return Ok(());
            }
            // After the scan: what was applied before the failure counts.
            if self.stuck.load(Ordering::Acquire) != 0 {
                return Err(Stuck);
            }
            self.changed.wait(seen, None);
        }
    }
}
