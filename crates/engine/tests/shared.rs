//! Stores that share threads, caches and memory. Alone in its process, whose threads are counted.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "the test looks at what the kernel counts"
)]

mod common;
#[path = "external_journal/journal.rs"]
#[allow(dead_code, reason = "this file uses a part")]
mod journal;

use std::path::Path;
use std::sync::Arc;

use collie_db::{Db, Error, FamilyOptions, Options, Shared, SharedOptions};
use collie_io::{Device, RealDevice};
use parking_lot::Mutex;

use journal::{FIRST, TestJournal, batch, content, put};

/// Tests that count threads or memory run alone.
static ALONE: Mutex<()> = Mutex::new(());

/// Threads of stores in this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // One that has ended meanwhile has no name.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("collie-")).count()
}

/// Waits until so many are left: the kernel lists a thread for a moment after it was joined.
fn await_threads(count: usize) {
    for _ in 0..1000 {
        if threads() == count {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(threads(), count);
}

fn options(journal: &Arc<TestJournal>, shared: &Shared) -> Options {
    Options {
        shared: Some(shared.clone()),
        ..journal::options(journal)
    }
}

fn value(n: u64) -> String {
    format!("{n}").repeat(200)
}

#[test]
fn many_stores_have_the_threads_of_one() {
    const STORES: usize = 60;
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    await_threads(0);
    let shared = Shared::new(SharedOptions {
        flush_threads: 2,
        ..SharedOptions::default()
    })
    .unwrap();
    let journals: Vec<_> = (0..STORES).map(|_| Arc::new(TestJournal::default())).collect();
    let open = || {
        let stores = journals.iter().enumerate();
        let stores = stores.map(|(n, journal)| (dir.path().join(format!("{n}")), options(journal, &shared)));
        let opened = Db::open_all(stores.collect(), 4);
        opened.into_iter().collect::<collie_db::Result<Vec<_>>>().unwrap()
    };
    let stores = open();
    // Two that flush, two that merge, one that frees memory.
    await_threads(5);
    for round in 0..8 {
        for (db, journal) in stores.iter().zip(&journals) {
            for n in 0..12 {
                let writes = put(&format!("{:02}", n % 10), &value(round * 100 + n));
                journal.apply(db, journal.last() + 1, writes).unwrap();
            }
            db.flush().unwrap();
        }
    }
    // Merges in the background: each store has had 8 flushes.
    for db in &stores {
        while db.stats().families["default"].level0_runs >= 4 {
            std::thread::yield_now();
        }
    }
    await_threads(5);
    // One after the other closes, and the others go on.
    for (n, db) in stores.into_iter().enumerate() {
        journals[n]
            .apply(&db, journals[n].last() + 1, put("last", "1"))
            .unwrap();
        db.close().unwrap();
    }
    for (db, journal) in open().iter().zip(&journals) {
        journal.reapply(db);
        assert_eq!(content(db), journal.map_at(u64::MAX));
    }
    drop(shared);
    await_threads(0);
}

/// Memtables of stores that nobody writes to any more make room for those of others.
#[test]
fn stores_share_a_budget_of_memory() {
    const STORES: u64 = 16;
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let most = 1 << 20;
    let shared = Shared::new(SharedOptions {
        max_memtable_bytes: Some(most),
        ..SharedOptions::default()
    })
    .unwrap();
    let journals: Vec<_> = (0..STORES).map(|_| Arc::new(TestJournal::default())).collect();
    let family = FamilyOptions {
        write_buffer_bytes: 64 << 20,
        ..FamilyOptions::default()
    };
    let stores: Vec<_> = journals
        .iter()
        .enumerate()
        .map(|(n, journal)| {
            let options = Options {
                default_family: family.clone(),
                ..options(journal, &shared)
            };
            Db::open(dir.path().join(format!("{n}")), options).unwrap()
        })
        .collect();
    let mut highest = 0;
    for (db, journal) in stores.iter().zip(&journals) {
        for n in 0..200 {
            let writes = put(&format!("{n}"), &"v".repeat(1000));
            journal.apply(db, journal.last() + 1, writes).unwrap();
            highest = highest.max(db.stats().memtable_bytes);
        }
    }
    assert!(highest <= most + most / 4, "{highest} bytes of {most}");
    let flushed = stores.iter().filter(|db| db.flushed() >= FIRST);
    assert!(flushed.count() > 8);
    for (db, journal) in stores.iter().zip(&journals) {
        assert_eq!(content(db), journal.map_at(u64::MAX));
    }
}

/// A store that waits for its journal has one thread, and closes when the journal lets it.
#[test]
fn a_store_that_waits_holds_up_no_other_while_there_is_a_thread() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let shared = Shared::new(SharedOptions {
        flush_threads: 2,
        ..SharedOptions::default()
    })
    .unwrap();
    let [slow, fast] = [(); 2].map(|()| Arc::new(TestJournal::default()));
    let open = |name: &str, journal| Db::open(dir.path().join(name), options(journal, &shared)).unwrap();
    let (waiting, other) = (open("slow", &slow), open("fast", &fast));
    let held = slow.hold();
    // Full, so that a background thread flushes it.
    fill(&waiting, &slow, 40 << 10);
    slow.await_flush(FIRST);
    for _ in 0..50 {
        fill(&other, &fast, 20 << 10);
    }
    while other.flushed() < FIRST + 40 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || waiting.close());
        std::thread::sleep(std::time::Duration::from_millis(30));
        let early = closing.is_finished();
        drop(held);
        closing.join().unwrap().unwrap();
        assert!(!early, "the store closed while a thread flushed it");
    });
    let again = open("slow", &slow);
    slow.reapply(&again);
    assert_eq!(content(&again), slow.map_at(u64::MAX));
}

