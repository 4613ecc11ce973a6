//! Every operation on a new family's files fails in turn, once; the caller tries again, in the same
//! process or in the next, and writes. Then the power is cut: the store opens, the family is there,
//! and so is what was acknowledged. Likewise the directory of a store. It needs `/dev/fuse` and the
//! right to mount; where they are missing the test says so and passes, unless
//! `COLLIE_REQUIRE_TOOLS` is set.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where its assumptions do, prints its figures, and says what it skips"
)]

use std::path::Path;
use std::time::Duration;

use collie_db::{Db, Error, Family, FamilyOptions, Options, RingMode, WriteOptions};
use collie_io::{Device, RealDevice};
use collie_sim::faultfs::{self, FaultFs, Names};
use collie_sim::{Fault, FaultKind, PowerCut};

fn open(dir: &Path, what: &str) -> Db {
    let options = Options {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..Options::default()
    };
    Db::open(dir, options).unwrap_or_else(|error| panic!("{what}: it does not open: {error}"))
}

fn create(db: &Db) -> Result<Family, Error> {
    db.create_family("orders", FamilyOptions::default())
}

/// The id of `orders`, which is there, with its key.
fn check(dir: &Path, what: &str) -> u32 {
    let db = open(dir, what);
    let orders = db.family("orders");
    let value = orders.and_then(|orders| orders.get("k").unwrap());
    assert_eq!(
        value.as_deref(),
        Some(&b"v"[..]),
        "{what}: an acknowledged write is lost"
    );
    let id = db.stats().families["orders"].id;
    db.close().unwrap();
    id
}

/// The first `after` operations on the family's files pass, then this fault strikes. Whether it
/// did.
fn strike(fault: Fault, after: u64, in_the_next_process: bool, cut: PowerCut, what: &str) -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut fs = FaultFs::mount(at.path(), Names::Posix, after).unwrap();
    let dir = at.path().join("store");
    let mut db = open(&dir, what);
    fs.inject(fault.on("/families/").after(after)).unwrap();
    let created = create(&db);
    let struck = fs.fault_counts().values().sum::<u64>() > 0;
    fs.heal().unwrap();
    let orders = match created {
        Ok(orders) => orders,
        Err(_) => {
            if in_the_next_process {
                db.close().unwrap();
                db = open(&dir, what);
            }
            create(&db).unwrap_or_else(|error| panic!("{what}: it cannot be made: {error}"))
        }
    };
    orders.put_with("k", "v", &WriteOptions::disk()).unwrap();
    drop(orders);
    db.close().unwrap();
    fs.power_cycle(cut, after).unwrap();
    let id = check(&dir, what);
    let left = RealDevice::new().list(&dir.join("families")).unwrap();
    let left: Vec<_> = left.into_iter().map(|entry| entry.name).collect();
    assert_eq!(left, ["0".to_owned(), id.to_string()], "{what}");
    struck
}

/// As [`strike`], on any of the store's files, while a family with two keys is cleared: until that has
/// succeeded it has both or none.
fn strike_clear(fault: Fault, after: u64, in_the_next_process: bool, cut: PowerCut, what: &str) -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut fs = FaultFs::mount(at.path(), Names::Posix, after).unwrap();
    let dir = at.path().join("store");
    let mut db = open(&dir, what);
    let mut orders = create(&db).unwrap();
    orders.put_with("in a table", "", &WriteOptions::disk()).unwrap();
    orders.flush().unwrap();
    orders.put_with("in memory", "", &WriteOptions::disk()).unwrap();
    assert!(orders.wait_for_compact(Duration::from_secs(60)).unwrap());
    fs.inject(fault.after(after)).unwrap();
    let cleared = orders.clear();
    let struck = fs.fault_counts().values().sum::<u64>() > 0;
    fs.heal().unwrap();
    orders = match cleared {
        Ok(orders) => orders,
        Err(_) => {
            let in_doubt = db.put_with("other", "", &WriteOptions::disk()).is_err();
            if in_the_next_process || in_doubt {
                drop(orders);
                // Where it is in doubt, closing says so again.
                let closed = db.close();
                assert!(closed.is_ok() || in_doubt, "{what}: {closed:?}");
                db = open(&dir, what);
                orders = db.family("orders").unwrap();
                let found = orders.len().unwrap();
                assert!(found == 2 || found == 0 && in_doubt, "{what}: {found} keys");
            } else {
                assert_eq!(orders.len().unwrap(), 2, "{what}");
            }
            let cleared = orders.clear();
            cleared.unwrap_or_else(|error| panic!("{what}: it cannot be cleared: {error}"))
        }
    };
    orders.put_with("k", "v", &WriteOptions::disk()).unwrap();
    drop(orders);
    db.close().unwrap();
    fs.power_cycle(cut, after).unwrap();
    check(&dir, what);
    let db = open(&dir, what);
    assert_eq!(db.family("orders").unwrap().len().unwrap(), 1, "{what}");
    struck
}

