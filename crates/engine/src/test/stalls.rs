//! Writers while a family's writes are stopped.

use std::time::Duration;

use super::interleavings::{new_store, put, text};
use super::{Held, hold};
use crate::background::merging::compact_once;
use crate::{
    CommitMode, Db, Family, FamilyOptions, Isolation, Result, Stall, ThrottleMode, TransactionOptions,
    WriteOptions,
};

/// A family whose writes are stopped as long as its flush is held.
fn stopped(db: &Db) -> (Family, Held<Result<()>>) {
    let options = FamilyOptions {
        write_buffer_bytes: 64 << 10,
        max_write_buffers: 2,
        ..FamilyOptions::default()
    };
    let family = db.open_family("stopped", options).unwrap();
    put(&family, "first", "0");
    let flush = {
        let family = family.clone();
        hold("tables are written", move || family.flush()).at_point()
    };
    let value = "v".repeat(1_000);
    for n in 0.. {
        if family.state().stall() == Stall::Stopped {
            break;
        }
        put(&family, &format!("fill {n}"), &value);
    }
    (family, flush)
}

fn stops(family: &Family) -> u64 {
    family.state().counters().stops.get()
}

/// All that wanted the rows waited until background work had caught up.
#[test]
fn a_commit_releases_its_locks_before_it_waits_out_a_stop() {
    for commit_mode in [CommitMode::EarlyRelease, CommitMode::Async] {
        let (_dir, db) = new_store();
        let options = TransactionOptions {
            commit_mode,
            isolation: Isolation::Serializable,
            lock_timeout: Duration::from_secs(60),
            ..TransactionOptions::default()
        };
        let (family, flush) = stopped(&db);
        let first = db.transaction(options.clone()).unwrap();
        first.put(&family, "row", "1").unwrap();
        let first = std::thread::spawn(move || first.commit());
        let next = db.transaction(options).unwrap();
        while stops(&family) == 0 && !first.is_finished() {
            std::thread::yield_now();
        }
        let seen = next.get_for_update(&family, "row").unwrap();
        assert_eq!(text(seen.as_ref()), Some("1"));
        assert!(!first.is_finished(), "its writer waits for all that");
        flush.finish().unwrap();
        first.join().unwrap().unwrap();
    }
}

/// A writer that the options have stopped goes on when others let it.
#[test]
fn set_options_let_a_stopped_writer_go_on() {
    let (_dir, db) = new_store();
    let (family, flush) = stopped(&db);
    let writer = std::thread::spawn({
        let family = family.clone();
        move || put(&family, "late", "1")
    });
    while stops(&family) == 0 {
        std::thread::yield_now();
    }
    assert!(!writer.is_finished());
    let options = FamilyOptions {
        max_write_buffers: 4,
        ..family.options()
    };
    family.set_options(options).unwrap();
    writer.join().unwrap();
    assert_ne!(family.state().stall(), Stall::Stopped);
    flush.finish().unwrap();
}

/// As above, with rows that are locked without a transaction.
#[test]
fn a_write_that_stalls_later_keeps_its_row_from_no_one() {
    let (_dir, db) = new_store();
    let (family, flush) = stopped(&db);
    let patience = Duration::from_secs(60);
    let mut owners = [db.row_owner("first"), db.row_owner("next")];
    let [first, next] = &mut owners;
    let row = [(&family, &b"row"[..])];
    let locked = db.lock_rows(first, row, patience).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let options = WriteOptions {
                skip_row_locks: true,
                throttle: ThrottleMode::HardLimitsOnly,
                ..WriteOptions::buffered()
            };
            let written = family.put_with("row", "1", &options);
            drop(locked);
            family.throttle(4);
            written
        });
        while stops(&family) == 0 && !first.is_finished() {
            std::thread::yield_now();
        }
        let locked = db.lock_rows(next, row, patience).unwrap();
        assert_eq!(text(family.get("row").unwrap().as_ref()), Some("1"));
        assert!(!first.is_finished(), "its writer waits for all that");
        drop(locked);
        flush.finish().unwrap();
        first.join().unwrap().unwrap();
    });
}

/// So memory is bounded, however many commit with locks.
#[test]
fn commits_with_locks_wait_half_a_memtable_past_the_stop() {
    const THREADS: u64 = 60;
    let (_dir, db) = new_store();
    let (family, flush) = stopped(&db);
    let options = TransactionOptions {
        commit_mode: CommitMode::Async,
        ..TransactionOptions::default()
    };
    let mut writers = Vec::new();
    for n in 0..THREADS {
        let tx = db.transaction(options.clone()).unwrap();
        tx.put(&family, format!("more {n}"), "v".repeat(2_000)).unwrap();
        writers.push(std::thread::spawn(move || tx.commit().map(drop)));
        // With its locks, or after it has released them.
        while stops(&family) <= n {
            assert!(writers.iter().all(|writer| !writer.is_finished()));
            std::thread::yield_now();
        }
    }
    let bytes = family.state().view().active.bytes();
    assert!((96 << 10..100 << 10).contains(&bytes), "{bytes}");
    flush.finish().unwrap();
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
}

/// A merge ends early while the device is full and a flush needs the room. It has not failed: a writer that
/// waits for it would fail too, with the advice to open the store again.
#[test]
fn a_merge_that_gives_way_on_a_full_device_has_not_failed() {
    let (_dir, db) = new_store();
    let family = db.open_family("full", FamilyOptions::default()).unwrap();
    let state = family.state();
    let one = state.lock_compactions();
    for n in 0..8 {
        for key in 0..20 {
            put(&family, &format!("{key}"), &n.to_string());
        }
        family.flush().unwrap();
    }
    let store = db.store();
    let merged = store.in_reserve(|| {
        drop(one);
        compact_once(store, state)
    });
    let early = matches!(&merged, Err(crate::Error::Table { source, .. }) if source.is_interruption());
    assert!(early, "{merged:?}");
    assert!(state.compactions().error().is_none());
    store.fill_reserve();
    assert!(compact_once(store, state).is_ok());
}