/// Waits until `done`, or fails.
fn await_that(what: &str, done: impl Fn() -> bool) {
    for _ in 0..3000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what}");
}

fn fill(db: &Db, journal: &TestJournal, bytes: usize) {
    let seq = journal.last() + 1;
    let writes = put(&format!("{seq}"), &"v".repeat(bytes));
    journal.apply(db, seq, writes).unwrap();
}

/// Each further memtable that it seals once took another flush thread, which waited for the first.
#[test]
fn a_store_whose_journal_stands_still_has_one_flush_thread() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let shared = Shared::new(SharedOptions {
        flush_threads: 2,
        ..SharedOptions::default()
    })
    .unwrap();
    let [slow, fast] = [(); 2].map(|()| Arc::new(TestJournal::default()));
    let open = |name: &str, journal| {
        let mut options = options(journal, &shared);
        options.default_family.max_write_buffers = 4;
        Db::open(dir.path().join(name), options).unwrap()
    };
    let (waiting, other) = (open("slow", &slow), open("fast", &fast));
    let held = slow.hold();
    fill(&waiting, &slow, 40 << 10);
    slow.await_flush(FIRST);
    // Sealed, with a task for each, before the other store has any.
    fill(&waiting, &slow, 40 << 10);
    fill(&waiting, &slow, 40 << 10);
    for _ in 0..3 {
        fill(&other, &fast, 40 << 10);
        let last = fast.last();
        await_that("the other store is not flushed", || other.flushed() >= last);
    }
    assert!(waiting.flushed() < FIRST);
    // What came up meanwhile is done afterwards, without another write.
    drop(held);
    let last = slow.last();
    await_that("the store that waited is not flushed", || {
        waiting.flushed() >= last
    });
    assert_eq!(content(&waiting), slow.map_at(u64::MAX));
}

/// Its sealed memtables were once taken for memory that is about to be free: where they were most of
/// what there is, nothing of the other stores was sealed any more.
#[test]
fn memtables_that_wait_for_a_journal_leave_others_the_budget() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let most = 1 << 20;
    let shared = Shared::new(SharedOptions {
        flush_threads: 2,
        max_memtable_bytes: Some(most),
        ..SharedOptions::default()
    })
    .unwrap();
    let [slow, fast] = [(); 2].map(|()| Arc::new(TestJournal::default()));
    let open = |name: &str, journal, write_buffer_bytes| {
        let mut options = options(journal, &shared);
        options.default_family.max_write_buffers = 4;
        options.default_family.write_buffer_bytes = write_buffer_bytes;
        Db::open(dir.path().join(name), options).unwrap()
    };
    let (waiting, other) = (open("slow", &slow, 200 << 10), open("fast", &fast, 64 << 20));
    let held = slow.hold();
    for _ in 0..3 {
        fill(&waiting, &slow, 210 << 10);
    }
    slow.await_flush(FIRST);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..1000 {
                fill(&other, &fast, 4 << 10);
            }
        });
        for _ in 0..3000 {
            if writer.is_finished() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let goes_on = writer.is_finished();
        // Also lets a writer go that waits.
        drop(held);
        writer.join().unwrap();
        assert!(goes_on, "the other store waits for the journal of this one");
    });
    assert_eq!(content(&other), fast.map_at(u64::MAX));
}

