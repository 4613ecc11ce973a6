//! Many threads at once, over memtables so small that rotations, flushes and compactions never
//! stop.
//!
//! `COLLIE_OPS=20000 cargo test -p collie-db --test db concurrent::` runs longer.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use crate::common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_db::{Batch, Db, Durability, Family, FamilyOptions, Options, ReadOptions, WriteOptions};

/// Rotates every few dozen writes.
fn churning() -> Options {
    let mut options = Options {
        durability: Durability::Buffered,
        ..common::small()
    };
    options.default_family = churning_family();
    options
}

fn churning_family() -> FamilyOptions {
    FamilyOptions {
        write_buffer_bytes: 4096,
        max_write_buffers: 6,
        level0_compaction: 2,
        table_bytes: 16 << 10,
        ..FamilyOptions::default()
    }
}

fn ops() -> u64 {
    common::number("COLLIE_OPS").unwrap_or(1500)
}

fn parse(value: Option<collie_db::Value>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

/// A value that starts with `n` and is long enough to fill memtables.
fn value(n: u64) -> [u8; 64] {
    let mut value = [0; 64];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

/// Runs `writers` to their end while `reader` is called over and over on two threads.
fn run(writers: Vec<Box<dyn FnOnce() + Send + '_>>, reader: impl Fn() + Sync) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    reader();
                }
            });
        }
        let writers: Vec<_> = writers.into_iter().map(|writer| scope.spawn(writer)).collect();
        // Joined before they are looked at: the readers must end even if a writer failed.
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
}

fn open(path: &Path) -> (Db, Family, Family) {
    let db = common::open(path, &churning());
    let second = db.create_family("second", churning_family()).unwrap();
    (db.clone(), db.default_family(), second)
}

/// Each batch writes one number to six keys in two families; every read sees six equal numbers.
#[test]
fn nobody_sees_a_part_of_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (db, first, second) = open(dir.path());
    let keys = ["a", "m", "z"];
    let write = |from: u64| {
        let (db, first, second) = (&db, &first, &second);
        Box::new(move || {
            for n in 0..ops() {
                let mut batch = Batch::new();
                for key in keys {
                    batch.put(first, key, value(from + n)).unwrap();
                    batch.put(second, key, value(from + n)).unwrap();
                }
                db.write(batch, &WriteOptions::buffered()).unwrap();
            }
        }) as Box<dyn FnOnce() + Send + '_>
    };
    let read = || {
        let snapshot = db.snapshot();
        let mut seen = Vec::new();
        for family in [&first, &second] {
            for key in keys {
                seen.push(parse(snapshot.get(family, key).unwrap()));
            }
            for entry in snapshot.iter(family).unwrap() {
                seen.push(parse(Some(entry.unwrap().1)));
            }
            if seen.last() == Some(&0) || seen.contains(&0) {
                assert!(seen.iter().all(|n| *n == 0), "{seen:?} at {}", snapshot.lsn());
                return;
            }
            // One scan is one moment, too.
            let scan: Vec<_> = family
                .iter()
                .unwrap()
                .rev()
                .map(|e| parse(Some(e.unwrap().1)))
                .collect();
            assert!(scan.iter().all(|n| *n == scan[0]), "a scan saw {scan:?}");
        }
        assert_eq!(seen.len(), 12);
        assert!(
            seen.iter().all(|n| *n == seen[0]),
            "{seen:?} at {}",
            snapshot.lsn()
        );
    };
    run(vec![write(1), write(1_000_000), write(2_000_000)], read);
}

