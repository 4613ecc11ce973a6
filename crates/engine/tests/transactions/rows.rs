//! Row locks without a transaction: `Db::lock_rows` and `Db::lock_families`.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_db::{
    Batch, Concurrency, Db, Error, Family, FamilyOptions, Isolation, Options, RowOwner, TransactionOptions,
    WriteOptions,
};

use crate::{options, store, text, until_waiting};

const FOR_EVER: Duration = Duration::MAX;

fn locked() -> WriteOptions {
    WriteOptions {
        skip_row_locks: true,
        ..WriteOptions::buffered()
    }
}

/// Reads a number and writes the next one.
fn increment(family: &Family, key: &str) {
    let before: u64 = text(family.get(key).unwrap()).map_or(0, |n| n.parse().unwrap());
    family.put_with(key, (before + 1).to_string(), &locked()).unwrap();
}

fn step(db: &Db, owner: &mut RowOwner, keys: &[&str]) {
    let family = db.default_family();
    let rows = keys.iter().map(|key| (&family, key.as_bytes()));
    let _held = db.lock_rows(owner, rows, FOR_EVER).unwrap();
    keys.iter().for_each(|key| increment(&family, key));
}

#[test]
fn steps_under_row_locks_lose_no_update_in_any_order_of_rows() {
    const STEPS: u64 = 2_000;
    let (_dir, db) = store();
    let orders: [&[&str]; 4] = [&["a", "b"], &["b", "a"], &["a"], &["c", "b", "a"]];
    std::thread::scope(|scope| {
        for keys in orders {
            let db = &db;
            scope.spawn(move || {
                let mut owner = db.row_owner("a test");
                (0..STEPS).for_each(|_| step(db, &mut owner, keys));
            });
        }
    });
    let family = db.default_family();
    let counts = ["a", "b", "c"].map(|key| text(family.get(key).unwrap()).unwrap());
    assert_eq!(counts, [4 * STEPS, 3 * STEPS, STEPS].map(|n| n.to_string()));
    assert_eq!(db.stats().transactions.locks, 0, "all released");
}

/// Else two callers that name the same rows in different orders wait for each other.
#[test]
fn rows_are_locked_in_the_order_of_their_keys() {
    let (_dir, db) = store();
    let family = db.default_family();
    let row = |key: &'static str| (&family, key.as_bytes());
    let mut first = db.row_owner("holds a");
    let held = db.lock_rows(&mut first, [row("a")], FOR_EVER).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut second = db.row_owner("wants both");
            drop(db.lock_rows(&mut second, [row("b"), row("a")], FOR_EVER).unwrap());
        });
        until_waiting(&db, 1);
        let mut third = db.row_owner("wants b");
        let refused = db
            .lock_rows(&mut third, [row("b")], Duration::from_millis(200))
            .err();
        drop(held);
        assert!(refused.is_none(), "b is locked before a: {refused:?}");
    });
}

#[test]
fn a_family_that_is_locked_as_a_whole_has_no_other_writer() {
    let (_dir, db) = store();
    let (own, other) = (
        db.default_family(),
        db.create_family("other", FamilyOptions::default()).unwrap(),
    );
    let mut owner = db.row_owner("all");
    let all = db.lock_families(&mut owner, [&own], FOR_EVER).unwrap();
    assert!(all.covers(&own, b"any") && !all.covers(&other, b"any"));
    let started = Barrier::new(2);
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut owner = db.row_owner("one");
            drop(db.lock_rows(&mut owner, [(&other, &b"x"[..])], FOR_EVER).unwrap());
            started.wait();
            let _held = db.lock_rows(&mut owner, [(&own, &b"x"[..])], FOR_EVER).unwrap();
            // Relaxed: the lock orders the accesses.
            written.store(true, Ordering::Relaxed);
        });
        started.wait();
        for _ in 0..50 {
            own.put_with("x", "mine", &locked()).unwrap();
            assert!(!written.load(Ordering::Relaxed), "another one got in");
            std::thread::yield_now();
        }
        drop(all);
    });
    assert!(written.load(Ordering::Relaxed));
}

