//! `Db::transact`: what is run again, and what is not.

use std::time::Duration;

use collie_db::{Concurrency, Db, Error, Family, Isolation, TransactionOptions};

use crate::{kinds, options, store, text};

/// A program's own error.
#[derive(Debug)]
enum Own {
    Db(Error),
    Refused,
}

impl From<Error> for Own {
    fn from(error: Error) -> Self {
        Self::Db(error)
    }
}

fn add(db: &Db, family: &Family, options: &TransactionOptions) {
    let added = db.transact(options, |tx| {
        let before = text(tx.get_for_update(family, "counter")?);
        let before: u64 = before.map_or(0, |text| text.parse().unwrap());
        tx.put(family, "counter", (before + 1).to_string())
    });
    added.unwrap();
}

#[test]
fn all_kinds_count_on_one_row_and_none_is_lost_or_twice() {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    let (_dir, db) = store();
    let family = db.default_family();
    let all: Vec<_> = kinds().collect();
    let mut rounds = 0;
    // On a busy machine one thread may run after the other.
    while rounds == 0 || db.stats().transactions.conflicts == 0 {
        rounds += 1;
        std::thread::scope(|scope| {
            for options in &all {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        for _ in 0..EACH {
                            let patient = TransactionOptions {
                                max_attempts: u32::MAX,
                                ..options.clone()
                            };
                            add(&db, &family, &patient);
                        }
                    });
                }
            }
        });
    }
    let sum = text(family.get("counter").unwrap()).unwrap();
    assert_eq!(sum, (rounds * all.len() as u64 * THREADS * EACH).to_string());
    assert_eq!(db.stats().transactions.locks, 0);
}

/// A conflict at each attempt, whether the transaction or its commit meets it.
#[test]
fn it_gives_up_after_the_last_attempt_with_its_error() {
    let (_dir, db) = store();
    let family = db.default_family();
    for kind in [Concurrency::Pessimistic, Concurrency::Optimistic] {
        let options = TransactionOptions {
            max_attempts: 3,
            ..options(kind, Isolation::Snapshot)
        };
        let mut attempts = 0;
        let ended = db.transact(&options, |tx| {
            attempts += 1;
            tx.get(&family, "x")?;
            family.put("x", attempts.to_string())?;
            tx.put(&family, "x", "lost")
        });
        let error = ended.unwrap_err();
        assert!(
            matches!(error, Error::Conflict { .. }) && error.is_retryable(),
            "{error}"
        );
        assert_eq!(attempts, 3, "{kind:?}");
        assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("3"));
    }
    // 0 is as 1.
    let options = TransactionOptions {
        max_attempts: 0,
        ..TransactionOptions::default()
    };
    let mut attempts = 0;
    let ended = db.transact(&options, |_| {
        attempts += 1;
        Ok::<_, Error>(())
    });
    assert!(ended.is_ok() && attempts == 1);
}

#[test]
fn an_error_of_the_program_ends_it_and_takes_its_writes_back() {
    let (_dir, db) = store();
    let family = db.default_family();
    let mut attempts = 0;
    let ended: Result<(), Own> = db.transact(&TransactionOptions::default(), |tx| {
        attempts += 1;
        tx.put(&family, "x", "1")?;
        Err(Own::Refused)
    });
    assert!(matches!(ended, Err(Own::Refused)));
    assert_eq!((attempts, family.get("x").unwrap()), (1, None));
    // So does one of the store that another attempt would meet again.
    let ended: Result<(), Own> = db.transact(&TransactionOptions::default(), |tx| {
        attempts += 1;
        Ok(tx.put(&family, "", "1")?)
    });
    assert!(matches!(ended, Err(Own::Db(Error::EmptyKey))), "{ended:?}");
    assert_eq!(attempts, 2);
}

/// The program's own error hides the cause, and the transaction knows it.
#[test]
fn what_met_a_conflict_is_run_again_whatever_error_it_returns() {
    let (_dir, db) = store();
    let family = db.default_family();
    let mut attempts = 0;
    let ended: Result<(), Own> = db.transact(&TransactionOptions::default(), |tx| {
        attempts += 1;
        tx.get(&family, "x")?;
        if attempts == 1 {
            family.put("x", "other")?;
        }
        tx.put(&family, "x", "own").map_err(|_| Own::Refused)
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(attempts, 2);
    assert_eq!(text(family.get("x").unwrap()).as_deref(), Some("own"));
}

/// A timeout that the program goes on from is none of its later errors' cause.
#[test]
fn a_lock_that_was_done_without_is_no_reason_to_run_again() {
    let (_dir, db) = store();
    let family = db.default_family();
    let holder = db.transaction(TransactionOptions::default()).unwrap();
    holder.put(&family, "held", "").unwrap();
    let impatient = TransactionOptions {
        lock_timeout: Duration::ZERO,
        max_attempts: 5,
        ..TransactionOptions::default()
    };
    let mut attempts = 0;
    let ended: Result<(), Own> = db.transact(&impatient, |tx| {
        attempts += 1;
        assert!(tx.put(&family, "held", "").unwrap_err().is_retryable());
        tx.put(&family, "free", "")?;
        Err(Own::Refused)
    });
    assert!(matches!(ended, Err(Own::Refused)) && attempts == 1);
    let ended: Result<(), Own> = db.transact(&impatient, |tx| {
        attempts += 1;
        Ok(tx.put(&family, "held", "")?)
    });
    assert!(
        matches!(ended, Err(Own::Db(Error::LockTimeout { .. }))),
        "{ended:?}"
    );
    assert_eq!(attempts, 1 + 5);
}
