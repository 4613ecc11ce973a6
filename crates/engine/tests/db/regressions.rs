//! Faults that were found by review, each with the case that shows it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage files behind the store's back"
)]

use crate::common;

use std::path::Path;

use collie_db::{Batch, Db, Error, FamilyOptions, Options, WriteOptions};

fn with_buffers(write_buffer_bytes: u64, max_write_buffers: usize) -> Options {
    Options {
        default_family: FamilyOptions {
            write_buffer_bytes,
            max_write_buffers,
            ..FamilyOptions::default()
        },
        ..common::small()
    }
}

fn large() -> Options {
    with_buffers(64 << 20, 4)
}

/// Without a log, a family that was never written to began above the LSN that the next open went on
/// from: the first commit to it found no memtable and panicked.
#[test]
fn a_family_without_a_log_that_was_only_created_takes_writes() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        disable_wal: true,
        ..common::small()
    };
    let db = common::open(dir.path(), &options);
    drop(db.create_family("second", FamilyOptions::default()).unwrap());
    db.close().unwrap();
    for round in 0..3_u8 {
        let db = common::open(dir.path(), &options);
        let second = db.family("second").unwrap();
        if let Some(before) = round.checked_sub(1) {
            assert_eq!(second.get("k").unwrap().as_deref(), Some(&[before][..]));
        }
        second.put("k", [round]).unwrap();
        drop(second);
        db.close().unwrap();
    }
}

/// Replay sealed the memtable that it was filling at a mark behind the log's end, and then skipped
/// the frames between.
#[test]
fn recovery_of_more_log_than_memtables_hold_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &large());
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    let value = [7; 1024];
    for i in 0..2000 {
        let family = if i % 3 == 0 {
            second.clone()
        } else {
            db.default_family()
        };
        family
            .put_with(format!("{i:06}"), value, &WriteOptions::buffered())
            .unwrap();
    }
    drop(second);
    db.close().unwrap();
    for round in 0..3 {
        let tight = with_buffers(64 << 10, 2);
        let second = ("second".to_owned(), tight.default_family.clone());
        let options = Options {
            family_options: vec![second],
            ..tight
        };
        let db = common::open(dir.path(), &options);
        let second = db.family("second").unwrap();
        for i in 0..2000 {
            let family = if i % 3 == 0 {
                second.clone()
            } else {
                db.default_family()
            };
            assert!(
                family.contains(format!("{i:06}")).unwrap(),
                "key {i} is gone in round {round}"
            );
        }
        drop(second);
        db.close().unwrap();
    }
}

/// Replay split a batch over two memtables, which gave a key two values with the same LSN.
#[test]
fn a_replayed_batch_goes_to_one_memtable_with_its_last_write() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &large());
    let first = db.default_family();
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    for n in 0..40 {
        let mut batch = Batch::new();
        batch.put(&first, format!("key{n:04}"), "old").unwrap();
        for i in 0..40 {
            batch.put(&first, format!("fill{n:04}/{i}"), [1; 1000]).unwrap();
        }
        batch.put(&second, "x", "y").unwrap();
        batch.put(&first, format!("key{n:04}"), "new").unwrap();
        db.write(batch, &WriteOptions::buffered()).unwrap();
    }
    drop((first, second));
    db.close().unwrap();
    let db = common::open(dir.path(), &with_buffers(32 << 10, 100));
    let first = db.default_family();
    let check = |when: &str| {
        for entry in first.prefix("key").unwrap() {
            let (key, value) = entry.unwrap();
            assert_eq!(value, "new", "a scan of {key:?}, {when}");
            assert_eq!(first.get(&key).unwrap().unwrap(), "new", "{key:?}, {when}");
        }
        assert_eq!(first.prefix("key").unwrap().count(), 40, "{when}");
    };
    check("recovered");
    db.flush().unwrap();
    check("flushed");
    db.compact().unwrap();
    check("compacted");
}

/// What makes a table that a snapshot pins go away when that is dropped: everything in it is
/// removed, and compacted away.
fn write_and_remove(db: &Db) {
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    db.put("k2", "v").unwrap();
    db.delete("k").unwrap();
    db.delete("k2").unwrap();
    db.flush().unwrap();
}

