//! What the workers count: each on cache lines of its own, summed up for those who ask.

use crate::Span;
use crate::append::compress::Stored;
use crate::lockfree::sync::{AtomicU64, Ordering};

/// One worker's share; only its owner adds to it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Share {
    frames: AtomicU64,
    bytes: AtomicU64,
    /// Frames that are stored compressed.
    compressed: AtomicU64,
    /// Payload bytes that the compressor was given, and that were stored of them.
    before: AtomicU64,
    after: AtomicU64,
}

impl Share {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            frames: zero(),
            bytes: zero(),
            compressed: zero(),
            before: zero(),
            after: zero(),
        }
    }

    pub(super) fn add(&self, span: &Span) {
        raise(&self.frames, 1);
        raise(&self.bytes, span.end - span.start);
    }

    pub(super) fn add_compression(&self, len: usize, stored: Stored<'_>) {
        raise(&self.before, len as u64);
        raise(&self.after, stored.bytes.len() as u64);
        raise(&self.compressed, u64::from(stored.compressed));
    }
}

/// Relaxed, and no read-modify-write: only the worker whose count it is writes it.
fn raise(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// The shares of all workers, by slot.
#[derive(Debug)]
pub(crate) struct Counts(Box<[Share]>);

/// Sums of the shares.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) bytes: u64,
    pub(crate) compressed: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
}

impl Counts {
    pub(crate) fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| Share::new()).collect())
    }

    pub(super) fn of(&self, slot: usize) -> Option<&Share> {
        self.0.get(slot)
    }

    /// Frames of the first `slots` workers.
    pub(crate) fn frames(&self, slots: usize) -> u64 {
        self.sum(slots, |share| &share.frames)
    }

    /// What the first `slots` workers counted beside frames.
    pub(crate) fn totals(&self, slots: usize) -> Totals {
        Totals {
            bytes: self.sum(slots, |share| &share.bytes),
            compressed: self.sum(slots, |share| &share.compressed),
            before: self.sum(slots, |share| &share.before),
            after: self.sum(slots, |share| &share.after),
        }
    }

    /// Relaxed: each count is exact once its worker rests, and no more is asked of it.
    fn sum(&self, slots: usize, count: impl Fn(&Share) -> &AtomicU64) -> u64 {
        let shares = self.0.iter().take(slots);
        shares.map(|share| count(share).load(Ordering::Relaxed)).sum()
    }
}
