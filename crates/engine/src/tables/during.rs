//! The compaction filter, which the table library calls during a merge. The library offers no other
//! way to stop a compaction, or to serialise the writers of versions.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_tree::compaction::filter::Context;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict};

use crate::tables::TableResult;
use crate::tables::pace::{Pace, Pieces};
use crate::tables::version_lock::VersionLock;

pub(super) struct DuringCompactions {
    /// Set when the store closes.
    pub(super) stop: Arc<AtomicBool>,
    /// Set when the family is dropped.
    pub(super) dropped: Arc<AtomicBool>,
    /// Set while the device is full.
    pub(super) short: Arc<AtomicBool>,
    /// The merge is of all tables: it was asked for to make room, or by the user.
    pub(super) whole: Arc<AtomicBool>,
    pub(super) version_lock: Arc<VersionLock>,
    pub(super) pace: Arc<Pace>,
}

impl Factory for DuringCompactions {
    fn name(&self) -> &'static str {
        "stop-and-version-lock"
    }

    /// A merge begins.
    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        self.version_lock.unlock_for_merge();
        Box::new(DuringMerge {
            stop: Arc::clone(&self.stop),
            dropped: Arc::clone(&self.dropped),
            // Relaxed: set by this thread.
            short: (!self.whole.load(Ordering::Relaxed)).then(|| Arc::clone(&self.short)),
            version_lock: Arc::clone(&self.version_lock),
            // Before the library creates the merge's first file.
            pieces: self.pace.pieces(),
        })
    }
}

struct DuringMerge {
    stop: Arc<AtomicBool>,
    dropped: Arc<AtomicBool>,
    /// `None` for a merge that goes on while the device is full.
    short: Option<Arc<AtomicBool>>,
    version_lock: Arc<VersionLock>,
    pieces: Pieces,
}

impl CompactionFilter for DuringMerge {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> TableResult<Verdict> {
        // Relaxed: no other data depends on the flags.
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let why = if is_set(&self.stop) {
            Some("the store is closing")
        } else if is_set(&self.dropped) {
            Some("the family was dropped")
        } else if self.short.as_deref().is_some_and(is_set) {
            Some("the device is full, and the flush that lets the log go needs the room")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(std::io::Error::new(std::io::ErrorKind::Interrupted, why).into());
        }
        self.pieces.pass(item.key().len() + item.value()?.len());
        Ok(Verdict::Keep)
    }

    /// The merge has ended. The table library holds none of its locks, goes on to write a version,
    /// and accepts no error here.
    fn finish(self: Box<Self>) {
        reach!("tables are merged");
        if let Err(poisoned) = self.version_lock.lock_for_compaction() {
            // Not a panic: nothing is printed. `Tables::compact_by` catches it.
            panic::resume_unwind(Box::new(poisoned));
        }
    }
}
