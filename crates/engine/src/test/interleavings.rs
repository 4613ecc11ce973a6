//! The interleavings that the commit path, rotations, flushes and reads must survive, each forced
//! by stopping one thread at the decisive point.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_log::threads::ThreadPool;
use collie_sim::{Fault, FaultKind, SimDevice};

use crate::background::flush;
use crate::background::threads::StoreJob;
use crate::events::FlushCause;
use crate::store::family::FamilyState;
use crate::test::hold;
use crate::{Db, Family, FamilyOptions, Options, RingMode, Value, WriteOptions};

pub(crate) fn new_store() -> (tempfile::TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        // What fails for want of room fails at once.
        reserve_bytes: Some(0),
        ..Options::default()
    };
    let db = Db::open(dir.path(), options).unwrap();
    (dir, db)
}

pub(crate) fn put(family: &Family, key: &str, value: &str) {
    family.put_with(key, value, &WriteOptions::buffered()).unwrap();
}

fn rotate(family: &Family) {
    family
        .db()
        .store()
        .rotate(family.state(), FlushCause::Manual, |_| true)
        .unwrap()
        .unwrap();
}

pub(crate) fn text(value: Option<&Value>) -> Option<&str> {
    value.map(|value| std::str::from_utf8(value).unwrap())
}

/// The value in the active memtable, and in the only sealed one.
fn places(state: &FamilyState, key: &str) -> (Option<String>, Option<String>) {
    let view = state.view();
    let read = |mem: &crate::memtable::Mem| {
        let found = mem.get(key.as_bytes(), u64::MAX)?;
        text(found.value.as_ref()).map(str::to_owned)
    };
    (
        read(&view.active),
        view.sealed.first().and_then(|sealed| read(&sealed.mem)),
    )
}

/// Waits until a thread waits for the visible boundary, or `done` says that none will.
fn until_waiting(db: &Db, done: impl Fn() -> bool) {
    while !db.store().has_visibility_waiters() && !done() {
        std::thread::yield_now();
    }
}

#[test]
fn a_commit_from_before_a_rotation_goes_to_the_old_memtable() {
    let (_dir, db) = new_store();
    let family = db.default_family();
    put(&family, "first", "0");
    let writer = {
        let family = family.clone();
        hold("appended", move || put(&family, "k", "early")).at_point()
    };
    rotate(&family);
    writer.finish();
    assert_eq!(places(family.state(), "k"), (None, Some("early".into())));
}

#[test]
fn a_commit_from_after_a_rotation_waits_for_its_memtable() {
    let (_dir, db) = new_store();
    let family = db.default_family();
    put(&family, "first", "0");
    let rotation = {
        let family = family.clone();
        hold("rotation has its LSN", move || rotate(&family)).at_point()
    };
    let writer = {
        let family = family.clone();
        hold("waits for a rotation", move || put(&family, "k", "late"))
    };
    while !writer.is_at_point_or_done() {
        std::thread::yield_now();
    }
    rotation.finish();
    writer.finish();
    assert_eq!(places(family.state(), "k"), (Some("late".into()), None));
}

#[test]
fn a_flush_waits_for_commits_on_their_way_to_the_memtable() {
    let (_dir, db) = new_store();
    let family = db.default_family();
    put(&family, "first", "0");
    let writer = {
        let family = family.clone();
        hold("appended", move || put(&family, "k", "slow")).at_point()
    };
    let flush = {
        let family = family.clone();
        std::thread::spawn(move || family.flush().unwrap())
    };
    until_waiting(&db, || flush.is_finished());
    writer.finish();
    flush.join().unwrap();
    assert!(family.state().view().sealed.is_empty());
    assert_eq!(text(family.get("k").unwrap().as_ref()), Some("slow"));
}

