//! Large commits whose parts the log must keep: those that are being written, and those that are not
//! in tables yet.
//!
//! A family retains the log from where it is flushed, and for an ordinary commit that is enough. The
//! parts of a large commit lie before its last frame, which gives it its position, so each such
//! commit retains the log from its first part on by itself: from before that part is appended until
//! every family that it writes is flushed past the commit, or dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collie_log::Lsn;
use parking_lot::Mutex;

use crate::store::Store;
use crate::store::family_state::FamilyState;

/// See the file's page.
#[derive(Default)]
pub(super) struct LargeCommits(Mutex<RetainedCommits>);

#[derive(Default)]
struct RetainedCommits {
    next: u64,
    /// By the number that each got when it began.
    commits: BTreeMap<u64, LargeCommit>,
}

struct LargeCommit {
    /// No part starts below.
    first: Lsn,
    /// Its position, and the families that it writes; `None` while its parts are being written.
    linked: Option<(Lsn, Vec<Arc<FamilyState>>)>,
}

impl LargeCommit {
    /// Whether no recovery needs its parts any more.
    fn is_in_tables(&self) -> bool {
        self.linked.as_ref().is_some_and(|(at, families)| {
            families
                .iter()
                .all(|family| family.is_dropped() || family.flushed().get() > *at)
        })
    }
}

/// Retains the log for the parts of a commit; forgets it when dropped, unless it was linked.
pub(crate) struct RetainedParts<'a> {
    store: &'a Store,
    number: u64,
}

impl RetainedParts<'_> {
    /// The commit is at `at`: its parts are needed until the families are flushed past it. To be
    /// called before a flush can find its memtables.
    pub(crate) fn link(self, at: Lsn, families: Vec<Arc<FamilyState>>) {
        if let Some(commit) = self.store.large.0.lock().commits.get_mut(&self.number) {
            commit.linked = Some((at, families));
        }
        std::mem::forget(self);
    }
}

impl Drop for RetainedParts<'_> {
    fn drop(&mut self) {
        self.store.large.0.lock().commits.remove(&self.number);
        self.store.sequencer.release_parts(self.number);
    }
}

impl Store {
    /// Retains the log from `first` on for a large commit.
    pub(crate) fn retain_parts(&self, first: Lsn) -> RetainedParts<'_> {
        let mut registry = self.large.0.lock();
        let number = registry.next;
        registry.next += 1;
        registry
            .commits
            .insert(number, LargeCommit { first, linked: None });
        drop(registry);
        self.sequencer.retain_parts(number, first);
        RetainedParts { store: self, number }
    }

    /// Families were flushed or dropped: releases the log for the commits that they kept back.
    pub(crate) fn release_parts(&self) {
        let mut registry = self.large.0.lock();
        let done: Vec<u64> = registry
            .commits
            .iter()
            .filter(|(_, commit)| commit.is_in_tables())
            .map(|(number, _)| *number)
            .collect();
        // Dropped below, without the lock: the last handle of a dropped family removes files.
        let commits: Vec<_> = done
            .iter()
            .map(|number| registry.commits.remove(number))
            .collect();
        drop(registry);
        for number in done {
            self.sequencer.release_parts(number);
        }
        drop(commits);
    }

    /// The families for which parts below `end` are retained.
    pub(crate) fn families_of_parts_below(&self, end: Lsn) -> BTreeSet<u32> {
        let registry = self.large.0.lock();
        let below = registry.commits.values().filter(|commit| commit.first < end);
        below
            .filter_map(|commit| commit.linked.as_ref())
            .flat_map(|(at, families)| families.iter().filter(|family| family.flushed().get() <= *at))
            .map(|family| family.id())
            .collect()
    }
}
