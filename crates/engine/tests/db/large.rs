//! Commits that are larger than the log's ring: all of one is seen, or nothing, now and after an
//! opening; and nothing is seen of what was refused.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;

use collie_db::{
    Batch, Db, Durability, Error, Family, FamilyOptions, Options, TransactionOptions, WriteOptions,
};

use crate::common::{self, Rng, fast_dir, small, small_family, unlogged};

/// What a family is to have.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn tiny() -> Options {
    Options {
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..small()
    }
}

/// Adds `bytes` of puts of keys that begin with `prefix`, each twice, to batch and model.
fn fill(batch: &mut Batch, model: &mut Model, family: &Family, prefix: &str, bytes: usize, rng: &mut Rng) {
    let target = batch.size_bytes() + bytes;
    let mut n = 0;
    while batch.size_bytes() < target {
        let key = format!("{prefix}/{:06}", rng.below(1 << 20)).into_bytes();
        batch.put(family, &key, "overwritten in the same commit").unwrap();
        let value = vec![n as u8; rng.below(900) as usize];
        batch.put(family, &key, &value).unwrap();
        model.insert(key, value);
        n += 1;
    }
}

fn content(family: &Family) -> Model {
    let entries = family.iter().unwrap().map(|entry| entry.unwrap());
    entries
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// Point reads, and scans from both ends.
fn assert_has(family: &Family, model: &Model) {
    assert!(content(family) == *model, "a scan of {} differs", family.name());
    let back = family.iter().unwrap().rev().map(|entry| entry.unwrap());
    assert!(
        back.map(|(key, value)| (key.to_vec(), value.to_vec())).eq(model
            .iter()
            .rev()
            .map(|(key, value)| (key.clone(), value.clone()))),
        "a scan from the back differs"
    );
    for (key, value) in model.iter().step_by(7) {
        assert_eq!(family.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    assert_eq!(family.get("no such key").unwrap(), None);
}

/// Eight rings of puts over other families and older keys, beside a snapshot; then half of it is
/// removed in one commit. Seen at once, and after openings with and without a flush.
#[test]
fn a_commit_of_eight_rings_is_seen_whole_and_survives_reopening() {
    for flushed in [false, true] {
        let dir = fast_dir();
        let options = tiny();
        let db = common::open(dir.path(), &options);
        let mut rng = Rng::new(17);
        let mut families = vec![db.default_family()];
        for n in 0..12 {
            families.push(db.create_family(&format!("f{n}"), small_family()).unwrap());
        }
        let mut models = vec![Model::new(); families.len()];
        for (family, model) in families.iter().zip(&mut models) {
            for n in 0..20_u8 {
                let key = format!("k/{:06}", rng.below(1 << 20)).into_bytes();
                family.put(&key, [n; 50]).unwrap();
                model.insert(key, vec![n; 50]);
            }
        }
        let before = models.clone();
        let snapshot = db.snapshot();
        let mut batch = Batch::new();
        for (family, model) in families.iter().zip(&mut models) {
            fill(
                &mut batch,
                model,
                family,
                "k",
                8 * options.ring_bytes / 13,
                &mut rng,
            );
        }
        assert!(batch.size_bytes() >= 8 * options.ring_bytes);
        let end = db.write(batch, &WriteOptions::disk()).unwrap();
        assert!(db.visible() >= end && db.durable() >= end);
        // Behind it, and over it.
        for (family, model) in families.iter().zip(&mut models) {
            let key = model.keys().next().unwrap().clone();
            family.put(&key, "later").unwrap();
            model.insert(key, b"later".to_vec());
        }
        for ((family, model), before) in families.iter().zip(&models).zip(&before) {
            assert_has(family, model);
            let then = snapshot.iter(family).unwrap().map(|entry| entry.unwrap());
            assert!(
                then.map(|(key, value)| (key.to_vec(), value.to_vec()))
                    .eq(before.clone())
            );
        }
        drop(snapshot);
        let mut removal = Batch::new();
        for (family, model) in families.iter().zip(&mut models) {
            let removed: Vec<_> = model.keys().step_by(2).cloned().collect();
            for key in removed {
                removal.delete(family, &key).unwrap();
                model.remove(&key);
            }
        }
        // Deletes of few bytes, and one value that makes it large.
        removal
            .put(&families[0], "huge", vec![7; 3 * options.ring_bytes])
            .unwrap();
        models[0].insert(b"huge".to_vec(), vec![7; 3 * options.ring_bytes]);
        db.write(removal, &WriteOptions::disk()).unwrap();
        if flushed {
            db.flush().unwrap();
        }
        drop(db);
        for _ in 0..2 {
            for (family, model) in families.iter().zip(&models) {
                assert_has(family, model);
            }
            let names: Vec<_> = families
                .drain(..)
                .map(|family| family.name().to_owned())
                .collect();
            drop(families);
            families = reopen(dir.path(), &options, &names);
        }
        let db = families[0].db().clone();
        db.compact().unwrap();
        for (family, model) in families.iter().zip(&models) {
            assert_has(family, model);
        }
        let parts = |(name, _): &(String, u64)| name.starts_with("large-commit/");
        let holders = db.stats().log.unwrap().holders;
        assert!(!holders.iter().any(parts), "{holders:?} retain what is in tables");
    }
}

/// The last handle of the store is gone.
fn reopen(path: &std::path::Path, options: &Options, names: &[String]) -> Vec<Family> {
    let db = common::open(path, options);
    names.iter().map(|name| db.family(name).unwrap()).collect()
}

#[test]
fn large_commits_of_two_threads_and_small_ones_are_all_there() {
    let dir = fast_dir();
    let options = tiny();
    let db = common::open(dir.path(), &options);
    let second = db.create_family("second", small_family()).unwrap();
    let families = [db.default_family(), second];
    let mut models = [Model::new(), Model::new()];
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|thread| {
                let (db, families) = (&db, &families);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    let mut models = [Model::new(), Model::new()];
                    for round in 0..if thread < 2 { 5 } else { 300 } {
                        let mut batch = Batch::new();
                        for (family, model) in families.iter().zip(&mut models) {
                            let bytes = if thread < 2 { 100 << 10 } else { 400 };
                            let prefix = format!("{thread}/{round}");
                            fill(&mut batch, model, family, &prefix, bytes, &mut rng);
                        }
                        db.write(batch, &WriteOptions::buffered()).unwrap();
                    }
                    models
                })
            })
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect::<Vec<_>>()
    });
    for of_thread in written {
        for (model, more) in models.iter_mut().zip(of_thread) {
            model.extend(more);
        }
    }
    for (family, model) in families.iter().zip(&models) {
        assert_has(family, model);
    }
    drop(families);
    db.close().unwrap();
    let families = reopen(dir.path(), &options, &["default".into(), "second".into()]);
    for (family, model) in families.iter().zip(&models) {
        assert_has(family, model);
    }
}

