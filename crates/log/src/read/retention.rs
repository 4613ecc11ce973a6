//! How a reader retains what it has yet to read.

use std::sync::Arc;

use crate::Lsn;
use crate::core::Core;
use crate::lockfree::sync::lock;

/// Who reads: what a retention is named after.
#[derive(Debug)]
pub(crate) enum Holder {
    /// Named by the number of the retention.
    Reader,
    /// Named by its user.
    Tail(String),
}

impl Holder {
    fn name(&self, id: u64) -> String {
        match self {
            Self::Reader => format!("reader/{id}"),
            Self::Tail(name) => format!("tail/{name}"),
        }
    }
}

/// Keeps what a reader has yet to read from being released, until it is dropped.
#[derive(Debug)]
pub(crate) struct Retention {
    core: Arc<Core>,
    id: u64,
    at: Lsn,
}

impl Retention {
    pub(crate) fn take(core: &Arc<Core>, at: Lsn, holder: &Holder) -> Self {
        let id = lock(&core.holders).add_reader(|id| holder.name(id), at);
        Self {
            core: Arc::clone(core),
            id,
            at,
        }
    }

    /// Releases what lies below `at`, a segment's worth at a time.
    pub(crate) fn advance(&mut self, at: Lsn) {
        if at - self.at >= self.core.options.segment_bytes {
            self.at = at;
            lock(&self.core.holders).move_reader(self.id, at);
            self.core.preparer.call();
        }
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        if self.core.check_process().is_err() {
            // The holders are the parent's.
            return;
        }
        lock(&self.core.holders).remove_reader(self.id);
        self.core.preparer.call();
    }
}
