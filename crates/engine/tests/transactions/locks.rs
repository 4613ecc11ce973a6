//! Row locks between threads: who waits, who goes first, deadlocks, timeouts, limits.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use collie_db::{
    Concurrency, Db, Error, Family, Isolation, Options, Result, Transaction, TransactionOptions,
};

use crate::common::Rng;
use crate::{options, store, text};

pub(crate) fn serializable(name: &str) -> TransactionOptions {
    TransactionOptions {
        name: name.into(),
        ..options(Concurrency::Pessimistic, Isolation::Serializable)
    }
}

/// Begins a transaction on a thread of its own, which waits for its first lock when this returns,
/// or has ended.
pub(crate) fn waiter<T: Send + 'static>(
    db: &Db,
    name: &str,
    work: impl FnOnce(Transaction) -> T + Send + 'static,
) -> JoinHandle<T> {
    let tx = db.transaction(serializable(name)).unwrap();
    let id = tx.id();
    let thread = std::thread::spawn(move || work(tx));
    let waits = || {
        let all = db.transactions();
        all.iter().any(|info| info.id == id && info.waits_for.is_some())
    };
    while !thread.is_finished() && !waits() {
        std::thread::yield_now();
    }
    thread
}

#[test]
fn a_row_goes_to_the_first_in_line_and_readers_go_together() {
    let (_dir, db) = store();
    let family = db.default_family();
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = db.transaction(serializable("first")).unwrap();
    first.put(&family, "x", "").unwrap();
    let together = Arc::new(std::sync::Barrier::new(2));
    let threads: Vec<_> = ["w1", "r1", "r2", "w2", "r3"]
        .into_iter()
        .map(|name| {
            let (family, order, together) = (family.clone(), Arc::clone(&order), Arc::clone(&together));
            waiter(&db, name, move |tx| {
                let before = match name.starts_with('w') {
                    true => tx.get_for_update(&family, "x").unwrap(),
                    false => tx.get_for_share(&family, "x").unwrap(),
                };
                let before = text(before).unwrap();
                if name.starts_with('w') {
                    tx.put(&family, "x", format!("{before} {name}")).unwrap();
                } else if name != "r3" {
                    // Both hold it: else this would not end.
                    together.wait();
                }
                order.lock().unwrap().push((name, before));
                tx.commit().unwrap();
            })
        })
        .collect();
    assert_eq!(
        db.transactions().iter().filter(|t| t.waits_for.is_some()).count(),
        5
    );
    first.commit().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut order = Arc::into_inner(order).unwrap().into_inner().unwrap();
    // The two readers in either order.
    order[1..3].sort_unstable();
    let expected = [
        ("w1", ""),
        ("r1", " w1"),
        ("r2", " w1"),
        ("w2", " w1"),
        ("r3", " w1 w2"),
    ];
    assert_eq!(order, expected.map(|(name, seen)| (name, seen.to_owned())));
    assert_eq!(db.stats().transactions.locks, 0);
}

#[test]
fn readers_do_not_overtake_a_writer_that_waits() {
    let (_dir, db) = store();
    let family = db.default_family();
    let reader = db.transaction(serializable("reader")).unwrap();
    reader.get(&family, "x").unwrap();
    let writer = {
        let family = family.clone();
        waiter(&db, "writer", move |tx| {
            tx.put(&family, "x", "1").unwrap();
            tx.commit().unwrap();
        })
    };
    let late = {
        let family = family.clone();
        waiter(&db, "late", move |tx| text(tx.get(&family, "x").unwrap()))
    };
    assert!(!writer.is_finished() && !late.is_finished());
    // Who has it already is not late.
    assert_eq!(reader.get(&family, "x").unwrap(), None);
    reader.commit().unwrap();
    writer.join().unwrap();
    assert_eq!(late.join().unwrap().as_deref(), Some("1"));
}