#[test]
fn a_later_commit_is_not_visible_before_an_earlier_one() {
    let (_dir, db) = new_store();
    let family = db.default_family();
    let early = {
        let family = family.clone();
        let write = WriteOptions::buffered();
        hold("appended", move || family.put_with("early", "1", &write).unwrap()).at_point()
    };
    let late = {
        let family = family.clone();
        std::thread::spawn(move || put(&family, "late", "2"))
    };
    until_waiting(&db, || late.is_finished());
    assert!(!late.is_finished(), "the later write returned");
    // (The log may have appended a frame of its own before the stopped one.)
    let visible = db.visible();
    assert_eq!(family.get("late").unwrap(), None);
    assert_eq!(db.snapshot().get(&family, "late").unwrap(), None);
    assert!(visible < early.finish());
    late.join().unwrap();
    assert_eq!(family.iter().unwrap().count(), 2);
}

#[test]
fn a_read_finds_all_commits_below_its_boundary_in_its_view() {
    let (_dir, db) = new_store();
    let family = db.default_family();
    put(&family, "k", "old");
    let read = {
        let family = family.clone();
        hold("read has its view", move || {
            let (view, point) = family.db().store().read_at(family.state(), false);
            (arc_swap::Guard::into_inner(view), point)
        })
        .at_point()
    };
    rotate(&family);
    put(&family, "k", "new");
    let (view, point) = read.finish();
    assert_eq!(point.below(), db.visible());
    let found = crate::snapshot::get(&view, &point, family.name(), b"k").unwrap();
    assert_eq!(text(found.value.as_ref()), Some("new"));
}

#[test]
fn of_two_that_open_a_new_family_at_once_both_get_it() {
    let (_dir, db) = new_store();
    let late = {
        let db = db.clone();
        hold("no such family", move || {
            db.open_family("new", FamilyOptions::default())
        })
        .at_point()
    };
    let early = db.open_family("new", FamilyOptions::default()).unwrap();
    put(&early, "k", "v");
    let late = late.finish().unwrap();
    assert_eq!(late.id(), early.id());
    assert_eq!(text(late.get("k").unwrap().as_ref()), Some("v"));
    assert_eq!(db.families(), ["default", "new"]);
}

#[test]
fn a_snapshot_does_not_see_the_second_write_without_the_first() {
    let (_dir, db) = new_store();
    let first = db.default_family();
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    let snapshot = {
        let db = db.clone();
        hold("snapshot has its views", move || db.snapshot()).at_point()
    };
    rotate(&first);
    put(&first, "a", "1");
    put(&second, "b", "1");
    let snapshot = snapshot.finish();
    let a = snapshot.get(&first, "a").unwrap();
    let b = snapshot.get(&second, "b").unwrap();
    assert!(a.is_some() || b.is_none(), "the second write without the first");
}

#[test]
fn a_panic_in_mid_commit_refuses_writes_and_hides_the_half() {
    let (_dir, db) = new_store();
    let family = db.default_family();
    put(&family, "before", "1");
    let store = Arc::clone(db.store());
    let panicked = std::thread::spawn(move || {
        store.appender(true).unwrap().unwrap().commit(
            crate::write::encoding::KIND_COMMIT,
            crate::write::appenders::Record::Empty,
            collie_log::Room::Commit,
            |_| panic!("a memtable that fails, for the test"),
        )
    });
    assert!(panicked.join().is_err());
    for _ in 0..3 {
        let refused = family.put_with("after", "2", &WriteOptions::buffered());
        assert!(
            matches!(refused, Err(crate::Error::Background { .. })),
            "{refused:?}"
        );
    }
    assert!(db.store().mark().is_ok_and(|mark| db.visible() < mark.start));
    // Its frame is complete, and which keys it wrote is not known.
    let refused = [
        family.get("before").map(drop),
        family.iter().map(drop),
        db.snapshot().get(&family, "before").map(drop),
        db.snapshot().iter(&family).map(drop),
        family.check_certain(),
    ];
    for refused in refused {
        assert!(
            matches!(refused, Err(crate::Error::InDoubt { key: None, .. })),
            "{refused:?}"
        );
    }
    assert_eq!(db.stats().snapshots, 0);
}

/// A store on a device of which every sync of the log fails from now on, without threads that would
/// notice.
fn on_a_failing_device() -> (tempfile::TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(1);
    device.support_direct(false);
    let options = Options {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..Options::default()
    };
    let db = Db::open(dir.path(), options).unwrap();
    db.put("k", "old").unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).on("/log/"));
    (dir, db)
}

