//! What such a store accepts and refuses, and when it writes a table.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the files behind the store's back"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{
    Batch, Db, Durability, Error, FamilyOptions, Journal, Options, ReadOptions, TransactionOptions,
    WriteOptions,
};

use collie_io::RealDevice;
use collie_sim::{Fault, FaultKind, SimDevice, SplitDevice};

use crate::common;
use crate::journal::{FIRST, TestJournal, batch, content, open, options, put};

/// All files below `dir`.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

fn tables(dir: &Path) -> usize {
    let of_tables = |path: &&PathBuf| path.parent().is_some_and(|dir| dir.ends_with("tables"));
    files(dir).iter().filter(of_tables).count()
}

#[test]
fn what_is_applied_is_visible_and_in_no_file_until_flushed() {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let journal = Arc::new(TestJournal::default());
    let db = open(&path, &journal);
    assert_eq!(db.flushed(), FIRST - 1);
    let before = files(&path);
    journal.apply(&db, FIRST, put("a", "1")).unwrap();
    let first = db.snapshot();
    journal.apply(&db, FIRST + (9 << 16), put("a", "2")).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "2");
    assert_eq!(first.get(&db.default_family(), "a").unwrap().unwrap(), "1");
    assert_eq!(files(&path), before);
    drop((first, db));
    let db = open(&path, &journal);
    assert_eq!((db.flushed(), content(&db).len()), (FIRST - 1, 0));
    journal.reapply(&db);
    db.flush().unwrap();
    assert_eq!(db.flushed(), FIRST + (9 << 16));
    assert_eq!(journal.told(), [FIRST + (9 << 16)]);
    db.close().unwrap();
    let db = open(&path, &journal);
    assert_eq!(db.flushed(), FIRST + (9 << 16));
    assert_eq!(content(&db), journal.map_at(u64::MAX));
    let logs: Vec<_> = files(&path)
        .into_iter()
        .filter(|file| {
            !file.starts_with(path.join("families")) && !file.ends_with("MANIFEST") && !file.ends_with("LOCK")
        })
        .collect();
    assert!(logs.is_empty(), "{logs:?}");
}

#[test]
fn sequence_numbers_ascend() {
    let dir = common::fast_dir();
    let journal = Arc::new(TestJournal::default());
    let db = open(dir.path(), &journal);
    let apply = |seq| db.apply(&batch(&db, &put("k", "v")), seq);
    for seq in [0, FIRST - 1, 1 << 62] {
        assert!(matches!(apply(seq), Err(Error::SeqOutOfOrder { .. })), "{seq}");
    }
    journal.append(FIRST + 5, put("k", "v"));
    apply(FIRST + 5).unwrap();
    for seq in [FIRST, FIRST + 4, FIRST + 5] {
        let Err(Error::SeqOutOfOrder { seq: found, next }) = apply(seq) else {
            panic!("{seq} was applied after {}", FIRST + 5);
        };
        assert_eq!((found, next), (seq, FIRST + 6));
    }
    // An empty one takes its number.
    journal.append(FIRST + 8, Vec::new());
    db.apply(&Batch::new(), FIRST + 8).unwrap();
    assert!(apply(FIRST + 8).is_err());
    db.flush().unwrap();
    drop(db);
    let db = open(dir.path(), &journal);
    assert!(db.flushed() >= FIRST + 5);
    let again = db.apply(&batch(&db, &put("k", "w")), db.flushed());
    assert!(matches!(again, Err(Error::SeqOutOfOrder { .. })), "{again:?}");
}

#[test]
fn every_other_write_is_refused() {
    let dir = common::fast_dir();
    let journal = Arc::new(TestJournal::default());
    let db = open(&dir.path().join("external"), &journal);
    let family = db.default_family();
    let refusals = [
        db.put("k", "v").err(),
        db.delete("k").err(),
        family.put_with("k", "v", &WriteOptions::without_wal()).err(),
        db.write(batch(&db, &put("k", "v")), &WriteOptions::buffered())
            .err(),
        db.transaction(TransactionOptions::default()).err(),
        db.transaction(TransactionOptions::optimistic()).err(),
        db.create_family("other", FamilyOptions::default()).err(),
        db.open_family("other", FamilyOptions::default()).err(),
    ];
    for (n, refusal) in refusals.into_iter().enumerate() {
        let text = refusal.as_ref().map(ToString::to_string);
        assert!(
            matches!(refusal, Some(Error::ExternalJournal { .. })),
            "{n}: {text:?}"
        );
        assert!(text.unwrap().contains("apply"), "{n}");
    }
    assert_eq!(content(&db).len(), 0);
    assert_eq!(db.families(), ["default"]);
    // And the other way round.
    let own = common::open(&dir.path().join("own"), &common::small());
    let refusals = [
        own.apply(&batch(&own, &put("k", "v")), FIRST + (1 << 40)).err(),
        own.links(dir.path().join("links")).err(),
        own.adopt(dir.path().join("links")).err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Some(Error::OwnJournal { .. })), "{refusal:?}");
    }
}

