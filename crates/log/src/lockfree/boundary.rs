//! The completion boundary: how far the log is complete, found without a lock (Border-Collie,
//! SIGMOD 2019, corrected; what it calls BLACK and WHITE is *pending* and *complete* here).
//!
//! Each worker owns one slot, a single word: the top bit, *pending* ("frames of mine from this LSN
//! on may be missing"), and an LSN. To write a frame a worker
//!
//! 1. makes its slot pending at a value of the reservation counter read just before,
//! 2. reserves by a Release fetch-and-add on that counter, which gives the frame's LSN `s`,
//! 3. makes its slot pending at `s`, so that a stall from here on keeps the boundary at `s` and no
//!    lower (the value of step 1 may be a whole ring old, and a full ring waits for the boundary),
//! 4. copies, and
//! 5. makes its slot complete at the frame's end.
//!
//! The *boundary* is the end of the longest prefix of the log without a hole.
//! [`CompletionBoundary::scan`] reads the counter first (the cutoff `c`) and then the slots; the
//! boundary is the smallest of `c` and the pending slots' LSNs.
//!
//! Why no hole lies below it: take a frame below `c`. Its reservation is in the release sequence
//! that the cutoff's Acquire load reads from, so the scanning thread sees its worker's registration
//! and the store of step 1, or something later in that slot. If what it sees is pending at an LSN
//! at or below the frame, the boundary is no higher than the frame. If it sees anything later
//! (complete, or pending for a later frame), that store was a Release after the frame's copy, and
//! the Acquire load of the slot makes the bytes visible.
//!
//! A complete slot never raises the boundary above the cutoff. The original lets WHITE count as
//! max(cutoff, its LSN); a worker that registers after the number of slots was read could then
//! reserve below another's WHITE and hide its hole. With the cutoff as the upper bound there is
//! nothing to hide.

use crate::Lsn;
use crate::lockfree::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// The top bit of a slot: its worker is writing.
const PENDING: u64 = 1 << 63;
/// A slot without a worker: complete at 0, and scanned like any other.
const FREE: u64 = 0;

/// The reservation counter: all that orders the log. It has a pair of cache lines to itself.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Reservations(AtomicU64);

impl Reservations {
    /// A counter whose first reservation begins at `start`.
    pub(crate) fn new(start: Lsn) -> Self {
        Self(AtomicU64::new(start))
    }

    /// A value of the counter that may be old, but not older than the calling thread's last
    /// reservation. Relaxed: it orders nothing.
    pub(crate) fn glance(&self) -> Lsn {
        self.0.load(Ordering::Relaxed)
    }

    /// Everything below is reserved: a scan's cutoff. Acquire pairs with the Release in
    /// [`CompletionBoundary::reserve`].
    pub(crate) fn cutoff(&self) -> Lsn {
        self.0.load(Ordering::Acquire)
    }

    /// Raises it to `to`, unless it is there already: all below counts as reserved.
    /// Release pairs with the Acquire in [`Reservations::cutoff`].
    pub(crate) fn advance_to(&self, to: Lsn) {
        self.0.fetch_max(to, Ordering::Release);
    }

    /// As [`Reservations::cutoff`], in one order with what the caller stored before, SeqCst: a
    /// reservation that is not counted here finds that store behind it.
    pub(crate) fn cutoff_in_order(&self) -> Lsn {
        self.0.load(Ordering::SeqCst)
    }
}

/// A word, such as one worker's, alone in its pair of cache lines (adjacent lines are fetched together).
#[derive(Debug)]
#[repr(align(128))]
struct Slot(AtomicU64);

/// The slots of all workers, and the boundary.
///
/// A log has one over "copied", and another over "applied", on the same reservation counter.
#[derive(Debug)]
pub(crate) struct CompletionBoundary {
    slots: Box<[Slot]>,
    /// How many slots were ever handed out; only these are scanned.
    used: AtomicUsize,
    returned: Mutex<Vec<usize>>,
    /// Written by each scan: beside the slots' address it would take that from all appenders' caches.
    boundary: Slot,
}

/// The right to write one slot of a [`CompletionBoundary`]. It is handed back to
/// [`CompletionBoundary::unregister`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SlotId(usize);

impl SlotId {
    /// The slot's number, less than the boundary's `max_slots`.
    pub(crate) fn index(&self) -> usize {
        self.0
    }
}

impl CompletionBoundary {
    /// The boundary of at most `max_slots` workers whose log is complete up to `start`.
    pub(crate) fn new(max_slots: usize, start: Lsn) -> Self {
        Self {
            slots: (0..max_slots).map(|_| Slot(AtomicU64::new(FREE))).collect(),
            used: AtomicUsize::new(0),
            returned: Mutex::new(Vec::new()),
            boundary: Slot(AtomicU64::new(start)),
        }
    }

    /// A slot for a worker; `None` where all are taken.
    pub(crate) fn register(&self) -> Option<SlotId> {
        let mut returned = lock(&self.returned);
        if let Some(index) = returned.pop() {
            return Some(SlotId(index));
        }
        // The lock is held: no other registration is between these two lines.
        let index = self.used.load(Ordering::Relaxed);
        if index == self.slots.len() {
            return None;
        }
        // Release pairs with the Acquire in `scan`; the worker's reservations come after it.
        self.used.store(index + 1, Ordering::Release);
        Some(SlotId(index))
    }