/// `a` is written before `b`, and `c` copies what was read from `a`; so in every snapshot a ≥ b and
/// a ≥ c.
#[test]
fn a_snapshot_is_a_prefix_of_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let (db, first, second) = open(dir.path());
    let (a_and_b, c) = {
        let (first, second) = (&first, &second);
        let a_and_b = Box::new(move || {
            for n in 1..=ops() {
                first.put("a", value(n)).unwrap();
                second.put("b", value(n)).unwrap();
            }
        });
        let c = Box::new(move || {
            for _ in 0..ops() {
                let n = parse(first.get("a").unwrap());
                second.put("c", value(n)).unwrap();
            }
        });
        (
            a_and_b as Box<dyn FnOnce() + Send + '_>,
            c as Box<dyn FnOnce() + Send + '_>,
        )
    };
    let read = || {
        let snapshot = db.snapshot();
        // Read in the order that would show a violation if this were no snapshot.
        let a = parse(snapshot.get(&first, "a").unwrap());
        std::thread::yield_now();
        let b = parse(snapshot.get(&second, "b").unwrap());
        let c = parse(snapshot.get(&second, "c").unwrap());
        assert!(a >= b && a >= c, "a {a}, b {b}, c {c} at {}", snapshot.lsn());
        assert_eq!(a, parse(snapshot.get(&first, "a").unwrap()));
    };
    run(vec![a_and_b, c], read);
}

/// A number is published after its write returned. A thread that reads the number and then the key
/// finds at least that, and gets a commit at or after the write's.
#[test]
fn a_read_after_a_returned_write_sees_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, first, second) = open(dir.path());
    let published: Vec<_> = (0..3).map(|_| AtomicU64::new(0)).collect();
    let write = |thread: usize| {
        let (first, second, published) = (&first, &second, &published[thread]);
        Box::new(move || {
            for n in 1..=ops() {
                let family = if thread == 0 { second } else { first };
                family.put(format!("key{thread}"), value(n)).unwrap();
                published.store(n, Ordering::Release);
            }
        }) as Box<dyn FnOnce() + Send + '_>
    };
    let read = || {
        for (thread, published) in published.iter().enumerate() {
            let family = if thread == 0 { &second } else { &first };
            let at_least = published.load(Ordering::Acquire);
            let n = parse(family.get(format!("key{thread}")).unwrap());
            assert!(
                n >= at_least,
                "key{thread} shows {n} after {at_least} was written"
            );
            let in_scan = family.prefix(format!("key{thread}")).unwrap().next();
            assert!(parse(in_scan.map(|entry| entry.unwrap().1)) >= n);
        }
    };
    run(vec![write(0), write(1), write(2)], read);
}

/// A durable read never shows a commit that is not durable, and shows all that was waited for.
#[test]
fn a_durable_read_shows_what_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (db, first, _) = open(dir.path());
    let durable = AtomicU64::new(0);
    let waits = {
        let (db, first, durable) = (&db, &first, &durable);
        Box::new(move || {
            for n in 1..=ops() {
                let end = first.put("k", value(n)).unwrap();
                if n % 50 == 0 {
                    db.wait(end, Durability::Disk).unwrap();
                    durable.store(n, Ordering::Release);
                }
            }
        }) as Box<dyn FnOnce() + Send + '_>
    };
    let read = || {
        let at_least = durable.load(Ordering::Acquire);
        let read = first.get_with("k", &ReadOptions { durable: true }).unwrap();
        let durable_now = db.durable();
        assert!(parse(read.value) >= at_least);
        assert!(
            read.seen <= durable_now,
            "saw {} but durable is {durable_now}",
            read.seen
        );
        let newest = first.get_with("k", &ReadOptions::default()).unwrap();
        db.wait(newest.seen, Durability::Buffered).unwrap();
        assert!(db.visible() >= newest.seen);
    };
    run(vec![waits], read);
}

/// More threads than workers: they take turns, and every write is there.
#[test]
fn more_threads_than_workers_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(
        dir.path(),
        &Options {
            max_workers: 3,
            ..churning()
        },
    );
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let family = db.default_family();
            scope.spawn(move || {
                for n in 0..ops() / 10 {
                    family.put(format!("{thread:02}/{n:06}"), value(n)).unwrap();
                }
            });
        }
    });
    assert_eq!(db.iter().unwrap().count() as u64, 16 * (ops() / 10));
    db.close().unwrap();
    let db = common::open(dir.path(), &churning());
    assert_eq!(db.iter().unwrap().count() as u64, 16 * (ops() / 10));
}
