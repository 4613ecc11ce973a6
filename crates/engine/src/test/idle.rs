//! Families with nothing in memory beside one that is flushed: what the manifest may say of them.

use std::sync::Arc;

use collie_log::Level;

use super::flush_crashes::{death, mark, quiet_store};
use super::hold;
use super::interleavings::put;
use crate::background::flush;
use crate::events::FlushCause;
use crate::{Db, FamilyOptions, Options, RingMode, WriteOptions};

fn options() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// A sealed memtable of several segments of log, which the family `default` holds, too.
fn busy_beside_an_idle_one(dir: &std::path::Path) -> (Db, crate::Family) {
    let (db, busy) = quiet_store(dir, options());
    db.default_family().flush().unwrap();
    for n in 0..20 {
        put(&busy, &format!("{n:02}"), &"v".repeat(8 << 10));
    }
    db.store()
        .rotate(busy.state(), FlushCause::Manual, |_| true)
        .unwrap();
    (db, busy)
}

/// Its frame is durable and lies below what the log has reached, and it is in no memtable yet.
#[test]
fn a_commit_that_is_not_applied_yet_is_read_after_a_death() {
    let dir = tempfile::tempdir().unwrap();
    let (db, busy) = busy_beside_an_idle_one(dir.path());
    let idle = db.default_family();
    let before = mark(idle.state());
    let writer = {
        let idle = idle.clone();
        hold("appended", move || idle.put_with("k", "v", &WriteOptions::disk())).at_point()
    };
    db.store().sequencer().flush(Level::Disk).unwrap();
    flush::flush_sealed(db.store(), busy.state()).unwrap();
    assert!(mark(idle.state()) > before, "the idle family holds the log");
    writer.finish().unwrap();
    let image = death(&db);
    let db = Db::open(image.path(), options()).unwrap();
    assert!(db.get("k").unwrap().is_some(), "an acknowledged write is lost");
    db.close().unwrap();
}

/// What replay has not come to yet is in no memtable.
#[test]
fn no_family_counts_as_idle_while_the_log_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let (db, busy) = busy_beside_an_idle_one(dir.path());
    let (store, idle) = (db.store(), db.default_family());
    store.sequencer().flush(Level::Disk).unwrap();
    let before = mark(idle.state());
    store.replay(|| flush::flush_sealed(store, busy.state())).unwrap();
    assert_eq!(mark(idle.state()), before);
    flush::flush_all_of(store, idle.state(), FlushCause::Manual).unwrap();
    assert!(mark(idle.state()) > before);
}

/// A thousand idle families are named in the manifest's change once for each segment of log.
#[test]
fn idle_families_are_recorded_only_where_that_lets_a_segment_go() {
    let dir = tempfile::tempdir().unwrap();
    let (db, busy) = busy_beside_an_idle_one(dir.path());
    let (store, idle) = (db.store(), db.default_family());
    let other = db.create_family("holds", FamilyOptions::default()).unwrap();
    put(&other, "k", "v");
    // It holds the log that follows.
    let held = mark(other.state());
    flush::flush_sealed(store, busy.state()).unwrap();
    let recorded = mark(idle.state());
    for n in 0..20 {
        put(&busy, &format!("{n:02}"), &"w".repeat(8 << 10));
        flush::flush_all_of(store, busy.state(), FlushCause::Manual).unwrap();
    }
    assert_eq!((mark(other.state()), mark(idle.state())), (held, recorded));
    let families = [Arc::clone(other.state())];
    store.rotate(other.state(), FlushCause::Manual, |_| true).unwrap();
    flush::flush_together(store, &families, store.sequencer().oldest_end()).unwrap();
    assert!(mark(idle.state()) > recorded);
}
