//! Iterators of transactions that are sent elsewhere: what they show, and what their transaction
//! depends on.

use std::collections::BTreeMap;

use collie_db::{Concurrency, Error, Isolation, TransactionIter};

use crate::common::{Rng, seeds};
use crate::{kinds, options, store};

fn key(rng: &mut Rng) -> String {
    format!("k/{:02}", rng.below(100))
}

fn name(entry: Option<collie_db::Result<(collie_db::Key, collie_db::Value)>>) -> Option<String> {
    entry.map(|entry| String::from_utf8(entry.unwrap().0.to_vec()).unwrap())
}

#[test]
fn a_transaction_sees_its_own_writes_wherever_it_goes() {
    for seed in seeds(5) {
        for kind in kinds() {
            let (_dir, db) = store();
            let family = db.default_family();
            let mut rng = Rng::new(seed);
            let mut model = BTreeMap::new();
            for _ in 0..60 {
                let key = key(&mut rng);
                family.put(&key, "committed").unwrap();
                model.insert(key, "committed");
            }
            let tx = db.transaction(kind.clone()).unwrap();
            for _ in 0..60 {
                let key = key(&mut rng);
                if rng.one_in(2) {
                    tx.delete(&family, &key).unwrap();
                    model.remove(&key);
                } else {
                    tx.put(&family, &key, "own").unwrap();
                    model.insert(key, "own");
                }
            }
            let (low, high) = ("k/10", "k/90");
            let range = model.range(low.to_owned()..high.to_owned());
            let all: Vec<(String, &str)> = range.map(|(key, value)| (key.clone(), *value)).collect();
            let mut iter = tx.range(&family, low..high).unwrap();
            let mut coming = 0..all.len();
            for step in 0..400 {
                let target = key(&mut rng);
                match rng.below(10) {
                    0 => {
                        iter.seek(&target);
                        coming = all.partition_point(|(key, _)| *key < target)..all.len();
                    }
                    1 => {
                        iter.seek_back(&target);
                        coming = 0..all.partition_point(|(key, _)| *key <= target);
                    }
                    way => {
                        let (found, expected) = match way {
                            2..6 => (iter.next(), coming.next()),
                            _ => (iter.next_back(), coming.next_back()),
                        };
                        let found = found.transpose().unwrap();
                        let found = found.as_ref().map(|(key, value)| (&**key, &**value));
                        let expected = expected.map(|n| (all[n].0.as_bytes(), all[n].1.as_bytes()));
                        assert_eq!(found, expected, "seed {seed}, step {step}, {kind:?}");
                    }
                }
            }
        }
    }
}

/// An optimistic serializable transaction that read some parts of a range, and a commit that wrote
/// `written` meanwhile. Whether that was a conflict.
fn conflicts(written: &str, read: impl FnOnce(&mut TransactionIter)) -> bool {
    let (_dir, db) = store();
    let family = db.default_family();
    for n in 0..100 {
        family.put(format!("k/{n:02}"), "1").unwrap();
    }
    let tx = db
        .transaction(options(Concurrency::Optimistic, Isolation::Serializable))
        .unwrap();
    let mut iter = tx.iter(&family).unwrap();
    read(&mut iter);
    drop(iter);
    tx.put(&family, "own", "1").unwrap();
    family.put(written, "2").unwrap();
    match tx.commit() {
        Ok(_) => false,
        Err(Error::Conflict { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn what_a_seek_passes_over_is_no_conflict_what_was_read_is() {
    let some_parts = |iter: &mut TransactionIter| {
        assert_eq!(name(iter.next()).as_deref(), Some("k/00"));
        iter.seek("k/20");
        assert_eq!(name(iter.next()).as_deref(), Some("k/20"));
        assert_eq!(name(iter.next()).as_deref(), Some("k/21"));
        iter.seek_back("k/400");
        assert_eq!(name(iter.next_back()).as_deref(), Some("k/40"));
        iter.seek("k/95");
        while iter.next().is_some() {}
        // Nothing is read of these.
        iter.seek("k/60");
    };
    // Keys that are absent were read, too: the one before the first, and those at the ends.
    for read in ["a", "k/00", "k/20", "k/200", "k/21", "k/40", "k/400", "k/99", "z"] {
        assert!(conflicts(read, some_parts), "{read} was read");
    }
    for passed in [
        "k/000", "k/01", "k/199", "k/210", "k/30", "k/399", "k/401", "k/60", "k/94",
    ] {
        assert!(!conflicts(passed, some_parts), "{passed} was passed over");
    }
}

/// A transaction does not keep as many parts as it makes seeks.
#[test]
fn many_seeks_count_as_the_whole_range() {
    let read = |seeks: usize| {
        move |iter: &mut TransactionIter| {
            for _ in 0..seeks {
                iter.seek("k/50");
                assert_eq!(name(iter.next()).as_deref(), Some("k/50"));
            }
        }
    };
    assert!(!conflicts("k/10", read(60)));
    assert!(conflicts("k/10", read(100)));
    assert!(conflicts("k/50", read(100)));
}