#[test]
fn a_store_is_opened_as_it_was_made() {
    let dir = common::fast_dir();
    let journal = Arc::new(TestJournal::default());
    let (external, own, off) = (
        dir.path().join("external"),
        dir.path().join("own"),
        dir.path().join("off"),
    );
    drop(open(&external, &journal));
    drop(common::open(&own, &common::small()));
    drop(common::open(&off, &common::unlogged()));
    let wrong = [
        (&external, common::small()),
        (&external, common::unlogged()),
        (&own, options(&journal)),
        (&off, options(&journal)),
        (
            &dir.path().join("new"),
            Options {
                disable_wal: true,
                ..options(&journal)
            },
        ),
    ];
    for (path, options) in wrong {
        let before = path
            .exists()
            .then(|| std::fs::read(path.join("MANIFEST")).unwrap());
        let refused = Db::open(path, options).err();
        assert!(
            matches!(refused, Some(Error::InvalidOption { .. })),
            "{}: {refused:?}",
            path.display()
        );
        let after = path
            .exists()
            .then(|| std::fs::read(path.join("MANIFEST")).unwrap());
        assert_eq!(before, after, "{}", path.display());
    }
    for path in [&own, &off] {
        assert!(matches!(Options::default().journal, Journal::Own));
        drop(common::open(path, &common::small()));
    }
    drop(open(&external, &journal));
}

/// The flush waits, before it writes anything; reads at the durable boundary do not see what waits.
#[test]
fn no_table_is_written_before_the_journal_is_durable_that_far() {
    let dir = common::fast_dir();
    let journal = Arc::new(TestJournal::default());
    let db = open(dir.path(), &journal);
    journal.apply(&db, FIRST, put("a", "1")).unwrap();
    db.flush().unwrap();
    let before = tables(dir.path());
    journal.apply(&db, FIRST + 1, put("a", "2")).unwrap();
    journal.apply(&db, FIRST + 2, put("b", "2")).unwrap();
    std::thread::scope(|scope| {
        let _held = journal.hold();
        let flushing = scope.spawn(|| db.flush());
        // Exactly the memtable's last entry.
        journal.await_flush(FIRST + 2);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!flushing.is_finished());
        assert_eq!((tables(dir.path()), db.flushed()), (before, FIRST));
        assert_eq!(journal.told(), [FIRST]);
        let family = db.default_family();
        let read = |durable| family.get_with("a", &ReadOptions { durable }).unwrap().value;
        assert_eq!(read(false).unwrap(), "2");
        assert_eq!(read(true).unwrap(), "1");
        // It goes on taking commits meanwhile.
        journal.apply(&db, FIRST + 3, put("c", "3")).unwrap();
        journal.sync();
        flushing.join().unwrap().unwrap();
    });
    assert!(db.flushed() >= FIRST + 2);
    assert_eq!(tables(dir.path()), before + 1);
    assert_eq!(journal.told(), [FIRST, FIRST + 2]);
    db.wait(db.visible(), Durability::Disk).unwrap();
    assert_eq!(db.durable(), db.visible());
}

#[test]
fn a_journal_that_fails_ends_flushes_and_commits_and_not_reads() {
    let dir = common::fast_dir();
    let journal = Arc::new(TestJournal::default());
    let db = open(dir.path(), &journal);
    journal.apply(&db, FIRST, put("a", "1")).unwrap();
    db.flush().unwrap();
    journal.apply(&db, FIRST + 1, put("a", "2")).unwrap();
    journal.fail("the disk of the log is gone");
    let poisoned = |result: collie_db::Result<()>| match result {
        Err(Error::Poisoned { cause }) => assert!(cause.contains("the disk of the log"), "{cause}"),
        other => panic!("{other:?}"),
    };
    poisoned(db.flush());
    // For good, even if the journal should find better days.
    journal.heal();
    poisoned(db.flush());
    poisoned(db.apply(&batch(&db, &put("a", "3")), FIRST + 2));
    poisoned(db.links(dir.path().join("links")).map(drop));
    assert!(db.stats().refusal.is_some());
    assert_eq!(db.get("a").unwrap().unwrap(), "2");
    assert_eq!(db.flushed(), FIRST);
    drop(db);
    let db = open(dir.path(), &journal);
    assert_eq!(db.flushed(), FIRST);
    journal.reapply(&db);
    db.flush().unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "2");
}

