//! Replacing the whole content of a store.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the files behind the store's back"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{Db, Error, Options};

use crate::common;
use crate::dying::Dying;
use crate::journal::{FIRST, Map, TestJournal, batch, content, open, options, put};

/// A store that is far ahead, as links, which another transferred.
fn staged(dir: &Path) -> (PathBuf, u64, Map) {
    let journal = Arc::new(TestJournal::default());
    let db = open(&dir.join("source"), &journal);
    for n in 0..300 {
        let writes = put(&format!("new/{:03}", n % 100), &"n".repeat(400));
        journal.apply(&db, FIRST + 1000 + n, writes).unwrap();
    }
    let staged = dir.join("staged");
    let flushed = db.links(&staged).unwrap();
    let map = content(&db);
    db.close().unwrap();
    std::fs::remove_dir_all(dir.join("source")).unwrap();
    (staged, flushed, map)
}

/// Tables, and something in memory.
fn old(db: &Db, journal: &TestJournal) {
    for n in 0..300 {
        let writes = put(&format!("old/{:03}", n % 100), &"o".repeat(400));
        let seq = journal.last() + 1;
        journal.apply(db, seq, writes).unwrap();
        if n == 200 {
            db.flush().unwrap();
        }
    }
}

fn families(path: &Path) -> usize {
    std::fs::read_dir(path.join("families")).unwrap().count()
}

#[test]
fn the_content_is_replaced_and_readers_keep_the_old_one() {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let (staged, flushed, new) = staged(dir.path());
    let journal = Arc::new(TestJournal::default());
    let db = open(&path, &journal);
    old(&db, &journal);
    let before = content(&db);
    let (snapshot, family) = (db.snapshot(), db.default_family());
    let mut iter = db.iter().unwrap();
    let first = iter.next().unwrap().unwrap();
    let stale = batch(&db, &put("k", "stale"));
    assert_eq!(db.adopt(&staged).unwrap(), flushed);
    assert_eq!((db.flushed(), db.visible()), (flushed, flushed + 1));
    assert_eq!(content(&db), new);
    assert_eq!(journal.told().last(), Some(&flushed));
    // What was there before is refused, or shows the old content.
    assert!(matches!(family.get("old/000"), Err(Error::FamilyDropped { .. })));
    assert!(matches!(
        db.apply(&stale, flushed + 1),
        Err(Error::FamilyDropped { .. })
    ));
    let seen = snapshot.iter(&family).unwrap().map(|entry| entry.unwrap());
    assert_eq!(seen.count(), before.len());
    let rest = iter.collect::<collie_db::Result<Vec<_>>>().unwrap();
    assert_eq!(1 + rest.len(), before.len());
    assert!(before.contains_key(&first.0.to_vec()));
    // Commits go on where the new content ends.
    let early = db.apply(&batch(&db, &put("k", "v")), flushed);
    assert!(matches!(early, Err(Error::SeqOutOfOrder { .. })), "{early:?}");
    journal.apply(&db, flushed + 1, put("k", "v")).unwrap();
    db.compact().unwrap();
    assert_eq!(db.flushed(), flushed + 1);
    drop((snapshot, family, stale));
    db.close().unwrap();
    let db = open(&path, &journal);
    let mut after = new;
    after.insert(b"k".to_vec(), b"v".to_vec());
    assert_eq!((db.flushed(), content(&db)), (flushed + 1, after));
    assert_eq!(families(&path), 1);
    // The staged files are still the caller's.
    assert_eq!(open(&staged, &journal).flushed(), flushed);
}

