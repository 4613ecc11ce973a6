//! The anomalies by name, and which isolation keeps which away (Berenson et al. 1995, Adya 1999;
//! docs/book/src/transactions.md).

use std::thread::JoinHandle;

use collie_db::{Db, Error, Family, Isolation, Result, Transaction, TransactionOptions};

use crate::{is_optimistic, kinds, store, text, until_waiting};

fn get(tx: &Transaction, family: &Family, key: &str) -> Result<Option<String>> {
    Ok(text(tx.get(family, key)?))
}

fn count(tx: &Transaction, family: &Family, prefix: &str) -> Result<usize> {
    let mut count = 0;
    for row in tx.prefix(family, prefix)? {
        row?;
        count += 1;
    }
    Ok(count)
}

fn is_serializable(options: &TransactionOptions) -> bool {
    options.isolation == Isolation::Serializable
}

/// Runs a whole transaction on another thread. Returns when it has ended or waits for a lock.
fn meanwhile(
    db: &Db,
    options: &TransactionOptions,
    work: impl FnOnce(&Transaction) -> Result<()> + Send + 'static,
) -> JoinHandle<Result<()>> {
    let (store, options) = (db.clone(), options.clone());
    let thread = std::thread::spawn(move || {
        let tx = store.transaction(options)?;
        work(&tx)?;
        tx.commit()?;
        Ok(())
    });
    while !thread.is_finished() && db.transactions().iter().all(|info| info.waits_for.is_none()) {
        std::thread::yield_now();
    }
    thread
}

fn is_conflict(result: &Result<()>) -> bool {
    matches!(result, Err(Error::Conflict { .. } | Error::Deadlock { .. }))
}

#[test]
fn no_dirty_read() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        family.put("x", "1").unwrap();
        let tx = db.transaction(options.clone()).unwrap();
        tx.put(&family, "x", "2").unwrap();
        let reader = {
            let family = family.clone();
            meanwhile(&db, &options, move |tx| {
                assert_eq!(get(tx, &family, "x")?.as_deref(), Some("1"));
                Ok(())
            })
        };
        assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("1"));
        tx.rollback();
        reader.join().unwrap().unwrap();
    }
}

#[test]
fn no_unrepeatable_read() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        family.put("x", "1").unwrap();
        let tx = db.transaction(options.clone()).unwrap();
        assert_eq!(get(&tx, &family, "x").unwrap().as_deref(), Some("1"));
        let writer = {
            let family = family.clone();
            meanwhile(&db, &options, move |tx| tx.put(&family, "x", "2"))
        };
        assert_eq!(get(&tx, &family, "x").unwrap().as_deref(), Some("1"));
        tx.commit().unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("2"));
    }
}

#[test]
fn no_lost_update() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        family.put("x", "1").unwrap();
        let tx = db.transaction(options.clone()).unwrap();
        let mine: u64 = get(&tx, &family, "x").unwrap().unwrap().parse().unwrap();
        let other = {
            let family = family.clone();
            meanwhile(&db, &options, move |tx| {
                let seen: u64 = get(tx, &family, "x")?.unwrap().parse().unwrap();
                tx.put(&family, "x", (seen + 10).to_string())
            })
        };
        let done = tx
            .put(&family, "x", (mine + 100).to_string())
            .and_then(|()| tx.commit().map(drop));
        let other = other.join().unwrap();
        let now = text(family.get("x").unwrap()).unwrap();
        // Both have read 1: one of them fails.
        match (done.is_ok(), other.is_ok()) {
            (true, false) => assert_eq!(now, "101"),
            (false, true) => assert_eq!(now, "11"),
            both => panic!("{both:?} and x is {now}: {options:?}"),
        }
        assert!(is_conflict(&done) || is_conflict(&other));
    }
}

#[test]
fn no_update_is_lost_and_nobody_fails_after_a_read_for_update() {
    for options in kinds().filter(|options| !is_optimistic(options)) {
        let (_dir, db) = store();
        let family = db.default_family();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (db, family, options) = (db.clone(), family.clone(), options.clone());
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        let tx = db.transaction(options.clone()).unwrap();
                        let n = text(tx.get_for_update(&family, "n").unwrap())
                            .map_or(0, |n| n.parse::<u64>().unwrap());
                        tx.put(&family, "n", (n + 1).to_string()).unwrap();
                        tx.commit().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(text(family.get("n").unwrap()).as_deref(), Some("800"));
        assert_eq!(db.stats().transactions.conflicts, 0);
    }
}

#[test]
fn serializable_and_reads_for_share_keep_write_skew_away() {
    for options in kinds() {
        for share in [false, true] {
            let (_dir, db) = store();
            let family = db.default_family();
            for doctor in ["on call/a", "on call/b"] {
                family.put(doctor, "yes").unwrap();
            }
            let read = move |tx: &Transaction, family: &Family, key: &str| {
                if share {
                    return Ok(text(tx.get_for_share(family, key)?));
                }
                get(tx, family, key)
            };
            let leave = move |tx: &Transaction, family: &Family, me: &str, other: &str| -> Result<()> {
                if read(tx, family, other)?.is_some() {
                    tx.delete(family, me)?;
                }
                Ok(())
            };
            let tx = db.transaction(options.clone()).unwrap();
            assert!(read(&tx, &family, "on call/b").unwrap().is_some());
            let other = {
                let family = family.clone();
                meanwhile(&db, &options, move |tx| {
                    leave(tx, &family, "on call/b", "on call/a")
                })
            };
            let done = tx
                .delete(&family, "on call/a")
                .and_then(|()| tx.commit().map(drop));
            let other = other.join().unwrap();
            let left = family.prefix("on call/").unwrap().count();
            if is_serializable(&options) || share {
                assert_eq!(left, 1, "{options:?}");
                assert!(is_conflict(&done) != is_conflict(&other));
            } else {
                // Snapshot isolation allows this; the test would show if it did not happen.
                assert_eq!(left, 0, "{options:?}");
            }
        }
    }
}

