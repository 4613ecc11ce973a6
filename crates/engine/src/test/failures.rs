//! Flushes and compactions that fail at a chosen step: something that is no file stands where the
//! table library is about to write one.

#![expect(
    clippy::disallowed_methods,
    reason = "tests break files behind the store's back"
)]

use std::path::PathBuf;
use std::sync::Arc;

use crate::background::compaction;
use crate::store::family::FamilyState;
use crate::test::hold;
use crate::test::interleavings::{new_store, put, text};
use crate::{Db, Error};

/// A store with two tables, `a` and `b`, and without background threads: all happens on the test's
/// own.
pub(crate) fn with_two_tables() -> (tempfile::TempDir, Db, Arc<FamilyState>) {
    let (dir, db) = new_store();
    db.store().queue().stop();
    while Arc::strong_count(db.store()) > 1 {
        std::thread::yield_now();
    }
    for key in ["a", "b"] {
        db.put(key, "v").unwrap();
        db.flush().unwrap();
    }
    let family = Arc::clone(db.default_family().state());
    (dir, db, family)
}

fn family_dir(db: &Db) -> PathBuf {
    db.path().join("families/0")
}

/// Where the next table will be.
fn next_table(db: &Db) -> PathBuf {
    let tables = std::fs::read_dir(family_dir(db).join("tables")).unwrap();
    let numbers = tables.map(|entry| {
        entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    });
    let next = numbers.max().map_or(0, |number| number + 1);
    family_dir(db).join("tables").join(next.to_string())
}

/// Puts something in the way of the next table; it stands for what a failed write leaves there.
fn block_next_table(db: &Db) -> PathBuf {
    let next = next_table(db);
    std::os::unix::fs::symlink("/dev/full", &next).unwrap();
    next
}

fn is_there(path: &PathBuf) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

fn files(db: &Db) -> usize {
    std::fs::read_dir(family_dir(db).join("tables")).unwrap().count()
}

/// A failed flush's files stayed until the next open if a compaction ran at the same time.
#[test]
fn what_a_failed_flush_left_goes_after_the_compaction_beside_it() {
    let (_dir, db, family) = with_two_tables();
    let compaction = {
        let (store, family) = (Arc::clone(db.store()), Arc::clone(&family));
        hold("compaction begins", move || {
            compaction::compact_all(&store, &family)
        })
        .at_point()
    };
    put(&db.default_family(), "c", "v");
    let left = block_next_table(&db);
    let failed = db.flush().unwrap_err();
    assert!(
        matches!(failed, Error::Table { .. } | Error::StorageFull { .. }),
        "{failed}"
    );
    assert!(is_there(&left), "it may have been the compaction's");
    compaction.finish().unwrap();
    assert!(!is_there(&left), "{} stays", left.display());
    assert_eq!(files(&db), 1);
    db.flush().unwrap();
    assert_eq!(files(&db), 2);
    assert_eq!(db.iter().unwrap().count(), 3);
}

/// The files of a failed compaction are removed, but no table that only a snapshot's version names.
#[test]
fn a_failed_compactions_files_go_and_a_snapshots_stay() {
    let (_dir, db, family) = with_two_tables();
    put(&db.default_family(), "c", "v");
    let flush = {
        let db = db.clone();
        hold("tables are written", move || db.flush()).at_point()
    };
    let left = block_next_table(&db);
    assert!(compaction::compact_all(db.store(), &family).is_err());
    assert!(is_there(&left), "it may have been the flush's");
    let merged = next_table(&db);
    compaction::compact_all(db.store(), &family).unwrap();
    assert!(is_there(&merged));
    let snapshot = db.snapshot();
    compaction::compact_all(db.store(), &family).unwrap();
    flush.finish().unwrap();
    assert!(!is_there(&left), "{} stays", left.display());
    assert!(is_there(&merged), "a snapshot's table is gone");
    let b = snapshot.get(&db.default_family(), "b").unwrap();
    assert_eq!(text(b.as_ref()), Some("v"));
    drop(snapshot);
    // Alone, a compaction that fails removes at once.
    let left = block_next_table(&db);
    assert!(db.compact().is_err());
    assert!(!is_there(&left), "{} stays", left.display());
    db.compact().unwrap();
    assert_eq!(db.iter().unwrap().count(), 3);
}

/// A count of level 0 from before a compaction replaced the one from after it, and could stop
/// writes for good.
#[test]
fn a_flush_brings_back_no_older_count_of_level_0() {
    let (_dir, db, family) = with_two_tables();
    put(&db.default_family(), "c", "v");
    let flush = {
        let db = db.clone();
        hold("level 0 is counted", move || db.flush()).at_point()
    };
    // No other thread publishes tables during the count. Where one could, a compaction does.
    let alone = family.is_publishing();
    if !alone {
        compaction::compact_all(db.store(), &family).unwrap();
    }
    flush.finish().unwrap();
    assert_eq!(family.level0_runs(), family.tables().level0_runs());
    compaction::compact_all(db.store(), &family).unwrap();
    assert_eq!(family.level0_runs(), 0);
    assert_eq!(family.tables().level0_runs(), 0);
}