#[test]
fn a_lock_that_is_not_to_be_had_in_time_ends_no_transaction() {
    let (_dir, db) = store();
    let family = db.default_family();
    let holder = db.transaction(serializable("holder")).unwrap();
    holder.put(&family, "x", "1").unwrap();
    let tx = db
        .transaction(TransactionOptions {
            lock_timeout: Duration::from_millis(5),
            ..serializable("waiter")
        })
        .unwrap();
    tx.put(&family, "y", "2").unwrap();
    for error in [
        tx.get(&family, "x").unwrap_err(),
        tx.put(&family, "x", "2").unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::LockTimeout { family, key: Some(key), waited_ms: 5 } if family == "default" && **key == *b"x"),
            "{error:?}"
        );
        let shown = error.to_string();
        assert!(
            shown.contains("waiting for a lock on the key \"x\" of the family \"default\"")
                && shown.contains("5 ms"),
            "{shown}"
        );
    }
    let error = tx.iter(&family).unwrap_err();
    assert!(matches!(error, Error::LockTimeout { key: None, .. }), "{error:?}");
    // No owner waits for the row any more: the next request gets it.
    holder.commit().unwrap();
    assert_eq!(text(tx.get(&family, "x").unwrap()).as_deref(), Some("1"));
    tx.commit().unwrap();
    let stats = db.stats().transactions;
    assert_eq!((stats.lock_timeouts, stats.deadlocks, stats.locks), (3, 0, 0));
}

#[test]
fn a_deadlock_is_reported_as_its_ring_and_its_victim_lets_go() {
    let (_dir, db) = store();
    let family = db.default_family();
    let rows = ["x", "y", "z"];
    let last = db.transaction(serializable("last")).unwrap();
    last.put(&family, "z", "last").unwrap();
    let others: Vec<_> = [("two", 1), ("one", 0)]
        .into_iter()
        .map(|(name, at)| {
            let family = family.clone();
            waiter(&db, name, move |tx| {
                tx.put(&family, rows[at], name).unwrap();
                tx.put(&family, rows[at + 1], name).map(|()| tx.commit().unwrap())
            })
        })
        .collect();
    // `one` waits for y, which `two` has, which waits for z.
    let error = last.put(&family, "x", "last").unwrap_err();
    let Error::Deadlock { cycle } = &error else {
        panic!("{error}");
    };
    let seen: Vec<_> = cycle
        .iter()
        .map(|link| (link.name.as_str(), link.key.escape_ascii().to_string()))
        .collect();
    let expected = [("last", "x"), ("one", "y"), ("two", "z")];
    assert_eq!(seen, expected.map(|(name, key)| (name, key.to_owned())));
    assert!(cycle.iter().all(|link| link.family == "default"));
    let shown = error.to_string();
    assert!(
        shown.starts_with(
            "deadlock: transaction 1 (last) waits for \"x\" of the family \"default\", transaction 3 (one)"
        ),
        "{shown}"
    );
    // It holds nothing any more, though it is still there.
    for other in others {
        other.join().unwrap().unwrap();
    }
    for error in [
        last.put(&family, "a", "1").unwrap_err(),
        last.get(&family, "a").unwrap_err(),
        last.commit().unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::TransactionAborted { cause } if cause.contains("deadlock")),
            "{error}"
        );
    }
    assert_eq!(text(family.get("z").unwrap()).as_deref(), Some("two"));
    assert_eq!(db.stats().transactions.deadlocks, 1);
}

#[test]
fn two_that_want_more_than_a_shared_lock_are_a_deadlock() {
    let (_dir, db) = store();
    let family = db.default_family();
    let one = db.transaction(serializable("one")).unwrap();
    one.get(&family, "x").unwrap();
    let two = {
        let family = family.clone();
        waiter(&db, "two", move |tx| {
            tx.get(&family, "x").unwrap();
            tx.put(&family, "x", "two").map(|()| tx.commit().unwrap())
        })
    };
    let error = one.put(&family, "x", "one").unwrap_err();
    assert!(matches!(error, Error::Deadlock { .. }), "{error}");
    two.join().unwrap().unwrap();
    assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("two"));
    // Alone it gets it at once, also where others wait for the row.
    let three = db.transaction(serializable("three")).unwrap();
    three.get(&family, "x").unwrap();
    let four = {
        let family = family.clone();
        waiter(&db, "four", move |tx| {
            tx.put(&family, "x", "four").map(|()| tx.commit().unwrap())
        })
    };
    three.put(&family, "x", "three").unwrap();
    three.commit().unwrap();
    four.join().unwrap().unwrap();
    assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("four"));
}