#[test]
fn phantoms_are_kept_away_by_serializable_in_empty_ranges_too() {
    for options in kinds() {
        for before in ["", "job/3"] {
            let (_dir, db) = store();
            let family = db.default_family();
            if !before.is_empty() {
                family.put(before, "x").unwrap();
            }
            // Each adds a job if there are fewer than two.
            let tx = db.transaction(options.clone()).unwrap();
            let seen = count(&tx, &family, "job/").unwrap();
            assert_eq!(count(&tx, &family, "job/").unwrap(), seen, "it sees one moment");
            let other = {
                let family = family.clone();
                meanwhile(&db, &options, move |tx| {
                    assert!(count(tx, &family, "job/")? < 2);
                    tx.put(&family, "job/2", "other")
                })
            };
            assert_eq!(count(&tx, &family, "job/").unwrap(), seen);
            let done = tx
                .put(&family, "job/1", "mine")
                .and_then(|()| tx.commit().map(drop));
            let other = other.join().unwrap();
            let jobs = family.prefix("job/").unwrap().count();
            if is_serializable(&options) {
                assert_eq!(jobs, seen + 1, "{options:?}");
                assert!(is_conflict(&done) != is_conflict(&other));
            } else {
                assert_eq!(jobs, seen + 2, "{options:?}");
            }
        }
    }
}

#[test]
fn what_was_not_read_of_a_range_is_no_optimistic_conflict() {
    let options = TransactionOptions {
        isolation: Isolation::Serializable,
        ..TransactionOptions::optimistic()
    };
    let (_dir, db) = store();
    let family = db.default_family();
    for key in ["a", "c", "e", "g"] {
        family.put(key, "1").unwrap();
    }
    for (key, from_back, is_read) in [
        ("b", false, true),
        ("d", false, false),
        ("d", true, false),
        ("f", true, true),
        ("c", false, true),
    ] {
        let tx = db.transaction(options.clone()).unwrap();
        let mut iter = tx.iter(&family).unwrap();
        for _ in 0..2 {
            if from_back { iter.next_back() } else { iter.next() }
                .unwrap()
                .unwrap();
        }
        family.put(key, "2").unwrap();
        tx.put(&family, "z", "3").unwrap();
        let done = tx.commit();
        assert_eq!(
            matches!(done, Err(Error::Conflict { key: None, .. })),
            is_read,
            "{key} {from_back}: {done:?}"
        );
        if key != "c" {
            family.delete(key).unwrap();
        }
        family.delete("z").unwrap();
    }
}

/// Flushes and compactions between the snapshot and the commit: what was written since is in tables
/// then.
#[test]
fn conflicts_are_found_in_tables_too() {
    for options in kinds() {
        for (compact, change) in [(false, "put"), (true, "put"), (true, "delete"), (true, "nothing")] {
            let (_dir, db) = store();
            let family = db.default_family();
            family.put("x", "1").unwrap();
            family.put("y", "1").unwrap();
            family.flush().unwrap();
            let tx = db
                .transaction(TransactionOptions {
                    snapshot_at_begin: true,
                    ..options.clone()
                })
                .unwrap();
            if is_optimistic(&options) {
                tx.get_for_update(&family, "x").unwrap();
            }
            match change {
                "put" => drop(family.put("x", "2").unwrap()),
                "delete" => drop(family.delete("x").unwrap()),
                _ => drop(family.put("y", "2").unwrap()),
            }
            family.flush().unwrap();
            if compact {
                family.compact().unwrap();
            }
            let done = tx.put(&family, "x", "3").and_then(|()| tx.commit().map(drop));
            // Locks, and no snapshot: it writes over whatever is there.
            let two_phase = is_serializable(&options) && !is_optimistic(&options);
            assert_eq!(
                is_conflict(&done),
                change != "nothing" && !two_phase,
                "{options:?} {change}: {done:?}"
            );
        }
    }
}

#[test]
fn writes_outside_of_transactions_respect_locks_and_conflict() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        family.put("x", "1").unwrap();
        let tx = db.transaction(options.clone()).unwrap();
        let n: u64 = text(tx.get_for_update(&family, "x").unwrap())
            .unwrap()
            .parse()
            .unwrap();
        let writer = {
            let family = family.clone();
            std::thread::spawn(move || family.put("x", "7").map(drop))
        };
        if is_optimistic(&options) {
            writer.join().unwrap().unwrap();
            tx.put(&family, "x", (n + 1).to_string()).unwrap();
            assert!(is_conflict(&tx.commit().map(drop)));
        } else {
            until_waiting(&db, 1);
            assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("1"));
            tx.put(&family, "x", (n + 1).to_string()).unwrap();
            tx.commit().unwrap();
            writer.join().unwrap().unwrap();
        }
        assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("7"));
        assert_eq!(db.stats().transactions.locks, 0);
    }
}
