//! Table files that no version names: what flushes and compactions that failed have left.
//!
//! The table library numbers files as they are begun and does not tell which of them a failed call had begun.
//! A flush and a compaction may run at once, so a number that was given out meanwhile may be the other's. As
//! long as anything of a family writes tables, its numbers are therefore only collected; when nothing does,
//! those that were in no version are nobody's. (A version that a snapshot holds may name tables that the
//! newest one does not, so looking at that one alone would not do.)

use std::collections::BTreeSet;

use parking_lot::{Mutex, MutexGuard};

/// What is known of the numbers that were given out since something began to write.
#[derive(Default)]
pub(crate) struct Litter(Mutex<State>);

#[derive(Default)]
struct State {
    /// Flushes and compactions that are writing.
    writing: usize,
    /// The first number that was given out since there was one.
    first: u64,
    /// Numbers from `first` on that were in a version.
    named: BTreeSet<u64>,
    /// One of them failed.
    failed: bool,
    /// What the manifest on disk names is not known: nothing is removed any more.
    in_doubt: bool,
}

impl Litter {
    /// Something begins to write; the next table will have the number `next`.
    pub(crate) fn begin(&self, next: u64) {
        let mut state = self.0.lock();
        if state.writing == 0 {
            state.first = next;
        }
        state.writing += 1;
    }

    /// These numbers are in a version, or were.
    pub(crate) fn name(&self, tables: impl Iterator<Item = u64>) {
        let mut state = self.0.lock();
        let first = state.first;
        state.named.extend(tables.filter(|number| *number >= first));
    }

    /// What is writing failed; no version on disk names what it wrote.
    pub(crate) fn failed(&self) {
        self.0.lock().failed = true;
    }

    /// The manifest on disk may name anything.
    pub(crate) fn doubt(&self) {
        self.0.lock().in_doubt = true;
    }

    /// What began has ended. Once nothing writes, gives the numbers that are nobody's, up to `next`; nothing begins to
    /// write while the result is there.
    pub(crate) fn end(&self, next: impl FnOnce() -> u64) -> Option<Nobodys<'_>> {
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
        Some(Nobodys {
            numbers: numbers.collect(),
            _nothing_writes: state,
        })
    }
}

/// Numbers of files that are to go.
pub(crate) struct Nobodys<'a> {
    pub(crate) numbers: Vec<u64>,
    _nothing_writes: MutexGuard<'a, State>,
}
