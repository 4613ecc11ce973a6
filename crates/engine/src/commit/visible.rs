//! The visible boundary: the largest LSN below which every commit is in its memtables.
//!
//! It is a second completion boundary over the log's reservation counter. A commit's slot is
//! pending from before the log reserves for it until its writes are in the memtables. So below the
//! boundary every commit is there wholly: no read sees a part of a batch, and what a boundary shows
//! is a prefix of the commit order.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use collie_log::{CompletionBoundary, Lsn, SlotId};
use parking_lot::{Condvar, Mutex};

use collie_io::{Clock, RealClock};

use crate::commit::sequencer::Sequencer;
use crate::{Error, Result};

/// Scans before a waiter sleeps. A commit that is being applied on another core is done in about
/// that time; for one whose thread is not running the waiter sleeps.
const SCANS: usize = 16;
/// A sleeper checks again after this long at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// See the module's page.
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
    fn a_waiter_behind_a_commit_that_never_ends_fails_with_the_store() {
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
