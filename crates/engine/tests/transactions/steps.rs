//! One transaction at a time: reads, writes, savepoints, ends, limits.

use std::time::Duration;

use collie_db::{
    CommitMode, Concurrency, Durability, Error, FamilyOptions, Isolation, Options, TransactionOptions,
    WriteOptions,
};

use crate::common;
use crate::{is_optimistic, kinds, options, store, text};

#[test]
fn it_sees_its_own_writes_and_others_see_them_when_it_commits() {
    for options in kinds() {
        let (_dir, db) = store();
        let (family, other) = (
            db.default_family(),
            db.create_family("other", FamilyOptions::default()).unwrap(),
        );
        for key in ["a", "c", "e"] {
            family.put(key, "old").unwrap();
        }
        let tx = db.transaction(options.clone()).unwrap();
        tx.put(&family, "b", "new").unwrap();
        tx.put(&family, "c", "new").unwrap();
        tx.delete(&family, "e").unwrap();
        tx.put(&other, "b", "elsewhere").unwrap();
        assert_eq!(text(tx.get(&family, "b").unwrap()).as_deref(), Some("new"));
        assert_eq!(text(tx.get(&family, "a").unwrap()).as_deref(), Some("old"));
        assert_eq!(tx.get(&family, "e").unwrap(), None);
        assert_eq!(tx.get_for_update(&family, "e").unwrap(), None);
        let shown = |rows: Vec<collie_db::Result<(collie_db::Key, collie_db::Value)>>| {
            rows.into_iter()
                .map(|row| {
                    let (key, value) = row.unwrap();
                    format!(
                        "{}={}",
                        String::from_utf8_lossy(&key),
                        String::from_utf8_lossy(&value)
                    )
                })
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(tx.iter(&family).unwrap().collect()), "a=old b=new c=new");
        assert_eq!(
            shown(tx.iter(&family).unwrap().rev().collect()),
            "c=new b=new a=old"
        );
        assert_eq!(shown(tx.range(&family, "b"..).unwrap().collect()), "b=new c=new");
        assert_eq!(shown(tx.range(&family, "x".."b").unwrap().collect()), "");
        let mut both = tx.iter(&family).unwrap();
        let met = vec![
            both.next().unwrap(),
            both.next_back().unwrap(),
            both.next().unwrap(),
        ];
        assert_eq!(shown(met), "a=old c=new b=new");
        assert!(both.next().is_none() && both.next_back().is_none());
        assert_eq!(text(family.get("c").unwrap()).as_deref(), Some("old"));
        assert_eq!(other.get("b").unwrap(), None);
        let end = tx.commit().unwrap();
        assert!(db.visible() >= end);
        assert_eq!(shown(family.iter().unwrap().collect()), "a=old b=new c=new");
        assert_eq!(text(other.get("b").unwrap()).as_deref(), Some("elsewhere"));
        assert_eq!(db.stats().transactions.locks, 0);
        assert_eq!(db.stats().transactions.open, 0);
    }
}

#[test]
fn a_dropped_or_rolled_back_transaction_leaves_nothing_behind() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        let before = db.visible();
        for round in 0..2 {
            let tx = db.transaction(options.clone()).unwrap();
            tx.put(&family, "a", "1").unwrap();
            tx.get_for_share(&family, "b").unwrap();
            drop(tx.iter(&family).unwrap());
            if round == 0 {
                tx.rollback()
            } else {
                drop(tx)
            }
            assert_eq!(family.get("a").unwrap(), None);
        }
        let stats = db.stats().transactions;
        assert_eq!(
            (stats.begun, stats.committed, stats.open, stats.locks),
            (2, 0, 0, 0)
        );
        assert_eq!(db.visible(), before, "nothing was written");
    }
}

