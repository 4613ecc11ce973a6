//! What is read once the log has failed: nothing that opening the store again could take back.
//!
//! The log and the manifest are on a simulated device, the tables on a real one. `COLLIE_RUNS` sets
//! how many histories, `COLLIE_SEED` one seed alone.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use collie_db::{
    Batch, Concurrency, Db, Durability, Error, Family, Iter, Options, ReadOptions, RingMode, Snapshot,
    TransactionOptions, WriteOptions,
};
use collie_io::RealDevice;
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice, SplitDevice, VOLATILE_DIR};
use common::Rng;

fn options(path: &Path, device: &SimDevice, shared: bool) -> Options {
    let ring = match shared {
        true => RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
        false => RingMode::Private,
    };
    Options {
        device: Arc::new(SplitDevice::new(
            path.join("families"),
            Arc::new(RealDevice::new()),
            Arc::new(device.clone()),
        )),
        ring,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..common::small()
    }
}

fn text(value: Option<collie_db::Value>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn is_in_doubt<T: std::fmt::Debug>(read: Result<T, Error>, key: Option<&str>) {
    match read {
        Err(Error::InDoubt {
            family,
            key: named,
            cause,
        }) => {
            assert_eq!(family, "default");
            assert_eq!(named.as_deref(), key.map(str::as_bytes));
            assert!(!cause.is_empty());
        }
        other => panic!("{other:?} of {key:?}, which is in doubt"),
    }
}

/// What an iterator gives before it fails, and whether it does.
fn until_error(
    items: impl Iterator<Item = collie_db::Result<(collie_db::Key, collie_db::Value)>>,
) -> (Vec<String>, bool) {
    let (mut found, mut failed) = (Vec::new(), false);
    for item in items {
        assert!(!failed, "it goes on after an error");
        match item {
            Ok((key, _)) => found.push(String::from_utf8(key.to_vec()).unwrap()),
            Err(error) => {
                assert!(matches!(error, Error::InDoubt { .. }), "{error}");
                failed = true;
            }
        }
    }
    (found, failed)
}

/// A store whose log failed. `a` and `e` are certain, and that `d` is absent; of `b` a second
/// value, of `c` the first one, and of `f` the removal are in doubt. The snapshot is from before
/// the failure.
fn failed_store(path: &Path, device: &SimDevice, shared: bool) -> (Db, Snapshot) {
    device.support_direct(false);
    let db = common::open(path, &options(path, device, shared));
    for key in ["a", "b", "e", "f"] {
        db.put(key, "certain").unwrap();
    }
    let family = db.default_family();
    let syncs = device.hold_syncs();
    family
        .put_with("b", "in doubt", &WriteOptions::buffered())
        .unwrap();
    family
        .put_with("c", "in doubt", &WriteOptions::process())
        .unwrap();
    let end = family.delete_with("f", &WriteOptions::buffered()).unwrap();
    let before = db.snapshot();
    assert_eq!(text(db.get("b").unwrap()).as_deref(), Some("in doubt"));
    device.inject(Fault::new(FaultKind::SyncFails).on("/log/"));
    drop(syncs);
    let failed = db.wait(end, Durability::Disk);
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
    (db, before)
}

#[test]
fn keys_in_doubt_are_refused_and_all_others_are_read() {
    for shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let device = SimDevice::new(1);
        let (db, before) = failed_store(&dir.path().join("store"), &device, shared);
        let family = db.default_family();
        let durable = ReadOptions { durable: true };
        let after = db.snapshot();
        for key in ["b", "c", "f"] {
            is_in_doubt(db.get(key), Some(key));
            is_in_doubt(family.contains(key), Some(key));
            is_in_doubt(family.get_with(key, &durable), Some(key));
            is_in_doubt(after.get(&family, key), Some(key));
        }
        for (key, value) in [("a", Some("certain")), ("d", None), ("e", Some("certain"))] {
            assert_eq!(text(db.get(key).unwrap()).as_deref(), value);
            let read = family.get_with(key, &durable).unwrap();
            assert_eq!(text(read.value).as_deref(), value);
            assert_eq!(text(after.get(&family, key).unwrap()).as_deref(), value);
            assert!(read.seen <= db.durable());
        }
        // In the place of the first key in doubt, from either end.
        let iters: [&dyn Fn() -> Iter; 2] = [&|| family.iter().unwrap(), &|| after.iter(&family).unwrap()];
        for iter in iters {
            assert_eq!(until_error(iter()), (vec!["a".into()], true));
            assert_eq!(until_error(iter().rev()), (vec![], true));
        }
        assert_eq!(
            until_error(family.range("d"..="e").unwrap()),
            (vec!["e".into()], false)
        );
        assert_eq!(until_error(family.prefix("c").unwrap()), (vec![], true));
        is_in_doubt(family.check_certain(), None);
        // What was taken before shows what it showed, and says that it may not last.
        let seen = before.get_with(&family, "b").unwrap();
        assert_eq!(text(seen.value).as_deref(), Some("in doubt"));
        assert!(seen.seen > db.durable());
        assert!(db.wait(seen.seen, Durability::Process).is_err());
        assert_eq!(before.iter(&family).unwrap().count(), 4);
        let refused = db.put("a", "again");
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
        assert!(db.flush().is_err());
        assert_eq!(
            db.stats().families["default"].tables,
            0,
            "a table is ahead of the log"
        );
    }
}

