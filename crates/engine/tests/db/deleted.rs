//! What tombstones hide goes, where compaction by sizes would leave it.

use std::time::Duration;

use collie_db::{Batch, Db, Family, FamilyOptions, FamilyStats, Options, Result, WriteOptions};
use collie_io::{Clock, RealClock};

use crate::common;

const ROW_BYTES: usize = 200;

fn options() -> Options {
    Options {
        default_family: FamilyOptions {
            write_buffer_bytes: 64 << 10,
            table_bytes: 64 << 10,
            ..FamilyOptions::default()
        },
        ..common::small()
    }
}

fn stats(db: &Db) -> FamilyStats {
    db.stats().families["default"].clone()
}

/// Waits for background work.
fn until(what: &str, db: &Db, is_so: impl Fn(&FamilyStats) -> bool) {
    let began = RealClock.monotonic();
    while !is_so(&stats(db)) {
        assert!(
            RealClock.monotonic() - began < 120_000_000_000,
            "{what} does not happen: {:?}",
            stats(db)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Appends a row, and deletes the one that is the `live`th before it.
fn pass(family: &Family, n: u64, live: u64) -> Result<()> {
    let mut batch = Batch::new();
    batch.put(family, n.to_be_bytes(), [n as u8; ROW_BYTES])?;
    if let Some(old) = n.checked_sub(live) {
        batch.delete(family, old.to_be_bytes())?;
    }
    family.db().write(batch, &WriteOptions::buffered()).map(drop)
}

/// Everything that had gone through it stayed: tables of new rows moved down a level unmerged, and
/// tombstones stayed above what they hide.
#[test]
fn what_went_through_a_queue_does_not_stay() {
    // More than the first level takes by itself.
    let (live, rows) = (5_000, 100_000);
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &options());
    let queue = db.default_family();
    let mut first = None;
    for n in 0..rows {
        pass(&queue, n, live).unwrap();
        if n == live + 1_000 {
            first = Some((n, db.snapshot()));
        }
    }
    db.flush().unwrap();
    let live_bytes = live * ROW_BYTES as u64;
    until("that little is hidden", &db, |stats| {
        stats.table_bytes < 3 * live_bytes && stats.level0_runs < 4
    });
    let FamilyStats {
        table_bytes,
        whole_merges,
        ..
    } = stats(&db);
    println!(
        "figures: {live_bytes} bytes of {rows} rows are left, {table_bytes} on disk, {whole_merges} merges"
    );
    assert!(whole_merges > 0);
    let (n, first) = first.unwrap();
    let keys = |rows: &mut dyn Iterator<Item = u64>| -> Vec<u64> { rows.collect() };
    let key = |row: collie_db::Result<(collie_db::Key, collie_db::Value)>| {
        u64::from_be_bytes(row.unwrap().0[..].try_into().unwrap())
    };
    let seen = keys(&mut queue.iter().unwrap().map(key));
    assert!(seen == keys(&mut (rows - live..rows)), "{} rows", seen.len());
    let seen = keys(&mut first.iter(&queue).unwrap().map(key));
    assert!(
        seen == keys(&mut (n + 1 - live..n + 1)),
        "{} rows of then",
        seen.len()
    );
    drop((first, queue));
    db.close().unwrap();
    let db = common::open(dir.path(), &options());
    assert_eq!(db.iter().unwrap().count() as u64, live);
}

/// Scans walked over them for good: they hide nothing, so they were the cause of no merge.
#[test]
fn tombstones_of_what_is_not_there_do_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), common::small()).unwrap();
    let large = FamilyOptions::default();
    let family = db.create_family("scanned", large).unwrap();
    let stats = || db.stats().families["scanned"].clone();
    for n in 0..500_u64 {
        family.put((2 * n).to_be_bytes(), [7; ROW_BYTES]).unwrap();
    }
    family.flush().unwrap();
    for n in 0..5_000_u64 {
        let deleted = family.delete_with((2 * n + 1).to_be_bytes(), &WriteOptions::buffered());
        deleted.unwrap();
    }
    // Two runs: too few for any other merge.
    family.flush().unwrap();
    let began = RealClock.monotonic();
    // It is counted once its tables are read.
    while stats().tombstones > 0 || stats().whole_merges == 0 {
        assert!(RealClock.monotonic() - began < 120_000_000_000, "{:?}", stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((stats().hidden_bytes, stats().whole_merges), (0, 1));
    let mut rows = family.iter().unwrap();
    assert_eq!((rows.by_ref().count(), rows.internal_keys_skipped()), (500, 0));
}

#[test]
fn hidden_bytes_are_those_of_the_rows_below_tombstones() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &options());
    let family = db.default_family();
    for n in 0..200_u64 {
        family.put(n.to_be_bytes(), [7; ROW_BYTES]).unwrap();
    }
    db.flush().unwrap();
    // Half of the tombstones are above rows.
    for n in 100..300_u64 {
        family.delete(n.to_be_bytes()).unwrap();
    }
    db.flush().unwrap();
    let (hidden, all) = (stats(&db).hidden_bytes, stats(&db).table_bytes);
    assert!(hidden * 3 > all && hidden * 3 < all * 2, "{hidden} of {all}");
}
