//! Every store that an earlier version wrote opens: the fixtures are stores as these left them, and
//! are never written again.
//!
//! | fixture | written by | what is in it |
//! |---|---|---|
//! | store-v1 | 21f4b03f | a manifest of version 1, which is refused |
//! | store-v2 | d6507bc9 | version 2, a log of version 1, closed |
//! | store-v3 | fb62e010 | version 3, a base and changes, a log of version 1, killed |
//! | store-v3-log3 | 98053612 | a log of version 3, compressed, with a commit in parts, killed |
//! | store-v3-verified | 5db2efd9 | `verified` beside the tables, closed |
//! | store-v4 | efc3dd8b | version 4: an external journal |
//! | store-v5 | fd51bc98 | version 5: store-v3-verified, opened, flushed, closed |
//!
//! What their manifests say is tested in `src/manifest/file/versions.rs`.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at files behind the store's back"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{Batch, Db, Error, ExternalJournal, Family, FamilyOptions, Journal, Lsn, Options, RingMode};

use crate::common;

type Map = BTreeMap<String, String>;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A copy of a fixture. Directories without files, which git does not keep, are made.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    common::copy_dir(&fixture(name), dir.path());
    for family in fs::read_dir(dir.path().join("families")).into_iter().flatten() {
        fs::create_dir_all(family.unwrap().path().join("tables")).unwrap();
    }
    dir
}

fn options() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: 8 << 10,
        segment_bytes: 32 << 10,
        max_workers: 2,
        close_flush_bytes: 0,
        ..Options::default()
    }
}

fn value(family: &str, n: u32, round: u32) -> String {
    let mut value = format!("{family} {n} of round {round}; ").repeat(1 + n as usize % 3);
    if family == "orders" {
        value += &digits(n);
    }
    value
}

/// Digits that do not compress.
fn digits(n: u32) -> String {
    let words = (0..8).map(|i| (8 * n + i).wrapping_mul(0x9e37_79b1));
    words.map(|word| format!("{word:08x}")).collect()
}

fn put(map: &mut Map, family: &str, letter: &str, keys: std::ops::Range<u32>, round: u32) {
    for n in keys {
        map.insert(format!("{letter}{n:03}"), value(family, n, round));
    }
}

/// What each family of the stores of versions 2 and 3 holds; `large` is there since commits may have
/// several frames.
fn expected(large: bool) -> BTreeMap<&'static str, Map> {
    let names = ["default", "orders", "plain", "empty", "again", "second"];
    let mut families: BTreeMap<_, _> = names.map(|name| (name, Map::new())).into();
    let default = families.get_mut("default").unwrap();
    put(default, "default", "k", 0..120, 1);
    put(default, "default", "k", 110..130, 2);
    put(default, "default", "k", 125..140, 3);
    default.insert("both".into(), "one".into());
    let orders = families.get_mut("orders").unwrap();
    put(orders, "orders", "o", 0..199, 1);
    put(orders, "orders", "o", 0..40, 2);
    (100..110).for_each(|n| drop(orders.remove(&format!("o{n}"))));
    orders.insert("both".into(), "three".into());
    let plain = families.get_mut("plain").unwrap();
    put(plain, "plain", "p", 0..20, 1);
    plain.remove("p003");
    plain.insert("empty".into(), String::new());
    if large {
        let values = (500..520).map(|n| (format!("p{n}"), format!("{n} ").repeat(300)));
        plain.extend(values);
    }
    put(families.get_mut("again").unwrap(), "again", "a", 0..5, 2);
    put(families.get_mut("second").unwrap(), "second", "s", 0..10, 1);
    families
}

fn content(family: &Family) -> Map {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let entries = family.iter().unwrap().map(|entry| {
        let (key, value) = entry.unwrap();
        (text(&key), text(&value))
    });
    entries.collect()
}

/// All of it, by iterating and by reading each key.
fn holds(db: &Db, expected: &BTreeMap<&str, Map>) {
    let mut names = db.families();
    names.sort();
    assert_eq!(names, expected.keys().copied().collect::<Vec<_>>());
    for (name, map) in expected {
        let family = db.family(name).unwrap();
        assert_eq!(&content(&family), map, "{name}");
        for (key, value) in map {
            assert_eq!(family.get(key).unwrap().unwrap(), value.as_str(), "{name}: {key}");
        }
    }
}

