//! `manual_wal_flush`: what is written, synced and found again, on a device that counts the calls
//! and loses what a crash loses. The tables are on the real file system, as the table library opens
//! them by itself.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_db::{Db, Durability, LogStats, Options, WriteOptions};
use collie_io::RealDevice;
use collie_log::{LogOptions, RingMode};
use collie_sim::{PowerCut, SimDevice, Snapshot, SplitDevice, VOLATILE_DIR};

fn options(path: &Path, sim: &SimDevice, shared: bool, manual: bool) -> Options {
    // Direct writes need no sync: without them syncs can be counted.
    sim.support_direct(false);
    let tables = path.join("families");
    let device = SplitDevice::new(tables, Arc::new(RealDevice::new()), Arc::new(sim.clone()));
    Options {
        device: Arc::new(device),
        ring: match shared {
            true => RingMode::Shared {
                dir: VOLATILE_DIR.into(),
            },
            false => RingMode::Private,
        },
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 4,
        cache_bytes: 1 << 20,
        durability: Durability::Process,
        manual_wal_flush: manual,
        ..Options::default()
    }
}

/// Long enough for a log that flushes by itself to have done so several times.
fn wait_for_the_flusher() {
    std::thread::sleep(
        4 * LogOptions::default()
            .flush_interval
            .max(Duration::from_millis(10)),
    );
}

fn log(db: &Db) -> LogStats {
    db.stats().log.unwrap()
}

/// A store with ten puts, and the log's figures from before them.
fn ten_puts(path: &Path, sim: &SimDevice, shared: bool, manual: bool) -> (Db, LogStats) {
    let db = Db::open(path, options(path, sim, shared, manual)).unwrap();
    let before = log(&db);
    for n in 0..10 {
        db.put(format!("{n}"), "v").unwrap();
    }
    (db, before)
}

#[test]
fn with_manual_wal_flush_no_put_is_written_before_it_is_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let sim = SimDevice::new(1);
    let (db, before) = ten_puts(&dir.path().join("db"), &sim, false, true);
    wait_for_the_flusher();
    let waiting = log(&db);
    assert_eq!((waiting.written, waiting.syncs), (before.written, before.syncs));
    assert_eq!(db.get("9").unwrap().unwrap(), "v", "visible all the same");

    let end = db.flush_wal(Durability::Process).unwrap();
    let written = log(&db);
    assert!(written.written >= end && written.durable < end, "{written:?}");
    assert_eq!(written.syncs, before.syncs, "written is not synced");

    db.flush_wal(Durability::Disk).unwrap();
    assert!(log(&db).durable >= end && log(&db).syncs > before.syncs);
}

#[test]
fn without_it_each_put_at_process_is_a_write_call_at_most() {
    for shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let sim = SimDevice::new(1);
        let db = Db::open(&path, options(&path, &sim, shared, false)).unwrap();
        for n in 0..10 {
            let end = db.put(format!("{n}"), "v").unwrap();
            assert!(shared || log(&db).written >= end, "put {n} returned unwritten");
        }
        // It flushes by itself, or this does not end.
        while log(&db).durable < log(&db).appended {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_write_at_disk_is_synced_with_all_that_came_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let sim = SimDevice::new(1);
    let (db, before) = ten_puts(&dir.path().join("db"), &sim, false, true);
    let default = db.default_family();
    let end = default.put_with("synced", "v", &WriteOptions::disk()).unwrap();
    let after = log(&db);
    assert!(after.durable >= end && after.syncs > before.syncs, "{after:?}");
}

#[test]
fn a_flushed_memtable_is_never_ahead_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let sim = SimDevice::new(1);
    let (db, _) = ten_puts(&dir.path().join("db"), &sim, false, true);
    let end = db.visible();
    db.flush().unwrap();
    assert!(db.durable() >= end);
}

#[test]
fn a_full_buffer_is_written_by_itself_and_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let sim = SimDevice::new(1);
    let db = Db::open(&path, options(&path, &sim, false, true)).unwrap();
    let before = log(&db);
    // Five rings of it; segments are prepared on the way, whose syncs are not the log's.
    let mut end = 0;
    for n in 0..320 {
        end = db.put(format!("{n}"), [7; 1000]).unwrap();
    }
    let after = log(&db);
    assert!(after.written + (64 << 10) >= end, "{after:?}");
    assert_eq!((after.syncs, after.durable), (before.syncs, before.durable));
}

/// The keys that are there after a crash.
fn left(snapshot: &Snapshot, power: bool, path: &Path, shared: bool) -> Vec<String> {
    let image = match power {
        true => snapshot.power_cut(PowerCut::WAYS[0].1, 1),
        false => snapshot.process_death(),
    };
    let sim = image.device();
    let db = Db::open(path, options(path, &sim, shared, true)).unwrap();
    db.iter()
        .unwrap()
        .map(|entry| String::from_utf8(entry.unwrap().0.to_vec()).unwrap())
        .collect()
}

/// Two puts, flushed at a level, two more, and a crash: what came before the flush is there
/// whatever the crash, and after it only what the ring keeps.
#[test]
fn a_crash_loses_only_what_came_after_the_last_flush() {
    let (flushed, all) = (vec!["a", "b"], vec!["a", "b", "c", "d"]);
    for (shared, level, power, expected) in [
        (false, Durability::Process, false, &flushed),
        (false, Durability::Disk, false, &flushed),
        (false, Durability::Disk, true, &flushed),
        (true, Durability::Process, false, &all),
        (true, Durability::Disk, true, &flushed),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let sim = SimDevice::new(1);
        let db = Db::open(&path, options(&path, &sim, shared, true)).unwrap();
        db.put("a", "v").unwrap();
        db.put("b", "v").unwrap();
        db.flush_wal(level).unwrap();
        db.put("c", "v").unwrap();
        db.put("d", "v").unwrap();
        wait_for_the_flusher();
        let snapshot = sim.snapshot();
        sim.kill();
        drop(db);
        let found = left(&snapshot, power, &path, shared);
        assert_eq!(&found, expected, "shared {shared}, {level:?}, power {power}");
    }
}
