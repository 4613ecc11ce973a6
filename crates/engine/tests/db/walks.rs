//! How many entries iterators pass over: removed rows, and versions that are newer than what they
//! show.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;

use collie_db::{Db, Error, Family, FamilyOptions, Iter, Options, WriteOptions};

use crate::common::{self, Rng, seeds};

/// Memtables that are sealed by flushes alone, or small ones.
fn open(dir: &std::path::Path, write_buffer_bytes: u64) -> Db {
    let options = Options {
        default_family: FamilyOptions {
            write_buffer_bytes,
            max_write_buffers: 8,
            ..FamilyOptions::default()
        },
        ..common::small()
    };
    common::open(dir, &options)
}

const LARGE: u64 = 64 << 20;

fn put(family: &Family, n: u64) {
    let written = family.put_with(n.to_be_bytes(), [7; 20], &WriteOptions::buffered());
    written.unwrap();
}

fn remove(family: &Family, n: u64) {
    family
        .delete_with(n.to_be_bytes(), &WriteOptions::buffered())
        .unwrap();
}

fn number(row: Option<collie_db::Result<(collie_db::Key, collie_db::Value)>>) -> Option<u64> {
    let (key, _) = row?.unwrap();
    Some(u64::from_be_bytes(key[..].try_into().unwrap()))
}

/// The whole memtable was walked over for ten keys, of which it had none.
#[test]
fn short_scans_at_an_old_snapshot_examine_little() {
    let dir = common::fast_dir();
    let db = open(dir.path(), LARGE);
    let family = db.default_family();
    for n in 0..2_000 {
        put(&family, n);
    }
    family.flush().unwrap();
    // So that no part of the memtable is newer than the snapshot as a whole.
    (0..20).for_each(|n| put(&family, 100 * n));
    let snapshot = db.snapshot();
    let mut rng = Rng::new(7);
    for _ in 0..20_000 {
        put(&family, rng.below(2_000));
    }
    for from in [0, 500, 1_900] {
        for back in [false, true] {
            let at = u64::to_be_bytes(from);
            let mut scan = match back {
                false => snapshot.range(&family, at..).unwrap(),
                true => snapshot.range(&family, ..=u64::to_be_bytes(from + 50)).unwrap(),
            };
            let step = if back { Iter::next_back } else { Iter::next };
            let seen: Vec<_> = (0..10).map_while(|_| number(step(&mut scan))).collect();
            let expected: Vec<_> = match back {
                false => (from..from + 10).collect(),
                true => (from + 41..=from + 50).rev().collect(),
            };
            assert_eq!(seen, expected);
            let skipped = scan.internal_keys_skipped();
            assert!(
                skipped < 600,
                "{skipped} entries passed over from {from}, back: {back}"
            );
        }
    }
    // Nothing is left out where a scan of the memtable has examined enough.
    let all = snapshot.iter(&family).unwrap().map(|row| number(Some(row)));
    assert!(all.eq((0..2_000).map(Some)));
    // An iterator that seeks beside a writer is such a snapshot.
    let mut scan = snapshot.iter(&family).unwrap();
    for n in 0..100 {
        scan.seek(u64::to_be_bytes(17 * n));
        assert_eq!(number(scan.next()), Some(17 * n));
    }
    assert!(
        scan.internal_keys_skipped() < 100 * 300,
        "{}",
        scan.internal_keys_skipped()
    );
}

/// A snapshot of before what a bucket of the memtable has.
#[test]
fn keys_that_are_all_newer_are_passed_over_at_once() {
    let dir = common::fast_dir();
    let db = open(dir.path(), LARGE);
    let family = db.default_family();
    put(&family, 0);
    let snapshot = db.snapshot();
    for n in 1..40_000 {
        put(&family, n);
    }
    let mut scan = snapshot.iter(&family).unwrap();
    assert_eq!((number(scan.next()), number(scan.next())), (Some(0), None));
    // Of the bucket with the old key, or two.
    assert!(
        scan.internal_keys_skipped() < 10_000,
        "{}",
        scan.internal_keys_skipped()
    );
}

