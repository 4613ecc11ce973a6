//! Iterators that are sent elsewhere, and what they show of which moment.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::ops::Bound;

use collie_db::{Durability, Family, Iter, Options, ReadOptions, RingMode, WriteOptions};

use crate::common::{self, Rng, fast_dir, seeds, small};

/// Keys and values that are there.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Some are the beginning of others.
fn key(rng: &mut Rng) -> Vec<u8> {
    let mut key = format!("{:03}", rng.below(300)).into_bytes();
    key.truncate(1 + rng.below(3) as usize);
    if rng.one_in(4) {
        key.push(0);
    }
    key
}

/// Writes and removals of keys, spread over tables and memtables.
fn filled(family: &Family, rng: &mut Rng) -> Model {
    let mut model = Model::new();
    for _ in 0..6 {
        for _ in 0..200 {
            let key = key(rng);
            if rng.one_in(3) {
                family.delete_with(&key, &WriteOptions::buffered()).unwrap();
                model.remove(&key);
            } else {
                let value = vec![rng.below(256) as u8; rng.below(100) as usize];
                family.put_with(&key, &value, &WriteOptions::buffered()).unwrap();
                model.insert(key, value);
            }
        }
        match rng.below(4) {
            0 => family.compact().unwrap(),
            1 | 2 => family.flush().unwrap(),
            _ => {}
        }
    }
    model
}

fn bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(4) {
        0 => Bound::Included(key(rng)),
        1 => Bound::Excluded(key(rng)),
        _ => Bound::Unbounded,
    }
}

fn within(model: &Model, range: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Vec<(Vec<u8>, Vec<u8>)> {
    let above = |key: &Vec<u8>| match &range.0 {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    };
    let below = |key: &Vec<u8>| match &range.1 {
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    };
    let entries = model.iter().filter(|(key, _)| above(key) && below(key));
    entries.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Steps and seeks at random, in both directions, against all that must be there.
fn wander(mut iter: Iter, all: &[(Vec<u8>, Vec<u8>)], rng: &mut Rng, context: &str) {
    let mut coming = 0..all.len();
    for step in 0..300 {
        let target = key(rng);
        match rng.below(12) {
            0 | 1 => {
                iter.seek(&target);
                coming = all.partition_point(|(key, _)| *key < target)..all.len();
            }
            2 | 3 => {
                iter.seek_back(&target);
                coming = 0..all.partition_point(|(key, _)| *key <= target);
            }
            way => {
                let (found, expected) = match way {
                    4..8 => (iter.next(), coming.next()),
                    _ => (iter.next_back(), coming.next_back()),
                };
                let found = found
                    .transpose()
                    .unwrap()
                    .map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert!(
                    found.as_ref() == expected.map(|n| &all[n]),
                    "{context}, step {step}: {:?}",
                    found.map(|(key, _)| key)
                );
            }
        }
    }
}

#[test]
fn an_iterator_goes_wherever_it_is_sent_within_its_range() {
    for seed in seeds(6) {
        let dir = fast_dir();
        let db = common::open(dir.path(), &small());
        let family = db.default_family();
        let mut rng = Rng::new(seed);
        let model = filled(&family, &mut rng);
        let snapshot = db.snapshot();
        for round in 0..20 {
            let range = (bound(&mut rng), bound(&mut rng));
            let all = within(&model, &range);
            let iters = [
                family.range(range.clone()).unwrap(),
                family.range_with(range.clone(), &ReadOptions::default()).unwrap(),
                snapshot.range(&family, range.clone()).unwrap(),
            ];
            // Nothing of this is seen by them.
            for _ in 0..50 {
                let key = key(&mut rng);
                family.put_with(&key, "later", &WriteOptions::buffered()).unwrap();
            }
            for (which, iter) in iters.into_iter().enumerate() {
                wander(
                    iter,
                    &all,
                    &mut rng,
                    &format!("seed {seed}, round {round}, {which}, {range:?}"),
                );
            }
            // The writes are undone, so that the next round knows what there is.
            for (key, _) in family.iter().unwrap().map(Result::unwrap) {
                match model.get(&*key) {
                    Some(value) => family.put_with(&key, value, &WriteOptions::buffered()).unwrap(),
                    None => family.delete_with(&key, &WriteOptions::buffered()).unwrap(),
                };
            }
        }
    }
}

/// What cannot be a key is a place as any other.
#[test]
fn an_iterator_may_be_sent_to_what_cannot_be_a_key() {
    let dir = fast_dir();
    let db = common::open(dir.path(), &small());
    let family = db.default_family();
    family.put("a", "1").unwrap();
    family.put("b", "2").unwrap();
    for flushed in [false, true] {
        if flushed {
            family.flush().unwrap();
        }
        let mut iter = family.iter().unwrap();
        let next = |iter: &mut Iter| iter.next().map(|entry| entry.unwrap().0.to_vec());
        let back = |iter: &mut Iter| iter.next_back().map(|entry| entry.unwrap().0.to_vec());
        iter.seek("");
        assert_eq!(next(&mut iter).as_deref(), Some(&b"a"[..]));
        iter.seek_back("");
        assert_eq!((back(&mut iter), next(&mut iter)), (None, None));
        let long = [&b"a"[..], &[7; 100_000]].concat();
        iter.seek(&long);
        assert_eq!(next(&mut iter).as_deref(), Some(&b"b"[..]));
        iter.seek_back(&long);
        assert_eq!(back(&mut iter).as_deref(), Some(&b"a"[..]));
        iter.seek("c");
        assert_eq!((next(&mut iter), back(&mut iter)), (None, None));
    }
}

#[test]
fn a_durable_iterator_shows_what_a_power_cut_would_leave() {
    let dir = fast_dir();
    let options = Options {
        ring: RingMode::Private,
        manual_wal_flush: true,
        durability: Durability::Buffered,
        ..small()
    };
    let db = common::open(dir.path(), &options);
    let family = db.default_family();
    family.put("k/1", "durable").unwrap();
    db.flush_wal(Durability::Disk).unwrap();
    family.put("k/1", "later").unwrap();
    family.put("k/2", "later").unwrap();
    let durable = ReadOptions { durable: true };
    let read = |iter: Iter| -> Vec<_> { iter.map(|entry| entry.unwrap().1.to_vec()).collect() };
    let all = [
        read(family.iter_with(&durable).unwrap()),
        read(family.range_with("k/0".."k/9", &durable).unwrap()),
        read(family.prefix_with("k/", &durable).unwrap()),
    ];
    for found in all {
        assert_eq!(found, [b"durable"]);
    }
    assert_eq!(read(family.prefix("k/").unwrap()).len(), 2);
    db.flush_wal(Durability::Disk).unwrap();
    assert_eq!(read(family.iter_with(&durable).unwrap()).len(), 2);
}
