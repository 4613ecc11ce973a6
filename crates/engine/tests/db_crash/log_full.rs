//! A store whose log has a device of its own, and that is full: writes are refused, what pins the
//! log is flushed, and writes go on by themselves. Tables and manifest are on the real file system,
//! which has room.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests break files behind the store's back"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_db::{Db, Error, Family, FamilyOptions, Options};
use collie_io::RealDevice;
use collie_log::RingMode;
use collie_sim::{SimDevice, SplitDevice};

const WAL: &str = "/wal";

fn open(path: &Path, log: &SimDevice) -> Db {
    let device = SplitDevice::new(WAL, Arc::new(log.clone()), Arc::new(RealDevice::new()));
    let options = Options {
        device: Arc::new(device),
        wal_dir: Some(WAL.into()),
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 4,
        cache_bytes: 1 << 20,
        default_family: hot(),
        ..Options::default()
    };
    Db::open(path, options).unwrap()
}

/// Its memtables fill fast. Those of other families never do, and so many bytes of log are allowed.
fn hot() -> FamilyOptions {
    FamilyOptions {
        write_buffer_bytes: 16 << 10,
        ..FamilyOptions::default()
    }
}

/// Writes keys until one is refused; `n` counts what was acknowledged.
fn fill(family: &Family, n: &mut u32) -> Error {
    for _ in 0..20_000 {
        match family.put(n.to_be_bytes(), [7; 500]) {
            Ok(_) => *n += 1,
            Err(error) => return error,
        }
    }
    panic!("20,000 writes found room for {n} keys")
}

/// Tries to write until it is let in.
fn insist(family: &Family, n: &mut u32) {
    let mut refused = 0;
    while let Err(error) = family.put(n.to_be_bytes(), [7; 500]) {
        assert!(matches!(error, Error::StorageFull { .. }), "{error}");
        refused += 1;
        assert!(refused < 6_000, "refused for good: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    *n += 1;
}

fn assert_all_there(db: &Db, n: u32) {
    let found: Vec<_> = db.iter().unwrap().map(|entry| entry.unwrap().0).collect();
    assert_eq!(found.len() as u32, n);
    assert!((0..n).zip(&found).all(|(n, key)| key.as_ref() == n.to_be_bytes()));
    let cold = db.family("cold").unwrap();
    assert_eq!(cold.get("k").unwrap().unwrap(), "v");
}

/// The store, its cold family's tables, and how many keys it took until the log was full.
fn filled(path: &Path, log: &SimDevice) -> (Db, PathBuf, u32) {
    let db = open(path, log);
    let cold = db.create_family("cold", FamilyOptions::default()).unwrap();
    cold.put("k", "v").unwrap();
    log.limit_space(Some(300_000));
    let mut n = 0;
    let full = fill(&db.default_family(), &mut n);
    assert!(matches!(full, Error::StorageFull { .. }), "{full}");
    assert!(full.to_string().contains(WAL), "{full}");
    (db, path.join(format!("families/{}/tables", cold.id())), n)
}

/// A cold family pins the log. Its memtable can only be sealed at a mark, and marks were refused
/// with the rest.
#[test]
fn a_full_log_is_let_go_of_and_writes_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = SimDevice::new(1);
    let (db, _, mut n) = filled(dir.path(), &log);
    let before = n;
    while n < 4 * before {
        insist(&db.default_family(), &mut n);
    }
    let flushes = &db.stats().families["cold"].flushes;
    assert!(flushes.iter().any(|(_, count)| *count > 0), "{flushes:?}");
    assert_all_there(&db, n);
    let died = log.snapshot().process_death().device();
    log.kill();
    drop(db);
    assert_all_there(&open(dir.path(), &died), n);
}

/// As above, while the cold family cannot flush at first.
#[test]
fn a_full_log_is_released_when_the_family_that_pins_it_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let log = SimDevice::new(2);
    let (db, tables, mut n) = filled(dir.path(), &log);
    let aside = dir.path().join("aside");
    std::fs::rename(&tables, &aside).unwrap();
    for _ in 0..300 {
        let refused = fill(&db.default_family(), &mut n);
        assert!(matches!(refused, Error::StorageFull { .. }), "{refused}");
    }
    let tried = (0..100_000).any(|_| {
        fill(&db.default_family(), &mut n);
        std::thread::sleep(Duration::from_millis(1));
        db.stats().families["cold"].flush_failures > 0
    });
    assert!(tried, "the family that pins the log was not flushed");
    std::fs::rename(&aside, &tables).unwrap();
    let before = n;
    while n < 2 * before {
        insist(&db.default_family(), &mut n);
    }
    assert_all_there(&db, n);
    db.close().unwrap();
    assert_all_there(&open(dir.path(), &log), n);
}

#[test]
fn flushing_lets_go_of_a_full_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = SimDevice::new(3);
    let (db, _, mut n) = filled(dir.path(), &log);
    db.flush().unwrap();
    insist(&db.default_family(), &mut n);
    assert_all_there(&db, n);
}