#[test]
fn transactions_and_plain_writes_wait_for_locked_rows() {
    let (_dir, db) = store();
    let family = db.default_family();
    let mut owner = db.row_owner("locker");
    let row = [(&family, &b"x"[..])];
    // No transaction was begun in this store so far: the plain write must wait all the same.
    let held = db.lock_rows(&mut owner, row, FOR_EVER).unwrap();
    std::thread::scope(|scope| {
        let plain = scope.spawn(|| family.put("x", "2"));
        while db.stats().transactions.lock_waits == 0 && !plain.is_finished() {
            std::thread::yield_now();
        }
        family.put_with("x", "1", &locked()).unwrap();
        assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("1"));
        drop(held);
        plain.join().unwrap().unwrap();
    });
    assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("2"));

    let tx = db
        .transaction(options(Concurrency::Pessimistic, Isolation::Serializable))
        .unwrap();
    tx.put(&family, "x", "3").unwrap();
    let refused = db
        .lock_rows(&mut owner, row, Duration::from_millis(1))
        .unwrap_err();
    assert!(matches!(refused, Error::LockTimeout { .. }), "{refused}");
    tx.commit().unwrap();
    let held = db.lock_rows(&mut owner, row, FOR_EVER).unwrap();
    assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("3"));
    let tx = db
        .transaction(TransactionOptions {
            lock_timeout: Duration::from_millis(1),
            ..options(Concurrency::Pessimistic, Isolation::Serializable)
        })
        .unwrap();
    let refused = tx.get_for_update(&family, "x").unwrap_err();
    assert!(matches!(refused, Error::LockTimeout { .. }), "{refused}");
    drop(held);
    tx.get_for_update(&family, "x").unwrap();
}

#[test]
fn owned_locks_exclude_others_and_go_with_any_thread() {
    const STEPS: u64 = 500;
    let (_dir, db) = store();
    let family = db.default_family();
    let row = |key: &'static str| (&family, key.as_bytes());
    let (mut one, mut two) = (db.row_owner("one"), db.row_owner("two"));
    let held = db
        .lock_rows_owned(&mut one, [row("b"), row("a")], FOR_EVER)
        .unwrap();
    assert!(held.covers(&family, b"a") && held.covers(&family, b"b") && !held.covers(&family, b"c"));
    for key in ["a", "b"] {
        let refused = db.lock_rows(&mut two, [row(key)], Duration::ZERO).map(drop);
        assert!(matches!(refused, Err(Error::LockTimeout { .. })), "{refused:?}");
        let refused = db
            .lock_rows_owned(&mut two, [row("0"), row(key)], Duration::ZERO)
            .map(drop);
        assert!(matches!(refused, Err(Error::LockTimeout { .. })), "{refused:?}");
    }
    assert_eq!(
        db.stats().transactions.locks,
        2,
        "what was locked of a refused set is free"
    );
    std::thread::spawn(move || drop(held)).join().unwrap();
    assert_eq!(db.stats().transactions.locks, 0, "all released");
    // The owners are free again. Each step begins on one thread and ends on another.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (db, family) = (&db, &family);
        scope.spawn(move || {
            for locks in receiver {
                increment(family, "a");
                drop(locks);
            }
        });
        for _ in 0..2 {
            let sender = sender.clone();
            scope.spawn(move || {
                for _ in 0..STEPS {
                    let mut owner = db.row_owner("a step");
                    let locks = db.lock_rows_owned(&mut owner, [(family, &b"a"[..])], FOR_EVER);
                    sender.send(locks.unwrap()).unwrap();
                }
            });
        }
        drop(sender);
        let mut owner = db.row_owner("borrows");
        for _ in 0..STEPS {
            step(db, &mut owner, &["a"]);
        }
    });
    assert_eq!(text(family.get("a").unwrap()), Some((3 * STEPS).to_string()));
}

#[test]
#[should_panic(expected = "has some already")]
fn an_owner_that_has_owned_locks_gets_no_others() {
    let (_dir, db) = store();
    let family = db.default_family();
    let mut owner = db.row_owner("one");
    let _held = db
        .lock_rows_owned(&mut owner, [(&family, &b"x"[..])], FOR_EVER)
        .unwrap();
    let _ = db.lock_rows_owned(&mut owner, [(&family, &b"y"[..])], FOR_EVER);
}

/// The table of locks outlives the store: what is locked keeps nothing open.
#[test]
fn owned_locks_do_not_keep_a_store_open() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let family = db.default_family();
    let held = db
        .lock_rows_owned(&mut db.row_owner("one"), [(&family, &b"x"[..])], FOR_EVER)
        .unwrap();
    drop(family);
    db.close().unwrap();
    drop(Db::open(dir.path(), Options::default()).unwrap());
    drop(held);
}

