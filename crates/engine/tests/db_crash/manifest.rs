//! Crash images of a store's manifest and log: families are created, written and dropped, the
//! device dies at every operation in turn, the error says where and what, and the next process
//! finds what was acknowledged.
//!
//! The table files belong to the table library, which opens them by itself: they stay on the real
//! file system, below the same path, and lose nothing. The store's own files are on the simulated
//! device.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]
#![expect(clippy::print_stdout, reason = "a test prints its figures")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use collie_db::{Db, Error, FamilyOptions, Options};
use collie_io::RealDevice;
use collie_log::RingMode;
use collie_sim::{Fault, FaultKind, Points, PowerCut, Rng, SimDevice, Snapshot, SplitDevice, VOLATILE_DIR};

fn options(path: &Path, sim: &SimDevice, shared: bool) -> Options {
    let tables = path.join("families");
    let device = SplitDevice::new(tables, Arc::new(RealDevice::new()), Arc::new(sim.clone()));
    Options {
        device: Arc::new(device),
        ring: match shared {
            true => RingMode::Shared {
                dir: VOLATILE_DIR.into(),
            },
            false => RingMode::Private,
        },
        // Half of the stores have their log elsewhere, where an opening that was cut off leaves it.
        wal_dir: shared.then(|| "/wal".into()),
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 4,
        cache_bytes: 1 << 20,
        ..Options::default()
    }
}

/// What is known of something after a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known<T> {
    Is(T),
    /// The call that was to change it did not come back with success.
    OneOf(T, T),
}

impl<T: PartialEq + Clone> Known<T> {
    fn allows(&self, found: &T) -> bool {
        match self {
            Self::Is(value) => value == found,
            Self::OneOf(old, new) => old == found || new == found,
        }
    }
}

type Content = BTreeMap<String, Known<Option<u64>>>;

/// The families, each with whether it exists, and its keys.
#[derive(Debug, Default)]
struct Model {
    exists: BTreeMap<String, Known<bool>>,
    content: BTreeMap<String, Content>,
}

const NAMES: [&str; 3] = ["orders", "items", "customers"];

/// Runs random steps until one fails; the model keeps what was acknowledged and what is in doubt.
fn work(db: &Db, model: &mut Model, rng: &mut Rng, steps: usize) -> Result<(), Error> {
    for step in 0..steps as u64 {
        let name = NAMES[rng.index(NAMES.len())];
        let family = db.family(name);
        match (rng.below(10), family) {
            (0..7, Some(family)) => {
                let key = format!("k{}", rng.below(4));
                let content = model.content.entry(name.to_owned()).or_default();
                let old = match content.get(&key) {
                    Some(Known::Is(value)) => *value,
                    _ => None,
                };
                content.insert(key.clone(), Known::OneOf(old, Some(step)));
                family.put(&key, step.to_le_bytes())?;
                content.insert(key, Known::Is(Some(step)));
            }
            (7, Some(family)) => family.flush()?,
            (_, Some(family)) => {
                model.exists.insert(name.to_owned(), Known::OneOf(true, false));
                db.drop_family(&family)?;
                model.exists.insert(name.to_owned(), Known::Is(false));
                model.content.remove(name);
            }
            (_, None) => {
                model.exists.insert(name.to_owned(), Known::OneOf(false, true));
                model.content.remove(name);
                db.create_family(name, FamilyOptions::default())?;
                model.exists.insert(name.to_owned(), Known::Is(true));
            }
        }
    }
    Ok(())
}

/// The error, whichever of the store's own files it is about, says what was tried, on which path,
/// and what the device answered.
fn assert_says_where(error: &Error, path: &Path, context: &str) {
    let text = error.to_string();
    let store = path.to_string_lossy();
    let is_placed = [&*store, "/wal", VOLATILE_DIR, "boot id"]
        .iter()
        .any(|place| text.contains(place));
    assert!(is_placed, "{context}: {text:?} does not say where");
    assert!(
        text.contains("cannot "),
        "{context}: {text:?} does not say what was tried"
    );
    assert!(
        text.contains("os error 5"),
        "{context}: {text:?} does not say what the device answered"
    );
}

