//! The interleavings that the commit path, rotations, flushes and reads are built against, each forced by
//! holding one thread at the decisive point.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::FamilyState;
use crate::testing::hold;
use crate::view::FlushCause;
use crate::{Db, Family, FamilyOptions, Options, RingMode, Value, WriteOptions};

fn store() -> (tempfile::TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..Options::default()
    };
    let db = Db::open(dir.path(), options).unwrap();
    (dir, db)
}

fn put(family: &Family, key: &str, value: &str) {
    family.put_with(key, value, &WriteOptions::buffered()).unwrap();
}

fn rotate(family: &Family) {
    family
        .db()
        .core()
        .rotate(family.state(), FlushCause::Manual, |_| true)
        .unwrap()
        .unwrap();
}

fn text(value: Option<&Value>) -> Option<&str> {
    value.map(|value| std::str::from_utf8(value).unwrap())
}

/// The value in the active memtable, and in the only sealed one.
fn places(state: &FamilyState, key: &str) -> (Option<String>, Option<String>) {
    let view = state.view.load();
    let read = |mem: &crate::memtable::Mem| {
        let found = mem.get(key.as_bytes(), u64::MAX)?;
        text(found.value.as_ref()).map(str::to_owned)
    };
    (
        read(&view.active),
        view.sealed.first().and_then(|sealed| read(&sealed.mem)),
    )
}

/// Waits until somebody waits for the visible boundary, or `done` says that nobody will.
fn until_waiting(db: &Db, done: impl Fn() -> bool) {
    while !db.core().visible.has_waiters() && !done() {
        std::thread::yield_now();
    }
}

#[test]
fn a_commit_that_reserved_before_a_rotation_goes_to_the_old_memtable() {
    let (_dir, db) = store();
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
fn a_commit_that_reserved_after_a_rotation_waits_for_its_memtable() {
    let (_dir, db) = store();
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
fn a_flush_waits_for_commits_that_are_still_on_their_way_to_the_memtable() {
    let (_dir, db) = store();
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
    assert!(family.state().view.load().sealed.is_empty());
    assert_eq!(text(family.get("k").unwrap().as_ref()), Some("slow"));
}

#[test]
fn a_later_commit_is_not_visible_before_an_earlier_one() {
    // Between the reservation and the second BLACK, and between the copy and the memtable.
    for point in ["reserved", "appended"] {
        let (_dir, db) = store();
        let family = db.default_family();
        let before = db.visible();
        let early = {
            let family = family.clone();
            hold(point, move || put(&family, "early", "1")).at_point()
        };
        let late = {
            let family = family.clone();
            std::thread::spawn(move || put(&family, "late", "2"))
        };
        until_waiting(&db, || late.is_finished());
        assert!(!late.is_finished(), "held at {point}: the later write returned");
        assert_eq!(db.visible(), before);
        assert_eq!(family.get("late").unwrap(), None);
        assert_eq!(db.snapshot().get(&family, "late").unwrap(), None);
        early.finish();
        late.join().unwrap();
        assert_eq!(family.iter().unwrap().count(), 2);
    }
}

#[test]
fn a_read_finds_all_commits_below_its_boundary_in_its_view() {
    let (_dir, db) = store();
    let family = db.default_family();
    put(&family, "k", "old");
    let read = {
        let family = family.clone();
        hold("read has its view", move || {
            family.db().core().read_at(family.state(), false)
        })
        .at_point()
    };
    rotate(&family);
    put(&family, "k", "new");
    let (view, boundary) = read.finish();
    assert_eq!(boundary, db.visible());
    let found = crate::read::get(&view, b"k", boundary).unwrap();
    assert_eq!(text(found.value.as_ref()), Some("new"));
}

#[test]
fn a_snapshot_does_not_see_the_second_write_without_the_first() {
    let (_dir, db) = store();
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
fn a_panic_in_mid_commit_refuses_writes_and_hides_what_was_half_done() {
    let (_dir, db) = store();
    let family = db.default_family();
    put(&family, "before", "1");
    let core = Arc::clone(db.core());
    let panicked = std::thread::spawn(move || {
        core.commit(crate::codec::KIND_COMMIT, crate::workers::Record::Place, |_| {
            panic!("a memtable that fails, for the test")
        })
    });
    assert!(panicked.join().is_err());
    for _ in 0..3 {
        let refused = family.put_with("after", "2", &WriteOptions::buffered());
        assert!(
            matches!(refused, Err(crate::Error::Background { .. })),
            "{refused:?}"
        );
    }
    assert!(db.core().mark().is_ok_and(|mark| db.visible() < mark.start));
    assert_eq!(text(family.get("before").unwrap().as_ref()), Some("1"));
    assert_eq!(db.core().snapshots.load(Ordering::Relaxed), 0);
}

/// A flush on a caller's thread went on after `close` had given the directory free.
#[test]
fn close_waits_for_a_flush_on_another_thread() {
    let (dir, db) = store();
    put(&db.default_family(), "k", "v");
    let core = Arc::clone(db.core());
    let flush = {
        let db = db.clone();
        hold("tables are written", move || db.flush()).at_point()
    };
    let close = std::thread::spawn(move || db.close());
    // A waiting writer keeps new readers out.
    while core.life.try_read().is_some() && !close.is_finished() {
        std::thread::yield_now();
    }
    assert!(!close.is_finished(), "closed while a flush was under way");
    drop(core);
    flush.finish().unwrap();
    close.join().unwrap().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    assert_eq!(db.stats().families["default"].tables, 1);
    assert_eq!(text(db.get("k").unwrap().as_ref()), Some("v"));
}

/// The flush thread dies; writers would wait for it at a closed gate.
#[test]
fn a_flush_thread_that_panics_refuses_writes_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    // The only store in these tests with a thread of that number.
    crate::testing::panic_at("collie-flush-7", "tables are written");
    let options = Options {
        ring: RingMode::Private,
        flush_threads: 8,
        default_family: FamilyOptions {
            write_buffer_bytes: 4096,
            max_write_buffers: 2,
            ..FamilyOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let family = db.default_family();
    let refused = (0..1_000_000)
        .find_map(|n: u32| {
            family
                .put_with(n.to_string(), [1; 100], &WriteOptions::buffered())
                .err()
        })
        .unwrap();
    assert!(
        refused.to_string().contains("collie-flush-7 panicked"),
        "{refused}"
    );
    assert_eq!(text(family.get("0").unwrap().as_ref()).map(str::len), Some(100));
    drop(family);
    db.close().unwrap();
    let db = Db::open(
        dir.path(),
        Options {
            flush_threads: 1,
            ..options
        },
    )
    .unwrap();
    assert!(db.get("0").unwrap().is_some());
}
