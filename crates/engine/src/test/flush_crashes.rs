//! Flushes beside one another, and flushes that fail, each followed by a death of the process: what
//! was acknowledged is there when the store is opened again.

#![expect(
    clippy::disallowed_methods,
    reason = "tests copy and break files behind the store's back"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_io::RealDevice;
use collie_sim::{Fault, FaultKind, SimDevice, SplitDevice};

use crate::background::{compaction, flush, wal_limit};
use crate::events::FlushCause;
use crate::store::family::FamilyState;
use crate::test::hold;
use crate::{Db, Error, Family, FamilyOptions, Lsn, Options, RingMode, WriteOptions};

const KEYS: [&str; 3] = ["a", "b", "c"];

fn options() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_total_wal_size: Some(128 << 10),
        // What fails for want of room fails at once.
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// A store with a second family and more log than it is to have, whose flushes are all on the
/// test's own threads.
pub(super) fn quiet_store(path: &Path, options: Options) -> (Db, Family) {
    let db = Db::open(path, options).unwrap();
    db.store().queue().stop();
    while Arc::strong_count(db.store()) > 1 {
        std::thread::yield_now();
    }
    let orders = db.create_family("orders", FamilyOptions::default()).unwrap();
    for n in 0..20_u8 {
        db.put([n], [n; 8 << 10]).unwrap();
    }
    (db, orders)
}

pub(super) fn mark(state: &FamilyState) -> Lsn {
    state.flushed().get()
}

fn put_all(family: &Family) {
    for key in KEYS {
        family.put_with(key, "v", &WriteOptions::disk()).unwrap();
    }
}

/// The store's directory as a death of its process would leave it now.
pub(super) fn death(db: &Db) -> tempfile::TempDir {
    let image = tempfile::tempdir().unwrap();
    copy(db.path(), image.path());
    image
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else if let Err(error) = std::fs::copy(entry.path(), &to) {
            // The store has removed it meanwhile.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{to:?}: {error}");
        }
    }
}

fn assert_nothing_is_lost(image: &Path, options: Options) {
    let db = Db::open(image, options).unwrap();
    let orders = db.family("orders").unwrap();
    let found = KEYS.map(|key| orders.get(key).unwrap().is_some());
    assert_eq!(found, [true; 3], "acknowledged writes {KEYS:?} are lost");
    db.close().unwrap();
}

/// The manifest recorded a memtable as flushed, and the log was released, before the memtable's own
/// flush had registered its tables.
#[test]
fn a_flush_for_the_logs_size_says_nothing_of_one_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let (db, orders) = quiet_store(dir.path(), options());
    // The family has nothing in memory, and pins the log all the same.
    let together = {
        let store = Arc::clone(db.store());
        hold("families are registered", move || {
            wal_limit::flush_for_wal_size(&store)
        })
        .at_point()
    };
    // Where one flush of a family keeps others out, the second goes on when the first has ended.
    let state = Arc::clone(orders.state());
    let alone = state.try_lock_flushes().is_none();
    put_all(&orders);
    let own = {
        let orders = orders.clone();
        hold("tables are to be registered", move || orders.flush())
    };
    let (before, sealed) = (mark(&state), || !state.view().sealed.is_empty());
    while !sealed() {
        std::thread::yield_now();
    }
    let own = if alone { own } else { own.at_point() };
    let together = std::thread::spawn(move || together.finish());
    let own = if alone { own.at_point() } else { own };
    // Where it does not, the first one waits for the second to end before it goes on.
    let recorded = || match alone {
        true => together.is_finished(),
        false => mark(&state) != before,
    };
    while !recorded() {
        std::thread::yield_now();
    }
    let image = death(&db);
    own.finish().unwrap();
    together.join().unwrap();
    assert_nothing_is_lost(image.path(), options());
    assert_nothing_is_lost(death(&db).path(), options());
}

fn family_dir(db: &Db, state: &FamilyState) -> PathBuf {
    db.path().join("families").join(state.id().to_string())
}

/// Where the tree's next manifest will be there is no room for it.
fn block_next_version(db: &Db, state: &FamilyState) {
    block_version(db, state, 1);
}