/// Compares a store with what is known of it.
fn judge(db: &Db, model: &Model, context: &str) {
    for (name, known) in &model.exists {
        let family = db.family(name);
        assert!(
            known.allows(&family.is_some()),
            "{context}: family {name}: {known:?}"
        );
        let Some(family) = family else { continue };
        let content = model.content.get(name).cloned().unwrap_or_default();
        let found: BTreeMap<String, u64> = family
            .iter()
            .unwrap()
            .map(|entry| {
                let (key, value) = entry.unwrap();
                let value = value.as_ref().try_into().map(u64::from_le_bytes).unwrap();
                (String::from_utf8(key.to_vec()).unwrap(), value)
            })
            .collect();
        for key in found.keys() {
            assert!(content.contains_key(key), "{context}: {name}/{key} is a ghost");
        }
        for (key, known) in content {
            let value = found.get(&key).copied();
            assert!(
                known.allows(&value),
                "{context}: {name}/{key} is {value:?}, {known:?}"
            );
        }
    }
}

/// A device whose operation `n` from now on fails, or that and all that follow.
fn fail(sim: &SimDevice, n: u64, lasting: bool) {
    let fault = Fault::new(FaultKind::AnyFails).after(n);
    sim.inject(if lasting { fault } else { fault.once() });
}

/// One run that ends at device operation `n` after the store was opened; `false` where it ended
/// before.
fn run(seed: u64, n: u64, lasting: bool, crash: usize) -> bool {
    let context = format!("COLLIE_SEED={seed}, operation {n}, lasting: {lasting}, crash {crash}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut rng = Rng::new(seed);
    let shared = rng.coin();
    let sim = SimDevice::new(seed);
    let mut model = Model::default();
    let db = Db::open(&path, options(&path, &sim, shared)).unwrap_or_else(|e| panic!("{context}: {e}"));
    fail(&sim, n, lasting);
    let result = work(&db, &mut model, &mut rng, 12);
    let struck = sim.fired(FaultKind::AnyFails) > 0;
    assert!(
        struck || result.is_ok(),
        "{context}: failed without a fault: {result:?}"
    );
    if let Err(error) = &result {
        assert_says_where(error, &path, &context);
    }
    let snapshot = sim.snapshot();
    sim.kill();
    drop(db);
    let next = crashed(&snapshot, crash, seed ^ n);
    assert_whole(&path, &next, shared, &model, &context);
    struck
}

fn crashed(snapshot: &Snapshot, crash: usize, seed: u64) -> SimDevice {
    let image = match crash.checked_sub(1) {
        None => snapshot.process_death(),
        Some(way) => snapshot.power_cut(PowerCut::WAYS[way].1, seed),
    };
    image.device()
}

/// Opens a store on a healthy device, compares it with the model, and goes on with it.
fn assert_whole(path: &Path, device: &SimDevice, shared: bool, model: &Model, context: &str) {
    let open = || Db::open(path, options(path, device, shared)).unwrap_or_else(|e| panic!("{context}: {e}"));
    let db = open();
    judge(&db, model, context);
    // The store is whole: every family can be made and written, and all of it is found again.
    for name in NAMES {
        let family = match db.family(name) {
            Some(family) => family,
            None => db.create_family(name, FamilyOptions::default()).unwrap(),
        };
        family.put("last", 77_u64.to_le_bytes()).unwrap();
    }
    db.close().unwrap();
    let db = open();
    for name in NAMES {
        let value = db.family(name).unwrap().get("last").unwrap().unwrap();
        assert_eq!(value.as_ref(), 77_u64.to_le_bytes(), "{context}: {name}");
    }
}

/// A store with content is left by a crash, and the next opening ends at device operation `n`;
/// `false` where it ended before.
fn open_and_die(seed: u64, n: u64, lasting: bool, crash: usize) -> bool {
    let context =
        format!("COLLIE_SEED={seed}, opening fails at operation {n}, lasting: {lasting}, crash {crash}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut rng = Rng::new(seed);
    let shared = rng.coin();
    let sim = SimDevice::new(seed);
    let mut model = Model::default();
    if seed > 0 {
        let db = Db::open(&path, options(&path, &sim, shared)).unwrap();
        work(&db, &mut model, &mut rng, 12).unwrap();
        drop(db);
    }
    let left = sim.snapshot().process_death().device();
    fail(&left, n, lasting);
    let opened = Db::open(&path, options(&path, &left, shared));
    let struck = left.fired(FaultKind::AnyFails) > 0;
    assert!(struck || opened.is_ok(), "{context}: failed without a fault");
    if let Err(error) = &opened {
        assert_says_where(error, &path, &context);
    }
    let snapshot = left.snapshot();
    left.kill();
    drop(opened);
    let next = crashed(&snapshot, crash, seed ^ n);
    assert_whole(&path, &next, shared, &model, &context);
    struck
}

fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let seed: Option<u64> = std::env::var("COLLIE_SEED").ok().and_then(|s| s.parse().ok());
    seed.map_or(default, |seed| seed..seed + 1)
}

/// All operations in turn, for good and of one seed once, too, and all crashes in turn.
fn every_operation(seeds: std::ops::Range<u64>, run: fn(u64, u64, bool, usize) -> bool) {
    let mut runs = 0;
    let ways = PowerCut::WAYS.len() as u64 + 1;
    for seed in seeds {
        for lasting in [true, false] {
            if !lasting && seed != 1 {
                continue;
            }
            runs += (0..)
                .take_while(|&n| run(seed, n, lasting, usize::try_from((seed + n) % ways).unwrap()))
                .count();
        }
    }
    println!("figures: {runs} stores died");
    assert!(runs > 50, "{runs} runs");
}

#[test]
fn opening_a_store_dies_anywhere_and_loses_nothing() {
    every_operation(seeds(0..3), open_and_die);
}

#[test]
fn what_was_acknowledged_is_there_wherever_the_device_dies() {
    every_operation(seeds(0..3), run);
}

/// A drop fails at each operation in turn, once. The new manifest may be in force then; writes that
/// the family took all the same were gone with it after a crash.
#[test]
fn a_family_whose_drop_failed_takes_no_write_a_crash_could_lose() {
    // A drop appends a change to the manifest or, as the first change after an opening, replaces
    // all of it.
    for reopened in [false, true] {
        for code in [EIO, ENOSPC] {
            let died = (0..).take_while(|&n| drop_and_die(n, reopened, code)).count();
            assert!(died > if reopened { 3 } else { 1 }, "{died}");
        }
    }
}

const EIO: i32 = 5;
/// Also the answer of a sync, where room is found only then.
const ENOSPC: i32 = 28;

/// A drop that fails at device operation `n`; `false` where it ended before.
fn drop_and_die(n: u64, reopened: bool, code: i32) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let sim = SimDevice::new(n);
    let mut db = Db::open(&path, options(&path, &sim, false)).unwrap();
    db.create_family("orders", FamilyOptions::default()).unwrap();
    if reopened {
        db.close().unwrap();
        db = Db::open(&path, options(&path, &sim, false)).unwrap();
    }
    let family = db.family("orders").unwrap();
    family.put("before", "v").unwrap();
    sim.inject(Fault::new(FaultKind::AnyFails).after(n).once().code(code));
    let dropped = db.drop_family(&family);
    if sim.fired(FaultKind::AnyFails) == 0 {
        dropped.unwrap();
        return false;
    }
    if code == EIO
        && let Err(error) = &dropped
    {
        assert_says_where(error, &path, &format!("operation {n} of a drop"));
    }
    let taken = family.put("after", "v");
    let snapshot = sim.snapshot();
    sim.kill();
    drop((family, db));
    let next = crashed(&snapshot, 0, n);
    let db = Db::open(&path, options(&path, &next, false)).unwrap();
    let found = db.family("orders").map(|family| family.get("after").unwrap());
    assert!(
        dropped.is_ok() || taken.is_err() || matches!(found, Some(Some(_))),
        "operation {n}, error {code}: {dropped:?}, {taken:?}, {found:?}"
    );
    true
}