#[test]
fn savepoints_take_back_what_came_after_them_and_nest() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        family.put("a", "before").unwrap();
        let tx = db.transaction(options).unwrap();
        assert!(matches!(tx.rollback_to_savepoint(), Err(Error::NoSavepoint)));
        assert!(matches!(tx.pop_savepoint(), Err(Error::NoSavepoint)));
        tx.put(&family, "a", "1").unwrap();
        tx.set_savepoint();
        tx.put(&family, "a", "2").unwrap();
        tx.set_savepoint();
        tx.delete(&family, "a").unwrap();
        tx.put(&family, "b", "3").unwrap();
        tx.put(&family, "b", "4").unwrap();
        tx.rollback_to_savepoint().unwrap();
        assert_eq!(text(tx.get(&family, "a").unwrap()).as_deref(), Some("2"));
        assert_eq!(tx.get(&family, "b").unwrap(), None);
        tx.set_savepoint();
        tx.put(&family, "c", "5").unwrap();
        tx.pop_savepoint().unwrap();
        assert_eq!(text(tx.get(&family, "c").unwrap()).as_deref(), Some("5"));
        tx.rollback_to_savepoint().unwrap();
        assert_eq!(tx.get(&family, "c").unwrap(), None);
        assert_eq!(text(tx.get(&family, "a").unwrap()).as_deref(), Some("1"));
        assert!(matches!(tx.rollback_to_savepoint(), Err(Error::NoSavepoint)));
        tx.commit().unwrap();
        assert_eq!(text(family.get("a").unwrap()).as_deref(), Some("1"));
        assert_eq!(family.iter().unwrap().count(), 1);
    }
}

#[test]
fn its_size_has_a_limit_and_what_did_not_fit_changed_nothing() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        let options = TransactionOptions {
            max_bytes: 1_000,
            ..options
        };
        let tx = db.transaction(options).unwrap();
        tx.put(&family, "a", [1; 900]).unwrap();
        let error = tx.put(&family, "b", [1; 100]).unwrap_err();
        assert!(
            matches!(error, Error::BatchTooLarge { limit: 1_000, size } if size > 1_000),
            "{error}"
        );
        // What is written again makes room.
        tx.put(&family, "a", [1; 700]).unwrap();
        tx.set_savepoint();
        tx.put(&family, "b", [1; 200]).unwrap();
        tx.rollback_to_savepoint().unwrap();
        tx.put(&family, "c", [1; 200]).unwrap();
        tx.commit().unwrap();
        assert_eq!(family.iter().unwrap().count(), 2);
    }
    // And by what the store takes, whatever the transaction's options say.
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        max_commit_bytes: 200 << 10,
        ..common::small()
    };
    let db = common::open(dir.path(), &options);
    let family = db.default_family();
    let tx = db.transaction(TransactionOptions::default()).unwrap();
    let error = tx.put(&family, "a", vec![0; 256 << 10]).unwrap_err();
    assert!(matches!(error, Error::BatchTooLarge { .. }), "{error}");
    // The largest that is taken commits.
    let Error::BatchTooLarge { limit, .. } = error else {
        return;
    };
    tx.put(&family, "a", vec![0; limit as usize - 17]).unwrap();
    tx.commit().unwrap();
}

#[test]
fn bad_keys_and_families_are_refused_with_typed_errors() {
    for options in kinds() {
        let (_dir, db) = store();
        let (_other_dir, other) = store();
        let (family, foreign) = (db.default_family(), other.default_family());
        let tx = db.transaction(options.clone()).unwrap();
        assert!(matches!(tx.put(&family, "", "x"), Err(Error::EmptyKey)));
        assert!(matches!(tx.get_for_update(&family, ""), Err(Error::EmptyKey)));
        assert_eq!(tx.get(&family, "").unwrap(), None);
        let long = vec![b'k'; collie_db::MAX_KEY_BYTES + 1];
        assert!(matches!(tx.delete(&family, &long), Err(Error::KeyTooLong { .. })));
        for error in [
            tx.put(&foreign, "a", "x").unwrap_err(),
            tx.get(&foreign, "a").unwrap_err(),
            tx.iter(&foreign).unwrap_err(),
        ] {
            assert!(matches!(error, Error::ForeignFamily { .. }), "{error}");
        }
        // A family that goes away under it.
        let gone = db.create_family("gone", FamilyOptions::default()).unwrap();
        tx.put(&family, "a", "1").unwrap();
        if is_optimistic(&options) || options.isolation == Isolation::Snapshot {
            let error = tx.get(&gone, "a").unwrap_err();
            assert!(error.to_string().contains("snapshot"), "{error}");
        }
        drop(tx);
        let tx = db.transaction(options).unwrap();
        tx.put(&gone, "a", "1").unwrap();
        tx.put(&family, "a", "1").unwrap();
        db.drop_family(&gone).unwrap();
        for error in [
            tx.put(&gone, "b", "x").unwrap_err(),
            tx.get(&gone, "a").unwrap_err(),
            tx.commit().unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::FamilyDropped { name } if name == "gone"),
                "{error}"
            );
        }
        assert_eq!(family.get("a").unwrap(), None, "all or nothing");
        assert_eq!(db.stats().transactions.locks, 0);
    }
}

