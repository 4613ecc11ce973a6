//! Levels that the table library left empty between others.
//!
//! Its strategy moves all tables of a level to the next one where none overlap, which leaves a gap.
//! When the level above has grown too large, it means to move that into the gap, and asserts before
//! that the next level has one run: an empty one has none, and programs with debug assertions panic,
//! at each opening again. So gaps are closed before the strategy is asked, which costs a change of
//! the tree's manifest and no merge.

use lsm_tree::{AbstractTree, Tree};

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
    use crate::background::compaction;
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
        tables
            .tree
            .compact(std::sync::Arc::new(MoveDown(6, 4)), super::super::KEEP_NONE)
            .unwrap();
        assert_eq!(above_a_gap(&tables.tree), Some(4));
        for _ in 0..10 {
            compaction::compact_once(db.store(), family.state()).unwrap();
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