/// A write in doubt may be lost, and a family that is dropped after it must not stay dropped then.
#[test]
fn no_family_is_dropped_once_the_log_has_failed() {
    let (_dir, db) = on_a_failing_device();
    let family = db.create_family("f", crate::FamilyOptions::default());
    assert!(family.is_err(), "its birth was made durable");
    let (_dir, db) = new_store();
    let family = db.create_family("f", crate::FamilyOptions::default()).unwrap();
    db.store().fail(crate::Error::Background {
        cause: "a test".into(),
    });
    let dropped = db.drop_family(&family);
    assert!(
        matches!(dropped, Err(crate::Error::Background { .. })),
        "{dropped:?}"
    );
    assert!(db.family("f").is_some());
}

fn is_in_doubt<T: std::fmt::Debug>(read: crate::Result<T>) {
    assert!(matches!(read, Err(crate::Error::InDoubt { .. })), "{read:?}");
}

/// The answer is of a moment before the failure, or there is none.
#[test]
fn a_read_beside_the_failure_is_of_before_or_refused() {
    for (point, is_of_before) in [
        ("read has its view", false),
        ("read has its boundary", false),
        ("read has its point", true),
    ] {
        let (_dir, db) = on_a_failing_device();
        let family = db.default_family();
        let end = family.put_with("k", "new", &WriteOptions::buffered()).unwrap();
        let read = {
            let family = family.clone();
            hold(point, move || {
                family.get_with("k", &crate::ReadOptions::default())
            })
            .at_point()
        };
        assert!(db.wait(end, crate::Durability::Disk).is_err());
        let read = read.finish();
        if is_of_before {
            let read = read.unwrap();
            assert_eq!(text(read.value.as_ref()), Some("new"));
            assert_eq!(read.seen, end, "a wait for it gets the failure");
        } else {
            is_in_doubt(read);
        }
        is_in_doubt(family.get("k"));
    }
}

/// The boundary is read before the check for a failure. In the other order a commit would be shown
/// that became visible in between.
#[test]
fn what_becomes_visible_beside_the_failure_is_not_shown() {
    let (_dir, db) = on_a_failing_device();
    let family = db.default_family();
    let read = {
        let family = family.clone();
        hold("read has its boundary", move || family.get("k")).at_point()
    };
    let end = family.put_with("k", "new", &WriteOptions::buffered()).unwrap();
    // No failure yet: the read shows what was visible at its boundary.
    assert_eq!(text(read.finish().unwrap().as_ref()), Some("old"));
    assert!(db.wait(end, crate::Durability::Disk).is_err());
    is_in_doubt(family.get("k"));
}

/// A write that failed is found, although an earlier one is not applied yet and keeps it from being
/// visible.
#[test]
fn a_failed_write_is_in_doubt_before_it_is_visible() {
    let (_dir, db) = on_a_failing_device();
    let family = db.default_family();
    let slow = {
        let family = family.clone();
        hold("appended", move || {
            family.put_with("other", "1", &WriteOptions::buffered())
        })
        .at_point()
    };
    let failed = family.put("k", "new");
    assert!(matches!(failed, Err(crate::Error::Poisoned { .. })), "{failed:?}");
    is_in_doubt(family.get("k"));
    is_in_doubt(family.iter().unwrap().collect::<crate::Result<Vec<_>>>());
    is_in_doubt(db.snapshot().get(&family, "k"));
    is_in_doubt(family.check_certain());
    // It is applied all the same, and did not fail.
    slow.finish().unwrap();
    is_in_doubt(family.get("other"));
    assert!(family.get("absent").unwrap().is_none());
}

/// A flush on a caller's thread went on after `close` had released the directory's lock.
#[test]
fn close_waits_for_a_flush_on_another_thread() {
    let (dir, db) = new_store();
    put(&db.default_family(), "k", "v");
    let store = Arc::clone(db.store());
    let flush = {
        let db = db.clone();
        hold("tables are written", move || db.flush()).at_point()
    };
    let close = std::thread::spawn(move || db.close());
    // A waiting writer keeps new readers out.
    while store.is_directory_shared() && !close.is_finished() {
        std::thread::yield_now();
    }
    assert!(!close.is_finished(), "closed while a flush was under way");
    drop(store);
    flush.finish().unwrap();
    close.join().unwrap().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    assert_eq!(db.stats().families["default"].tables, 1);
    assert_eq!(text(db.get("k").unwrap().as_ref()), Some("v"));
}