#[test]
fn a_transaction_of_a_closed_store_is_refused() {
    for options in kinds() {
        let (_dir, db) = store();
        let family = db.default_family();
        let tx = db.transaction(options.clone()).unwrap();
        tx.put(&family, "a", "1").unwrap();
        db.clone().close().unwrap();
        assert!(matches!(tx.get(&family, "a"), Err(Error::Closed)));
        assert!(matches!(tx.commit(), Err(Error::Closed)));
        assert!(matches!(db.transaction(options), Err(Error::Closed)));
    }
}

#[test]
fn an_open_transaction_is_listed_with_its_age_and_what_it_holds() {
    let (_dir, db) = store();
    let family = db.default_family();
    let named = TransactionOptions {
        name: "nightly".into(),
        ..TransactionOptions::default()
    };
    let tx = db.transaction(named).unwrap();
    let second = db.transaction(TransactionOptions::optimistic()).unwrap();
    tx.put(&family, "a", "1").unwrap();
    tx.get_for_share(&family, "b").unwrap();
    std::thread::sleep(Duration::from_millis(2));
    let all = db.transactions();
    assert_eq!(all.len(), 2);
    assert_eq!(
        (all[0].id, all[0].name.as_str(), all[0].locks),
        (tx.id(), "nightly", 2)
    );
    assert!(
        all[0].age >= Duration::from_millis(2) && all[0].bytes > 2,
        "{all:?}"
    );
    assert_eq!((all[1].id, all[1].locks), (second.id(), 0));
    assert!(all.iter().all(|info| info.waits_for.is_none()));
    drop(tx);
    assert_eq!(db.transactions().len(), 1);
}

#[test]
fn a_read_only_transaction_waits_for_what_it_saw() {
    let dir = tempfile::tempdir().unwrap();
    let db = crate::common::open(dir.path(), &crate::common::small());
    let family = db.default_family();
    for options in kinds() {
        for scans in [false, true] {
            let end = family.put_with("a", "1", &WriteOptions::buffered()).unwrap();
            let tx = db.transaction(options.clone()).unwrap();
            if scans {
                assert_eq!(tx.iter(&family).unwrap().count(), 1);
            } else {
                tx.get(&family, "a").unwrap();
            }
            if scans {
                // Others since, whose iterators are gone or see nothing.
                for _ in 0..3 {
                    assert_eq!(tx.range(&family, "x"..).unwrap().count(), 0);
                }
            }
            let seen = tx.commit().unwrap();
            assert_eq!(seen, end);
            assert!(db.durable() >= end, "{options:?}");
        }
    }
}

#[test]
fn transactions_work_with_the_log_off_and_at_every_level() {
    for disable_wal in [false, true] {
        for level in [Durability::Buffered, Durability::Process, Durability::Disk] {
            let dir = crate::common::fast_dir();
            let store = collie_db::Options {
                disable_wal,
                ..crate::common::small()
            };
            let db = crate::common::open(dir.path(), &store);
            let family = db.default_family();
            for mode in [CommitMode::Sync, CommitMode::EarlyRelease, CommitMode::Async] {
                let tx = db
                    .transaction(TransactionOptions {
                        commit_mode: mode,
                        durability: Some(level),
                        ..options(Concurrency::Pessimistic, Isolation::Serializable)
                    })
                    .unwrap();
                let n = text(tx.get_for_update(&family, "n").unwrap()).map_or(0, |n| n.parse().unwrap());
                tx.put(&family, "n", (n + 1).to_string()).unwrap();
                let end = tx.commit().unwrap();
                if level == Durability::Disk && mode != CommitMode::Async {
                    assert!(db.durable() >= end);
                }
                assert_eq!(db.stats().transactions.locks, 0);
            }
            assert_eq!(text(family.get("n").unwrap()).as_deref(), Some("3"));
            db.close().unwrap();
            let db = crate::common::open(dir.path(), &store);
            assert_eq!(text(db.default_family().get("n").unwrap()).as_deref(), Some("3"));
        }
    }
}
