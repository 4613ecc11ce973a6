//! A family that nobody writes holds nothing of the log, and a clean close leaves little to read.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use crate::common;

use collie_db::{Db, Durability, FamilyOptions, Options, Stats};

const SEGMENT: u64 = 1 << 20;

fn options() -> Options {
    Options {
        ring_bytes: 1 << 20,
        segment_bytes: SEGMENT,
        durability: Durability::Buffered,
        close_flush_bytes: Options::default().close_flush_bytes,
        default_family: FamilyOptions::default(),
        ..common::small()
    }
}

/// Writes so many MiB into one family; `default` stays empty.
fn write(db: &Db, mib: u32) {
    let busy = db.open_family("busy", FamilyOptions::default()).unwrap();
    for n in 0..mib << 10 {
        busy.put(format!("{n:08}"), [7; 1000]).unwrap();
    }
}

/// Waits until the log is as short as `is_short` says: it is released in the background.
fn until(db: &Db, is_short: impl Fn(&Stats) -> bool) {
    for _ in 0..60_000 {
        if is_short(&db.stats()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{:?}", db.stats());
}

/// Reopens, and returns the bytes of log and the commits that were replayed.
fn replayed(dir: &std::path::Path, mib: u32) -> (u64, u64) {
    let db = common::open(dir, &options());
    let stats = db.stats();
    let busy = db.family("busy").unwrap();
    assert_eq!(busy.iter().unwrap().count() as u32, mib << 10);
    db.close().unwrap();
    (stats.replayed_bytes, stats.replayed_commits)
}

#[test]
fn a_family_that_nobody_writes_does_not_keep_the_log() {
    let dir = common::fast_dir();
    let db = common::open(dir.path(), &options());
    write(&db, 24);
    assert!(db.stats().wal_bytes > 24 << 20);
    db.flush().unwrap();
    until(&db, |stats| stats.wal_bytes <= 2 * SEGMENT);
    let log = db.stats().log.unwrap();
    // Those that are kept for the next ones, and what is prepared.
    assert!(log.segment_bytes <= 5 * (SEGMENT + 8192), "{log:?}");
    db.close().unwrap();
    assert_eq!(replayed(dir.path(), 24), (0, 0));
}

#[test]
fn a_clean_close_leaves_little_to_read() {
    let dir = common::fast_dir();
    let db = common::open(dir.path(), &options());
    write(&db, 8);
    db.close().unwrap();
    assert_eq!(replayed(dir.path(), 8), (0, 0));
}

/// A close that takes as long as the opening that it shortens gains nothing.
#[test]
fn a_close_flushes_nothing_where_the_log_has_little() {
    let dir = common::fast_dir();
    let db = common::open(dir.path(), &options());
    db.put("k", "v").unwrap();
    db.close().unwrap();
    let db = common::open(dir.path(), &options());
    let stats = db.stats();
    assert_eq!((stats.replayed_commits, stats.families["default"].tables), (1, 0));
    assert_eq!(db.get("k").unwrap().unwrap(), "v");
}

#[test]
fn a_close_writes_no_more_than_its_limit() {
    let dir = common::fast_dir();
    for limit in [0, 3 << 20] {
        let limited = Options {
            close_flush_bytes: limit,
            ..options()
        };
        let db = common::open(dir.path(), &limited);
        write(&db, 8);
        db.close().unwrap();
        let db = common::open(dir.path(), &limited);
        assert!(db.stats().replayed_bytes > 8 << 20, "{:?}", db.stats());
        db.close().unwrap();
    }
    assert!(replayed(dir.path(), 8).0 > 16 << 20);
}

/// What is closed again is flushed by then.
#[test]
fn what_an_opening_replayed_is_flushed_by_the_next_close() {
    let dir = common::fast_dir();
    let db = common::open(
        dir.path(),
        &Options {
            close_flush_bytes: 0,
            ..options()
        },
    );
    write(&db, 4);
    db.close().unwrap();
    assert!(replayed(dir.path(), 4).0 > 4 << 20);
    assert_eq!(replayed(dir.path(), 4), (0, 0));
}