/// With logs of their own, too: the handle goes first, and the stores keep what they need.
#[test]
fn stores_with_logs_share_and_outlive_the_handle() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let no_thread = SharedOptions {
        compaction_threads: 0,
        ..SharedOptions::default()
    };
    // The first write would wait for ever.
    let no_memory = SharedOptions {
        max_memtable_bytes: Some(0),
        ..SharedOptions::default()
    };
    for options in [no_thread, no_memory] {
        let refused = Shared::new(options);
        assert!(matches!(refused, Err(Error::InvalidOption { .. })), "{refused:?}");
    }
    let shared = Shared::new(SharedOptions::default()).unwrap();
    let open = |name: &str, shared: Option<Shared>| {
        let path: &Path = &dir.path().join(name);
        common::open(
            path,
            &Options {
                shared,
                ..common::small()
            },
        )
    };
    let stores = ["a", "b"].map(|name| open(name, Some(shared.clone())));
    drop(shared);
    for db in &stores {
        for n in 0..2000_u64 {
            db.put(format!("{:03}", n % 300), value(n)).unwrap();
        }
        assert!(
            db.stats().families["default"]
                .flushes
                .iter()
                .any(|(_, count)| *count > 0)
        );
    }
    let expected = content(&stores[0]);
    drop(stores);
    assert_eq!(content(&open("b", None)), expected);
    let _ = batch;
}

/// Flushes and compactions of a store whose `Shared` has no threads come when they are asked for, and
/// not before.
#[test]
fn without_threads_work_is_done_when_it_is_asked_for() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let shared = Shared::new(SharedOptions {
        flush_threads: 0,
        compaction_threads: 0,
        ..SharedOptions::default()
    });
    let shared = shared.unwrap();
    let db = common::open(
        dir.path(),
        &Options {
            shared: Some(shared.clone()),
            ..common::small()
        },
    );
    // An opening looks whether tables are to be merged.
    while shared.work() {}
    let flushes = || -> u64 {
        let stats = db.stats();
        stats.families["default"]
            .flushes
            .iter()
            .map(|(_, count)| count)
            .sum()
    };
    let size = common::small().default_family.write_buffer_bytes as usize;
    let half = "x".repeat(size / 2);
    for n in 0..3 {
        db.put(format!("{n}"), &half).unwrap();
    }
    assert_eq!(flushes(), 0, "a full memtable waits");
    while shared.work() {}
    assert_eq!(flushes(), 1);
    assert_eq!(db.get("0").unwrap().as_deref(), Some(half.as_bytes()));
}

/// What a thousand stores take: `COLLIE_STORES=1000 cargo test -p collie-db --release --test shared
/// -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures"]
fn figures_of_many_stores() {
    let _alone = ALONE.lock();
    await_threads(0);
    let count = common::number("COLLIE_STORES").unwrap_or(1000);
    let device = RealDevice::new();
    let resident = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
    };
    let seconds = |since: u64| (device.clock().monotonic() - since) as f64 / 1e9;
    let dir = tempfile::tempdir().unwrap();
    let shared = Shared::new(SharedOptions::default()).unwrap();
    let journals: Vec<_> = (0..count).map(|_| Arc::new(TestJournal::default())).collect();
    let open = |what: &str| {
        let (before, started) = (resident(), device.clock().monotonic());
        let stores = journals.iter().enumerate();
        let stores = stores.map(|(n, journal)| (dir.path().join(format!("{n}")), options(journal, &shared)));
        let opened: Vec<_> = Db::open_all(stores.collect(), 8);
        let opened = opened.into_iter().collect::<collie_db::Result<Vec<_>>>().unwrap();
        println!(
            "figures: {count} stores {what} in {:.2} s, {} KiB each, {} threads",
            seconds(started),
            (resident() - before) / count,
            threads()
        );
        opened
    };
    let stores = open("created");
    for (db, journal) in stores.iter().zip(&journals) {
        journal.apply(db, FIRST, put("key", "value")).unwrap();
    }
    let started = device.clock().monotonic();
    for db in &stores {
        db.flush().unwrap();
    }
    println!(
        "figures: each flushed in {:.2} ms",
        seconds(started) * 1e3 / count as f64
    );
    drop(stores);
    let stores = open("opened again");
    assert!(stores.iter().all(|db| db.flushed() == FIRST));
}
