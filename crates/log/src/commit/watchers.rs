//! Whether all that is appended is waited for.

use crate::lockfree::sync::{AtomicU32, Ordering};

/// How many [`DurableChanges`](crate::DurableChanges) there are. On cache lines of its own, since every
/// append reads it.
///
/// Relaxed: a task that comes looks at what is appended by then. Of that look and an append beside it
/// each may miss the other; the flusher, which has both when an interval has passed, misses neither.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Watchers(AtomicU32);

impl Watchers {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One call of the flusher too many does no harm.
    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether all that is appended is waited for.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