/// The tree's manifest as if a call had failed after it had replaced that on disk.
fn let_manifest_run_ahead(db: &Db) {
    let current = family_dir(db).join("current");
    let mut bytes = std::fs::read(&current).unwrap();
    bytes[0] += 1;
    std::fs::write(&current, bytes).unwrap();
}

/// Such a compaction was tried again, over the manifest that the disk named.
#[test]
fn a_compaction_that_may_have_replaced_the_manifest_is_final() {
    for ahead in [false, true] {
        let (_dir, db, family) = with_two_tables();
        block_next_table(&db);
        if ahead {
            let_manifest_run_ahead(&db);
        }
        assert!(compaction::compact_all(db.store(), &family).is_err());
        let after = db.put("k", "v");
        if ahead {
            assert!(matches!(after, Err(Error::Background { .. })), "{after:?}");
        } else {
            after.unwrap();
            compaction::compact_all(db.store(), &family).unwrap();
        }
        assert_eq!(text(db.get("b").unwrap().as_ref()), Some("v"));
    }
}

/// Its name may be lost where a sync of the directory failed: the next attempt filled the same file
/// and relied on it.
#[test]
fn a_failed_compactions_manifest_goes_before_the_next_attempt() {
    let (_dir, db, family) = with_two_tables();
    let next = family_dir(&db).join(format!("v{}", family.tables().version() + 1));
    std::os::unix::fs::symlink("/dev/full", &next).unwrap();
    let failed = compaction::compact_all(db.store(), &family).unwrap_err();
    assert!(matches!(failed, Error::StorageFull { .. }), "{failed}");
    assert!(!is_there(&next), "{} stays", next.display());
    db.put("k", "v").unwrap();
    compaction::compact_all(db.store(), &family).unwrap();
    assert_eq!(text(db.get("b").unwrap().as_ref()), Some("v"));
}

/// One that cannot be removed is not written to again.
#[test]
fn a_compaction_whose_leftover_manifest_stays_is_final() {
    let (_dir, db, family) = with_two_tables();
    let next = family_dir(&db).join(format!("v{}", family.tables().version() + 1));
    std::fs::create_dir(&next).unwrap();
    assert!(compaction::compact_all(db.store(), &family).is_err());
    let after = db.put("k", "v");
    assert!(matches!(after, Err(Error::Background { .. })), "{after:?}");
}

/// The same of a flush; while the disk names the version in memory, its tables go and it is tried
/// again.
#[test]
fn a_flush_that_may_have_replaced_the_trees_manifest_is_final() {
    for ahead in [false, true] {
        let (_dir, db, family) = with_two_tables();
        put(&db.default_family(), "c", "v");
        // Where the tree's next manifest will be there is no room for it.
        let next = family_dir(&db).join(format!("v{}", family.tables().version() + 1));
        std::os::unix::fs::symlink("/dev/full", &next).unwrap();
        if ahead {
            let_manifest_run_ahead(&db);
        }
        let left = next_table(&db);
        let failed = db.flush().unwrap_err();
        assert!(matches!(failed, Error::StorageFull { .. }), "{failed}");
        assert_eq!(is_there(&left), ahead, "whether its table is still there");
        // What it wrote of the tree's next manifest is removed with it: its name may be lost where
        // a sync failed.
        assert_eq!(is_there(&next), ahead, "whether its manifest is still there");
        if ahead {
            std::fs::remove_file(&next).unwrap();
        }
        let after = db.put("k", "v");
        if ahead {
            assert!(matches!(after, Err(Error::Background { .. })), "{after:?}");
        } else {
            after.unwrap();
            db.flush().unwrap();
        }
        assert_eq!(text(db.get("c").unwrap().as_ref()), Some("v"));
    }
}

/// A compaction that fails while it removes old files was taken for one that had changed nothing:
/// reads kept the replaced tables, and the write stall its old count.
#[test]
fn a_compaction_that_fails_with_its_version_in_is_published() {
    let (_dir, db, family) = with_two_tables();
    assert!(family.level0_runs() > 0);
    let before = Arc::clone(&family.view().tables);
    // The version that it will want to remove; a directory cannot be removed that way.
    let old = family_dir(&db).join(format!("v{}", family.tables().version()));
    std::fs::remove_file(&old).unwrap();
    std::fs::create_dir(&old).unwrap();
    assert!(compaction::compact_all(db.store(), &family).is_err());
    assert_eq!(family.tables().level0_runs(), 0);
    assert_eq!(family.level0_runs(), 0);
    assert!(
        !Arc::ptr_eq(&before, &family.view().tables),
        "reads still look through the replaced tables"
    );
    assert_eq!(db.iter().unwrap().count(), 2);
    std::fs::remove_dir(&old).unwrap();
    put(&db.default_family(), "c", "v");
    db.compact().unwrap();
    assert_eq!(db.iter().unwrap().count(), 3);
}
