//! Calls that are made of others: several keys at once, the ends, counts, compare and swap, clear. Against
//! a map, on families, snapshots and transactions.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::time::Duration;

use collie_db::{Db, Error, Family, FamilyOptions, Key, Options, TransactionOptions, Value, WriteOptions};
use collie_io::{Device, RealDevice};

use crate::common::{self, Rng};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(n: u64) -> Vec<u8> {
    // Of several lengths, and some longer than any key may be.
    let len = if n % 97 == 96 { 70_000 } else { 1 + n as usize % 40 };
    let mut key = n.to_be_bytes().to_vec();
    key.resize(8 + len, b'k');
    key
}

/// Writes and removes at random, and flushes and compacts now and then, so that what is found comes from
/// memtables and from tables.
fn fill(family: &Family, map: &mut Map, rng: &mut Rng, steps: u64) {
    for step in 0..steps {
        let n = rng.next() % 300;
        let key = key(n);
        if key.len() > collie_db::MAX_KEY_BYTES {
            continue;
        }
        if rng.one_in(3) {
            family.delete_with(&key, &WriteOptions::buffered()).unwrap();
            map.remove(&key);
        } else {
            let value = vec![step as u8; rng.next() as usize % 500];
            family.put_with(&key, &value, &WriteOptions::buffered()).unwrap();
            map.insert(key, value);
        }
        match rng.next() % 400 {
            0 => family.flush().unwrap(),
            1 => family.compact().unwrap(),
            _ => {}
        }
    }
}

fn entry(found: Option<(Key, Value)>) -> Option<(Vec<u8>, Vec<u8>)> {
    found.map(|(key, value)| (key.to_vec(), value.to_vec()))
}

fn first(map: &Map) -> Option<(Vec<u8>, Vec<u8>)> {
    map.first_key_value()
        .map(|(key, value)| (key.clone(), value.clone()))
}

fn last(map: &Map) -> Option<(Vec<u8>, Vec<u8>)> {
    map.last_key_value()
        .map(|(key, value)| (key.clone(), value.clone()))
}

#[test]
fn calls_of_several_keys_agree_with_a_map() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let (mut map, mut rng) = (Map::new(), Rng::new(7));
    let family = db.create_family("rows", FamilyOptions::default()).unwrap();
    assert!(family.is_empty().unwrap() && family.first().unwrap().is_none());
    for round in 0..40 {
        let old = (db.snapshot(), map.clone());
        fill(&family, &mut map, &mut rng, 100);
        let mut asked: Vec<Vec<u8>> = (0..60).map(|_| key(rng.next() % 320)).collect();
        asked.push(Vec::new());
        asked.push(asked[3].clone());
        let expect =
            |map: &Map| -> Vec<Option<Vec<u8>>> { asked.iter().map(|key| map.get(key).cloned()).collect() };
        let got = |found: Vec<Option<Value>>| -> Vec<Option<Vec<u8>>> {
            found.into_iter().map(|value| value.map(Vec::from)).collect()
        };
        assert_eq!(got(family.multi_get(&asked).unwrap()), expect(&map), "{round}");
        assert_eq!(entry(family.first().unwrap()), first(&map), "{round}");
        assert_eq!(entry(family.last().unwrap()), last(&map), "{round}");
        assert_eq!(family.len().unwrap(), map.len() as u64, "{round}");
        assert_eq!(family.is_empty().unwrap(), map.is_empty(), "{round}");
        let keys: Vec<Key> = family.keys().unwrap().map(Result::unwrap).collect();
        assert!(
            keys.iter().map(|key| &**key).eq(map.keys().map(|key| &**key)),
            "{round}"
        );
        let back: Vec<Key> = family.keys().unwrap().rev().map(Result::unwrap).collect();
        assert!(back.iter().rev().eq(&keys), "{round}");

        let (snapshot, before) = &old;
        assert_eq!(got(snapshot.multi_get(&family, &asked).unwrap()), expect(before));
        assert_eq!(entry(snapshot.first(&family).unwrap()), first(before));
        assert_eq!(entry(snapshot.last(&family).unwrap()), last(before));
        assert_eq!(snapshot.len(&family).unwrap(), before.len() as u64);
        assert_eq!(snapshot.is_empty(&family).unwrap(), before.is_empty());
        assert_eq!(snapshot.keys(&family).unwrap().count(), before.len());
        let one = &asked[0];
        assert_eq!(snapshot.contains(&family, one).unwrap(), before.contains_key(one));

        // Its own writes count, and go with it.
        let tx = db.transaction(TransactionOptions::serializable()).unwrap();
        let mut own = map.clone();
        for n in [0, 299] {
            tx.delete(&family, key(n)).unwrap();
            own.remove(&key(n));
        }
        tx.put(&family, "own", "1").unwrap();
        own.insert(b"own".to_vec(), b"1".to_vec());
        assert_eq!(
            got(tx.multi_get(&family, &asked).unwrap()),
            expect(&own),
            "{round}"
        );
        assert_eq!(entry(tx.first(&family).unwrap()), first(&own), "{round}");
        assert_eq!(entry(tx.last(&family).unwrap()), last(&own), "{round}");
        assert_eq!(tx.len(&family).unwrap(), own.len() as u64, "{round}");
        assert!(!tx.is_empty(&family).unwrap());
        assert_eq!(tx.keys(&family).unwrap().count(), own.len(), "{round}");
        assert!(tx.contains(&family, "own").unwrap());
        tx.rollback();
    }
    // The default family has the same calls without naming it.
    db.put("b", "2").unwrap();
    db.put("a", "1").unwrap();
    assert_eq!(
        db.multi_get(["b", "a", "c"]).unwrap(),
        [Some("2".into()), Some("1".into()), None]
    );
    assert_eq!(db.first().unwrap(), Some(("a".into(), "1".into())));
    assert_eq!(db.last().unwrap(), Some(("b".into(), "2".into())));
    assert_eq!((db.len().unwrap(), db.is_empty().unwrap()), (2, false));
    assert_eq!(db.range("b"..).unwrap().count(), 1);
    assert_eq!(db.prefix("a").unwrap().count(), 1);
    assert_eq!(db.keys().unwrap().count(), 2);
    assert!(db.contains("a").unwrap() && !db.contains("c").unwrap());
}

