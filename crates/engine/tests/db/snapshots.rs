//! What a snapshot sees stays as it was, whatever flushes and compactions do meanwhile.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;

use crate::common;

use collie_db::{Db, Family, Snapshot};

fn text(snapshot: &Snapshot, family: &Family, key: &str) -> Option<String> {
    let value = snapshot.get(family, key).unwrap();
    let scanned: Vec<_> = snapshot
        .prefix(family, key)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let in_scan = scanned.iter().find(|(k, _)| k == &key).map(|(_, v)| v.clone());
    assert_eq!(value, in_scan, "a scan and a point read disagree");
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// The case that loses a snapshot where an engine trusts compaction's watermark alone: an older
/// version below the snapshot, a newer one above it, and a compaction that sees both. Every way of
/// spreading flushes over the steps is tried.
#[test]
fn a_snapshot_keeps_the_version_that_compaction_finds_shadowed() {
    for steps in 0..16_u32 {
        let dir = tempfile::tempdir().unwrap();
        let db = common::open(dir.path(), &common::unlogged());
        let family = db.default_family();
        let flush_at = |step: u32| {
            if steps & (1 << step) != 0 {
                db.flush().unwrap();
            }
        };
        db.put("k", "v50").unwrap();
        db.put("other", "x").unwrap();
        flush_at(0);
        let snapshot = db.snapshot();
        flush_at(1);
        db.put("k", "v150").unwrap();
        flush_at(2);
        let later = db.snapshot();
        db.delete("k").unwrap();
        flush_at(3);
        let last = db.snapshot();
        for round in 0..2 {
            db.compact().unwrap();
            assert_eq!(
                text(&snapshot, &family, "k").as_deref(),
                Some("v50"),
                "{steps:04b} {round}"
            );
            assert_eq!(
                text(&later, &family, "k").as_deref(),
                Some("v150"),
                "{steps:04b} {round}"
            );
            assert_eq!(text(&last, &family, "k"), None, "{steps:04b} {round}");
            db.put(format!("new{round}"), "y").unwrap();
        }
        assert_eq!(snapshot.iter(&family).unwrap().count(), 2);
        drop((snapshot, later));
        db.compact().unwrap();
        assert_eq!(text(&last, &family, "k"), None);
        assert_eq!(text(&last, &family, "other").as_deref(), Some("x"));
    }
}

#[test]
fn a_snapshot_does_not_know_families_that_came_later() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::unlogged());
    let snapshot = db.snapshot();
    let late = db.create_family("late", common::small_family()).unwrap();
    late.put("k", "v").unwrap();
    assert!(matches!(
        snapshot.get(&late, "k"),
        Err(collie_db::Error::FamilyTooNew { .. })
    ));
    assert_eq!(db.snapshot().get(&late, "k").unwrap().unwrap(), "v");
}

#[test]
fn a_dropped_familys_files_go_with_its_last_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::unlogged());
    let family = db.create_family("short", common::small_family()).unwrap();
    for i in 0..2000 {
        family.put(format!("k{i:05}"), [7; 50]).unwrap();
    }
    family.flush().unwrap();
    let files = dir.path().join("families").join(family.id().to_string());
    let snapshot = db.snapshot();
    db.drop_family(&family).unwrap();
    assert_eq!(snapshot.iter(&family).unwrap().count(), 2000);
    assert!(matches!(
        family.get("k00001"),
        Err(collie_db::Error::FamilyDropped { .. })
    ));
    assert!(matches!(
        family.put("k", "v"),
        Err(collie_db::Error::FamilyDropped { .. })
    ));
    assert!(files.exists());
    drop((snapshot, family));
    // Freed by a thread of its own.
    while files.exists() {
        std::thread::yield_now();
    }
    let again = db.create_family("short", common::small_family()).unwrap();
    assert_eq!(again.iter().unwrap().count(), 0);
    assert_eq!(reopened(db, dir.path()).families(), ["default", "short"]);
}

/// The tables cached their files, with the disk's room, until as many others were opened.
#[test]
fn the_files_of_a_dropped_family_are_closed_with_its_last_user() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::unlogged());
    let family = db.create_family("short", common::small_family()).unwrap();
    for i in 0..2000 {
        family.put(format!("k{i:05}"), [7; 50]).unwrap();
    }
    family.flush().unwrap();
    assert_eq!(family.iter().unwrap().count(), 2000);
    let files = dir.path().join("families").join(family.id().to_string());
    let open = || {
        let all = Path::new("/proc/self/fd").read_dir().unwrap();
        let all = all.filter_map(|open| open.unwrap().path().read_link().ok());
        all.filter(|open| open.starts_with(&files)).count()
    };
    let snapshot = db.snapshot();
    db.drop_family(&family).unwrap();
    drop(family);
    assert_eq!(snapshot.get(&db.default_family(), "k").unwrap(), None);
    assert!(open() > 0, "the snapshot has them");
    drop(snapshot);
    while files.exists() {
        std::thread::yield_now();
    }
    assert_eq!(open(), 0);
}

fn reopened(db: Db, path: &Path) -> Db {
    db.close().unwrap();
    common::open(path, &common::unlogged())
}
