//! What closing a store does to calls that run, and to handles that stay.

use std::sync::Arc;

use crate::test::hold;
use crate::{Batch, Db, Error, FamilyOptions, Options};

fn options() -> Options {
    Options {
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// It was once the table library's error, of a kind that callers try again.
#[test]
fn a_manual_compaction_that_closing_ends_early_says_closed() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    for value in ["1", "2"] {
        for key in 0..10 {
            db.put(format!("{key}"), value).unwrap();
        }
        db.flush().unwrap();
    }
    let compacting = {
        let db = db.clone();
        hold("compaction begins", move || db.compact()).at_point()
    };
    let store = Arc::clone(db.store());
    let closing = std::thread::spawn(move || db.close());
    while !store.is_closed() {
        std::thread::yield_now();
    }
    let compacted = compacting.finish();
    assert!(matches!(compacted, Err(Error::Closed)), "{compacted:?}");
    closing.join().unwrap().unwrap();
    drop(store);
    let db = Db::open(dir.path(), options()).unwrap();
    assert_eq!(db.get("7").unwrap().unwrap(), "2");
}

/// Handles of families that are there never did.
#[test]
fn handles_of_a_dropped_family_keep_no_closed_store_locked() {
    let dir = tempfile::tempdir().unwrap();
    for is_batch in [false, true] {
        let db = Db::open(dir.path(), options()).unwrap();
        let family = db.create_family("f", FamilyOptions::default()).unwrap();
        family.put("a", "b").unwrap();
        family.flush().unwrap();
        let mut batch = Batch::new();
        batch.put(&family, "c", "d").unwrap();
        db.drop_family(&family).unwrap();
        let state = Arc::clone(family.state());
        assert!(state.tables().is_to_be_removed());
        let (family, batch) = if is_batch {
            (None, Some(batch))
        } else {
            (Some(family), None)
        };
        db.close().unwrap();
        // What is at this path may be another store when the handle goes.
        assert!(!state.tables().is_to_be_removed());
        let again = Db::open(dir.path(), options()).unwrap();
        assert_eq!(again.families(), ["default"]);
        if let Some(family) = &family {
            assert!(family.get("a").is_err() && family.put("a", "b").is_err());
        }
        drop((family, batch, state));
        // The opening has removed its files.
        assert!(!dir.path().join("families/1").exists());
        again.put("a", "b").unwrap();
        again.close().unwrap();
    }
}