/// Each took as long as all that had gone through the queue.
#[test]
fn the_first_key_of_a_queue_costs_the_same_at_any_age() {
    for (what, buffer, flush_every) in [
        ("one memtable", LARGE, u64::MAX),
        ("small memtables", 64 << 10, u64::MAX),
        ("flushed", LARGE, 2_500),
    ] {
        let dir = common::fast_dir();
        let db = open(dir.path(), buffer);
        let queue = db.default_family();
        let (mut first, mut last, mut skipped) = (0, 5_000, 0);
        for n in 0..last {
            put(&queue, n);
        }
        for lap in 0..10_000 {
            let mut rows = queue.iter().unwrap();
            assert_eq!(number(rows.next()), Some(first), "{what}");
            skipped += rows.internal_keys_skipped();
            remove(&queue, first);
            first += 1;
            if lap % 2 == 0 {
                put(&queue, last);
                last += 1;
            }
            if lap % flush_every == flush_every - 1 {
                queue.flush().unwrap();
            }
        }
        assert!(skipped < 10_000 * 40, "{what}: {skipped} entries passed over");
    }
}

/// As a work list that is not in order: the first key, of any that are put.
#[test]
fn the_first_key_of_what_comes_and_goes_costs_little() {
    let dir = common::fast_dir();
    let db = open(dir.path(), LARGE);
    let family = db.default_family();
    let (mut rng, mut there) = (Rng::new(11), BTreeSet::new());
    for n in 0..5_000 {
        put(&family, n);
        remove(&family, n);
    }
    let mut skipped = 0;
    for _ in 0..5_000 {
        let n = rng.below(5_000);
        put(&family, n);
        there.insert(n);
        let mut rows = family.iter().unwrap();
        let first = number(rows.next()).unwrap();
        assert_eq!(Some(&first), there.first());
        skipped += rows.internal_keys_skipped();
        remove(&family, first);
        there.remove(&first);
    }
    assert!(skipped < 5_000 * 100, "{skipped} entries passed over");
}

/// A reader at an old snapshot beside one that follows: neither makes the other's gaps useless for
/// long.
#[test]
fn the_first_key_at_an_old_snapshot_costs_little_too() {
    let dir = common::fast_dir();
    let db = open(dir.path(), LARGE);
    let queue = db.default_family();
    for n in 0..10_000 {
        put(&queue, n);
    }
    let (mut first, mut skipped) = (0, 0);
    let mut pop = || {
        let mut rows = queue.iter().unwrap();
        assert_eq!(number(rows.next()), Some(first));
        remove(&queue, first);
        first += 1;
    };
    (0..4_000).for_each(|_| pop());
    let snapshot = db.snapshot();
    for _ in 0..4_000 {
        pop();
        let mut rows = snapshot.iter(&queue).unwrap();
        assert_eq!(number(rows.next()), Some(4_000));
        skipped += rows.internal_keys_skipped();
    }
    assert!(skipped < 4_000 * 100, "{skipped} entries passed over");
}

#[test]
fn a_step_ends_after_so_many_entries_and_the_next_goes_on() {
    for seed in seeds(3) {
        let mut rng = Rng::new(seed);
        let dir = common::fast_dir();
        let db = open(dir.path(), LARGE);
        let family = db.default_family();
        for n in 0..3_000 {
            put(&family, n);
            if n == 1_000 && rng.below(2) == 0 {
                family.flush().unwrap();
            }
            if n != 1_500 {
                remove(&family, n);
            }
        }
        let most = 1 + rng.below(500);
        // What the second one would walk over was walked over by the first.
        for (step, walks) in [(Iter::next as fn(&mut _) -> _, true), (Iter::next_back, false)] {
            let mut rows = family.iter().unwrap();
            rows.set_max_skippable_internal_keys(most);
            let (mut steps, mut found, mut skipped) = (0, None, 0);
            loop {
                let next = step(&mut rows);
                let passed = rows.internal_keys_skipped() - skipped;
                skipped = rows.internal_keys_skipped();
                assert!(
                    passed <= 2 * most + 10,
                    "seed {seed}: {passed} in one step of {most}"
                );
                match next {
                    None => break,
                    Some(Err(Error::Incomplete { at })) => {
                        // Another iterator goes on there.
                        let mut other = family.iter().unwrap();
                        other.seek(&at);
                        let rest = number(other.next());
                        let at = u64::from_be_bytes(at[..].try_into().unwrap());
                        assert_eq!(rest, (at <= 1_500).then_some(1_500), "seed {seed}, at {at}");
                        steps += 1;
                    }
                    row => found = number(row),
                }
            }
            assert_eq!(found, Some(1_500), "seed {seed}");
            assert!(steps > 0 || !walks, "seed {seed}");
            assert!(step(&mut rows).is_none(), "seed {seed}");
        }
    }
}
