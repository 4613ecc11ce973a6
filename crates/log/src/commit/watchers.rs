//! Whether all that is appended is waited for.

use crate::sync::{AtomicU32, Ordering};

/// How many [`DurableChanges`](crate::DurableChanges) there are. On cache lines of its own: every append reads it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Watchers(AtomicU32);

impl Watchers {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// SeqCst: of this and the look at what is appended that follows it, and an append and its look
    /// here, one sees the other.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn remove(&self) {
        // Relaxed: one call of the flusher too many does no harm.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether what is appended is waited for. Relaxed: an append that misses one that is being made
    /// is seen by its first look, or flushed after an interval.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