fn second_life(path: &Path) {
    let db = common::open(path, &large());
    for i in 0..50 {
        db.put(format!("a{i}"), "acknowledged").unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    let db = common::open(path, &large());
    for i in 0..50 {
        assert!(db.get(format!("a{i}")).unwrap().is_some(), "a{i} is gone");
    }
}

/// A snapshot that outlived its store removed, by name, a table of the store that was opened next.
#[test]
fn a_snapshot_that_outlives_close_keeps_the_directory_locked() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &large());
    write_and_remove(&db);
    let snapshot = db.snapshot();
    db.compact().unwrap();
    db.close().unwrap();
    assert!(matches!(Db::open(dir.path(), large()), Err(Error::Locked { .. })));
    drop(snapshot);
    second_life(dir.path());
}

#[test]
fn an_iterator_past_the_last_handle_keeps_the_directory_locked() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &large());
    write_and_remove(&db);
    db.put("k3", "v").unwrap();
    let mut iter = db.iter().unwrap();
    db.compact().unwrap();
    drop(db);
    assert!(matches!(Db::open(dir.path(), large()), Err(Error::Locked { .. })));
    assert_eq!(iter.next().unwrap().unwrap().0, "k3");
    drop(iter);
    second_life(dir.path());
}

/// A flush on a caller's thread went on after `close` had given the directory free.
#[test]
fn close_waits_for_what_other_threads_write() {
    for round in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let db = common::open(dir.path(), &large());
        for i in 0..20_000 {
            let value = [7; 200];
            db.default_family()
                .put_with(format!("{i:06}"), value, &WriteOptions::buffered())
                .unwrap();
        }
        let other = db.clone();
        let busy = std::thread::spawn(move || match round % 2 {
            0 => other.flush(),
            _ => other.compact(),
        });
        for _ in 0..round * 200 {
            std::thread::yield_now();
        }
        db.close().unwrap();
        let db = common::open(dir.path(), &large());
        let family = db.create_family("new", FamilyOptions::default()).unwrap();
        family.put("a", "b").unwrap();
        let ended = busy.join().unwrap();
        assert!(
            matches!(ended, Ok(()) | Err(Error::Closed | Error::Table { .. })),
            "{ended:?}"
        );
        drop(family);
        db.close().unwrap();
        let db = common::open(dir.path(), &large());
        assert_eq!(db.family("new").unwrap().get("a").unwrap().unwrap(), "b");
        assert_eq!(db.iter().unwrap().count(), 20_000);
    }
}

#[test]
fn a_family_whose_tables_are_gone_is_not_taken_for_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &large());
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    std::fs::remove_dir_all(dir.path().join("families/0")).unwrap();
    let refused = Db::open(dir.path(), large());
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
}

#[test]
fn a_log_that_is_not_there_is_not_taken_for_an_empty_one() {
    for leave_directory in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, log) = (dir.path().join("store"), dir.path().join("log"));
        let options = Options {
            wal_dir: Some(log.clone()),
            ..large()
        };
        let db = common::open(&path, &options);
        db.put("a", "1").unwrap();
        db.flush().unwrap();
        db.put("b", "2").unwrap();
        db.close().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(&log, &elsewhere).unwrap();
        if leave_directory {
            std::fs::create_dir(&log).unwrap();
        }
        let refused = Db::open(&path, options.clone());
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
        assert!(
            Db::open(&path, large()).is_err(),
            "opened with the default directory"
        );
        if leave_directory {
            std::fs::remove_dir(&log).unwrap();
        }
        std::fs::rename(&elsewhere, &log).unwrap();
        assert_eq!(common::open(&path, &options).get("b").unwrap().unwrap(), "2");
    }
}

/// A crash between the registration of a table and the manifest: the log's older write of a key was
/// replayed over the table's newer one, which the log does not have.
#[test]
fn a_replayed_write_does_not_hide_a_newer_one_in_a_table() {
    for (newer, expected) in [(Some("new"), Some("new")), (None, None)] {
        let dir = tempfile::tempdir().unwrap();
        let db = common::open(dir.path(), &large());
        let family = db.default_family();
        family.put("k", "old").unwrap();
        let unlogged = WriteOptions::without_wal();
        match newer {
            Some(value) => family.put_with("k", value, &unlogged).unwrap(),
            None => family.delete_with("k", &unlogged).unwrap(),
        };
        family.put("other", "v").unwrap();
        let manifest = std::fs::read(dir.path().join("MANIFEST")).unwrap();
        db.flush().unwrap();
        drop(family);
        db.close().unwrap();
        std::fs::write(dir.path().join("MANIFEST"), manifest).unwrap();
        let db = common::open(dir.path(), &large());
        for step in ["recovered", "flushed", "compacted"] {
            match step {
                "flushed" => db.flush().unwrap(),
                "compacted" => db.compact().unwrap(),
                _ => {}
            }
            let value = db
                .get("k")
                .unwrap()
                .map(|v| String::from_utf8(v.to_vec()).unwrap());
            assert_eq!(value.as_deref(), expected, "{step}");
            let scanned = db
                .iter()
                .unwrap()
                .map(|e| e.unwrap().0)
                .filter(|k| *k == "k")
                .count();
            assert_eq!(scanned, usize::from(expected.is_some()), "a scan, {step}");
            assert_eq!(db.get("other").unwrap().unwrap(), "v");
        }
    }
}