#[test]
fn estimates_say_what_tables_and_memtables_hold() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &Options::default());
    let rows = db.create_family("rows", FamilyOptions::default()).unwrap();
    for n in 0..10_000_u32 {
        let value: Vec<u8> = (0..100)
            .map(|at| (n.wrapping_mul(2_654_435_761) >> (at % 24)) as u8)
            .collect();
        rows.put_with(n.to_be_bytes(), value, &WriteOptions::buffered())
            .unwrap();
    }
    assert_eq!(rows.approximate_len().unwrap(), 10_000);
    let active = db.stats().families["rows"].active_bytes;
    assert!((1_000_000..3_000_000).contains(&active), "{active}");
    rows.compact().unwrap();
    assert_eq!(rows.approximate_len().unwrap(), 10_000);
    for n in 0..2_500_u32 {
        rows.delete_with(n.to_be_bytes(), &WriteOptions::buffered())
            .unwrap();
    }
    assert_eq!(rows.approximate_len().unwrap(), 7_500);
    assert!(db.stats().memtable_bytes >= db.stats().families["rows"].active_bytes);

    let at = |n: u32| n.to_be_bytes();
    let whole = rows.approximate_size::<&[u8]>(..).unwrap();
    let tables = db.stats().families["rows"].table_bytes;
    assert_eq!(whole, tables);
    let part = rows.approximate_size(at(2_000)..at(3_000)).unwrap();
    assert!(part > 0 && part <= whole / 2, "{part} of {whole}");
    assert_eq!(rows.approximate_size(at(3_000)..at(3_000)).unwrap(), 0);
    assert_eq!(rows.approximate_size(at(20_000)..).unwrap(), 0);
    // A short store, in whose memtable buckets have not reported their bytes.
    db.put("k", "v").unwrap();
    assert!(db.stats().families["default"].active_bytes > 0);
}