#[test]
#[should_panic(expected = "has some already")]
fn an_owner_that_has_locks_gets_no_others() {
    let (_dir, db) = store();
    let family = db.default_family();
    let mut owner = db.row_owner("one");
    let free = db.lock_rows(&mut owner, [(&family, &b""[..])], FOR_EVER);
    drop(free.unwrap());
    let _held = db
        .lock_rows(&mut owner, [(&family, &b"x"[..])], FOR_EVER)
        .unwrap();
    let _ = db.lock_rows(&mut owner, [(&family, &b"y"[..])], FOR_EVER);
}

#[test]
#[should_panic(expected = "another store's")]
fn an_owner_belongs_to_one_store() {
    // Owners are numbered by store: with another one's, two could have the same number, and both
    // the row.
    let ((_dir, db), (_other_dir, other)) = (store(), store());
    let family = db.default_family();
    let mut owner = other.row_owner("one");
    let _ = db.lock_rows(&mut owner, [(&family, &b"x"[..])], FOR_EVER);
}

#[test]
fn rows_of_another_store_are_refused_and_a_full_table_is_told() {
    let (_dir, db) = store();
    let (_other_dir, other) = store();
    let mut owner = db.row_owner("one");
    let foreign = other.default_family();
    let refused = db
        .lock_rows(&mut owner, [(&foreign, &b"x"[..])], FOR_EVER)
        .unwrap_err();
    assert!(matches!(refused, Error::ForeignFamily { .. }), "{refused}");
    let refused = db.lock_families(&mut owner, [&foreign], FOR_EVER).unwrap_err();
    assert!(matches!(refused, Error::ForeignFamily { .. }), "{refused}");

    let dir = tempfile::tempdir().unwrap();
    let small = Options {
        max_row_locks: 1_000,
        ..Options::default()
    };
    let db = Db::open(dir.path(), small).unwrap();
    let family = db.default_family();
    let mut owner = db.row_owner("many");
    let keys: Vec<_> = (0..2_000_u32).map(u32::to_be_bytes).collect();
    let rows = keys.iter().map(|key| (&family, &key[..]));
    let refused = db.lock_rows(&mut owner, rows.clone(), FOR_EVER).unwrap_err();
    assert!(
        matches!(refused, Error::TooManyLocks { limit: 1_000 }),
        "{refused}"
    );
    assert_eq!(db.stats().transactions.locks, 0, "what was locked is free again");
    let held = db.lock_rows(&mut owner, rows.take(100), FOR_EVER).unwrap();
    assert!(held.covers(&family, &keys[0]) && !held.covers(&family, &keys[100]));
    assert!(
        !held.covers(&foreign, &keys[0]),
        "a family of the same number in another store"
    );
}

#[test]
fn a_family_is_locked_by_one_alone() {
    let (_dir, db) = store();
    let family = db.default_family();
    let (mut one, mut two) = (db.row_owner("one"), db.row_owner("two"));
    let held = db.lock_families(&mut one, [&family], FOR_EVER).unwrap();
    let refused = db.lock_families(&mut two, [&family], Duration::ZERO).unwrap_err();
    assert!(
        matches!(refused, Error::LockTimeout { key: None, .. }),
        "{refused}"
    );
    drop(held);
    drop(db.lock_families(&mut two, [&family], Duration::ZERO).unwrap());
    // Each reads and writes in one go, as `increment` does.
    const STEPS: u64 = 200;
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (db, family) = (&db, &family);
            scope.spawn(move || {
                let mut owner = db.row_owner(&format!("thread {number}"));
                for _ in 0..STEPS {
                    let _held = db.lock_families(&mut owner, [family], FOR_EVER).unwrap();
                    increment(family, "n");
                }
            });
        }
    });
    assert_eq!(text(family.get("n").unwrap()), Some((3 * STEPS).to_string()));
    assert_eq!(db.stats().transactions.locks, 0, "all released");
}