#[test]
fn without_the_log_a_commit_of_any_size_is_seen_and_flushed() {
    let kinds = [
        (tiny(), WriteOptions::without_wal()),
        (unlogged(), WriteOptions::disk()),
    ];
    for (options, write) in kinds {
        let dir = fast_dir();
        let db = common::open(dir.path(), &options);
        let family = db.default_family();
        let (mut batch, mut model) = (Batch::new(), Model::new());
        fill(
            &mut batch,
            &mut model,
            &family,
            "k",
            6 * options.ring_bytes,
            &mut Rng::new(3),
        );
        db.write(batch, &write).unwrap();
        if let Some(log) = db.stats().log {
            assert!(
                log.frame_bytes < 64 << 10,
                "{} bytes are in the log",
                log.frame_bytes
            );
        }
        assert_has(&family, &model);
        drop(family);
        db.close().unwrap();
        assert_has(&common::open(dir.path(), &options).default_family(), &model);
    }
}

#[test]
fn a_transaction_of_any_size_reads_conflicts_and_commits() {
    for options in [TransactionOptions::default(), TransactionOptions::optimistic()] {
        let dir = fast_dir();
        let db = common::open(dir.path(), &tiny());
        let family = db.default_family();
        let write = |key: &str| {
            let tx = db.transaction(options.clone()).unwrap();
            for n in 0..300 {
                tx.put(&family, format!("k/{n:06}"), vec![1; 1000]).unwrap();
            }
            tx.put(&family, key, "mine").unwrap();
            tx
        };
        let older = db.transaction(TransactionOptions::optimistic()).unwrap();
        assert_eq!(older.get(&family, "k/000007").unwrap(), None);
        let tx = write("own");
        assert_eq!(tx.get(&family, "k/000299").unwrap().map(|v| v.len()), Some(1000));
        tx.commit().unwrap();
        assert_eq!(family.iter().unwrap().count(), 301);
        // The commit is newer than the snapshot, also when it is in tables.
        older.put(&family, "k/000007", "older").unwrap();
        let refused = older.commit();
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        write("rolled back").rollback();
        assert_eq!(family.get("rolled back").unwrap(), None);
    }
}