#[test]
fn what_lacks_something_that_was_applied_is_refused() {
    let dir = common::fast_dir();
    let (staged, flushed, _) = staged(dir.path());
    let journal = Arc::new(TestJournal::default());
    let db = open(&dir.path().join("store"), &journal);
    journal.apply(&db, flushed, put("k", "v")).unwrap();
    // All of it is there: the same, as far as the journal knows.
    db.adopt(&staged).unwrap();
    journal.apply(&db, flushed + 1, put("k", "v")).unwrap();
    let refused = db.adopt(&staged).err();
    assert!(
        matches!(refused, Some(Error::SeqOutOfOrder { .. })),
        "{refused:?}"
    );
    assert_eq!(db.get("k").unwrap().unwrap(), "v");
    let own = dir.path().join("own");
    drop(common::open(&own, &common::small()));
    for wrong in [own, dir.path().join("nothing")] {
        let refused = db.adopt(&wrong).err();
        assert!(
            matches!(refused, Some(Error::WrongDirectory { .. })),
            "{}: {refused:?}",
            wrong.display()
        );
    }
    let rotten = staged.join("families/0/current");
    std::fs::write(&rotten, "x").unwrap();
    let refused = db.adopt(&staged).err();
    assert!(matches!(refused, Some(Error::Corrupt { .. })), "{refused:?}");
    // Nothing was changed, and nothing is in the way of the next attempt.
    assert_eq!(db.get("k").unwrap().unwrap(), "v");
    journal.apply(&db, flushed + 2, put("k", "w")).unwrap();
    db.flush().unwrap();
    // The first ones' are removed in the background.
    while families(&dir.path().join("store")) > 1 {
        std::thread::yield_now();
    }
}

/// The process dies at each operation in turn. The next opening finds the old content, as far as it
/// was flushed, or the new one, and no file of the other.
#[test]
fn a_death_at_any_operation_leaves_the_old_content_or_the_new() {
    let (mut olds, mut news) = (0, 0);
    for n in 0.. {
        let dir = common::fast_dir();
        let path = dir.path().join("store");
        let (staged, flushed, new) = staged(dir.path());
        let journal = Arc::new(TestJournal::default());
        let device = Dying::new();
        let options = Options {
            device: Arc::new(device.clone()),
            ..options(&journal)
        };
        let db = Db::open(&path, options).unwrap();
        old(&db, &journal);
        db.flush().unwrap();
        let before = content(&db);
        device.die_after(n);
        let adopted = db.adopt(&staged);
        let died = device.is_dead();
        if let Err(error) = &adopted {
            assert!(died, "{n}: {error}");
        }
        device.kill();
        drop(db);
        let db = open(&path, &journal);
        let (found, at) = (content(&db), db.flushed());
        match at == flushed {
            true => {
                assert_eq!(found, new, "operation {n}");
                news += 1;
            }
            false => {
                assert_eq!((found, at), (before, journal.last()), "operation {n}");
                assert!(adopted.is_err(), "operation {n}: the new content is lost");
                olds += 1;
                // And once more.
                db.adopt(&staged).unwrap();
                assert_eq!(content(&db), new, "operation {n}");
            }
        }
        drop(db);
        let db = open(&path, &journal);
        assert_eq!((content(&db), db.flushed()), (new, flushed), "operation {n}");
        assert_eq!(families(&path), 1, "operation {n}");
        if !died {
            break;
        }
    }
    assert!(olds > 8 && news > 0, "{olds} and {news}");
}

/// Reads beside it see the old content or the new one, whole.
#[test]
fn reads_beside_it_see_one_content() {
    let dir = common::fast_dir();
    let path = dir.path().join("store");
    let (staged, _, new) = staged(dir.path());
    let journal = Arc::new(TestJournal::default());
    let db = open(&path, &journal);
    old(&db, &journal);
    let before = content(&db);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut olds, mut news) = (0, 0);
            while news < 20 {
                let (snapshot, family) = (db.snapshot(), db.default_family());
                let found: Map = match snapshot.iter(&family) {
                    Ok(entries) => entries
                        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
                        .collect(),
                    // It was replaced between the two.
                    Err(Error::FamilyTooNew { .. } | Error::FamilyDropped { .. }) => continue,
                    Err(error) => panic!("{error}"),
                };
                match found == new {
                    true => news += 1,
                    false => {
                        assert_eq!(found, before);
                        olds += 1;
                    }
                }
            }
            olds
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        db.adopt(&staged).unwrap();
        reading.join().unwrap();
    });
}
