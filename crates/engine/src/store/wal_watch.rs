//! When the log's size is checked against its limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_log::Lsn;

use crate::store::Store;

/// See the file's page.
pub(super) struct WalWatch {
    /// The log's end at which its size is checked again.
    look_at: AtomicU64,
    /// The warning about the log's limit was logged.
    warned: AtomicBool,
}

impl Default for WalWatch {
    fn default() -> Self {
        Self {
            look_at: AtomicU64::new(Lsn::MAX),
            warned: AtomicBool::new(false),
        }
    }
}

impl Store {
    /// The first commit that ends at `end` or beyond queues the next check of the log's size.
    pub(crate) fn check_wal_size_at(&self, end: Lsn) {
        self.wal.look_at.store(end, Ordering::Relaxed);
    }

    /// A commit ended at `end`: queues a check where the log may have grown past its limit.
    pub(crate) fn check_wal_size(&self, end: Lsn) {
        // Relaxed: a hint. Of several threads one swaps the value, so the check is queued once.
        if end >= self.wal.look_at.load(Ordering::Relaxed)
            && self.wal.look_at.swap(Lsn::MAX, Ordering::Relaxed) != Lsn::MAX
        {
            self.queue.check_wal_size();
        }
    }

    /// Whether the caller is the first to warn that the log's limit is short.
    pub(crate) fn is_first_to_warn(&self) -> bool {
        // Relaxed: nothing is read on the strength of it.
        !self.wal.warned.swap(true, Ordering::Relaxed)
    }
}
