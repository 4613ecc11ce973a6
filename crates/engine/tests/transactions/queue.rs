//! One queue for rows and ranges: no request overtakes an earlier one that it excludes, but for
//! those that the earlier one waits for.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_db::{Db, Error, TransactionOptions};

use crate::locks::{serializable, waiter};
use crate::{store, text};

const LONG: Duration = Duration::from_secs(60);

fn waits(db: &Db, name: &str) -> bool {
    let all = db.transactions();
    all.iter()
        .any(|info| info.name == name && info.waits_for.is_some())
}

/// Scanners one after the other left a writer no moment without one.
#[test]
fn a_range_does_not_overtake_a_writer_that_waits() {
    let (_dir, db) = store();
    let family = db.default_family();
    family.put("k", "0").unwrap();
    let first = db.transaction(serializable("first")).unwrap();
    assert_eq!(first.iter(&family).unwrap().count(), 1);
    let put = |name: &'static str, key: &'static str| {
        let family = family.clone();
        waiter(&db, name, move |tx| {
            tx.put(&family, key, name).unwrap();
            tx.commit().unwrap();
        })
    };
    let writers = [put("old row", "k"), put("new row", "new")];
    let late = {
        let family = family.clone();
        waiter(&db, "late", move |tx| tx.iter(&family).unwrap().count())
    };
    assert!(waits(&db, "late") && waits(&db, "old row") && waits(&db, "new row"));
    // One beside them does not wait.
    let beside = db.transaction(serializable("beside")).unwrap();
    assert_eq!(beside.range(&family, "m".."n").unwrap().count(), 0);
    drop(beside);
    first.commit().unwrap();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(late.join().unwrap(), 2, "it comes after both");
    assert_eq!(db.stats().transactions.locks, 0);
}

/// Two writers take turns with rows of the range; there is always one that holds some.
#[test]
fn writers_do_not_overtake_a_range_that_waits() {
    let (_dir, db) = store();
    let family = db.default_family();
    let is_over = Arc::new(AtomicBool::new(false));
    let first = db.transaction(serializable("first")).unwrap();
    first.put(&family, "a", "").unwrap();
    let range = {
        let family = family.clone();
        waiter(&db, "range", move |tx| tx.iter(&family).map(drop))
    };
    let second = {
        let (family, is_over) = (family.clone(), Arc::clone(&is_over));
        waiter(&db, "second", move |tx| {
            tx.put(&family, "b", "").unwrap();
            is_over.store(true, Ordering::SeqCst);
        })
    };
    assert!(waits(&db, "range") && waits(&db, "second"));
    // The one that the range waits for does not wait behind it.
    first.put(&family, "c", "").unwrap();
    assert!(!is_over.load(Ordering::SeqCst));
    first.commit().unwrap();
    range.join().unwrap().unwrap();
    second.join().unwrap();
}

/// Reads a range, then writes in it, while a writer waits and a reader of the range behind that.
#[test]
fn an_owner_of_a_range_writes_in_it_though_others_are_queued() {
    let (_dir, db) = store();
    let family = db.default_family();
    let owner = db.transaction(serializable("owner")).unwrap();
    assert_eq!(owner.iter(&family).unwrap().count(), 0);
    let writer = {
        let family = family.clone();
        waiter(&db, "writer", move |tx| {
            tx.put(&family, "k", "writer").map(|()| tx.commit().unwrap())
        })
    };
    let reader = {
        let family = family.clone();
        waiter(&db, "reader", move |tx| tx.iter(&family).unwrap().count())
    };
    owner.put(&family, "k", "owner").unwrap();
    owner.put(&family, "m", "owner").unwrap();
    assert_eq!(owner.range(&family, "a".."z").unwrap().count(), 2);
    owner.commit().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(reader.join().unwrap(), 2);
    assert_eq!(text(family.get("k").unwrap()).as_deref(), Some("writer"));
    assert_eq!(db.stats().transactions.deadlocks, 0);
}