/// A process is killed at every operation of creating a family; the next one finds the family in
/// the page cache, and acknowledges a commit to it. Then the power is cut.
#[test]
fn what_a_killed_process_left_is_durable_before_it_is_relied_on() {
    let mut found = 0;
    for shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let sim = SimDevice::new(1);
        let db = Db::open(&path, options(&path, &sim, shared)).unwrap();
        sim.record(Points::Changes, 1_000);
        drop(db.create_family("orders", FamilyOptions::default()).unwrap());
        let moments = sim.take_snapshots();
        sim.kill();
        drop(db);
        // The latest first: an opening removes the tables of families that it does not find.
        for moment in moments.iter().rev() {
            let sim = moment.process_death().device();
            let db = Db::open(&path, options(&path, &sim, shared)).unwrap();
            let Some(family) = db.family("orders") else {
                continue;
            };
            found += 1;
            family.put("k", "v").unwrap();
            let after = sim.snapshot();
            sim.kill();
            drop((db, family));
            for (way, cut) in PowerCut::WAYS {
                let context = format!("killed at {:?}, then a power cut ({way})", moment.at());
                let sim = after.power_cut(cut, 1).device();
                let db = Db::open(&path, options(&path, &sim, shared))
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                let family = db.family("orders");
                let value = family.and_then(|family| family.get("k").unwrap());
                assert_eq!(value.as_deref(), Some(&b"v"[..]), "{context}");
            }
        }
    }
    assert!(
        found > 2,
        "found {found} times: no process was killed before the family was durable"
    );
}
