//! Room for locks.

use std::sync::atomic::{AtomicUsize, Ordering};

/// So many locks fit in the table: rows that are held or waited for, and ranges.
#[derive(Debug)]
pub(crate) struct LockCapacity {
    used: AtomicUsize,
    limit: usize,
}

impl LockCapacity {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            limit,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn used(&self) -> usize {
        // Relaxed, here and below: it is a count, and what is counted has a mutex of its own.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes room for one lock, if there is any.
    pub(super) fn take(&self) -> bool {
        let is_full = self.used.fetch_add(1, Ordering::Relaxed) >= self.limit;
        if is_full {
            self.give();
        }
        !is_full
    }

    pub(super) fn give(&self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}