#[test]
fn a_range_waits_for_earlier_writers_and_goes_before_later_ones() {
    let (_dir, db) = store();
    let family = db.default_family();
    let writer = db.transaction(serializable("writer")).unwrap();
    writer.put(&family, "k5", "first").unwrap();
    let put = |key: &'static str, value: &'static str| {
        let family = family.clone();
        waiter(&db, value, move |tx| {
            tx.put(&family, key, value).unwrap();
            tx.commit().unwrap();
        })
    };
    let earlier = put("k5", "earlier");
    let (report, reported) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let range = {
        let family = family.clone();
        waiter(&db, "range", move |tx| {
            let rows = tx.range(&family, "k".."l").unwrap();
            let seen: Vec<_> = rows.map(|row| text(Some(row.unwrap().1)).unwrap()).collect();
            report.send(seen).unwrap();
            may_go.recv().unwrap();
            tx.commit().unwrap();
        })
    };
    assert!(!range.is_finished());
    // The range waits: a free row in it is not granted; one beside it is.
    let inside = put("k7", "inside");
    assert!(!inside.is_finished());
    put("m", "beside").join().unwrap();
    writer.commit().unwrap();
    assert_eq!(reported.recv().unwrap(), ["earlier"]);
    assert!(!inside.is_finished());
    go.send(()).unwrap();
    for thread in [range, earlier, inside] {
        thread.join().unwrap();
    }
    assert_eq!(text(family.get("k5").unwrap()).as_deref(), Some("earlier"));
    assert_eq!(text(family.get("k7").unwrap()).as_deref(), Some("inside"));
    assert_eq!(db.stats().transactions.locks, 0);
}

#[test]
fn who_holds_a_range_does_not_wait_behind_those_who_wait_for_it() {
    let (_dir, db) = store();
    let family = db.default_family();
    let range = db.transaction(serializable("range")).unwrap();
    assert_eq!(range.iter(&family).unwrap().count(), 0);
    let writer = {
        let family = family.clone();
        waiter(&db, "writer", move |tx| {
            tx.put(&family, "x", "writer").map(|()| tx.commit().unwrap())
        })
    };
    assert!(!writer.is_finished());
    range.put(&family, "x", "range").unwrap();
    range.commit().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("writer"));
    assert_eq!(db.stats().transactions.deadlocks, 0);
}

#[test]
fn a_range_not_to_be_had_in_time_is_not_taken_for_locked() {
    let (_dir, db) = store();
    let family = db.default_family();
    family.put("x", "1").unwrap();
    let writer = db.transaction(serializable("writer")).unwrap();
    writer.put(&family, "x", "2").unwrap();
    let reader = db
        .transaction(TransactionOptions {
            lock_timeout: Duration::from_millis(5),
            ..serializable("reader")
        })
        .unwrap();
    for _ in 0..2 {
        let error = reader.iter(&family).unwrap_err();
        assert!(matches!(error, Error::LockTimeout { .. }), "{error}");
        let error = reader.get(&family, "x").unwrap_err();
        assert!(matches!(error, Error::LockTimeout { .. }), "{error}");
    }
    writer.commit().unwrap();
    assert_eq!(reader.iter(&family).unwrap().count(), 1);
    assert_eq!(text(reader.get(&family, "x").unwrap()).as_deref(), Some("2"));
    drop(reader);
    assert_eq!(db.stats().transactions.locks, 0);
}

/// Locks the row in the midst of [`apart`], so that these rows of another transaction become no range.
fn keep_rows_apart(db: &Db) -> Transaction {
    let tx = db.transaction(serializable("among")).unwrap();
    tx.put(&db.default_family(), [0x80; 5], "").unwrap();
    tx
}

/// Keys by turns from both ends.
fn apart(n: u32) -> [u8; 4] {
    if n.is_multiple_of(2) { n } else { u32::MAX - n }.to_be_bytes()
}

