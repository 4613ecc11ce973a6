//! Bounds that hold: the log's size, memory, and what happens when the device says no.
//!
//! The store's own files are on a simulated device; the tables, which the table library writes by
//! itself, are in a real directory.

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_db::{
    Db, Durability, Error, FamilyOptions, FlushCause, Options, ReadOptions, Stall, WriteOptions,
};
use collie_io::Device;
use collie_sim::{Fault, FaultKind, SimDevice};

/// Direct writes need no sync, so a test could not delay a sync or make it fail: the device has
/// none.
fn simulated(device: &SimDevice) -> Options {
    device.support_direct(false);
    Options {
        device: Arc::new(device.clone()),
        ..common::small()
    }
}

fn flushes(db: &Db, family: &str, cause: FlushCause) -> u64 {
    let stats = db.stats();
    let flushes = &stats.families[family].flushes;
    flushes.iter().find(|(c, _)| *c == cause).map_or(0, |(_, n)| *n)
}

#[test]
fn families_that_pin_a_log_that_is_too_long_are_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let segment = 32 << 10;
    let limit = 4 * segment;
    let options = Options {
        segment_bytes: segment,
        max_total_wal_size: Some(limit),
        durability: Durability::Process,
        default_family: FamilyOptions::default(),
        ..common::small()
    };
    let db = common::open(dir.path(), &options);
    let cold = db.create_family("cold", FamilyOptions::default()).unwrap();
    let empty = db.create_family("empty", FamilyOptions::default()).unwrap();
    cold.put("k", "v").unwrap();
    // Seven times the limit at least, and on until the flushes, which lag behind, have released
    // what is too much.
    let mut count = 0;
    let is_kept_short = || {
        let stats = db.stats();
        let flushed = |family: &str| flushes(&db, family, FlushCause::WalSize) >= 1;
        let is_short = stats.wal_bytes <= limit + 2 * segment;
        flushed("cold") && flushed("default") && stats.wal_size_flushes >= 2 && is_short
    };
    while count < 4000 || !is_kept_short() {
        db.put(format!("{count:08}"), [3; 200]).unwrap();
        count += 1;
        if count > 4000 {
            // The size is looked at when something is written.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(count < 100_000, "{:?}", db.stats());
    }
    assert_eq!(cold.get("k").unwrap().unwrap(), "v");
    assert_eq!(empty.iter().unwrap().count(), 0);
    db.close().unwrap();
    let db = common::open(dir.path(), &options);
    assert_eq!(db.iter().unwrap().count(), count);
    assert_eq!(db.family("cold").unwrap().get("k").unwrap().unwrap(), "v");
}

/// No sync ends, so no flush may end; memory fills, a writer stops, and goes on when the syncs do.
#[test]
fn a_writer_stops_when_all_memtables_are_full() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(1);
    let mut options = simulated(&device);
    options.default_family = FamilyOptions {
        write_buffer_bytes: 8192,
        max_write_buffers: 3,
        ..common::small_family()
    };
    options.durability = Durability::Buffered;
    options.ring_bytes = 1 << 20;
    let db = common::open(dir.path(), &options);
    let syncs = device.hold_syncs();
    let count = 400;
    let writer = {
        let family = db.default_family();
        std::thread::spawn(move || {
            for i in 0..count {
                family.put(format!("{i:08}"), [1; 100]).unwrap();
            }
        })
    };
    while db.stats().families["default"].stops == 0 {
        assert!(!writer.is_finished(), "nothing stopped the writer");
        std::thread::yield_now();
    }
    let stats = db.stats().families["default"].clone();
    assert_eq!(stats.stall, Stall::Stopped);
    assert_eq!(db.stall(), Stall::Stopped);
    assert_eq!(stats.sealed, 2);
    assert_eq!(stats.tables, 0);
    assert!(stats.active_bytes + stats.sealed_bytes < 4 * 8192, "{stats:?}");
    syncs.release();
    writer.join().unwrap();
    let stats = db.stats().families["default"].clone();
    assert!(stats.stops >= 1);
    assert_eq!(db.iter().unwrap().count(), count);
}

