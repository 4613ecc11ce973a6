//! Transactions of very many rows, which are locked as ranges.

use std::ops::Range;
use std::time::Duration;

use collie_db::{
    Concurrency, Db, Error, Family, Isolation, Options, Result, Transaction, TransactionOptions,
};

use crate::locks::waiter;
use crate::{options, text};

/// Locks that there are, and rows of one family that are locked one by one.
const LOCKS: usize = 1_000;
const AS_ROWS: u32 = 125;

fn store() -> (tempfile::TempDir, Db) {
    let dir = crate::common::fast_dir();
    let options = Options {
        max_row_locks: LOCKS,
        ..crate::common::small()
    };
    let db = Db::open(dir.path(), options).unwrap();
    (dir, db)
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// A transaction that locks rows as it goes on.
fn begin(db: &Db) -> Transaction {
    db.transaction(options(Concurrency::Pessimistic, Isolation::Serializable))
        .unwrap()
}

/// Puts every second key.
fn put(tx: &Transaction, family: &Family, keys: Range<u32>) -> Result<()> {
    keys.step_by(2)
        .try_for_each(|n| tx.put(family, key(n), n.to_string()))
}

fn locks(db: &Db) -> usize {
    db.stats().transactions.locks
}

/// Whether another transaction could lock a key now.
fn is_free(db: &Db, family: &Family, n: u32) -> bool {
    let tx = db
        .transaction(TransactionOptions {
            lock_timeout: Duration::ZERO,
            ..options(Concurrency::Pessimistic, Isolation::Serializable)
        })
        .unwrap();
    match tx.get_for_update(family, key(n)) {
        Ok(_) => true,
        Err(Error::LockTimeout { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn an_optimistic_commit_of_more_rows_than_locks_takes_a_range() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let (_dir, db) = store();
        let family = db.default_family();
        let other = db.create_family("other", crate::common::small_family()).unwrap();
        let fill = || {
            let tx = db
                .transaction(options(Concurrency::Optimistic, isolation))
                .unwrap();
            put(&tx, &family, 10..10_000).unwrap();
            tx.put(&other, "few", "v").unwrap();
            // Before, among and behind those that are written.
            for n in [3, 11, 12, 20_000] {
                tx.get_for_update(&family, key(n)).unwrap();
            }
            tx
        };
        fill().commit().unwrap();
        assert_eq!(family.iter().unwrap().count(), 4_995);
        assert_eq!(text(family.get(key(9_998)).unwrap()).as_deref(), Some("9998"));
        // A row that another one has is waited for, wherever it is, and then it was written.
        for n in [10, 4_000, 9_998] {
            let tx = db.transaction(TransactionOptions::default()).unwrap();
            tx.put(&family, key(n), "in between").unwrap();
            let (waits, optimistic) = (db.stats().transactions.lock_waits, fill());
            std::thread::scope(|scope| {
                let commit = scope.spawn(|| optimistic.commit());
                while db.stats().transactions.lock_waits == waits && !commit.is_finished() {
                    std::thread::yield_now();
                }
                assert!(!commit.is_finished(), "row {n} is another transaction's");
                tx.commit().unwrap();
                let refused = commit.join().unwrap();
                assert!(
                    matches!(&refused, Err(Error::Conflict { key: Some(of), .. }) if **of == key(n)),
                    "{refused:?}"
                );
            });
        }
        // What was read and not written counts as before.
        for n in [3, 11, 20_000] {
            let optimistic = fill();
            family.put(key(n), "in between").unwrap();
            let refused = optimistic.commit();
            assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        }
        assert_eq!(locks(&db), 0);
    }
}

#[test]
fn very_many_rows_of_a_pessimistic_transaction_become_a_range() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let (_dir, db) = store();
        let family = db.default_family();
        let other = db.create_family("other", crate::common::small_family()).unwrap();
        let tx = db
            .transaction(options(Concurrency::Pessimistic, isolation))
            .unwrap();
        tx.put(&other, "few", "v").unwrap();
        put(&tx, &family, 10..10 + 2 * AS_ROWS).unwrap();
        assert_eq!(locks(&db), 1 + AS_ROWS as usize);
        assert!(is_free(&db, &family, 11));
        let second = 10 + 2 * AS_ROWS;
        put(&tx, &family, second..second + 2).unwrap();
        assert_eq!(locks(&db), 2, "a range, and the row of the other family");
        for n in 10..=second {
            assert!(!is_free(&db, &family, n), "{n}");
        }
        assert!(is_free(&db, &family, 9) && is_free(&db, &family, second + 1));
        put(&tx, &family, second..10_000).unwrap();
        assert!(locks(&db) < LOCKS / 4, "{}", locks(&db));
        for n in (10..10_000).step_by(2) {
            assert!(!is_free(&db, &family, n), "{n}");
        }
        assert_eq!(db.transactions()[0].locks, locks(&db));
        tx.commit().unwrap();
        assert_eq!(locks(&db), 0);
        assert!(is_free(&db, &family, 10));
        assert_eq!(family.iter().unwrap().count(), 4_995);
    }
}

/// Two may read the same rows, however many.
#[test]
fn rows_that_are_only_read_become_a_range_that_others_may_read() {
    let (_dir, db) = store();
    let family = db.default_family();
    let begin = || {
        let options = TransactionOptions {
            lock_timeout: Duration::ZERO,
            ..options(Concurrency::Pessimistic, Isolation::Serializable)
        };
        db.transaction(options).unwrap()
    };
    let (one, other) = (begin(), begin());
    for tx in [&one, &other] {
        for n in 10..2_000 {
            assert_eq!(tx.get(&family, key(n)).unwrap(), None);
        }
    }
    assert!(locks(&db) < 3 * AS_ROWS as usize, "{}", locks(&db));
    for n in 10..2_000 {
        assert!(one.put(&family, key(n), "both read it").is_err());
    }
    drop(other);
    // What it has read it may write, and no other reads it then.
    one.put(&family, key(11), "v").unwrap();
    assert!(begin().get(&family, key(11)).is_err());
    assert_eq!(begin().get(&family, key(12)).unwrap(), None);
    one.commit().unwrap();
    assert_eq!(locks(&db), 0);
}

/// A range over them is not waited for, and tried again when there are as many more.
#[test]
fn rows_among_which_another_transaction_has_one_stay_rows() {
    let (_dir, db) = store();
    let family = db.default_family();
    let (tx, among) = (begin(&db), begin(&db));
    among.put(&family, key(5_001), "among").unwrap();
    // By turns on both sides of it, so that the newest lie around it too.
    let put_around = |turns: Range<u32>| {
        for n in turns {
            put(&tx, &family, 10 + 2 * n..11 + 2 * n).unwrap();
            put(&tx, &family, 9_990 - 2 * n..9_991 - 2 * n).unwrap();
        }
    };
    put_around(0..5 * AS_ROWS / 4);
    for n in [10, 12, 9_988, 9_990] {
        assert!(!is_free(&db, &family, n), "row {n} was given up");
    }
    assert!(locks(&db) > 2 * AS_ROWS as usize);
    among.put(&family, key(5_003), "among").unwrap();
    among.commit().unwrap();
    put_around(5 * AS_ROWS / 4..7 * AS_ROWS / 4);
    assert!(locks(&db) < 2 * AS_ROWS as usize);
    assert!(!is_free(&db, &family, 10) && !is_free(&db, &family, 5_001));
    tx.commit().unwrap();
    assert_eq!(text(family.get(key(5_001)).unwrap()).as_deref(), Some("among"));
}

/// Each range would lie behind the one before; and beside another owner's row both stay.
#[test]
fn rows_in_the_order_of_their_keys_are_one_range() {
    for descending in [false, true] {
        let (_dir, db) = store();
        let family = db.default_family();
        let (tx, other) = (begin(&db), begin(&db));
        let place = |n: u32| if descending { 200_000 - n } else { n };
        let put = |keys: Range<u32>| keys.for_each(|n| tx.put(&family, key(place(n)), "v").unwrap());
        put(0..20_000);
        assert!(locks(&db) < 2 * AS_ROWS as usize, "{} locks", locks(&db));
        other.put(&family, key(place(30_000)), "among").unwrap();
        put(40_000..60_000);
        assert!(locks(&db) < 3 * AS_ROWS as usize, "{} locks", locks(&db));
        assert!(!is_free(&db, &family, place(10)) && !is_free(&db, &family, place(50_000)));
        assert!(is_free(&db, &family, place(31_000)));
        other.commit().unwrap();
        put(60_000..61_000);
        assert!(
            !is_free(&db, &family, place(31_000)),
            "what is between is free, and joined"
        );
        tx.commit().unwrap();
        assert_eq!(locks(&db), 0);
    }
}

/// The row that it waits for is released, and is not free.
#[test]
fn who_waits_for_a_row_that_becomes_part_of_a_range_waits_on() {
    let (_dir, db) = store();
    let family = db.default_family();
    let tx = begin(&db);
    put(&tx, &family, 10..20).unwrap();
    let waiters: Vec<_> = ["writer", "reader"]
        .into_iter()
        .map(|name| {
            let family = family.clone();
            waiter(&db, name, move |tx| match name {
                "writer" => tx.get_for_update(&family, key(12)).map(text),
                _ => tx.get(&family, key(12)).map(text),
            })
        })
        .collect();
    put(&tx, &family, 20..2_000).unwrap();
    assert!(locks(&db) < 2 * AS_ROWS as usize);
    let waiting = db.transactions();
    let waiting = waiting.iter().filter(|info| info.waits_for.is_some());
    assert_eq!(waiting.count(), 2);
    tx.commit().unwrap();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().unwrap().as_deref(), Some("12"));
    }
    assert_eq!(locks(&db), 0);
}

/// A transaction that waits for one of its rows waits for its owner, as before.
#[test]
fn a_ring_through_a_range_that_rows_became_is_found() {
    let (_dir, db) = store();
    let family = db.default_family();
    let tx = begin(&db);
    put(&tx, &family, 10..20).unwrap();
    let other = {
        let family = family.clone();
        waiter(&db, "other", move |tx| {
            tx.put(&family, key(5_000), "other").unwrap();
            tx.put(&family, key(12), "other").map(drop)
        })
    };
    put(&tx, &family, 20..2_000).unwrap();
    let found = tx.put(&family, key(5_000), "tx");
    drop(tx);
    let other = other.join().unwrap();
    let victims = [&found, &other].map(|result| matches!(result, Err(Error::Deadlock { .. })));
    assert_eq!(
        victims.iter().filter(|is_victim| **is_victim).count(),
        1,
        "{found:?}, {other:?}"
    );
}