#[test]
fn a_family_locked_as_a_whole_has_no_other_reader_under_locks() {
    let (_dir, db) = store();
    let family = db.default_family();
    family.put("k", "v").unwrap();
    let begin = |isolation| {
        let options = TransactionOptions {
            isolation,
            lock_timeout: Duration::ZERO,
            ..TransactionOptions::default()
        };
        db.transaction(options).unwrap()
    };
    type Read<'a> = (
        &'a str,
        Isolation,
        &'a dyn Fn(&collie_db::Transaction) -> Result<(), Error>,
    );
    let reads: [Read<'_>; 4] = [
        ("a key", Isolation::Serializable, &|tx| {
            tx.get(&family, "k").map(drop)
        }),
        ("a range", Isolation::Serializable, &|tx| {
            tx.range(&family, "a".."z").map(drop)
        }),
        ("all", Isolation::Serializable, &|tx| tx.iter(&family).map(drop)),
        ("a shared key", Isolation::Snapshot, &|tx| {
            tx.get_for_share(&family, "k").map(drop)
        }),
    ];
    let mut owner = db.row_owner("all");
    for (what, isolation, read) in reads {
        // Who has read keeps the family from being locked.
        let tx = begin(isolation);
        read(&tx).unwrap();
        let refused = db.lock_families(&mut owner, [&family], Duration::ZERO).map(drop);
        assert!(
            matches!(refused, Err(Error::LockTimeout { key: None, .. })),
            "{what}: {refused:?}"
        );
        tx.commit().unwrap();
        // And the other way round.
        let held = db.lock_families(&mut owner, [&family], FOR_EVER).unwrap();
        let tx = begin(isolation);
        let refused = read(&tx);
        assert!(
            matches!(refused, Err(Error::LockTimeout { .. })),
            "{what}: {refused:?}"
        );
        drop(held);
        read(&tx).unwrap();
        // A snapshot's reads never wait.
        drop(tx);
    }
    let held = db.lock_families(&mut owner, [&family], FOR_EVER).unwrap();
    let tx = begin(Isolation::Snapshot);
    assert_eq!(text(tx.get(&family, "k").unwrap()).as_deref(), Some("v"));
    assert_eq!(tx.iter(&family).unwrap().count(), 1);
    drop((tx, held));
    assert_eq!(db.stats().transactions.locks, 0, "all released");
}

#[test]
fn a_ring_through_a_family_that_is_locked_as_a_whole_is_found() {
    const LONG: Duration = Duration::from_secs(20);
    let (_dir, db) = store();
    let first = db.default_family();
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    let options = TransactionOptions {
        lock_timeout: LONG,
        ..TransactionOptions::serializable()
    };
    let tx = db.transaction(options).unwrap();
    tx.get(&second, "k").unwrap();
    let found = std::thread::scope(|scope| {
        let locker = scope.spawn(|| {
            let mut owner = db.row_owner("all");
            // The first it gets, and waits for the second.
            db.lock_families(&mut owner, [&first, &second], LONG).map(drop)
        });
        // Until it has the first: then this waits for it, or fails.
        while db.stats().transactions.locks < 2 && !locker.is_finished() {
            std::thread::yield_now();
        }
        let read = tx.get(&first, "k").map(drop);
        drop(tx);
        [read, locker.join().unwrap()]
    });
    let rings = found
        .iter()
        .filter(|end| matches!(end, Err(Error::Deadlock { .. })));
    assert_eq!(rings.count(), 1, "{found:?}");
    assert!(found.iter().any(Result::is_ok), "{found:?}");
}

/// Of more rows than the table has room for; they would have failed, and with them whatever others
/// write meanwhile.
#[test]
fn a_write_of_very_many_rows_locks_them_as_a_range() {
    let dir = crate::common::fast_dir();
    let options = Options {
        max_row_locks: 1_000,
        lock_timeout: Duration::from_secs(60),
        ..crate::common::small()
    };
    let db = Db::open(dir.path(), options).unwrap();
    let (family, other) = (
        db.default_family(),
        db.create_family("other", crate::common::small_family()).unwrap(),
    );
    let batch = || {
        let mut batch = Batch::new();
        for n in 10..5_000_u32 {
            batch.put(&family, n.to_be_bytes(), "batch").unwrap();
        }
        batch.put(&other, "few", "batch").unwrap();
        batch
    };
    let tx = db.transaction(TransactionOptions::default()).unwrap();
    tx.put(&family, 9_u32.to_be_bytes(), "tx").unwrap();
    db.write(batch(), &WriteOptions::buffered()).unwrap();
    tx.commit().unwrap();
    // A row in the range that another owner has is waited for.
    let tx = db.transaction(TransactionOptions::default()).unwrap();
    tx.put(&family, 3_000_u32.to_be_bytes(), "tx").unwrap();
    let writer = {
        let (db, batch) = (db.clone(), batch());
        std::thread::spawn(move || db.write(batch, &WriteOptions::buffered()))
    };
    until_waiting(&db, 1);
    tx.commit().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(
        text(family.get(3_000_u32.to_be_bytes()).unwrap()).as_deref(),
        Some("batch")
    );
    assert_eq!(family.iter().unwrap().count(), 4_991);
    assert_eq!(db.stats().transactions.locks, 0);
}