#[test]
fn a_durable_read_shows_the_state_before_the_write_that_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(2);
    let db = common::open(dir.path(), &simulated(&device));
    let family = db.default_family();
    db.put("k", "durable").unwrap();
    let syncs = device.hold_syncs();
    family
        .put_with("k", "not durable", &WriteOptions::buffered())
        .unwrap();
    let newest = family.get_with("k", &ReadOptions::default()).unwrap();
    assert_eq!(newest.value.unwrap(), "not durable");
    let durable = family.get_with("k", &ReadOptions { durable: true }).unwrap();
    assert_eq!(durable.value.unwrap(), "durable");
    assert!(durable.seen <= db.durable() && db.durable() < newest.seen);
    syncs.release();
    db.wait(newest.seen, Durability::Disk).unwrap();
    let durable = family.get_with("k", &ReadOptions { durable: true }).unwrap();
    assert_eq!(durable.value.unwrap(), "not durable");
}

/// The log fails after a write was applied but before it was durable.
#[test]
fn no_table_gets_ahead_of_a_log_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(2);
    let options = simulated(&device);
    let db = common::open(dir.path(), &options);
    let family = db.default_family();
    db.put("k", "durable").unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).on("/log/"));
    device.inject(Fault::new(FaultKind::WriteFails).on("/log/"));
    family
        .put_with("k", "not durable", &WriteOptions::buffered())
        .unwrap();
    let flushed = db.flush();
    assert!(matches!(flushed, Err(Error::Poisoned { .. })), "{flushed:?}");
    assert_eq!(
        db.stats().families["default"].tables,
        0,
        "a table is ahead of the log"
    );
    assert!(matches!(db.put("k2", "v"), Err(Error::Poisoned { .. })));
    assert!(matches!(db.get("k"), Err(Error::InDoubt { .. })));
    assert!(db.stats().refusal.is_some());
    assert!(device.fired(FaultKind::SyncFails) + device.fired(FaultKind::WriteFails) > 0);
    drop((family, db));
    device.heal();
    let db = common::open(dir.path(), &options);
    // Whether the other write is there depends on what the failed write left; either is right.
    let value = db.get("k").unwrap().unwrap();
    assert!(value == "durable" || value == "not durable");
    db.put("k", "again").unwrap();
    db.flush().unwrap();
    assert_eq!(db.get("k").unwrap().unwrap(), "again");
}

#[test]
fn a_full_device_refuses_writes_loses_nothing_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(3);
    let options = Options {
        segment_bytes: 64 << 10,
        default_family: FamilyOptions::default(),
        ..simulated(&device)
    };
    let db = common::open(dir.path(), &options);
    let mut written = 0;
    device.limit_space(Some(256 << 10));
    let refused = loop {
        match db.put(format!("{written:08}"), [5; 500]) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the device never filled");
    };
    assert!(matches!(refused, Error::StorageFull { .. }), "{refused:?}");
    assert!(written > 50);
    // By now the store may have made room, if it found some for its manifest.
    let mut written_again = 0;
    match db.put("again", "v") {
        Ok(_) => written_again = 1,
        Err(error) => assert!(matches!(error, Error::StorageFull { .. }), "{error}"),
    }
    assert_eq!(db.iter().unwrap().count(), written + written_again);
    device.limit_space(None);
    for i in 0..200 {
        db.put(format!("{:08}", written + i), [6; 500]).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    let db = common::open(dir.path(), &options);
    assert_eq!(db.iter().unwrap().count(), written + written_again + 200);
}

/// How a store on a small device is opened: the tables, which are elsewhere, take nothing of it.
fn on_a_small_device(device: &SimDevice) -> Options {
    Options {
        segment_bytes: 64 << 10,
        ring_bytes: 64 << 10,
        reserve_bytes: Some(512 << 10),
        durability: Durability::Process,
        default_family: FamilyOptions::default(),
        ..simulated(device)
    }
}

/// Writes until the device is full; returns how many keys there are, and the device's capacity.
fn fill(db: &Db, device: &SimDevice, room: u64) -> (u32, u64) {
    device.limit_space(Some(room));
    let capacity = device.used_space() + room;
    for n in 0..20_000 {
        if let Err(error) = db.put(format!("{n:08}"), [5; 500]) {
            assert!(matches!(error, Error::StorageFull { .. }), "{error}");
            return (n, capacity);
        }
    }
    panic!("the device never filled");
}

