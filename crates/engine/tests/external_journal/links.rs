//! Copies of a store that share its table files.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the files behind the store's back"
)]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use collie_db::{Db, Error, Options};

use crate::common;
use crate::dying::Dying;
use crate::journal::{FIRST, Map, TestJournal, content, open, options, put};

/// Some tables, and something in memory.
fn fill(db: &Db, journal: &TestJournal, from: u64) -> u64 {
    for n in 0..400 {
        let writes = vec![
            (format!("{:03}", n % 150).into_bytes(), Some(vec![n as u8; 500])),
            (format!("{:03}", (n + 40) % 150).into_bytes(), None),
        ];
        journal.apply(db, from + n, writes).unwrap();
    }
    from + 399
}

fn read_all(path: &Path, journal: &Arc<TestJournal>) -> (u64, Map) {
    let db = open(path, journal);
    (db.flushed(), content(&db))
}

#[test]
fn links_are_a_store_of_their_own() {
    let dir = common::fast_dir();
    let (path, copy) = (dir.path().join("store"), dir.path().join("a/copy"));
    let journal = Arc::new(TestJournal::default());
    let db = open(&path, &journal);
    let last = fill(&db, &journal, FIRST);
    assert_eq!(db.links(&copy).unwrap(), last);
    let map = content(&db);
    // The files are shared, but for those that a compaction has removed from the source by now.
    for entry in std::fs::read_dir(copy.join("families/0/tables")).unwrap() {
        let entry = entry.unwrap();
        let is_shared = entry.metadata().unwrap().nlink() >= 2;
        let source = path.join("families/0/tables").join(entry.file_name());
        assert!(is_shared || !source.exists(), "{entry:?}");
    }
    // What the source does afterwards changes nothing, its compactions and its end included.
    fill(&db, &journal, last + 1);
    db.compact().unwrap();
    assert_eq!(read_all(&copy, &journal), (last, map.clone()));
    db.close().unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let db = open(&copy, &journal);
    assert_eq!((db.flushed(), content(&db)), (last, map));
    // It goes on by itself.
    journal.reapply(&db);
    db.compact().unwrap();
    assert_eq!(content(&db), journal.map_at(u64::MAX));
}

#[test]
fn links_are_refused_into_what_is_there() {
    let dir = common::fast_dir();
    let (path, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let journal = Arc::new(TestJournal::default());
    let db = open(&path, &journal);
    fill(&db, &journal, FIRST);
    db.links(&copy).unwrap();
    std::fs::create_dir(dir.path().join("other")).unwrap();
    std::fs::write(dir.path().join("other/file"), "x").unwrap();
    for there in ["copy", "other", "store"] {
        let refused = db.links(dir.path().join(there)).err();
        assert!(
            matches!(refused, Some(Error::WrongDirectory { .. })),
            "{there}: {refused:?}"
        );
    }
    read_all(&copy, &journal);
}

/// Commits and compactions go on while links are made; each copy is the store at one moment.
#[test]
fn links_are_of_one_moment() {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let journal = Arc::new(TestJournal::default());
    let db = open(&path, &journal);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| {
            let mut from = FIRST;
            while !done.load(Ordering::Relaxed) {
                from = fill(&db, &journal, from) + 1;
            }
        });
        let compacting = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                db.compact().unwrap();
            }
        });
        let copies = (0..10).map(|n| {
            let copy = dir.path().join(format!("copy{n}"));
            (db.links(&copy).unwrap(), read_all(&copy, &journal))
        });
        let copies: Vec<_> = copies.collect();
        done.store(true, Ordering::Relaxed);
        applying.join().unwrap();
        compacting.join().unwrap();
        for (flushed, found) in copies {
            assert!(
                found == (flushed, journal.map_at(flushed)),
                "a copy is not of {flushed}"
            );
        }
    });
}

/// The process dies at each operation: what it left is no store, or the whole one.
#[test]
fn a_copy_that_was_cut_off_is_no_store() {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let journal = Arc::new(TestJournal::default());
    let mut complete = 0;
    for n in 0.. {
        let device = Dying::new();
        let options = Options {
            device: Arc::new(device.clone()),
            ..options(&journal)
        };
        let db = Db::open(&path, options).unwrap();
        journal.reapply(&db);
        journal
            .apply(&db, journal.last() + 1, put("n", &n.to_string()))
            .unwrap();
        db.flush().unwrap();
        let copy = dir.path().join(format!("copy{n}"));
        device.die_after(n);
        let made = db.links(&copy);
        let died = device.is_dead();
        device.kill();
        drop(db);
        if copy.join("MANIFEST").exists() {
            let last = journal.last();
            assert_eq!(read_all(&copy, &journal), (last, journal.map_at(last)), "{n}");
            complete += 1;
        } else {
            assert!(made.is_err(), "{n}");
            if copy.exists() && std::fs::read_dir(&copy).unwrap().count() > 0 {
                let refused = Db::open(&copy, crate::journal::options(&journal)).err();
                assert!(
                    matches!(refused, Some(Error::WrongDirectory { .. })),
                    "{n}: {refused:?}"
                );
            }
        }
        if !died {
            made.unwrap();
            assert!(n > 8, "only {n} operations");
            break;
        }
    }
    assert!(complete > 0);
}