#[test]
fn transactions_refuse_what_is_in_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(2);
    let (db, _) = failed_store(&dir.path().join("store"), &device, false);
    let family = db.default_family();
    let kinds = [
        TransactionOptions::default(),
        TransactionOptions::serializable(),
        TransactionOptions {
            concurrency: Concurrency::Optimistic,
            ..TransactionOptions::default()
        },
        TransactionOptions {
            concurrency: Concurrency::Optimistic,
            ..TransactionOptions::serializable()
        },
    ];
    for kind in kinds {
        let reader = db.transaction(kind.clone()).unwrap();
        for key in ["b", "c", "f"] {
            is_in_doubt(reader.get(&family, key), Some(key));
            is_in_doubt(reader.get_for_update(&family, key), Some(key));
        }
        assert_eq!(
            text(reader.get(&family, "a").unwrap()).as_deref(),
            Some("certain")
        );
        assert_eq!(text(reader.get_for_update(&family, "d").unwrap()), None);
        assert_eq!(
            until_error(reader.iter(&family).unwrap()),
            (vec!["a".into()], true)
        );
        assert_eq!(
            until_error(reader.range(&family, "d".."f").unwrap()),
            (vec!["e".into()], false)
        );
        reader.commit().unwrap();
        let writer = db.transaction(kind).unwrap();
        writer.put(&family, "g", "1").unwrap();
        // Its own writes are no answer about what is stored, and none of them follows an error.
        assert_eq!(
            until_error(writer.iter(&family).unwrap()),
            (vec!["a".into()], true)
        );
        let refused = writer.commit();
        // One that has to look again at the range that it read is refused for that.
        assert!(
            matches!(refused, Err(Error::Poisoned { .. } | Error::InDoubt { .. })),
            "{refused:?}"
        );
        assert_eq!(text(db.get("g").unwrap()), None);
    }
}

/// Which keys there are.
const KEYS: u64 = 24;

fn key(number: u64) -> String {
    format!("key {number:02}")
}

/// Writes until something fails or enough was written.
fn write(families: &[Family; 2], value: &str, rng: &mut Rng) {
    for n in 0..rng.below(60) {
        let options = WriteOptions {
            durability: [Durability::Buffered, Durability::Process, Durability::Disk][rng.below(3) as usize],
            ..WriteOptions::default()
        };
        let mut batch = Batch::new();
        for _ in 0..1 + rng.below(3) {
            let family = &families[rng.below(2) as usize];
            let key = key(rng.below(KEYS));
            if rng.one_in(4) {
                batch.delete(family, key).unwrap();
            } else {
                batch
                    .put(
                        family,
                        key,
                        format!("{value}/{n}{}", ".".repeat(rng.below(300) as usize)),
                    )
                    .unwrap();
            }
        }
        if families[0].db().write(batch, &options).is_err() {
            return;
        }
    }
}

