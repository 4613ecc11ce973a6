//! Orphaned tables: files of failed flushes and compactions, which no version names.
//!
//! The table library numbers files as it creates them and does not report which of them a failed
//! call created. A flush and a compaction may run at once, so a number that was given out meanwhile
//! may belong to either. So as long as any writer of a family's tables runs, the numbers that
//! versions name are only collected. When none runs, the numbers that no version named are orphans.
//! (A version that a snapshot pins may name tables that the newest one does not, so the newest one
//! alone does not decide it.)

use std::collections::BTreeSet;

use parking_lot::{Mutex, MutexGuard};

/// The numbers that were given out since the first of the current writers began.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<WritersState>);

#[derive(Default)]
struct WritersState {
    /// Flushes and compactions that run.
    writing: usize,
    /// The first number that was given out since one runs.
    first: u64,
    /// Numbers from `first` on that were in a version.
    named: BTreeSet<u64>,
    /// One of them failed.
    failed: bool,
    /// The tree's manifest on disk may name any table: nothing is removed any more.
    in_doubt: bool,
}

impl Orphans {
    /// A writer begins; the next table will have the number `next`.
    pub(crate) fn begin(&self, next: u64) {
        let mut state = self.0.lock();
        if state.writing == 0 {
            state.first = next;
        }
        state.writing += 1;
    }

    /// A version names these numbers, or did.
    pub(crate) fn name(&self, tables: impl Iterator<Item = u64>) {
        let mut state = self.0.lock();
        let first = state.first;
        state.named.extend(tables.filter(|number| *number >= first));
    }

    /// A writer failed; no version on disk names what it wrote.
    pub(crate) fn failed(&self) {
        self.0.lock().failed = true;
    }

    /// A writer failed, and the tree's manifest on disk may name what it wrote.
    pub(crate) fn doubt(&self) {
        self.0.lock().in_doubt = true;
    }

    /// A writer has ended. Where it was the last, returns the numbers below `next` that are
    /// orphans; no writer begins while the result lives.
    pub(crate) fn end(&self, next: impl FnOnce() -> u64) -> Option<Unnamed<'_>> {
        let mut state = self.0.lock();
        state.writing -= 1;
        if state.writing > 0 {
            return None;
        }
        let named = std::mem::take(&mut state.named);
        let failed = std::mem::take(&mut state.failed);
        if !failed || state.in_doubt {
            return None;
        }
        let numbers = (state.first..next()).filter(|number| !named.contains(number));
        Some(Unnamed {
            numbers: numbers.collect(),
            _nothing_writes: state,
        })
    }
}

/// Numbers of files that are to be removed.
pub(crate) struct Unnamed<'a> {
    pub(crate) numbers: Vec<u64>,
    _nothing_writes: MutexGuard<'a, WritersState>,
}