/// Ordinary writes are refused before the reserve is touched, those that take data away are not,
/// and then the space comes back.
#[test]
fn a_full_device_is_relieved_from_inside() {
    for room in [100_000, 300_000, 700_000] {
        let dir = tempfile::tempdir().unwrap();
        let device = SimDevice::new(room);
        let db = common::open(dir.path(), &on_a_small_device(&device));
        let other = db.create_family("other", FamilyOptions::default()).unwrap();
        other.put("k", "v").unwrap();
        let (keys, capacity) = fill(&db, &device, room);
        let reserve = dir.path().join("RESERVE");
        assert_eq!(device.stat(&reserve).unwrap().len, 512 << 10);
        for n in 0..8 {
            db.delete(format!("{n:08}")).unwrap();
        }
        let mut batch = collie_db::Batch::new();
        for n in 8..30 {
            batch.delete(&db.default_family(), format!("{n:08}")).unwrap();
        }
        db.write(batch, &WriteOptions::disk()).unwrap();
        // The device is fuller still: another program took what was left.
        device.limit_space(Some(0));
        db.drop_family(&other).unwrap();
        let other = db.create_family("again", FamilyOptions::default()).unwrap();
        db.flush().unwrap();
        device.limit_space(Some(capacity.saturating_sub(device.used_space())));
        let again = (0..10_000).find(|_| {
            std::thread::yield_now();
            db.put("again", "v").is_ok()
        });
        assert!(again.is_some(), "{room}: {:?}", db.put("again", "v"));
        other.put("k", "v").unwrap();
        assert_eq!(db.iter().unwrap().count() as u32, keys - 30 + 1);
        db.close().unwrap();
    }
}

/// What the log keeps for them is a part of a segment; beyond that they get the reserve.
#[test]
fn deletes_go_on_where_the_logs_room_for_them_is_used_up() {
    for at_once in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let device = SimDevice::new(11);
        let db = common::open(dir.path(), &on_a_small_device(&device));
        let (keys, _) = fill(&db, &device, 700_000);
        device.limit_space(Some(0));
        // No flush lets the log go, which would have room again.
        let full = collie_sim::Fault::new(collie_sim::FaultKind::NoSpace).on("MANIFEST");
        device.inject(full);
        let refused = || db.stats().log.map_or(0, |log| log.refused);
        let before = refused();
        let mut batch = collie_db::Batch::new();
        for n in 0..keys {
            match at_once {
                true => batch.delete(&db.default_family(), format!("{n:08}")).unwrap(),
                false => drop(db.delete(format!("{n:08}")).unwrap()),
            }
        }
        if at_once {
            db.write(batch, &WriteOptions::disk()).unwrap();
        }
        assert_eq!(db.iter().unwrap().count(), 0);
        // The log had no room for one of them, which got the reserve; or a flush of the first ones got it.
        let stats = db.stats();
        assert!(refused() > before || !stats.reserve_complete, "{stats:?}");
        device.heal();
        device.limit_space(None);
        let again = (0..1_000_000).find(|_| {
            std::thread::yield_now();
            db.put("again", "v").is_ok()
        });
        assert!(again.is_some(), "{:?}", db.stats());
        db.close().unwrap();
    }
}

/// Work that makes room took it, and the device has nothing to take its place.
#[test]
fn the_reserve_is_taken_again_before_a_write_that_brings_data() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(5);
    let db = common::open(dir.path(), &on_a_small_device(&device));
    device.limit_space(Some(0));
    db.put("k", "the log has room").unwrap();
    // Enough for the manifest to need another sector.
    for n in 0..24 {
        db.create_family(&format!("{n:0190}"), FamilyOptions::default())
            .unwrap();
    }
    let refused = db.put("k", "brings data");
    assert!(
        matches!(refused, Err(Error::StorageFull { .. })),
        "let in beside a reserve that is not all there: {refused:?}"
    );
    db.delete("k").unwrap();
    device.limit_space(None);
    let again = (0..1_000_000).find(|_| {
        std::thread::yield_now();
        db.put("k", "brings data").is_ok()
    });
    assert!(again.is_some(), "{:?}", db.put("k", "brings data"));
    let reserve = dir.path().join("RESERVE");
    assert_eq!(device.stat(&reserve).unwrap().len, 512 << 10);
}