fn block_version(db: &Db, state: &FamilyState, ahead: u64) {
    let blocked = family_dir(db, state).join(format!("v{}", state.tables().version() + ahead));
    std::os::unix::fs::symlink("/dev/full", blocked).unwrap();
}

/// One memtable's tables are registered and recorded while the next one is sealed, whose own
/// cannot be.
#[test]
fn a_flush_says_nothing_of_a_memtable_sealed_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (db, orders) = quiet_store(dir.path(), options());
    let state = Arc::clone(orders.state());
    let held_flush = || {
        let orders = orders.clone();
        hold("tables are to be registered", move || orders.flush())
    };
    orders.put("before", "v").unwrap();
    let before = mark(&state);
    let first = held_flush().at_point();
    put_all(&orders);
    block_version(&db, &state, 2);
    let second = held_flush();
    while state.view().sealed.len() < 2 {
        std::thread::yield_now();
    }
    let failed = first.finish().unwrap_err();
    assert!(matches!(failed, Error::StorageFull { .. }), "{failed}");
    assert!(mark(&state) > before, "the first one is recorded");
    assert_nothing_is_lost(death(&db).path(), options());
    second.finish().unwrap();
}

/// What a flush could not register is in no table, so no later change of the manifest may record
/// it.
#[test]
fn a_memtable_whose_tables_are_not_registered_is_not_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let (db, orders) = quiet_store(dir.path(), options());
    let state = Arc::clone(orders.state());
    put_all(&orders);
    let before = mark(&state);
    block_next_version(&db, &state);
    let failed = orders.flush().unwrap_err();
    assert!(matches!(failed, Error::StorageFull { .. }), "{failed}");
    block_next_version(&db, &state);
    // Together with others: what these have registered is recorded.
    let families = [Arc::clone(db.default_family().state()), Arc::clone(&state)];
    let failed = flush::flush_together(db.store(), &families, None).unwrap_err();
    assert!(matches!(failed, Error::StorageFull { .. }), "{failed}");
    assert_eq!(mark(&state), before);
    assert_nothing_is_lost(death(&db).path(), options());
    orders.flush().unwrap();
    assert!(mark(&state) > before);
    assert_nothing_is_lost(death(&db).path(), options());
}

/// The manifest has no room: the tables are there, and the manifest says so when it has.
#[test]
fn what_the_manifest_had_no_room_for_is_recorded_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sim = SimDevice::new(1);
    let on = |sim: &SimDevice| Options {
        device: Arc::new(SplitDevice::new(
            path.join("families"),
            Arc::new(RealDevice::new()),
            Arc::new(sim.clone()),
        )),
        ..options()
    };
    let (db, orders) = quiet_store(&path, on(&sim));
    let state = Arc::clone(orders.state());
    put_all(&orders);
    let before = mark(&state);
    sim.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    for _ in 0..2 {
        let failed = orders.flush().unwrap_err();
        assert!(matches!(failed, Error::StorageFull { .. }), "{failed}");
        assert!(state.view().sealed.is_empty(), "its tables are there");
        assert_eq!((mark(&state), state.tables().has_unrecorded()), (before, true));
    }
    sim.heal();
    // Nothing is in memory, and no table is written.
    let tables = state.tables().table_count();
    orders.flush().unwrap();
    assert!(mark(&state) > before);
    assert_eq!(
        (state.tables().table_count(), state.tables().has_unrecorded()),
        (tables, false)
    );
    let left = sim.snapshot().process_death().device();
    sim.kill();
    drop((db, orders, state));
    assert_nothing_is_lost(&path, on(&left));
}