/// Memory is bounded although the journal is not durable: a commit waits for a flush, which waits for
/// the journal; closing the store ends it.
#[test]
fn commits_stall_while_the_journal_is_behind() {
    let dir = common::fast_dir();
    let journal = Arc::new(TestJournal::default());
    let db = open(dir.path(), &journal);
    std::thread::scope(|scope| {
        let held = journal.hold();
        let applying = scope.spawn(|| {
            for n in 0..60 {
                journal.append(FIRST + n, put(&format!("{n}"), &"v".repeat(8 << 10)));
            }
            for (seq, writes) in journal.above(0) {
                db.apply(&batch(&db, &writes), seq).unwrap();
            }
        });
        while db.stats().families["default"].stops == 0 {
            std::thread::yield_now();
        }
        assert!(!applying.is_finished());
        let bytes = db.stats().memtable_bytes;
        assert!(bytes < 400 << 10, "{bytes} bytes are in memory");
        drop(held);
        applying.join().unwrap();
    });
    assert_eq!(content(&db).len(), 60);
}

/// Where a commit would wait, one that must not is refused, and nothing of it is there.
#[test]
fn what_must_not_wait_is_refused_while_commits_stall() {
    let dir = common::fast_dir();
    let journal = Arc::new(TestJournal::default());
    let db = open(dir.path(), &journal);
    for n in 0..60 {
        journal.append(FIRST + n, put(&format!("{n}"), &"v".repeat(8 << 10)));
    }
    let all = journal.above(0);
    let held = journal.hold();
    let taken = all
        .iter()
        .take_while(|(seq, writes)| match db.try_apply(&batch(&db, writes), *seq) {
            Ok(()) => true,
            Err(error) => {
                assert!(matches!(error, Error::Stalled), "{error}");
                false
            }
        })
        .count();
    assert!((1..all.len()).contains(&taken), "{taken} were applied");
    assert_eq!(content(&db).len(), taken);
    assert!(db.stats().memtable_bytes < 400 << 10);
    drop(held);
    for (seq, writes) in &all[taken..] {
        db.apply(&batch(&db, writes), *seq).unwrap();
    }
    assert_eq!(content(&db).len(), 60);
}

/// The manifest has no room, so a table is registered that it does not record. What is in that table
/// says at the next opening up to where the journal's commits are there, so no compaction may take it
/// before it is recorded, by the flush or by that opening: the last commit may be a delete, of which
/// a compaction leaves nothing.
#[test]
fn what_an_opening_finds_does_not_depend_on_compactions() {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let journal = Arc::new(TestJournal::default());
    let sim = SimDevice::new(1);
    let on = |sim: &SimDevice| Options {
        device: Arc::new(SplitDevice::new(
            path.join("families"),
            Arc::new(RealDevice::new()),
            Arc::new(sim.clone()),
        )),
        ..options(&journal)
    };
    let db = Db::open(&path, on(&sim)).unwrap();
    journal.apply(&db, FIRST, put("a", "1")).unwrap();
    journal.apply(&db, FIRST + 1, put("b", "1")).unwrap();
    db.flush().unwrap();
    journal.apply(&db, FIRST + 2, put("a", "2")).unwrap();
    let last = FIRST + 9;
    journal.apply(&db, last, vec![(b"b".to_vec(), None)]).unwrap();
    sim.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    let full = db.flush();
    assert!(matches!(full, Err(Error::StorageFull { .. })), "{full:?}");
    assert_eq!(db.flushed(), FIRST + 1);
    let left = sim.snapshot().process_death().device();
    sim.kill();
    drop(db);
    // Twice: the first opening records it, for its own compactions.
    for _ in 0..2 {
        let db = Db::open(&path, on(&left)).unwrap();
        assert_eq!((db.flushed(), content(&db)), (last, journal.map_at(last)));
        db.compact().unwrap();
        db.close().unwrap();
    }
}

#[test]
fn rows_that_the_journal_does_not_keep_go_with_merges() {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let journal = Arc::new(TestJournal::default());
    let db = open(&path, &journal);
    for n in 0..2_000_u64 {
        let key = format!("{}{n:05}", if n % 2 == 0 { "old" } else { "new" });
        journal
            .apply(&db, FIRST + n, put(&key, &"v".repeat(200)))
            .unwrap();
    }
    db.compact().unwrap();
    let bytes = || {
        db.stats()
            .families
            .values()
            .map(|family| family.table_bytes)
            .sum::<u64>()
    };
    let before = bytes();
    journal.let_go(b"old");
    assert_eq!(content(&db).len(), 2_000, "they are there until a merge");
    db.compact().unwrap();
    let rows = content(&db);
    assert!(rows.keys().all(|key| key.starts_with(b"new")), "{}", rows.len());
    assert_eq!(rows.len(), 1_000);
    assert!(bytes() < before * 6 / 10, "{} of {before}", bytes());
    // They stay away, also above what came of them.
    drop(db);
    let db = open(&path, &journal);
    assert_eq!(content(&db).len(), 1_000);
}
