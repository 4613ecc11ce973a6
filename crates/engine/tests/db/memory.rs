//! The limit on all memtables together.

use collie_db::{Db, FamilyOptions, FlushCause, Options, WriteOptions};

use crate::common::{self, Rng, fast_dir, small};

const LIMIT: u64 = 2 << 20;
const FAMILIES: usize = 150;

/// The default is out of the way of a single family, whatever its options.
#[test]
fn a_family_alone_never_meets_a_limit_that_was_not_set() {
    let dir = fast_dir();
    let db = common::open(dir.path(), &small());
    assert_eq!(db.stats().max_memtable_bytes, 1 << 30);
    let options = FamilyOptions {
        write_buffer_bytes: 1 << 30,
        max_write_buffers: 3,
        ..FamilyOptions::default()
    };
    db.create_family("large", options).unwrap();
    assert_eq!(db.stats().max_memtable_bytes, 12 << 30);
    drop(db);
    assert_eq!(
        common::open(dir.path(), &small()).stats().max_memtable_bytes,
        12 << 30
    );
    let refused = Db::open(
        dir.path().join("other"),
        Options {
            max_memtable_bytes: Some(1000),
            ..small()
        },
    );
    assert!(refused.unwrap_err().to_string().contains("max_memtable_bytes"));
}

/// Each family alone may have as much as all of them have here.
#[test]
fn many_families_stay_within_the_limit_and_lose_nothing() {
    let dir = fast_dir();
    let options = Options {
        max_memtable_bytes: Some(LIMIT),
        max_workers: 32,
        ..small()
    };
    let db = common::open(dir.path(), &options);
    let families: Vec<_> = (0..FAMILIES)
        .map(|n| {
            let options = FamilyOptions {
                write_buffer_bytes: LIMIT,
                ..FamilyOptions::default()
            };
            db.create_family(&format!("{n:03}"), options).unwrap()
        })
        .collect();
    // A commit in flight passes the look of each thread; buckets report what they grew by late.
    let most = LIMIT + 4 * 4_100 + FAMILIES as u64 * 4_096;
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let (db, families) = (&db, &families);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    let mut highest = 0;
                    for n in 0..1_200_u64 {
                        let family = &families[rng.below(FAMILIES as u64) as usize];
                        let key = [thread, n].map(u64::to_be_bytes).concat();
                        family
                            .put_with(key, vec![thread as u8; 4_000], &WriteOptions::buffered())
                            .unwrap();
                        highest = highest.max(db.stats().memtable_bytes);
                    }
                    highest
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).max()
    });
    let highest = written.unwrap();
    assert!(
        (LIMIT / 2..=most).contains(&highest),
        "{highest} bytes were in memory"
    );
    let stats = db.stats();
    let by_cause = |cause| -> u64 {
        let flushes = stats.families.values().flat_map(|family| &family.flushes);
        flushes.filter(|(of, _)| *of == cause).map(|(_, n)| n).sum()
    };
    assert!(by_cause(FlushCause::Memory) > 0);
    assert_eq!(
        by_cause(FlushCause::Full),
        0,
        "no family reached a limit of its own"
    );
    let count = |families: &[collie_db::Family]| -> usize {
        families.iter().map(|family| family.iter().unwrap().count()).sum()
    };
    assert_eq!(count(&families), 4 * 1_200);
    drop(families);
    db.close().unwrap();
    let db = common::open(dir.path(), &options);
    let families: Vec<_> = (0..FAMILIES)
        .map(|n| db.family(&format!("{n:03}")).unwrap())
        .collect();
    assert_eq!(count(&families), 4 * 1_200);
}

/// What is flushed does not count, although it is still in memory for its readers; nor does a large
/// commit.
#[test]
fn what_snapshots_and_large_commits_keep_does_not_stop_writes() {
    let dir = fast_dir();
    let options = Options {
        max_memtable_bytes: Some(1 << 20),
        ring_bytes: 256 << 10,
        ..small()
    };
    let db = common::open(dir.path(), &options);
    let family = db.default_family();
    let mut snapshots = Vec::new();
    for n in 0..3_000_u32 {
        family
            .put_with(n.to_be_bytes(), [7; 1_000], &WriteOptions::buffered())
            .unwrap();
        if n % 100 == 0 {
            snapshots.push(db.snapshot());
        }
    }
    let mut large = collie_db::Batch::new();
    large.put(&family, "large", vec![1; 3 << 20]).unwrap();
    db.write(large, &WriteOptions::buffered()).unwrap();
    assert!(db.stats().memtable_bytes < 1 << 20);
    family.put("k", "v").unwrap();
    for (n, snapshot) in snapshots.iter().enumerate() {
        assert_eq!(snapshot.iter(&family).unwrap().count(), n * 100 + 1);
    }
}