    /// Gives a slot back. Its last frame must be complete.
    pub(crate) fn unregister(&self, slot: SlotId) {
        if let Some(Slot(word)) = self.slots.get(slot.0) {
            debug_assert_eq!(
                word.load(Ordering::Relaxed) & PENDING,
                0,
                "a slot is given back in mid-write"
            );
            // Release, like every store to a slot: a scan that reads FREE has the last frame's
            // bytes.
            word.store(FREE, Ordering::Release);
        }
        lock(&self.returned).push(slot.0);
    }

    /// Steps 1 to 3: reserves `len` bytes for the slot's worker and returns their start. `before`
    /// gets the value of the counter that step 1 stores.
    pub(crate) fn reserve(
        &self,
        slot: &SlotId,
        next: &Reservations,
        len: u64,
        before: impl FnOnce(Lsn),
    ) -> Lsn {
        // Any value of this worker's past serves, as long as the slot is pending before the
        // reservation.
        let seen = next.glance();
        before(seen);
        self.set_pending(slot, seen);
        // Release pairs with the Acquire in `cutoff`: who counts this frame sees the slot pending.
        // SeqCst pairs with `cutoff_in_order`.
        let start = next.0.fetch_add(len, Ordering::SeqCst);
        self.set_pending(slot, start);
        start
    }

    /// As [`CompletionBoundary::reserve`], at exactly `at` or not at all: `false` where the counter
    /// is elsewhere. The slot's worker has completed what it reserved before.
    pub(crate) fn try_reserve_at(&self, slot: &SlotId, next: &Reservations, at: Lsn, len: u64) -> bool {
        // The value of step 1 is that of step 3: what is reserved begins here.
        self.set_pending(slot, at);
        // Release as in `reserve`. Relaxed where it fails: nothing is read of what others reserved.
        let reserved = next
            .0
            .compare_exchange(at, at + len, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if !reserved {
            self.set_complete(slot, at);
        }
        reserved
    }

    /// Step 5 for what was reserved exactly at the boundary: it lies at `end` now, although a scan
    /// may still find a worker pending at an older value, which has reserved nothing below.
    pub(crate) fn complete_at_boundary(&self, slot: &SlotId, end: Lsn) {
        self.set_complete(slot, end);
        // AcqRel as in `scan`: hands on what the caller's own scan saw, and what it wrote.
        self.boundary.0.fetch_max(end, Ordering::AcqRel);
    }

    /// Steps 1 and 3: from `lsn` on, the slot's worker may have a hole.
    pub(crate) fn set_pending(&self, slot: &SlotId, lsn: Lsn) {
        self.store(slot, PENDING | lsn);
    }

    /// Step 5: the slot's worker has completed everything up to `end`.
    pub(crate) fn set_complete(&self, slot: &SlotId, end: Lsn) {
        self.store(slot, end);
    }

    fn store(&self, slot: &SlotId, word: u64) {
        if let Some(Slot(at)) = self.slots.get(slot.0) {
            // Release pairs with the Acquire in `scan`. Pending needs it too: a scan that reads it
            // must see the bytes of the frame before, whose completion it overwrites.
            at.store(word, Ordering::Release);
        }
    }

    /// Scans the slots and returns the boundary; it never goes back. `cutoff` reads the reservation
    /// counter with Acquire; it is called before the scan.
    pub(crate) fn scan(&self, cutoff: impl FnOnce() -> Lsn) -> Lsn {
        let mut boundary = cutoff();
        // After the cutoff: the registrations of all who reserved below it are seen.
        let used = self.used.load(Ordering::Acquire);
        for Slot(word) in self.slots.iter().take(used) {
            // Acquire pairs with the Release in `store`.
            let word = word.load(Ordering::Acquire);
            if word & PENDING != 0 {
                boundary = boundary.min(word & !PENDING);
            }
        }
        // AcqRel: hands on what this scan saw, and takes what an earlier, farther scan saw.
        let Slot(shown) = &self.boundary;
        shown.fetch_max(boundary, Ordering::AcqRel).max(boundary)
    }

    /// The boundary as the last scan left it. All frames below it may be read.
    pub(crate) fn boundary(&self) -> Lsn {
        // Acquire pairs with the AcqRel in `scan`.
        self.boundary.0.load(Ordering::Acquire)
    }

    /// How many slots a scan reads.
    pub(crate) fn slots_in_use(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_stops_at_the_lowest_writer_and_never_goes_back() {
        let completion = CompletionBoundary::new(3, 800);
        let (a, b) = (completion.register().unwrap(), completion.register().unwrap());
        assert_eq!(completion.scan(|| 800), 800);
        completion.set_pending(&a, 800);
        completion.set_pending(&b, 864);
        assert_eq!(completion.scan(|| 1000), 800);
        completion.set_complete(&a, 864);
        assert_eq!(completion.scan(|| 1000), 864);
        completion.set_complete(&b, 1000);
        assert_eq!(completion.scan(|| 1000), 1000);
        assert_eq!(completion.scan(|| 900), 1000);
    }

    #[test]
    fn slots_are_limited_and_come_back() {
        let completion = CompletionBoundary::new(2, 0);
        let a = completion.register().unwrap();
        let b = completion.register().unwrap();
        assert_eq!(completion.register(), None);
        completion.set_pending(&a, 8);
        completion.set_complete(&a, 16);
        completion.unregister(a);
        let again = completion.register().unwrap();
        assert_eq!((again.index(), b.index()), (0, 1));
        assert_eq!(completion.scan(|| 16), 16);
    }
}