/// What the last frame has to name does not fit the smallest ring, and the error says so.
#[test]
fn a_commit_of_too_many_families_for_the_ring_says_what_to_do() {
    let dir = fast_dir();
    let options = Options {
        ring_bytes: 8 << 10,
        ..tiny()
    };
    let db = common::open(dir.path(), &options);
    let mut batch = Batch::new();
    for n in 0..2_100 {
        let family = db.create_family(&format!("{n}"), small_family()).unwrap();
        batch.put(&family, "k", "v").unwrap();
    }
    let refused = db.write(batch, &WriteOptions::buffered()).unwrap_err();
    assert!(
        refused.to_string().contains("ring_bytes") && refused.to_string().contains("2100 families"),
        "{refused}"
    );
}

/// Half of the ring, and nothing goes to the log in parts.
#[test]
fn without_a_limit_of_its_own_a_commit_is_one_frame() {
    let dir = fast_dir();
    let options = Options {
        max_commit_bytes: 0,
        ..tiny()
    };
    let db = common::open(dir.path(), &options);
    let before = db.stats().log.unwrap().frames;
    db.put("fits", vec![1; 31 << 10]).unwrap();
    assert_eq!(db.stats().log.unwrap().frames, before + 1);
    let refused = db.put("does not", vec![1; 33 << 10]).unwrap_err();
    assert!(matches!(refused, Error::BatchTooLarge { .. }), "{refused}");
    assert_eq!(db.iter().unwrap().count(), 1);
}

#[test]
fn what_exceeds_the_limit_is_refused_and_changes_nothing() {
    let dir = fast_dir();
    let options = Options {
        max_commit_bytes: 1 << 20,
        ..tiny()
    };
    let db = common::open(dir.path(), &options);
    let family = db.default_family();
    db.put("k", "v").unwrap();
    let before = db.stats().log.unwrap().frames;
    let mut batch = Batch::new();
    batch.put(&family, "k", "w").unwrap();
    batch.put(&family, "large", vec![1; 1 << 20]).unwrap();
    let refused = db.write(batch, &WriteOptions::disk()).unwrap_err();
    let is_limit = matches!(refused, Error::BatchTooLarge { limit: 1_048_576, .. });
    assert!(
        is_limit && refused.to_string().contains("max_commit_bytes"),
        "{refused}"
    );
    assert_eq!(db.stats().log.unwrap().frames, before);
    assert_eq!(content(&family).len(), 1);
    for max_commit_bytes in [1023, 1 << 32] {
        let options = Options {
            max_commit_bytes,
            ..tiny()
        };
        let refused = Db::open(dir.path().join("other"), options).unwrap_err();
        assert!(refused.to_string().contains("max_commit_bytes"), "{refused}");
    }
}

/// A family of a large commit is dropped, and one is never flushed by itself: the log is kept for
/// the commit until that one is flushed.
#[test]
fn parts_are_kept_until_the_last_family_is_flushed_or_dropped() {
    let dir = fast_dir();
    let options = Options {
        durability: Durability::Buffered,
        max_total_wal_size: Some(256 << 10),
        ..tiny()
    };
    let db = common::open(dir.path(), &options);
    let dropped = db.create_family("dropped", FamilyOptions::default()).unwrap();
    let family = db.default_family();
    let mut rng = Rng::new(4);
    let mut model = Model::new();
    for round in 0..10 {
        let mut batch = Batch::new();
        fill(
            &mut batch,
            &mut model,
            &family,
            &format!("{round}"),
            200 << 10,
            &mut rng,
        );
        if round < 5 {
            batch.put(&dropped, "k", "v").unwrap();
        }
        db.write(batch, &WriteOptions::buffered()).unwrap();
        if round == 4 {
            db.drop_family(&dropped).unwrap();
        }
    }
    assert_has(&family, &model);
    db.flush().unwrap();
    let log = db.stats().log.unwrap();
    let parts = |(name, _): &(String, u64)| name.starts_with("large-commit/");
    assert!(!log.holders.iter().any(parts), "{:?}", log.holders);
    drop((family, dropped));
    db.close().unwrap();
    assert_has(&common::open(dir.path(), &options).default_family(), &model);
}
