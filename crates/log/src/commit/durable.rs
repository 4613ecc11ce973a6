//! The durable boundary, which a failure of the log fixes for good.
//!
//! A write or a sync may be in flight when the log fails, and may succeed. What it wrote is durable
//! then, but is not reported: where a commit is in doubt for one caller it is in doubt for all, and
//! a reader that refuses what lies beyond the boundary need not check whether it has moved since.

use crate::Lsn;
use crate::lockfree::sync::{AtomicU64, Ordering};

/// Says that the boundary is fixed. LSNs of frames are multiples of 8.
const FIXED: u64 = 1;

/// See the module's page. Alone on its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct DurableBoundary(AtomicU64);

impl DurableBoundary {
    pub(crate) fn new(at: Lsn) -> Self {
        debug_assert_eq!(at & FIXED, 0);
        Self(AtomicU64::new(at))
    }

    /// Acquire pairs with the Release in `raise`.
    pub(crate) fn get(&self) -> Lsn {
        self.0.load(Ordering::Acquire) & !FIXED
    }

    /// Raises it, unless it is fixed: then it stays, and `false` says so. One thread at a time
    /// raises it.
    pub(crate) fn raise(&self, to: Lsn) -> bool {
        debug_assert_eq!(to & FIXED, 0);
        // Relaxed: another thread can only have fixed it, and then the exchange fails.
        let from = self.0.load(Ordering::Relaxed);
        // Release pairs with the Acquire in `get` and in `fix`.
        from & FIXED == 0
            && self
                .0
                .compare_exchange(from, to, Ordering::Release, Ordering::Relaxed)
                .is_ok()
    }

    /// Fixes it where it stands, and returns that; every call returns the same.
    pub(crate) fn fix(&self) -> Lsn {
        // Acquire pairs with the Release in `raise`.
        self.0.fetch_or(FIXED, Ordering::AcqRel) & !FIXED
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_boundary_stays_where_it_is() {
        let boundary = DurableBoundary::new(8);
        assert!(boundary.raise(64));
        assert_eq!(boundary.fix(), 64);
        assert!(!boundary.raise(72));
        assert_eq!((boundary.get(), boundary.fix()), (64, 64));
    }
}
