//! A store on a file system that is full, tables included: what is deleted makes room again, whatever
//! the disk's size.
//!
//! The file systems are mounted in a mount namespace, in which the test runs itself once more. Where
//! that is not possible the test says so and passes, unless `COLLIE_REQUIRE_TOOLS` is set.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what it skips, starts itself in a namespace, and stops at the first surprise"
)]

use crate::common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use collie_db::{Db, Durability, Error, Family, FamilyOptions, Options, Result, RingMode};
use collie_io::{Device, RealDevice};

const DISK: &str = "COLLIE_TEST_DISK";
/// Mounts a tmpfs of $2 bytes at $1, and runs the rest there.
const MOUNTED: &str = "mount -t tmpfs -o size=\"$2\" collie \"$1\" && shift 2 && exec \"$@\"";
/// So often a write is refused before the disk counts as full: each time the store may make room.
const REFUSALS: u32 = 100;
/// A cap on what has to come to an end.
const PATIENCE: u32 = 60_000;
const MIB: u64 = 1 << 20;

/// Runs `test`, the calling one, once more with a disk of each of these sizes.
fn on_disks(test: &str, sizes_mib: &[u64], work: impl Fn(&Path)) {
    if let Some(disk) = std::env::var_os(DISK) {
        return work(Path::new(&disk));
    }
    for mib in sizes_mib {
        let at = tempfile::tempdir().unwrap();
        let is_root = RealDevice::new().uid() == 0;
        let ran = Command::new("unshare")
            .arg(if is_root { "-m" } else { "-Urm" })
            .args(["sh", "-c", MOUNTED, "sh"])
            .arg(at.path())
            .arg((mib * MIB).to_string())
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(DISK, at.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        if !said.contains("running 1 test") && std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none() {
            println!("skipped: no disk can be mounted in a namespace: {said}");
            return;
        }
        assert!(ran.status.success(), "a disk of {mib} MiB: {said}");
    }
}

/// A store with the library's defaults.
fn options() -> Options {
    Options {
        ring: RingMode::Private,
        durability: Durability::Process,
        ..Options::default()
    }
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// Does work that a full disk may refuse, until it does not.
fn until_taken<T>(db: &Db, mut work: impl FnMut() -> Result<T>) {
    for _ in 0..PATIENCE {
        match work() {
            Ok(_) => return,
            Err(Error::StorageFull { .. }) => pause(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no room is made: {:#?}", db.stats());
}

/// Writes until the disk is full; returns how many keys there are.
fn fill(family: &Family, value: &[u8]) -> u64 {
    let (mut keys, mut refused) = (0, 0);
    while refused < REFUSALS {
        match family.put(key(keys), value) {
            Ok(_) => (keys, refused) = (keys + 1, 0),
            Err(Error::StorageFull { .. }) => {
                refused += 1;
                pause();
            }
            Err(error) => panic!("{error}"),
        }
    }
    keys
}

/// What was there fits again, but for a little, and the reserve is kept back.
fn assert_room_came_back(db: &Db, family: &Family, value: &[u8], keys: u64) {
    until_taken(db, || family.put(key(0), value));
    for n in 0..keys / 2 {
        until_taken(db, || family.put(key(n), value));
    }
    for _ in 0..PATIENCE {
        let stats = db.stats();
        if stats.reserve_complete && stats.no_room.is_none() {
            return;
        }
        pause();
    }
    panic!("{:?}", db.stats());
}

fn thorough<'a>(usual: &'a [u64], all: &'a [u64]) -> &'a [u64] {
    match std::env::var_os("COLLIE_THOROUGH") {
        Some(_) => all,
        None => usual,
    }
}

const USUAL: &[u64] = &[122, 160];
const ALL: &[u64] = &[122, 128, 160, 240, 400, 800];

#[test]
fn deleting_everything_on_a_full_disk_lets_writes_go_on() {
    let name = "full_disk::deleting_everything_on_a_full_disk_lets_writes_go_on";
    on_disks(name, thorough(USUAL, ALL), |disk| {
        for value in [200_000, 2_000] {
            let dir = tempfile::tempdir_in(disk).unwrap();
            let db = common::open(dir.path(), &options());
            let family = db.create_family("data", FamilyOptions::default()).unwrap();
            let value = vec![7; value];
            let keys = fill(&family, &value);
            assert!(keys * value.len() as u64 > 30 * MIB, "only {keys} keys fit");
            for n in 0..keys {
                until_taken(&db, || family.delete(key(n)));
            }
            assert_room_came_back(&db, &family, &value, keys);
            db.close().unwrap();
            let db = common::open(dir.path(), &options());
            let family = db.family("data").unwrap();
            assert_eq!(family.iter().unwrap().count() as u64, keys / 2);
            db.close().unwrap();
        }
    });
}

#[test]
fn dropping_a_family_on_a_full_disk_lets_writes_go_on() {
    let name = "full_disk::dropping_a_family_on_a_full_disk_lets_writes_go_on";
    on_disks(name, thorough(&USUAL[..1], ALL), |disk| {
        let dir = tempfile::tempdir_in(disk).unwrap();
        let db = common::open(dir.path(), &options());
        let value = vec![7; 200_000];
        let family = db.create_family("data", FamilyOptions::default()).unwrap();
        // It has something in memory, and holds the log.
        db.put("k", "v").unwrap();
        let keys = fill(&family, &value);
        // A flush may have all of the reserve's room just then.
        until_taken(&db, || db.drop_family(&family));
        drop(family);
        let family = db.create_family("again", FamilyOptions::default()).unwrap();
        assert_room_came_back(&db, &family, &value, keys);
        assert_eq!(db.get("k").unwrap().unwrap(), "v");
        db.close().unwrap();
    });
}

/// Nothing is known by then of what the tombstones hide.
#[test]
fn a_store_that_died_on_a_full_disk_makes_room_when_opened() {
    let name = "full_disk::a_store_that_died_on_a_full_disk_makes_room_when_opened";
    on_disks(name, thorough(&USUAL[..1], ALL), |disk| {
        let dir = tempfile::tempdir_in(disk).unwrap();
        let unflushed = Options {
            close_flush_bytes: 0,
            ..options()
        };
        let db = common::open(dir.path(), &unflushed);
        let value = vec![7; 200_000];
        let keys = fill(&db.default_family(), &value);
        for n in 0..keys {
            until_taken(&db, || db.delete(key(n)));
        }
        db.close().unwrap();
        let db = common::open(dir.path(), &unflushed);
        assert_room_came_back(&db, &db.default_family(), &value, keys);
        db.close().unwrap();
    });
}