#[test]
fn bounds_longer_than_any_key_are_bounds_like_others() {
    let dir = tempfile::tempdir().unwrap();
    let db = common::open(dir.path(), &large());
    let family = db.default_family();
    let longest = vec![b'm'; 65_535];
    for key in [&b"a"[..], &longest, b"z"] {
        db.put(key, "v").unwrap();
    }
    let bound = vec![b'm'; 70_000];
    for _ in 0..2 {
        assert_eq!(family.range(bound.clone()..).unwrap().count(), 1);
        assert_eq!(family.range(..bound.clone()).unwrap().count(), 2);
        assert_eq!(family.range(..=bound.clone()).unwrap().count(), 2);
        assert_eq!(family.prefix(&bound).unwrap().count(), 0);
        assert_eq!(family.prefix(&longest).unwrap().count(), 1);
        assert_eq!(family.get(&bound).unwrap(), None);
        db.flush().unwrap();
    }
}

/// The table library counts the runs of a level in one byte.
#[test]
fn three_hundred_flushes_in_a_row_lose_no_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = large();
    options.default_family.level0_compaction = 200;
    options.default_family.level0_slowdown = 200;
    options.default_family.level0_stop = 200;
    options.disable_wal = true;
    let db = common::open(dir.path(), &options);
    for i in 0..300 {
        db.put("a", i.to_string()).unwrap();
        db.put(format!("k{i}"), "v").unwrap();
        db.put("z", i.to_string()).unwrap();
        db.flush().unwrap();
    }
    db.close().unwrap();
    let db = common::open(dir.path(), &options);
    for i in 0..300 {
        assert!(db.get(format!("k{i}")).unwrap().is_some(), "k{i} is gone");
    }
    assert_eq!(db.get("a").unwrap().unwrap(), "299");
}

/// One family cannot write its tables: another one's flushes went on waiting behind it, and its own
/// writers waited without a word.
#[test]
fn a_family_that_cannot_flush_says_why_and_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        durability: collie_db::Durability::Buffered,
        ..with_buffers(8192, 2)
    };
    let db = common::open(dir.path(), &options);
    let broken = db
        .create_family("broken", options.default_family.clone())
        .unwrap();
    let tables = dir.path().join(format!("families/{}/tables", broken.id()));
    let aside = dir.path().join("aside");
    std::fs::rename(&tables, &aside).unwrap();
    let refused = (0..10_000).find_map(|i| broken.put(format!("{i:06}"), [1; 100]).err());
    assert!(matches!(refused, Some(Error::Table { .. })), "{refused:?}");
    for i in 0..1000 {
        db.put(format!("{i:06}"), [1; 100]).unwrap();
    }
    let stats = db.stats();
    assert!(
        stats.families["default"].flushes.iter().any(|(_, n)| *n > 3),
        "{stats:?}"
    );
    assert!(stats.families["broken"].flush_failures > 0);
    std::fs::rename(&aside, &tables).unwrap();
    broken.flush().unwrap();
    broken.put("again", "v").unwrap();
    assert_eq!(db.iter().unwrap().count(), 1000);
}

/// A write that was acknowledged while the store was being closed was not in the tables that
/// closing wrote.
#[test]
fn what_was_acknowledged_while_closing_is_there() {
    for round in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let logged = Options {
            durability: collie_db::Durability::Process,
            ..common::small()
        };
        let options = if round % 2 == 0 {
            common::unlogged()
        } else {
            logged
        };
        let db = common::open(dir.path(), &options);
        let acknowledged = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let family = db.default_family();
                    scope.spawn(move || {
                        (0..)
                            .take_while(|n| family.put(format!("{writer}/{n}"), [1; 50]).is_ok())
                            .count()
                    })
                })
                .collect();
            for _ in 0..200 * round {
                std::thread::yield_now();
            }
            db.clone().close().unwrap();
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .collect::<Vec<_>>()
        });
        drop(db);
        let db = common::open(dir.path(), &options);
        for (writer, count) in acknowledged.into_iter().enumerate() {
            for n in 0..count {
                assert!(
                    db.get(format!("{writer}/{n}")).unwrap().is_some(),
                    "{writer}/{n} of {count}, round {round}"
                );
            }
        }
    }
}