/// With all that was written, and goes on.
fn opens(name: &str, large: bool) {
    let dir = copy(name);
    let mut expected = expected(large);
    let db = Db::open(dir.path(), options()).unwrap();
    holds(&db, &expected);
    let ids = ["default", "orders", "plain", "empty", "again", "second"].map(|n| db.family(n).unwrap().id());
    assert_eq!(ids, [0, 1, 2, 5, 6, 7], "{name}");
    for (name, map) in &mut expected {
        for n in 0..20 {
            let (key, value) = (format!("later{n:02}"), value(name, n, 4));
            db.family(name).unwrap().put(&key, &value).unwrap();
            map.insert(key, value);
        }
    }
    let new = db.create_family("new", FamilyOptions::default()).unwrap();
    assert_eq!(new.id(), 9, "{name}: no id is given twice");
    expected.insert("new", Map::new());
    db.drop_family(&db.family("again").unwrap()).unwrap();
    expected.remove("again");
    db.family("orders").unwrap().flush().unwrap();
    drop(new);
    db.close().unwrap();

    let db = Db::open(dir.path(), options()).unwrap();
    holds(&db, &expected);
    db.flush().unwrap();
    db.compact().unwrap();
    holds(&db, &expected);
    db.close().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    holds(&db, &expected);
}

#[test]
fn stores_of_every_version_with_a_log_open() {
    for (name, large) in [
        ("store-v2", false),
        ("store-v3", false),
        ("store-v3-log3", true),
        ("store-v3-verified", true),
        ("store-v5", true),
    ] {
        opens(name, large);
    }
}

/// No table of theirs has another checksum than the manifest says, and the commit in parts is replayed.
#[test]
fn a_killed_store_replays_a_commit_in_parts() {
    let dir = copy("store-v3-log3");
    let db = Db::open(dir.path(), options()).unwrap();
    let tables = db.stats().families["plain"].tables;
    assert!(db.stats().replayed_bytes > 24_000, "{tables} tables");
    holds(&db, &expected(true));
}

/// A log of which everything is durable at once.
#[derive(Debug)]
struct Log;

impl ExternalJournal for Log {
    fn durable(&self) -> Lsn {
        Lsn::MAX >> 2
    }

    fn wait_durable(&self, _: Lsn) -> std::io::Result<()> {
        Ok(())
    }
}

/// Applies entry `n` of a round, as the fixture's program did.
fn apply(db: &Db, map: &mut Map, n: u32, round: u32) {
    let mut batch = Batch::new();
    let family = db.default_family();
    let (key, value) = (format!("k{n:03}"), entry(n, round));
    batch.put(&family, &key, &value).unwrap();
    if n % 10 == 3 {
        batch.delete(&family, format!("k{:03}", n - 1)).unwrap();
    }
    db.apply(&batch, seq(n, round)).unwrap();
    note(map, n, round);
}

fn entry(n: u32, round: u32) -> String {
    format!("{n} of round {round}; ").repeat(1 + n as usize % 3) + &digits(n)
}

fn seq(n: u32, round: u32) -> Lsn {
    (1 << 32) + (u64::from(round * 1000 + n) << 16)
}

fn note(map: &mut Map, n: u32, round: u32) {
    map.insert(format!("k{n:03}"), entry(n, round));
    if n % 10 == 3 {
        map.remove(&format!("k{:03}", n - 1));
    }
}

/// Its content came with [`Db::adopt`], of two rounds; a third was flushed, and a fourth was not.
#[test]
fn a_store_with_an_external_journal_opens() {
    let options = Options {
        journal: Journal::External(Arc::new(Log)),
        close_flush_bytes: 0,
        ..Options::default()
    };
    let dir = copy("store-v4");
    let mut map = Map::new();
    (0..200).for_each(|n| note(&mut map, n, 1));
    (0..20).for_each(|n| note(&mut map, n, 2));
    (10..30).for_each(|n| note(&mut map, n, 3));
    let db = Db::open(dir.path(), options.clone()).unwrap();
    assert_eq!(db.flushed(), seq(29, 3));
    assert_eq!(db.default_family().id(), 1);
    assert_eq!(content(&db.default_family()), map);
    (40..50).for_each(|n| apply(&db, &mut map, n, 4));
    db.flush().unwrap();
    (45..55).for_each(|n| apply(&db, &mut map.clone(), n, 5));
    db.close().unwrap();

    let db = Db::open(dir.path(), options).unwrap();
    assert_eq!(db.flushed(), seq(49, 4));
    assert_eq!(content(&db.default_family()), map);
    db.compact().unwrap();
    assert_eq!(content(&db.default_family()), map);
}

/// It was written for some hours, and never read by a later program.
#[test]
fn a_store_of_version_1_is_refused_untouched() {
    let dir = copy("store-v1");
    let Err(Error::Version { found, supported, .. }) = Db::open(dir.path(), options()) else {
        panic!("a store of version 1 opened");
    };
    assert_eq!((found, supported), (1, 5));
    let of = |dir: &Path| fs::read(dir.join("MANIFEST")).unwrap();
    assert_eq!(of(dir.path()), of(&fixture("store-v1")));
}