/// What it would be queued behind waits for it, two steps away.
#[test]
fn an_owner_is_not_queued_behind_what_waits_for_it() {
    let (_dir, db) = store();
    let family = db.default_family();
    let owner = db.transaction(serializable("owner")).unwrap();
    owner.get(&family, "a").unwrap();
    let writer = {
        let family = family.clone();
        waiter(&db, "writer", move |tx| {
            tx.put(&family, "a", "writer").map(|()| tx.commit().unwrap())
        })
    };
    let reader = {
        let family = family.clone();
        waiter(&db, "reader", move |tx| tx.iter(&family).unwrap().count())
    };
    // Behind the reader, which waits behind the writer, which waits for the owner.
    owner.put(&family, "m", "owner").unwrap();
    let all = {
        let db = db.clone();
        let mut row_owner = db.row_owner("all");
        let family = family.clone();
        let before = db.stats().transactions.lock_waits;
        let thread = std::thread::spawn(move || db.lock_families(&mut row_owner, [&family], LONG).map(drop));
        (thread, before)
    };
    while db_waits(&db) <= all.1 && !all.0.is_finished() {
        std::thread::yield_now();
    }
    // Behind all of them.
    assert_eq!(owner.range(&family, "x".."z").unwrap().count(), 0);
    owner.commit().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(reader.join().unwrap(), 2);
    all.0.join().unwrap().unwrap();
    let stats = db.stats().transactions;
    assert_eq!((stats.deadlocks, stats.locks), (0, 0));
}

fn db_waits(db: &Db) -> u64 {
    db.stats().transactions.lock_waits
}

/// Both hold what the other asks for: going first helps neither.
#[test]
fn a_cycle_of_a_row_and_a_range_has_a_victim() {
    let (_dir, db) = store();
    let family = db.default_family();
    let one = db.transaction(serializable("one")).unwrap();
    one.put(&family, "a", "one").unwrap();
    let two = {
        let family = family.clone();
        waiter(&db, "two", move |tx| {
            tx.put(&family, "z", "two").unwrap();
            tx.range(&family, "a".."c").map(Iterator::count)
        })
    };
    let refused = one.iter(&family).map(drop).unwrap_err();
    let Error::Deadlock { cycle } = &refused else {
        panic!("{refused}");
    };
    let names: Vec<_> = cycle.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(two.join().unwrap().unwrap(), 0);
    assert_eq!(db.stats().transactions.deadlocks, 1);
}

/// So many ranges at once that each must cost what it overlaps, and not what there is.
#[test]
fn many_ranges_and_rows_are_locked_and_released() {
    let (_dir, db) = store();
    let family = db.default_family();
    let key = |n: u32| format!("{n:06}");
    let rows = db.transaction(serializable("rows")).unwrap();
    let ranges = db.transaction(serializable("ranges")).unwrap();
    for n in 0..4_000 {
        rows.put(&family, key(3 * n), "row").unwrap();
        let range = key(3 * n + 1)..key(3 * n + 2);
        assert_eq!(ranges.range(&family, range).unwrap().count(), 0);
    }
    assert_eq!(db.stats().transactions.locks, 8_000);
    // Within one of the ranges; between them.
    let never = TransactionOptions {
        lock_timeout: Duration::ZERO,
        ..serializable("never")
    };
    let other = db.transaction(never).unwrap();
    let mut refused = Vec::new();
    let _ = (0..12_000).try_for_each(|n| {
        match other.put(&family, key(n), "other") {
            Ok(()) => assert_eq!(n % 3, 2, "{n}"),
            Err(Error::LockTimeout { .. }) => refused.push(n),
            Err(other) => return ControlFlow::Break(other),
        }
        ControlFlow::Continue(())
    });
    assert_eq!(refused.len(), 8_000);
    drop((rows, ranges));
    assert_eq!(other.range(&family, key(0)..key(12_000)).unwrap().count(), 4_000);
    drop(other);
    assert_eq!(db.stats().transactions.locks, 0);
}

/// Behind one that waits to write a row that it has read, and that need not be waited for.
#[test]
fn a_reader_goes_before_an_upgrade_that_would_close_a_cycle() {
    let (_dir, db) = store();
    let family = db.default_family();
    let [upgrade, holder, reader] =
        ["upgrade", "holder", "reader"].map(|name| db.transaction(serializable(name)).unwrap());
    upgrade.get(&family, "k").unwrap();
    holder.get(&family, "k").unwrap();
    reader.put(&family, "j", "reader").unwrap();
    let put = |tx: collie_db::Transaction, name, key: &'static str| {
        let family = family.clone();
        let thread = std::thread::spawn(move || tx.put(&family, key, name).map(|()| tx.commit().unwrap()));
        while !waits(&db, name) && !thread.is_finished() {
            std::thread::yield_now();
        }
        thread
    };
    let upgrade = put(upgrade, "upgrade", "k");
    let holder = put(holder, "holder", "j");
    assert!(waits(&db, "upgrade") && waits(&db, "holder"));
    assert_eq!(reader.get(&family, "k").unwrap(), None);
    reader.commit().unwrap();
    holder.join().unwrap().unwrap();
    upgrade.join().unwrap().unwrap();
    let stats = db.stats().transactions;
    assert_eq!((stats.deadlocks, stats.locks), (0, 0));
}
