//! What compactions need beside the table library's own: a filter, and levels without gaps.
//!
//! The library calls the filter during a merge. It offers no other way to stop a compaction, or to
//! serialise the writers of versions.
//!
//! # Empty levels
//!
//! The library's strategy moves all tables of a level to the next one where none overlap, which leaves a gap.
//! When the level above has grown too large, it means to move that into the gap, and asserts before
//! that the next level has one run: an empty one has none, and programs with debug assertions panic,
//! at each opening again. So gaps are closed before the strategy is asked, which costs a change of
//! the tree's manifest and no merge.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_tree::compaction::filter::Context;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict};
use lsm_tree::{AbstractTree, Tree};

use crate::external_journal::ExternalJournal;
use crate::tables::home::TableResult;
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
    /// It is called by merges alone, and a panic in one ends the store's merges.
    pub(super) journal: AssertUnwindSafe<Option<Arc<dyn ExternalJournal>>>,
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
            journal: self.journal.clone(),
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
    journal: Option<Arc<dyn ExternalJournal>>,
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
        Ok(match &self.journal {
            // It leaves a tombstone: what older tables have of it does not come back.
            Some(journal) if !journal.keeps(item.key()) => Verdict::Remove,
            _ => Verdict::Keep,
        })
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

/// The lowest level with tables above an empty one.
pub(super) fn above_a_gap(tree: &Tree) -> Option<u8> {
    let version = tree.current_version();
    let is_empty: Vec<bool> = version.iter_levels().map(|level| level.is_empty()).collect();
    // Level 0 has runs that overlap.
    let gap = (1..is_empty.len().saturating_sub(1)).rfind(|n| !is_empty[*n] && is_empty[n + 1]);
    gap.and_then(|n| u8::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use lsm_tree::compaction::MoveDown;

    use super::*;
    use crate::background::merging;
    use crate::test::interleavings::put;
    use crate::{Db, FamilyOptions, Options};

    #[test]
    fn a_level_that_is_too_large_above_an_empty_one_moves_down() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options::default()).unwrap();
        let options = FamilyOptions {
            table_bytes: 4 << 10,
            level0_compaction: 2,
            ..FamilyOptions::default()
        };
        let family = db.create_family("gap", options).unwrap();
        for n in 0..200 {
            put(&family, &format!("{n:04}"), &"v".repeat(1_000));
        }
        family.compact().unwrap();
        let tables = family.state().tables();
        // The flush before asked for a compaction, which may come in between and move the level on.
        let is_moved = (0..100).any(|_| {
            for from in [6, 5] {
                let up = std::sync::Arc::new(MoveDown(from, 4));
                tables.tree.compact(up, super::super::KEEP_NONE).unwrap();
            }
            above_a_gap(&tables.tree) == Some(4)
        });
        assert!(is_moved);
        for _ in 0..10 {
            merging::compact_once(db.store(), family.state()).unwrap();
        }
        let levels = tables.tree.current_version();
        let counts: Vec<_> = levels.iter_levels().map(|level| level.table_count()).collect();
        assert!(
            counts[6] > 4 && counts[..6].iter().all(|count| *count == 0),
            "{counts:?}"
        );
        assert_eq!(family.iter().unwrap().count(), 200);
        drop(levels);
        db.close().unwrap();
    }
}
