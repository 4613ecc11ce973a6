//! Families beside one whose tables are all merged.

use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, RealClock};

use super::hold;
use super::interleavings::put;
use crate::background::compaction;
use crate::{Db, FamilyOptions, Options};

/// The only thread waited until that one was merged, which may take long, and all others stopped.
#[test]
fn other_families_are_compacted_while_one_is_merged_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let family = |name: &str| db.create_family(name, FamilyOptions::default()).unwrap();
    let (merged, other) = (family("merged"), family("other"));
    let merge = {
        let (store, state) = (Arc::clone(db.store()), Arc::clone(merged.state()));
        hold("compaction begins", move || {
            compaction::compact_all(&store, &state)
        })
        .at_point()
    };
    for family in [&merged, &other] {
        // Overlapping, so that they have to be merged.
        for n in 0..8 {
            put(family, "first", &n.to_string());
            put(family, "last", &n.to_string());
            family.flush().unwrap();
        }
    }
    let compactions = |name: &str| db.stats().families[name].compactions;
    let until = RealClock.monotonic() + 60_000_000_000;
    while compactions("other") == 0 && RealClock.monotonic() < until {
        std::thread::yield_now();
    }
    assert!(compactions("other") > 0, "nothing is compacted beside it");
    assert_eq!(compactions("merged"), 0);
    merge.finish().unwrap();
    assert!(compactions("merged") > 0);
    db.close().unwrap();
}

/// Dropping frees space; a merge would take it again, and may take long.
#[test]
fn a_merge_ends_where_the_family_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let family = db.create_family("dropped", FamilyOptions::default()).unwrap();
    for n in 0..2 {
        put(&family, "first", &n.to_string());
        put(&family, "last", &n.to_string());
        family.flush().unwrap();
    }
    let state = Arc::clone(family.state());
    let merge = {
        let (store, state) = (Arc::clone(db.store()), Arc::clone(&state));
        hold("compaction begins", move || {
            compaction::compact_all(&store, &state)
        })
        .at_point()
    };
    let version = state.tables().version();
    db.drop_family(&family).unwrap();
    merge.finish().unwrap();
    assert_eq!(state.tables().version(), version, "it was merged to its end");
    assert_eq!(db.stats().families.len(), 1);
    db.put("k", "the store goes on").unwrap();
    db.close().unwrap();
}

/// What is to be tried again in a minute, on a full disk, would keep the tables of an emptied database.
#[test]
fn what_is_queued_for_later_keeps_no_dropped_familys_files() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let family = db.create_family("dropped", FamilyOptions::default()).unwrap();
    put(&family, "k", "v");
    family.flush().unwrap();
    let (state, minute) = (Arc::clone(family.state()), Duration::from_secs(60));
    let queue_all = || {
        db.store().queue().flush_after(&state, minute);
        db.store().queue().compact_after(&state, minute);
        db.store().queue().merge_whole_after(&state, minute);
    };
    // What ran already is done.
    let until = RealClock.monotonic() + 60_000_000_000;
    while Arc::strong_count(&state) > 3 && RealClock.monotonic() < until {
        std::thread::yield_now();
    }
    let before = Arc::strong_count(&state);
    queue_all();
    assert_eq!(Arc::strong_count(&state), before + 3);
    db.drop_family(&family).unwrap();
    // A task that ends after the drop.
    queue_all();
    drop(family);
    assert_eq!(Arc::strong_count(&state), 1, "something keeps the family");
    db.close().unwrap();
}
