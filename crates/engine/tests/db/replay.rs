//! Opening a store replays its log with several threads: what comes out is what went in, in its
//! order.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;

use collie_db::{Batch, Compression, Db, Durability, Family, FamilyOptions, Options, WriteOptions};
use common::Rng;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options {
        durability: Durability::Buffered,
        // Nothing is flushed before the store is closed.
        default_family: FamilyOptions::default(),
        ..common::small()
    }
}

/// Options under which the same log fills many memtables.
fn tiny_buffers() -> Options {
    Options {
        default_family: FamilyOptions {
            write_buffer_bytes: 4096,
            max_write_buffers: 3,
            ..common::small_family()
        },
        family_options: vec![("second".into(), common::small_family())],
        ..options()
    }
}

/// Batches over two families that write few keys again and again, within a batch, too.
fn write(db: &Db, families: &[Family; 2], rng: &mut Rng, maps: &mut [Map; 2]) {
    for n in 0..4000_u32 {
        let mut batch = Batch::new();
        for _ in 0..1 + rng.below(4) {
            let which = rng.below(2) as usize;
            let key = format!("key {}", rng.below(200)).into_bytes();
            if rng.one_in(8) {
                batch.delete(&families[which], &key).unwrap();
                maps[which].remove(&key);
            } else {
                let mut value = n.to_le_bytes().to_vec();
                value.resize(4 + rng.below(100) as usize, n as u8);
                batch.put(&families[which], &key, &value).unwrap();
                maps[which].insert(key, value);
            }
        }
        db.write(batch, &WriteOptions::buffered()).unwrap();
    }
}