/// A block of a table is damaged; compactions fail on it until level 0 stops writes.
#[test]
fn writers_are_told_that_compactions_fail() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options {
        disable_wal: true,
        cache_bytes: 0,
        ..with_buffers(4096, 4)
    };
    options.default_family.level0_compaction = 4;
    options.default_family.level0_slowdown = 4;
    options.default_family.level0_stop = 6;
    let db = common::open(dir.path(), &options);
    for i in 0..100 {
        db.put(format!("{i:03}"), [9; 100]).unwrap();
    }
    db.compact().unwrap();
    db.close().unwrap();
    let tables = dir.path().join("families/0/tables");
    for table in std::fs::read_dir(&tables).unwrap() {
        let path = table.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[200] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
    }
    let db = common::open(dir.path(), &options);
    let refused = (0..100_000).find_map(|i| db.put(format!("{:03}", i % 100), [8; 100]).err());
    assert!(
        matches!(refused, Some(Error::Table { .. } | Error::Background { .. })),
        "{refused:?}"
    );
    assert!(db.stats().families["default"].compaction_failures > 0);
}

/// With the log's directory of its own that is named.
fn with_log_in(log: &Path) -> Options {
    Options {
        wal_dir: Some(log.into()),
        ..large()
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A store that was given another one's `wal_dir` replayed that one's commits into its own
/// families.
#[test]
fn the_log_of_another_store_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two, three, log_one, log_two] =
        ["one", "two", "three", "log one", "log two"].map(|name| dir.path().join(name));
    for (store, log, key) in [(&one, &log_one, "a"), (&two, &log_two, "b")] {
        let db = common::open(store, &with_log_in(log));
        db.put(key, "v").unwrap();
        db.close().unwrap();
    }
    let copy = dir.path().join("copy");
    copy_dir(&log_one, &copy);
    // Given to a store that has a log elsewhere, as a copy, and to one that is just being born.
    for (store, log) in [
        (&two, &log_one),
        (&two, &copy),
        (&three, &log_one),
        (&three, &copy),
    ] {
        let refused = Db::open(store, with_log_in(log)).unwrap_err();
        let Error::LogIdMismatch { expected, found, .. } = &refused else {
            panic!("{refused}");
        };
        let text = refused.to_string();
        for part in [
            store.display().to_string(),
            log.display().to_string(),
            expected.to_string(),
            found.to_string(),
        ] {
            assert!(text.contains(&part), "{text}: no {part}");
        }
    }
    for (store, log, key) in [(&one, &log_one, "a"), (&two, &log_two, "b"), (&one, &copy, "a")] {
        let db = common::open(store, &with_log_in(log));
        let keys: Vec<_> = db.iter().unwrap().map(|entry| entry.unwrap().0).collect();
        assert_eq!(keys, [key]);
        db.close().unwrap();
    }
    assert!(common::open(&three, &large()).iter().unwrap().next().is_none());
}

/// An open that died between the creation of the log and the manifest that records it: the next one
/// finds a log in `wal_dir`, and it is its own.
#[test]
fn a_log_that_the_manifest_has_not_yet_is_the_stores_own() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = (dir.path().join("store"), dir.path().join("log"));
    let without = Options {
        disable_wal: true,
        ..large()
    };
    common::open(&store, &without).put("a", "1").unwrap();
    let manifest = std::fs::read(store.join("MANIFEST")).unwrap();
    let id = {
        let db = common::open(&store, &with_log_in(&log));
        db.recovery().unwrap().log_id
    };
    std::fs::write(store.join("MANIFEST"), manifest).unwrap();
    let db = common::open(&store, &with_log_in(&log));
    assert_eq!(db.recovery().unwrap().log_id, id);
    db.put("b", "2").unwrap();
    db.close().unwrap();
    // Left, and taken up again.
    common::open(
        &store,
        &Options {
            wal_dir: Some(log.clone()),
            ..without
        },
    );
    let db = common::open(&store, &with_log_in(&log));
    assert_eq!(db.recovery().unwrap().log_id, id);
    assert_eq!(db.iter().unwrap().count(), 2);
}