#[test]
fn of_many_that_swap_one_value_each_swap_counts() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let rows = db.default_family();
    assert!(rows.compare_and_swap("n", None, Some(b"0")).unwrap().is_ok());
    let number = |value: &Value| -> u64 { value.to_string().parse().unwrap() };
    std::thread::scope(|threads| {
        for _ in 0..4 {
            let rows = &rows;
            threads.spawn(move || {
                let mut current = rows.get("n").unwrap().unwrap();
                for _ in 0..250 {
                    loop {
                        let next = (number(&current) + 1).to_string();
                        match rows
                            .compare_and_swap("n", Some(&current), Some(next.as_bytes()))
                            .unwrap()
                        {
                            Ok(end) => {
                                assert!(rows.db().durable() >= end);
                                current = next.into();
                                break;
                            }
                            Err(other) => current = other.current.unwrap(),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(rows.get("n").unwrap().unwrap().to_string(), "1000");
    let refused = db.compare_and_swap("n", None, Some(b"x")).unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "the value is \"1000\"");
    assert!(db.compare_and_swap("n", Some(b"1000"), None).unwrap().is_ok());
    let refused = db
        .compare_and_swap("n", Some(b"1000"), Some(b"1"))
        .unwrap()
        .unwrap_err();
    assert_eq!(
        (refused.current.clone(), refused.to_string()),
        (None, "there is no value".to_owned())
    );
    assert!(matches!(
        db.compare_and_swap("", None, None),
        Err(Error::EmptyKey)
    ));
}

#[test]
fn a_cleared_family_is_empty_for_good_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = common::small();
    let db = common::open(dir.path(), &options);
    let mut rows = db.create_family("rows", FamilyOptions::default()).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng::new(3));
    for _ in 0..5 {
        fill(&rows, &mut map, &mut rng, 400);
        db.put("other", "stays").unwrap();
        let (snapshot, iter, before) = (db.snapshot(), rows.iter().unwrap(), map.len());
        let old = rows.clone();
        rows = old.clear().unwrap();
        assert_eq!((rows.len().unwrap(), rows.name()), (0, "rows"));
        assert!(matches!(old.get("k"), Err(Error::FamilyDropped { .. })));
        assert!(matches!(old.put("k", ""), Err(Error::FamilyDropped { .. })));
        assert!(matches!(old.clear(), Err(Error::FamilyDropped { .. })));
        assert_eq!(snapshot.len(&old).unwrap(), before as u64);
        assert!(matches!(
            snapshot.get(&rows, "k"),
            Err(Error::FamilyTooNew { .. })
        ));
        assert_eq!(iter.count(), before);
        map.clear();
        rows.put("new", "1").unwrap();
        map.insert(b"new".to_vec(), b"1".to_vec());
    }
    assert_eq!(db.families(), ["default", "rows"]);
    db.clear().unwrap();
    assert!(db.is_empty().unwrap());
    db.put("after", "1").unwrap();
    drop(rows);
    db.close().unwrap();
    let db = common::open(dir.path(), &options);
    let rows = db.family("rows").unwrap();
    assert_eq!(rows.len().unwrap(), 1);
    assert_eq!(db.first().unwrap(), Some(("after".into(), "1".into())));
    assert_eq!(db.len().unwrap(), 1);
    // The files of the cleared ones are gone.
    let left = RealDevice::new()
        .list(&dir.path().join("families"))
        .unwrap()
        .len();
    assert_eq!(left, 2);
}

/// Writes through the store's own calls find the default family, whichever it is.
#[test]
fn writes_beside_a_clear_are_not_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                let db = &db;
                threads.spawn(move || {
                    for n in 0..500 {
                        db.put(format!("{thread} {n}"), "v").unwrap();
                    }
                })
            })
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            db.clear().unwrap();
        }
    });
    db.clear().unwrap();
    assert!(db.is_empty().unwrap());
}

#[test]
fn waiting_for_compactions_ends_when_none_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let rows = db.default_family();
    for n in 0..20_000_u32 {
        rows.put_with(
            n.wrapping_mul(2_654_435_761).to_be_bytes(),
            [7; 100],
            &WriteOptions::buffered(),
        )
        .unwrap();
    }
    db.flush().unwrap();
    assert!(rows.wait_for_compact(Duration::from_secs(120)).unwrap());
    let (before, tables) = (
        db.stats().families["default"].compactions,
        db.stats().families["default"].tables,
    );
    std::thread::sleep(Duration::from_millis(200));
    let after = &db.stats().families["default"];
    assert_eq!((after.compactions, after.tables), (before, tables));
    assert!(rows.wait_for_compact(Duration::ZERO).unwrap());
    let old = rows.clone();
    rows.clear().unwrap();
    assert!(matches!(
        old.wait_for_compact(Duration::ZERO),
        Err(Error::FamilyDropped { .. })
    ));
}