/// A family whose flush waits keeps one thread, and other families have the rest.
#[test]
fn a_store_flushes_as_many_families_at_once_as_it_has_threads() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        flush_threads: 2,
        reserve_bytes: Some(0),
        ..Options::default()
    };
    let db = Db::open(dir.path(), options).unwrap();
    let families = ["a", "b"].map(|name| db.create_family(name, FamilyOptions::default()).unwrap());
    for family in &families {
        put(family, "k", "v");
        let sealed = db.store().rotate(family.state(), FlushCause::Manual, |_| true);
        sealed.unwrap();
    }
    let [first, second] = families.map(|family| Arc::clone(family.state()));
    let of_first = {
        let (store, first) = (Arc::clone(db.store()), Arc::clone(&first));
        hold("tables are written", move || flush::flush_sealed(&store, &first)).at_point()
    };
    // It waits for the one that is held.
    db.store().queue().flush(&first);
    db.store().queue().flush(&second);
    while !second.view().sealed.is_empty() {
        std::thread::yield_now();
    }
    assert!(!first.view().sealed.is_empty());
    of_first.finish().unwrap();
}

/// Stopped writers would wait for work that a dead thread does not do.
#[test]
fn a_background_thread_that_panics_refuses_writes_with_its_name() {
    let (dir, db) = new_store();
    let family = db.default_family();
    put(&family, "k", "v");
    let pool = ThreadPool::start(["collie-flush-7".to_owned()], Duration::ZERO, || ()).unwrap();
    let panics = StoreJob::new(db.store(), |_| panic!("for the test"));
    pool.add(&Arc::default(), Box::new(panics));
    while db.store().failure().is_none() {
        std::thread::yield_now();
    }
    let refused = family.put_with("k", "w", &WriteOptions::buffered()).unwrap_err();
    assert!(
        refused.to_string().contains("collie-flush-7 panicked"),
        "{refused}"
    );
    assert_eq!(text(family.get("k").unwrap().as_ref()), Some("v"));
    drop(family);
    // Who closes learns it, too.
    assert_eq!(db.close().unwrap_err().to_string(), refused.to_string());
    let db = Db::open(dir.path(), Options::default()).unwrap();
    assert_eq!(text(db.get("k").unwrap().as_ref()), Some("v"));
}

/// The next owner of a row reads at the visible boundary: it must not get the row while an earlier
/// commit keeps the boundary below this one.
#[test]
fn the_locks_of_a_commit_go_only_when_it_is_visible() {
    for mode in [crate::CommitMode::EarlyRelease, crate::CommitMode::Async] {
        let (_dir, db) = new_store();
        let family = db.default_family();
        let options = crate::TransactionOptions {
            commit_mode: mode,
            isolation: crate::Isolation::Serializable,
            lock_timeout: std::time::Duration::from_secs(60),
            ..crate::TransactionOptions::default()
        };
        let first = db.transaction(options.clone()).unwrap();
        first.put(&family, "x", "1").unwrap();
        // A commit with a position before the transaction's, which is not applied.
        let slow = {
            let family = family.clone();
            hold("appended", move || put(&family, "y", "slow")).at_point()
        };
        let next = db.transaction(options).unwrap();
        let next = {
            let family = family.clone();
            std::thread::spawn(move || next.get_for_update(&family, "x").unwrap())
        };
        let waits = || db.transactions().iter().any(|info| info.waits_for.is_some());
        while !waits() {
            std::thread::yield_now();
        }
        let first = std::thread::spawn(move || first.commit().unwrap());
        until_waiting(&db, || first.is_finished());
        let let_go = &db.store().locks().counters.held;
        assert_eq!(let_go.load(Ordering::Relaxed), 0, "the locks are gone already");
        slow.finish();
        first.join().unwrap();
        assert_eq!(text(next.join().unwrap().as_ref()), Some("1"));
    }
}
