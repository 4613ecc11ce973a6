//! The worker threads for the background work of a store, or of many.

use std::time::Duration;

use collie_io::IoClass;
use collie_log::threads::ThreadPool;

use crate::{Error, Result};

/// A store, for those that share a budget of memory with it.
pub(crate) trait Member: Send + Sync {
    /// The families' ids with the bytes of their active memtables, which may be sealed.
    fn active_mems(&self) -> Vec<(u64, u32)>;

    /// The bytes of its sealed memtables, while a flush waits for its log.
    fn waiting_mem_bytes(&self) -> u64;

    /// Seals a family's active memtable for its size, and queues its flush. Returns whether it did.
    fn seal(&self, family: u32) -> bool;
}

/// A pool for each kind of background work. Dropping it ends the threads.
pub(crate) struct Threads {
    pub(super) flushes: ThreadPool,
    pub(super) compactions: ThreadPool,
    pub(super) whole_merges: ThreadPool,
}

impl Threads {
    /// Starts so many, and one for whole merges where there is one for compactions.
    pub(crate) fn start(flush_threads: usize, compaction_threads: usize) -> Result<Self> {
        let numbered = |name: &str, threads| (0..threads).map(|n| format!("{name}-{n}")).collect();
        let start = |names: Vec<String>| {
            ThreadPool::start(names, Duration::ZERO, use_background_io)
                .map_err(|e| Error::io("start threads for", "the background", e))
        };
        let whole_merges = compaction_threads.min(1);
        Ok(Self {
            flushes: start(numbered("collie-flush", flush_threads))?,
            compactions: start(numbered("collie-merge", compaction_threads))?,
            whole_merges: start(vec!["collie-merge-all".into(); whole_merges])?,
        })
    }
}

/// Gives this thread's I/O a lower priority than that of commits and reads.
fn use_background_io() {
    if let Err(error) = collie_io::set_io_class(IoClass::Background) {
        tracing::debug!(%error, "background threads keep the default I/O class");
    }
}