/// The table library counts the runs of a level in one byte. Where the manifest has no room for so
/// long, flushes end there; what they registered was merged, and a delete that was kept out of the
/// log went with that.
#[test]
fn what_is_not_recorded_is_not_merged_however_many_runs_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sim = SimDevice::new(1);
    let options = Options {
        device: Arc::new(SplitDevice::new(
            path.join("families"),
            Arc::new(RealDevice::new()),
            Arc::new(sim.clone()),
        )),
        ..options()
    };
    let (db, _) = quiet_store(&path, options);
    let unstalled = FamilyOptions {
        level0_slowdown: 200,
        level0_stop: 200,
        ..FamilyOptions::default()
    };
    let orders = db.create_family("unstalled", unstalled).unwrap();
    let state = Arc::clone(orders.state());
    sim.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    let hard_limits = WriteOptions {
        throttle: crate::ThrottleMode::HardLimitsOnly,
        ..WriteOptions::buffered()
    };
    for n in 0..=200_u32 {
        orders.put_with("k", n.to_be_bytes(), &hard_limits).unwrap();
        let full = orders.flush().unwrap_err();
        assert!(matches!(full, Error::StorageFull { .. }), "{full}");
    }
    assert_eq!((state.level0_runs(), state.tables().table_count()), (200, 200));
    assert!(state.tables().has_unrecorded());
    sim.heal();
    orders.flush().unwrap();
    assert!(state.level0_runs() < 200 && !state.tables().has_unrecorded());
    assert_eq!(
        orders.get("k").unwrap().as_deref(),
        Some(&200_u32.to_be_bytes()[..])
    );
}

/// Its tables are never recorded, and a compaction that waited for that did so for good.
#[test]
fn a_compaction_of_a_family_dropped_behind_its_flush_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (db, orders) = quiet_store(dir.path(), options());
    let state = Arc::clone(orders.state());
    put_all(&orders);
    let flush = {
        let (store, state) = (Arc::clone(db.store()), Arc::clone(&state));
        hold("families are registered", move || {
            store.rotate(&state, FlushCause::Manual, |_| true).map(drop)?;
            flush::flush_together(&store, &[state], None)
        })
        .at_point()
    };
    db.drop_family(&orders).unwrap();
    flush.finish().unwrap();
    assert!(state.tables().has_unrecorded());
    let (ended, end) = std::sync::mpsc::channel();
    let store = Arc::clone(db.store());
    std::thread::spawn(move || ended.send(compaction::compact_all(&store, &state)));
    end.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
}

/// With all memtables full, no write queued another attempt.
#[test]
fn a_flush_that_failed_on_a_callers_thread_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let family = db.default_family();
    let state = Arc::clone(family.state());
    family.put("k", "v").unwrap();
    block_next_version(&db, &state);
    let failed = db.flush().unwrap_err();
    assert!(matches!(failed, Error::StorageFull { .. }), "{failed}");
    let queued = || state.flushes().is_queued();
    assert!(queued() || state.view().sealed.is_empty(), "no attempt is queued");
    while !state.view().sealed.is_empty() {
        std::thread::yield_now();
    }
    db.close().unwrap();
}

/// The directory of a creation that was cut off is the only sign of it: its id was given again.
#[test]
fn an_id_whose_directory_is_there_is_not_given_again() {
    let dir = tempfile::tempdir().unwrap();
    drop(Db::open(dir.path(), options()).unwrap());
    let left = dir.path().join("families/1");
    std::fs::create_dir_all(left.join("tables")).unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    assert!(!left.exists());
    let orders = db.create_family("orders", FamilyOptions::default()).unwrap();
    assert_eq!(orders.state().id(), 2);
}

/// The id of a creation that failed is not given again either, whether the device had room for the
/// manifest or not.
#[test]
fn the_id_of_a_creation_that_failed_is_not_given_again() {
    for full in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let sim = SimDevice::new(1);
        let device = SplitDevice::new(
            path.join("families"),
            Arc::new(RealDevice::new()),
            Arc::new(sim.clone()),
        );
        let options = Options {
            device: Arc::new(device),
            ..options()
        };
        let db = Db::open(&path, options).unwrap();
        let left = path.join("families/1");
        std::fs::create_dir_all(&left).unwrap();
        std::fs::write(left.join("current"), "of another").unwrap();
        if full {
            sim.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
        }
        let failed = db.create_family("orders", FamilyOptions::default()).unwrap_err();
        assert!(failed.to_string().contains("families/1"), "{failed}");
        assert_eq!(left.exists(), full, "the files stay until the id is retired");
        sim.heal();
        let orders = db.create_family("orders", FamilyOptions::default()).unwrap();
        assert_eq!(orders.state().id(), 2);
        orders.put("k", "v").unwrap();
        db.close().unwrap();
    }
}