/// As [`strike_clear`], while the options of a family are set.
fn strike_options(fault: Fault, after: u64, in_the_next_process: bool, cut: PowerCut, what: &str) -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut fs = FaultFs::mount(at.path(), Names::Posix, after).unwrap();
    let dir = at.path().join("store");
    let mut db = open(&dir, what);
    let mut orders = create(&db).unwrap();
    orders.put_with("k", "v", &WriteOptions::disk()).unwrap();
    let old = orders.options();
    let new = FamilyOptions {
        max_write_buffers: 7,
        ..old.clone()
    };
    fs.inject(fault.after(after)).unwrap();
    let set = orders.set_options(new.clone());
    let struck = fs.fault_counts().values().sum::<u64>() > 0;
    fs.heal().unwrap();
    if set.is_err() {
        assert_eq!(orders.options(), old, "{what}");
        let in_doubt = db.put_with("other", "", &WriteOptions::disk()).is_err();
        if in_the_next_process || in_doubt {
            drop(orders);
            let closed = db.close();
            assert!(closed.is_ok() || in_doubt, "{what}: {closed:?}");
            db = open(&dir, what);
            orders = db.family("orders").unwrap();
            let found = orders.options();
            assert!(found == old || found == new && in_doubt, "{what}: {found:?}");
        }
        let set = orders.set_options(new.clone());
        set.unwrap_or_else(|error| panic!("{what}: they cannot be set: {error}"));
    }
    drop(orders);
    db.close().unwrap();
    fs.power_cycle(cut, after).unwrap();
    check(&dir, what);
    let db = open(&dir, what);
    let orders = db.family("orders").unwrap();
    assert_eq!((orders.options(), orders.len().unwrap()), (new, 1), "{what}");
    struck
}

type Strike = fn(Fault, u64, bool, PowerCut, &str) -> bool;

/// At least so many of the operations are struck.
fn each(name: &str, strike: Strike, least: usize, fault: impl Fn() -> Fault) {
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return;
    }
    let mut struck = 0;
    for in_the_next_process in [false, true] {
        for after in 0.. {
            // What was not synced is lost, and one of the other ways.
            let ways = [0, 1 + after as usize % (PowerCut::WAYS.len() - 1)];
            let any = ways.map(|way| {
                let (how, cut) = PowerCut::WAYS[way];
                let what = format!("{name} after {after}, next process: {in_the_next_process}, {how}");
                strike(fault(), after, in_the_next_process, cut, &what)
            });
            if any == [false; 2] {
                break;
            }
            struck += 1;
        }
    }
    println!("figures: {struck} times {name}, nothing lost");
    assert!(struck >= least, "{struck} times");
}

#[test]
fn a_family_whose_creation_met_a_failed_sync_is_made_anew() {
    each("a failed sync", strike, 6, || {
        Fault::new(FaultKind::SyncFails).once()
    });
}

#[test]
fn a_family_whose_creation_failed_is_made_anew() {
    each("a failure", strike, 6, || Fault::new(FaultKind::AnyFails).once());
}

#[test]
fn a_family_is_cleared_wholly_or_not_at_all() {
    each("a failure of a clear", strike_clear, 6, || {
        Fault::new(FaultKind::AnyFails).once()
    });
    each("a failed sync of a clear", strike_clear, 6, || {
        Fault::new(FaultKind::SyncFails).once()
    });
}

/// The sync that fails is the one of the directory that is to hold the store.
#[test]
fn a_store_whose_own_name_met_a_failed_sync_is_made_anew() {
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return;
    }
    let (_, lost) = PowerCut::WAYS[0];
    // Whether the name is lost is the seed's choice.
    for seed in 0..8 {
        let at = tempfile::tempdir().unwrap();
        let mut fs = FaultFs::mount(at.path(), Names::Posix, seed).unwrap();
        let dir = at.path().join("store");
        fs.inject(Fault::new(FaultKind::SyncFails).once()).unwrap();
        let refused = Db::open(&dir, Options::default()).unwrap_err().to_string();
        assert!(refused.contains("cannot create"), "{refused}");
        let what = format!("seed {seed}");
        let db = open(&dir, &what);
        let family = db.default_family();
        family.put_with("k", "v", &WriteOptions::disk()).unwrap();
        drop(family);
        db.close().unwrap();
        fs.power_cycle(lost, seed).unwrap();
        assert!(dir.exists(), "{what}: the store is lost");
        let value = open(&dir, &what).default_family().get("k").unwrap();
        assert_eq!(value.as_deref(), Some(&b"v"[..]), "{what}");
    }
}

#[test]
fn options_are_set_wholly_or_not_at_all() {
    each("a failure while options are set", strike_options, 6, || {
        Fault::new(FaultKind::AnyFails).once()
    });
    each("a failed sync while options are set", strike_options, 4, || {
        Fault::new(FaultKind::SyncFails).once()
    });
}