fn content(family: &Family) -> Map {
    let entries = family.iter().unwrap().map(Result::unwrap);
    entries
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// A store with such content in its log alone.
fn filled(path: &Path, options: &Options) -> [Map; 2] {
    let db = common::open(path, options);
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    let families = [db.default_family(), second];
    let mut maps = [Map::new(), Map::new()];
    write(&db, &families, &mut Rng::new(7), &mut maps);
    let flushes: usize = db
        .stats()
        .families
        .values()
        .map(|family| family.flushes.len())
        .sum();
    assert_eq!(flushes, 0, "all of it is to be replayed");
    db.close().unwrap();
    maps
}

fn families(db: &Db) -> [Family; 2] {
    [db.default_family(), db.family("second").unwrap()]
}

#[test]
fn replay_brings_back_the_last_write_of_every_key() {
    for sealing in [false, true] {
        let dir = common::fast_dir();
        let maps = filled(dir.path(), &options());
        let reopened = if sealing { tiny_buffers() } else { options() };
        let db = common::open(dir.path(), &reopened);
        let stats = db.stats();
        assert_eq!(stats.replayed_commits, 4000);
        assert!(stats.replayed_bytes > 4000 * 32 && stats.replay_ns > 0);
        for (family, map) in families(&db).iter().zip(&maps) {
            assert_eq!(&content(family), map, "sealing {sealing}");
        }
        if sealing {
            assert!(
                !stats.families["default"].flushes.is_empty(),
                "{:?}",
                stats.families
            );
        }
        // Once more, over tables that have a part of it.
        db.close().unwrap();
        let db = common::open(dir.path(), &reopened);
        for (family, map) in families(&db).iter().zip(&maps) {
            assert_eq!(&content(family), map, "sealing {sealing}, reopened");
        }
    }
}

/// Values that compress and values that do not, under changing options; every opening replays all
/// of them.
#[test]
fn a_log_may_be_compressed_in_one_run_and_plain_in_the_next() {
    let dir = common::fast_dir();
    let mut rng = Rng::new(11);
    let mut map = Map::new();
    let with = |wal_compression| Options {
        wal_compression,
        ..options()
    };
    for compression in [Compression::Lz4, Compression::None, Compression::Lz4] {
        let db = common::open(dir.path(), &with(compression));
        assert_eq!(content(&db.default_family()), map, "before {compression:?}");
        for n in 0..200_u32 {
            let noise: Vec<u8> = (0..300).map(|_| rng.next() as u8).collect();
            for (key, value) in [
                (format!("even {n}"), vec![b'x'; 300]),
                (format!("noise {n}"), noise),
            ] {
                db.put(&key, &value).unwrap();
                map.insert(key.into_bytes(), value);
            }
        }
        let done = db.stats().log.unwrap().compression;
        if compression == Compression::Lz4 {
            // One half becomes next to nothing, the other is stored as it is.
            let half = done.bytes_before / 2;
            assert!((half..half + half / 8).contains(&done.bytes_after), "{done:?}");
        } else {
            assert_eq!(done.bytes_before, 0, "{done:?}");
        }
        db.close().unwrap();
    }
    let db = common::open(dir.path(), &options());
    assert_eq!(db.stats().replayed_commits, 1200);
    assert_eq!(content(&db.default_family()), map);
}

/// What is written to the log while write groups end with a block, and while they do not, in turn.
#[test]
fn a_log_may_be_padded_in_one_run_and_not_in_the_next() {
    let dir = common::fast_dir();
    let mut map = Map::new();
    for (n, pad_to_block) in [true, false, true, true].into_iter().enumerate() {
        let db = common::open(
            dir.path(),
            &Options {
                pad_to_block,
                durability: collie_db::Durability::Disk,
                ..options()
            },
        );
        assert_eq!(content(&db.default_family()), map, "before run {n}");
        for key in 0..100 {
            let (key, value) = (format!("key {key}"), format!("{n}").repeat(key));
            db.put(&key, &value).unwrap();
            map.insert(key.into_bytes(), value.into_bytes());
        }
        let log = db.stats().log.unwrap();
        // One writer, so that each commit is flushed by itself.
        assert_eq!(log.filler_bytes > 100 * 1_000, pad_to_block, "{log:?}");
        db.close().unwrap();
    }
    let db = common::open(dir.path(), &options());
    assert_eq!(content(&db.default_family()), map);
}

/// What memtables were flushed of leaves the log for its archive, and the next open without one
/// removes that.
#[test]
fn flushed_segments_are_archived_up_to_the_limit() {
    const SEGMENT: u64 = 64 << 10;
    let dir = common::fast_dir();
    let archiving = Options {
        segment_bytes: SEGMENT,
        max_total_wal_size: Some(4 * SEGMENT),
        wal_size_limit: 3 * SEGMENT,
        ..options()
    };
    let db = common::open(dir.path(), &archiving);
    for round in 0..20 {
        for key in 0..200 {
            db.put(format!("key {key}"), [round; 300]).unwrap();
        }
        db.flush().unwrap();
    }
    db.close().unwrap();
    let archived = |db: &Db| {
        let log = db.stats().log.unwrap();
        (log.archived_segments, log.archived_bytes)
    };
    let db = common::open(dir.path(), &archiving);
    assert_eq!(archived(&db), (3, 3 * SEGMENT));
    db.close().unwrap();
    let db = common::open(
        dir.path(),
        &Options {
            wal_size_limit: 0,
            ..archiving
        },
    );
    assert_eq!(archived(&db), (0, 0));
    let map = content(&db.default_family());
    assert!(map.len() == 200 && map.values().all(|value| value == &[19; 300]));
}

/// A whole frame with a sound checksum, and nonsense in it: nothing may be guessed.
#[test]
fn a_commit_that_cannot_be_read_is_refused_with_its_place() {
    let dir = common::fast_dir();
    filled(dir.path(), &options());
    let log = collie_log::LogOptions {
        ring: collie_db::RingMode::Private,
        ..collie_log::LogOptions::default()
    };
    let log = collie_log::Log::open(dir.path().join("log"), log).unwrap();
    let span = log.worker().unwrap().append(0, 0, &[7, 0, 1, b'k']).unwrap();
    log.close().unwrap();
    let refused = Db::open(dir.path(), tiny_buffers()).unwrap_err();
    assert!(
        matches!(&refused, collie_db::Error::Corrupt { found, .. } if found == "tag 7"),
        "{refused:?}"
    );
    let place = format!("the commit at LSN {}", span.start);
    assert!(refused.to_string().contains(&place), "{refused}");
}
