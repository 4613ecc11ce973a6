//! Every operation on the tables' files fails in turn, once and for good: every error says what was
//! tried, on which path, and what the system answered, and what was acknowledged is there when the
//! store is opened again on a disk that works, after a death of the process and after a power cut.
//! It needs `/dev/fuse` and the right to mount; where they are missing the test says so and passes,
//! unless `COLLIE_REQUIRE_TOOLS` is set.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where its assumptions do, prints its figures, and says what it skips"
)]

use std::cmp::Ordering;
use std::path::Path;

use collie_db::{Db, Error, FamilyOptions, Options, RingMode, WriteOptions};
use collie_sim::faultfs::{self, FaultFs, Names};
use collie_sim::{Fault, FaultKind, PowerCut};

const KEYS: u64 = 90;
const ROUNDS: u64 = 6;
/// Each operation of the first ones, and then every so many: by default, and in the long form all.
const EACH: u64 = 24;
const STEP: u64 = 11;

fn options() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: 1 << 20,
        segment_bytes: 128 << 10,
        default_family: FamilyOptions {
            level0_compaction: 2,
            table_bytes: 16 << 10,
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

fn value(n: u64) -> Vec<u8> {
    format!("{n} {}", "·".repeat(100)).into_bytes()
}

/// Writes, flushes and merges. Returns how many keys were acknowledged; `reported` gets every
/// error.
fn work(dir: &Path, mut reported: impl FnMut(&Error)) -> u64 {
    let mut acknowledged = 0;
    let db = match Db::open(dir, options()) {
        Ok(db) => db,
        Err(error) => {
            reported(&error);
            return acknowledged;
        }
    };
    let family = db.default_family();
    for round in 0..ROUNDS {
        for n in round * KEYS..(round + 1) * KEYS {
            if let Err(error) = family.put_with(n.to_be_bytes(), value(n), &WriteOptions::disk()) {
                reported(&error);
                return acknowledged;
            }
            acknowledged += 1;
        }
        // After a failure the store tries again or refuses writes; the next calls report either.
        family.flush().unwrap_or_else(|error| reported(&error));
        if round % 3 == 2 {
            family.compact().unwrap_or_else(|error| reported(&error));
        }
    }
    db.close().unwrap_or_else(|error| reported(&error));
    acknowledged
}

/// The error says what was tried, on which path, and what the system answered.
fn assert_says_where(error: &Error, dir: &Path, what: &str) {
    let text = error.to_string();
    // A full device refuses further puts for what it has to keep back.
    let kept_back = text.contains(&*dir.join("RESERVE").to_string_lossy()) && text.contains("kept back");
    let place = dir.join("families");
    let answered = ["os error 5", "os error 28", "no space left", "Input/output error"];
    assert!(
        kept_back || text.contains(&*place.to_string_lossy()) && text.contains("cannot "),
        "{what}: {text:?} does not say what was tried on which path in {}",
        place.display()
    );
    assert!(
        answered.iter().any(|answer| text.contains(answer)),
        "{what}: {text:?} does not say what the system answered"
    );
}

/// Every key that was acknowledged is there, of the others at most the one that was under way.
fn check(dir: &Path, acknowledged: u64, what: &str) {
    let db = Db::open(dir, options()).unwrap_or_else(|e| panic!("{what}: it does not open: {e}"));
    let family = db.default_family();
    for n in 0..ROUNDS * KEYS {
        let found = family
            .get(n.to_be_bytes())
            .unwrap_or_else(|e| panic!("{what}: key {n}: {e}"));
        let is_there = found.as_deref() == Some(value(n).as_slice());
        let as_it_should_be = match n.cmp(&acknowledged) {
            Ordering::Less => is_there,
            Ordering::Equal => is_there || found.is_none(),
            Ordering::Greater => found.is_none(),
        };
        assert!(
            as_it_should_be,
            "{what}: {acknowledged} keys were acknowledged; of key {n} there is {:?}, it is lost, wrong or back",
            found.map(|bytes| bytes.len())
        );
    }
    db.close().unwrap();
}

/// The first `after` operations on the tables' files pass, then this fault strikes. Whether it did.
fn strike(fault: Fault, after: u64, what: &str) -> bool {
    let at = tempfile::tempdir().unwrap();
    let mut fs = FaultFs::mount(at.path(), Names::Posix, after).unwrap();
    let dir = at.path().join("store");
    fs.inject(fault.on("/families/").after(after)).unwrap();
    let acknowledged = work(&dir, |error| assert_says_where(error, &dir, what));
    let struck = fs.fault_counts().values().sum::<u64>() > 0;
    fs.heal().unwrap();
    check(&dir, acknowledged, what);
    let (_, way) = PowerCut::WAYS[after as usize % PowerCut::WAYS.len()];
    fs.power_cycle(way, after).unwrap();
    check(&dir, acknowledged, &format!("{what}, then a power cut"));
    struck
}

fn each(name: &str, fault: impl Fn() -> Fault) {
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return;
    }
    let all = std::env::var_os("COLLIE_EACH_OPERATION").is_some();
    let (mut after, mut struck) = (0, 0);
    while strike(fault(), after, &format!("{name} after {after}")) {
        struck += 1;
        after += if all || after < EACH { 1 } else { STEP };
    }
    println!("figures: {struck} times {name} in the tables' files, nothing lost");
    assert!(struck > 20, "{struck} times");
}

#[test]
fn nothing_is_lost_when_an_operation_on_tables_fails_once() {
    each("a failure", || Fault::new(FaultKind::AnyFails).once());
}

#[test]
fn nothing_is_lost_when_tables_fail_for_good() {
    each("failures for good", || Fault::new(FaultKind::AnyFails));
}

#[test]
fn nothing_is_lost_when_a_sync_of_tables_fails() {
    each("a failed sync", || Fault::new(FaultKind::SyncFails).once());
}

#[test]
fn nothing_is_lost_when_tables_have_no_room() {
    each("a full disk", || Fault::new(FaultKind::NoSpace).times(3));
}