#[test]
fn a_transaction_is_returned_with_what_to_wait_for() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let rows = db.default_family();
    let disk = TransactionOptions {
        durability: Some(collie_db::Durability::Disk),
        ..TransactionOptions::default()
    };
    let (value, ticket) = db
        .transact_ticket(&disk, |tx| {
            tx.put(&rows, "k", "v")?;
            Ok::<_, Error>(7)
        })
        .unwrap();
    assert_eq!((value, rows.get("k").unwrap()), (7, Some("v".into())));
    let end = ticket.end();
    assert_eq!(ticket.wait().unwrap(), end);
    assert!(db.durable() >= end);
}

#[test]
fn values_are_made_of_what_programs_have() {
    let of: [Value; 6] = [
        "text".into(),
        String::from("text").into(),
        b"text".into(),
        b"text".as_slice().into(),
        vec![b't', b'e', b'x', b't'].into(),
        Key::from("text").to_vec().into(),
    ];
    assert!(
        of.iter()
            .all(|value| *value == "text" && format!("{value}") == "text")
    );
    assert_eq!(Value::from(b"a\xffb\xf0\x9f").to_string(), "a\u{fffd}b\u{fffd}");
    assert_eq!(format!("{:?}", Value::from(b"a\xff")), "\"a\\xff\"");
}

#[test]
fn options_are_set_while_a_family_is_used_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let rows = db.create_family("rows", FamilyOptions::default()).unwrap();
    let put = |count: u64| {
        for n in 0..count {
            rows.put(key(n % 90), vec![7; 1_000]).unwrap();
        }
    };
    let flushes = || {
        let all = db.stats().families["rows"].flushes.clone();
        all.into_iter().map(|(_, count)| count).sum::<u64>()
    };
    put(1_000);
    assert_eq!(flushes(), 0);
    let wrong = FamilyOptions {
        max_write_buffers: 1,
        ..rows.options()
    };
    let refused = rows.set_options(wrong).unwrap_err();
    assert!(matches!(refused, Error::InvalidOption { .. }), "{refused}");
    assert_eq!(rows.options(), FamilyOptions::default());
    let small = FamilyOptions {
        write_buffer_bytes: 64 << 10,
        level0_stop: 40,
        compression: collie_db::Compression::Lz4,
        ..rows.options()
    };
    rows.set_options(small.clone()).unwrap();
    assert_eq!(rows.options(), small);
    put(1_000);
    // The first one is as full as ten of them by now.
    assert!(rows.wait_for_compact(Duration::from_secs(60)).unwrap() && flushes() > 3);
    db.default_family().set_options(small.clone()).unwrap();
    assert_eq!(db.default_family().options(), small);
    let dropped = db.create_family("dropped", FamilyOptions::default()).unwrap();
    db.drop_family(&dropped).unwrap();
    let refused = dropped.set_options(small.clone()).unwrap_err();
    assert!(matches!(refused, Error::FamilyDropped { .. }), "{refused}");
    drop((rows, dropped));
    db.close().unwrap();
    let db = common::open(dir.path(), &common::small());
    assert_eq!(db.family("rows").unwrap().options(), small);
    assert_eq!(db.family("rows").unwrap().len().unwrap(), 90);
    assert_eq!(db.default_family().options(), common::small().default_family);
    db.close().unwrap();
}

#[test]
fn a_closed_store_refuses_them_all() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &common::small());
    let rows = db.default_family();
    let other: Db = db.clone();
    db.close().unwrap();
    let closed = |refused: Result<(), Error>| assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    closed(rows.multi_get(["k"]).map(drop));
    closed(rows.first().map(drop));
    closed(rows.len().map(drop));
    closed(rows.approximate_len().map(drop));
    closed(rows.approximate_size::<&[u8]>(..).map(drop));
    closed(rows.compare_and_swap("k", None, None).map(drop));
    closed(rows.clear().map(drop));
    closed(other.clear());
    closed(rows.set_options(rows.options()));
    closed(rows.wait_for_compact(Duration::ZERO).map(drop));
}
