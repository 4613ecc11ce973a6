//! Flushes and compactions that fail at a chosen step: something that is no file stands where the table library
//! is about to write one.

#![expect(
    clippy::disallowed_methods,
    reason = "tests break files behind the store's back"
)]

use std::path::PathBuf;
use std::sync::Arc;

use crate::core::FamilyState;
use crate::interleavings::{put, store, text};
use crate::testing::hold;
use crate::{Db, Error, compaction};

/// A store with two tables, `a` and `b`, and without background threads: all happens on the test's own.
fn with_two_tables() -> (tempfile::TempDir, Db, Arc<FamilyState>) {
    let (dir, db) = store();
    db.core().tasks.stop();
    while Arc::strong_count(db.core()) > 1 {
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
fn what_a_failed_flush_left_goes_when_the_compaction_beside_it_has_ended() {
    let (_dir, db, family) = with_two_tables();
    let compaction = {
        let (core, family) = (Arc::clone(db.core()), Arc::clone(&family));
        hold("compaction begins", move || {
            compaction::compact_all(&core, &family)
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

/// And what a failed compaction left goes, but no table that the newest version has not and a snapshot has.
#[test]
fn what_a_failed_compaction_left_goes_and_what_a_snapshot_needs_stays() {
    let (_dir, db, family) = with_two_tables();
    put(&db.default_family(), "c", "v");
    let flush = {
        let db = db.clone();
        hold("tables are written", move || db.flush()).at_point()
    };
    let left = block_next_table(&db);
    assert!(compaction::compact_all(db.core(), &family).is_err());
    assert!(is_there(&left), "it may have been the flush's");
    let merged = next_table(&db);
    compaction::compact_all(db.core(), &family).unwrap();
    assert!(is_there(&merged));
    let snapshot = db.snapshot();
    compaction::compact_all(db.core(), &family).unwrap();
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