#[test]
fn the_table_of_locks_is_bounded_and_says_when_it_is_full() {
    let dir = crate::common::fast_dir();
    let db = crate::common::open(
        dir.path(),
        &Options {
            max_row_locks: 640,
            ..crate::common::small()
        },
    );
    let family = db.default_family();
    let tx = db.transaction(serializable("large")).unwrap();
    let among = keep_rows_apart(&db);
    let mut refused = 0;
    for n in 0..2_000_u32 {
        match tx.get(&family, apart(n)) {
            Ok(_) => {}
            Err(Error::TooManyLocks { limit: 640 }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(1 + 2_000 - refused, db.stats().transactions.locks);
    assert!(db.stats().transactions.locks <= 640 && refused >= 1_360);
    // Reads of an optimistic one are locks to come.
    let optimistic = db
        .transaction(options(Concurrency::Optimistic, Isolation::Serializable))
        .unwrap();
    let read = |n: u32| optimistic.get(&family, n.to_be_bytes());
    assert!((0..640).chain(0..640).all(|n| read(n).is_ok()));
    assert!(matches!(read(640), Err(Error::TooManyLocks { limit: 640 })));
    // What it has it keeps.
    tx.put(&family, 0_u32.to_be_bytes(), "x").unwrap();
    tx.commit().unwrap();
    drop(among);
    assert_eq!(db.stats().transactions.locks, 0);
}

/// A transaction that never waits.
fn impatient(db: &Db, name: &str) -> Transaction {
    let options = TransactionOptions {
        lock_timeout: Duration::ZERO,
        ..serializable(name)
    };
    db.transaction(options).unwrap()
}

/// The range of a refused lock stayed locked, so that no owner could write in it, and each attempt
/// added 64 entries.
#[test]
fn a_range_that_was_refused_for_the_time_is_taken_back() {
    let (_dir, db) = store();
    let family = db.default_family();
    let writer = db.transaction(serializable("writer")).unwrap();
    for key in ["k1", "k5", "k9"] {
        writer.put(&family, key, "first").unwrap();
    }
    let reader = impatient(&db, "reader");
    reader.get(&family, "k3").unwrap();
    let before = db.stats().transactions.locks;
    assert_eq!(before, 4);
    for _ in 0..1_000 {
        let refused = reader.range(&family, "k".."l").unwrap_err();
        assert!(
            matches!(refused, Error::LockTimeout { key: None, .. }),
            "{refused}"
        );
    }
    assert_eq!(db.stats().transactions.locks, before);
    assert_eq!(db.transactions()[1].locks, 1);
    // Others get in at once, but for what the reader had before.
    let other = impatient(&db, "other");
    other.put(&family, "k2", "other").unwrap();
    assert!(other.put(&family, "k3", "other").is_err());
    other.commit().unwrap();
    assert_eq!(reader.get(&family, "k3").unwrap(), None);
    // And the reader gets it when no owner writes any more.
    writer.commit().unwrap();
    assert_eq!(reader.range(&family, "k".."l").unwrap().count(), 4);
    // Its row and its range.
    assert_eq!(db.stats().transactions.locks, 2);
    assert!(impatient(&db, "late").put(&family, "k4", "late").is_err());
    drop(reader);
    assert_eq!(db.stats().transactions.locks, 0);
}

#[test]
fn a_range_that_finds_no_room_is_taken_back() {
    let dir = crate::common::fast_dir();
    let db = crate::common::open(
        dir.path(),
        &Options {
            max_row_locks: 128,
            ..crate::common::small()
        },
    );
    let family = db.default_family();
    let tx = impatient(&db, "first");
    let _among = keep_rows_apart(&db);
    let mut keys = (0..10_000).map(apart);
    let mut held = 0;
    let full = keys.find(|key| {
        let got = tx.get_for_update(&family, key);
        held += usize::from(got.is_ok());
        matches!(got, Err(Error::TooManyLocks { .. }))
    });
    assert!(full.is_some());
    for _ in 0..1_000 {
        let refused = tx.iter(&family).unwrap_err();
        assert!(matches!(refused, Error::TooManyLocks { limit: 128 }), "{refused}");
        let mut owner = db.row_owner("all");
        let refused = db.lock_families(&mut owner, [&family], Duration::ZERO);
        assert!(matches!(refused, Err(Error::TooManyLocks { .. })));
    }
    assert_eq!(
        (db.stats().transactions.locks, db.transactions()[0].locks),
        (held + 1, held)
    );
}

/// Although there is room for the range's lock.
#[test]
fn a_read_that_cannot_be_noted_is_refused_before_it_locks() {
    let dir = crate::common::fast_dir();
    let options = Options {
        max_row_locks: 512,
        ..crate::common::small()
    };
    let db = crate::common::open(dir.path(), &options);
    let family = db.default_family();
    let tx = impatient(&db, "reader");
    let mut iterators = Vec::new();
    let refused = loop {
        // Empty, so that none of them is a lock of its own.
        match tx.range(&family, "a".."b") {
            Ok(iterator) => iterators.push(iterator),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Error::TooManyLocks { .. }), "{refused}");
    let held = db.stats().transactions.locks;
    assert!(held + 64 < 512, "there is no room for a range's lock");
    assert!(tx.range(&family, "c".."d").is_err());
    assert_eq!(db.stats().transactions.locks, held);
    impatient(&db, "other").put(&family, "c", "other").unwrap();
}

#[test]
fn a_range_that_would_close_a_ring_is_taken_back() {
    let (_dir, db) = store();
    let family = db.default_family();
    let victim = db.transaction(serializable("victim")).unwrap();
    victim.put(&family, "x", "1").unwrap();
    let other = {
        let family = family.clone();
        waiter(&db, "other", move |tx| {
            tx.put(&family, "y", "2").unwrap();
            tx.put(&family, "x", "2").map(|()| tx.commit().unwrap())
        })
    };
    let refused = victim.iter(&family).unwrap_err();
    assert!(matches!(refused, Error::Deadlock { .. }), "{refused}");
    other.join().unwrap().unwrap();
    // It is still there, and holds nothing.
    assert_eq!(db.stats().transactions.locks, 0);
    drop(victim);
}

/// Moves one from a row to another, reading in a random order, until it succeeds.
fn transfer(db: &Db, family: &Family, rng: &mut Rng, options: &TransactionOptions) -> Result<u64> {
    let rows = [0; 3].map(|_| rng.below(5));
    let mut tries = 0;
    loop {
        tries += 1;
        let tx = db.transaction(options.clone())?;
        let run = || -> Result<()> {
            for (at, row) in rows.iter().enumerate() {
                let key = row.to_be_bytes();
                let balance = text(tx.get_for_update(family, key)?).unwrap();
                let balance: i64 = balance.parse().unwrap();
                let change = [-1, 2, -1][at];
                // So that they get into each other's way, on a machine with few cores too.
                std::thread::yield_now();
                tx.put(family, key, (balance + change).to_string())?;
            }
            Ok(())
        };
        match run().and_then(|()| tx.commit().map(drop)) {
            Ok(()) => return Ok(tries),
            Err(Error::Deadlock { .. } | Error::Conflict { .. } | Error::TransactionAborted { .. }) => {}
            Err(other) => return Err(other),
        }
    }
}

#[test]
fn storms_of_deadlocks_and_conflicts_end_and_lose_nothing() {
    for options in crate::kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        for row in 0..5_u64 {
            family.put(row.to_be_bytes(), "100").unwrap();
        }
        let (mut storms, mut tries) = (0, 0);
        // Where each thread has a core for itself until it is done there is no conflict.
        loop {
            let threads: Vec<_> = (0..6)
                .map(|thread| {
                    let (db, family, options) = (db.clone(), family.clone(), options.clone());
                    std::thread::spawn(move || {
                        let mut rng = Rng::new(storms * 6 + thread);
                        let tries = (0..100).map(|_| transfer(&db, &family, &mut rng, &options).unwrap());
                        tries.sum::<u64>()
                    })
                })
                .collect();
            tries += threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum::<u64>();
            storms += 1;
            let stats = db.stats().transactions;
            if stats.deadlocks + stats.conflicts > 0 {
                break;
            }
            assert!(storms < 1_000, "the test means nothing: {stats:?}");
        }
        let sum: i64 = family
            .iter()
            .unwrap()
            .map(|row| text(Some(row.unwrap().1)).unwrap().parse::<i64>().unwrap())
            .sum();
        assert_eq!(sum, 500);
        let stats = db.stats().transactions;
        assert_eq!(
            (stats.committed, stats.begun, stats.open, stats.locks),
            (600 * storms, tries, 0, 0)
        );
        assert_eq!(stats.lock_timeouts, 0);
    }
}
