//! What closing a store does to calls that run.

use std::sync::Arc;

use crate::test::hold;
use crate::{Db, Error, Options};

fn options() -> Options {
    Options {
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// It was once the table library's error, of a kind that callers try again.
#[test]
fn a_manual_compaction_that_closing_ends_early_says_that_the_store_is_closed() {
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
