//! Hints of when the first key of each slot expires.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cluster::SLOTS;

/// A lower bound, for each slot, of the expiries that this node has written there or found in the
/// index: a hint, which saves the sweeper from reading the index where nothing is due. What the hint
/// misses, because another node wrote it or because it was not applied when the sweeper came, is found
/// when the sweeper looks through all slots, one part after the other.
#[derive(Debug)]
pub(crate) struct DueHints {
    /// Milliseconds since the Unix epoch, by slot.
    first_ms: Box<[AtomicU64]>,
}

impl Default for DueHints {
    fn default() -> DueHints {
        DueHints {
            first_ms: (0..SLOTS).map(|_| AtomicU64::new(u64::MAX)).collect(),
        }
    }
}

impl DueHints {
    /// Notes that an index entry was written.
    pub(crate) fn added(&self, slot: u16, expiry_ms: u64) {
        if let Some(first) = self.first_ms.get(usize::from(slot)) {
            // Relaxed: a hint, see the type.
            first.fetch_min(expiry_ms, Ordering::Relaxed);
        }
    }

    /// Whether a key of the slot may be due.
    pub(crate) fn is_due(&self, slot: u16, now_ms: u64) -> bool {
        let first = self.first_ms.get(usize::from(slot));
        // Relaxed: a hint, see the type.
        first.is_some_and(|first| first.load(Ordering::Relaxed) < now_ms)
    }

    /// Forgets the hint of a slot, before its index is read. What is found there is
    /// [added](DueHints::added) again.
    pub(crate) fn take(&self, slot: u16) {
        if let Some(first) = self.first_ms.get(usize::from(slot)) {
            // Relaxed: a hint, see the type.
            first.store(u64::MAX, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_expiry_of_a_slot_counts_until_it_is_taken() {
        let due = DueHints::default();
        due.added(7, 200);
        due.added(7, 100);
        due.added(7, 300);
        assert!(!due.is_due(7, 100) && due.is_due(7, 101));
        assert!(!due.is_due(8, u64::MAX - 1));
        due.take(7);
        assert!(!due.is_due(7, 1_000));
        due.added(SLOTS, 1);
    }
}