/// A device as a process leaves it that is killed while at least so much of its reserve is there. The rest may
/// be in the log's next segment, and all of it may be given up for a flush.
fn killed_with_reserve(device: &SimDevice, dir: &Path, bytes: u64) -> SimDevice {
    let killed = (0..60_000).find_map(|_| {
        let killed = device.snapshot().process_death().device();
        let held = killed.stat(&dir.join("RESERVE")).map_or(0, |file| file.len);
        if held < bytes {
            std::thread::sleep(Duration::from_millis(1));
        }
        (held >= bytes).then_some(killed)
    });
    killed.unwrap_or_else(|| panic!("the reserve is not taken back"))
}

/// It was killed after a flush that the manifest had no room to record.
#[test]
fn a_store_with_unrecorded_tables_opens_on_a_full_device() {
    const CREATED_AND_WRITTEN: u64 = 2;
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(13);
    let db = common::open(dir.path(), &on_a_small_device(&device));
    db.put("k", "v").unwrap();
    device.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    db.flush().unwrap_err();
    let next = device.snapshot().process_death().device();
    device.kill();
    drop(db);
    // There is room for what an opening begins with, and only in the reserve for a base with the record.
    let full = Fault::new(FaultKind::NoSpace).on("MANIFEST.tmp");
    next.inject(full.after(CREATED_AND_WRITTEN).once());
    let db = common::open(dir.path(), &on_a_small_device(&next));
    assert_eq!(next.fired(FaultKind::NoSpace), 1);
    assert_eq!(db.get("k").unwrap().unwrap(), "v");
}

/// Killed on the full device and started again, over and over.
#[test]
fn a_store_opens_on_a_full_device_however_often_it_dies() {
    let dir = tempfile::tempdir().unwrap();
    let mut device = SimDevice::new(7);
    let mut db = common::open(dir.path(), &on_a_small_device(&device));
    let (keys, capacity) = fill(&db, &device, 300_000);
    for life in 0..113 {
        // Now and then another program takes what is left. While work has the reserve, that is all there is.
        let is_taken = life % 2 == 1;
        let next = match is_taken {
            true => killed_with_reserve(&device, dir.path(), 256 << 10),
            false => device.snapshot().process_death().device(),
        };
        device.kill();
        drop(db);
        device = next;
        let left = capacity.saturating_sub(device.used_space());
        device.limit_space(Some(if is_taken { 0 } else { left }));
        db = Db::open(dir.path(), on_a_small_device(&device))
            .unwrap_or_else(|error| panic!("start {life}: {error}"));
        assert!(db.iter().unwrap().count() as u32 >= keys, "start {life}");
    }
    assert!(device.used_space() <= capacity);
    device.limit_space(None);
    let again = (0..1_000_000).find(|_| {
        std::thread::yield_now();
        db.put("again", "v").is_ok()
    });
    assert!(again.is_some(), "{:?}", db.put("again", "v"));
}

/// Of a manifest that could not be written under its temporary name no process will ever know:
/// nothing is in doubt.
#[test]
fn a_manifest_that_cannot_be_written_anew_refuses_one_change() {
    for kind in [FaultKind::OpenFails, FaultKind::WriteFails, FaultKind::SyncFails] {
        let dir = tempfile::tempdir().unwrap();
        let device = SimDevice::new(7);
        drop(common::open(dir.path(), &simulated(&device)));
        let db = common::open(dir.path(), &simulated(&device));
        // The first change since it was opened writes all of it.
        device.inject(Fault::new(kind).on("MANIFEST").once());
        let refused = db.create_family("orders", FamilyOptions::default()).unwrap_err();
        assert_eq!(device.fired(kind), 1, "{kind:?}");
        assert!(refused.to_string().contains("MANIFEST"), "{kind:?}: {refused}");
        db.put("k", "v").unwrap();
        let orders = db.create_family("orders", FamilyOptions::default()).unwrap();
        orders.put("k", "v").unwrap();
        drop(orders);
        db.close().unwrap();
        let db = common::open(dir.path(), &simulated(&device));
        let orders = db.family("orders").unwrap();
        assert!(orders.contains("k").unwrap() && db.get("k").unwrap().is_some());
    }
}