/// Answers for a key: the kind of read, and the value or its absence.
type Report = Vec<(&'static str, Option<String>)>;

/// What a store answered about the keys of a family: a value, or that there is none.
#[derive(Default)]
struct Answers {
    reported: BTreeMap<(usize, String), Report>,
    refused: BTreeMap<(usize, String), ()>,
}

impl Answers {
    fn note(
        &mut self,
        how: &'static str,
        at: (usize, String),
        read: collie_db::Result<Option<collie_db::Value>>,
    ) {
        match read {
            Ok(value) => self.reported.entry(at).or_default().push((how, text(value))),
            Err(Error::InDoubt { .. }) => drop(self.refused.insert(at, ())),
            Err(other) => panic!("{other}"),
        }
    }

    /// The answers of a scan, from its start up to its end or an error: the keys that it skips are
    /// absent.
    fn note_scan(
        &mut self,
        how: &'static str,
        family: usize,
        mut keys: Vec<String>,
        items: impl Iterator<Item = collie_db::Result<(collie_db::Key, collie_db::Value)>>,
    ) {
        for item in items {
            let Ok((found, value)) = item else { return };
            let found = String::from_utf8(found.to_vec()).unwrap();
            let passed = keys.iter().position(|key| *key == found).unwrap();
            for key in keys.drain(..=passed) {
                let value = (key == found).then(|| value.clone());
                self.note(how, (family, key), Ok(value));
            }
        }
        for key in keys {
            self.note(how, (family, key), Ok(None));
        }
    }
}

/// Reads everything in every way.
fn ask(families: &[Family; 2], rng: &mut Rng) -> Answers {
    let mut answers = Answers::default();
    let db = families[0].db();
    let snapshot = db.snapshot();
    for (number, family) in families.iter().enumerate() {
        let all: Vec<String> = (0..KEYS).map(key).collect();
        let isolation = match rng.one_in(2) {
            true => TransactionOptions::serializable(),
            false => TransactionOptions::default(),
        };
        let concurrency = match rng.one_in(2) {
            true => Concurrency::Optimistic,
            false => Concurrency::Pessimistic,
        };
        let transaction = db
            .transaction(TransactionOptions {
                concurrency,
                ..isolation
            })
            .unwrap();
        for key in &all {
            let at = || (number, key.clone());
            answers.note("get", at(), family.get(key));
            let durable = ReadOptions { durable: true };
            answers.note(
                "durable",
                at(),
                family.get_with(key, &durable).map(|read| read.value),
            );
            answers.note("snapshot", at(), snapshot.get(family, key));
            answers.note("transaction", at(), transaction.get(family, key));
            answers.note("for update", at(), transaction.get_for_update(family, key));
            let single = family.range(key.as_str()..=key.as_str()).unwrap();
            answers.note_scan("one", number, vec![key.clone()], single);
        }
        let down: Vec<String> = all.iter().rev().cloned().collect();
        answers.note_scan("scan", number, all.clone(), family.iter().unwrap());
        answers.note_scan("scan down", number, down.clone(), family.iter().unwrap().rev());
        answers.note_scan(
            "snapshot scan",
            number,
            all.clone(),
            snapshot.iter(family).unwrap(),
        );
        answers.note_scan(
            "scan in a transaction",
            number,
            down,
            transaction.iter(family).unwrap().rev(),
        );
        let is_certain = family.check_certain().is_ok();
        let has_refused = all
            .iter()
            .any(|key| answers.refused.contains_key(&(number, key.clone())));
        assert_ne!(is_certain, has_refused, "whether all of a family is certain");
    }
    answers
}

/// What all histories came to.
#[derive(Debug, Default)]
struct Figures {
    failed: u64,
    answered: usize,
    refused: usize,
    /// Keys in doubt that were found with another value than before the writes that failed, and
    /// with the same.
    changed: usize,
    unchanged: usize,
}

fn history(seed: u64, figures: &mut Figures) {
    let mut rng = Rng::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(rng.next());
    let direct = rng.one_in(2);
    device.support_direct(direct);
    let shared = rng.one_in(2);
    let mut options = options(&path, &device, shared);
    // In one history of two memtables are flushed.
    options.default_family.write_buffer_bytes = if rng.one_in(2) { 4 << 10 } else { 1 << 20 };
    let small = options.default_family.clone();
    let db = common::open(&path, &options);
    let second = db.create_family("second", small).unwrap();
    let families = [db.default_family(), second];
    write(&families, "first", &mut rng);
    let mut before: BTreeMap<(usize, String), Option<String>> = BTreeMap::new();
    for (number, family) in families.iter().enumerate() {
        let values = (0..KEYS).map(|n| ((number, key(n)), text(family.get(key(n)).unwrap())));
        before.extend(values);
    }
    let kind = match direct {
        true => FaultKind::WriteFails,
        false => [FaultKind::WriteFails, FaultKind::SyncFails][rng.below(2) as usize],
    };
    device.inject(Fault::new(kind).on("/log/").after(rng.below(8)));
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let mut rng = Rng::new(rng.next());
            let families = &families;
            scope.spawn(move || write(families, &format!("writer {writer}"), &mut rng));
        }
    });
    for _ in 0..30 {
        // Buffered writes on top, so that something is in doubt when a sync is asked for.
        write(&families, "last", &mut rng);
        if db.stats().refusal.is_some() {
            break;
        }
        drop(db.flush_wal(Durability::Disk));
    }
    if db.stats().log.as_ref().is_none_or(|log| log.poisoned.is_none()) {
        return;
    }
    figures.failed += 1;
    let answers = ask(&families, &mut rng);
    // Nothing is added to what is in doubt, and what is refused stays refused.
    write(&families, "too late", &mut rng);
    let again = ask(&families, &mut rng);
    assert_eq!(answers.refused, again.refused, "seed {seed}");
    drop(families);
    let snapshot = device.snapshot();
    let (device, how) = match rng.below(3) {
        0 => {
            drop(db);
            device.heal();
            (device, "closed and opened again".to_owned())
        }
        1 => {
            let image = snapshot.process_death();
            drop(db);
            (image.device(), "the process died".to_owned())
        }
        _ => {
            let (name, cut) = PowerCut::WAYS[rng.below(PowerCut::WAYS.len() as u64) as usize];
            let image = snapshot.power_cut(cut, rng.next());
            drop(db);
            (image.device(), format!("power cut: {name}"))
        }
    };
    options.device = self::options(&path, &device, shared).device;
    let db = common::open(&path, &options);
    let families = [db.default_family(), db.family("second").unwrap()];
    for reported in [&answers, &again] {
        for ((number, key), reported) in &reported.reported {
            let found = text(families[*number].get(key).unwrap());
            for (by, reported) in reported {
                assert_eq!(
                    *reported, found,
                    "seed {seed}: {by} of {key} in family {number} answered the left, {how}, and now the right is there \
                     (shared ring: {shared}, direct: {direct}, {kind:?})"
                );
            }
        }
        figures.answered += reported.reported.len();
    }
    figures.refused += answers.refused.len();
    for (number, key) in answers.refused.keys() {
        let found = text(families[*number].get(key).unwrap());
        match before.get(&(*number, key.clone())) {
            Some(before) if *before == found => figures.unchanged += 1,
            _ => figures.changed += 1,
        }
    }
}

/// Histories that end with a failed log: nothing that was answered after that, a value or that
/// there is none, is otherwise in the store that is opened afterwards.
#[test]
fn nothing_that_is_answered_after_a_failure_is_taken_back() {
    let mut figures = Figures::default();
    for seed in common::seeds(40) {
        history(seed, &mut figures);
    }
    println!("figures: {figures:?}");
    if std::env::var_os("COLLIE_SEED").is_none() {
        let Figures {
            failed,
            answered,
            refused,
            changed,
            unchanged,
        } = figures;
        assert!(failed >= 30 && answered > 500 && refused > 100, "{figures:?}");
        assert!(
            changed > 20 && unchanged > 20,
            "what is in doubt goes both ways: {figures:?}"
        );
    }
}
