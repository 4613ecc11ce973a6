//! Files that are removed under an open log: what no later process would find is not
//! acknowledged.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the real file system from outside"
)]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_log::{Level, Log, LogError, LogOptions, RingMode};

use crate::task::block_on;

/// How often something is looked for that comes about some milliseconds later: for a minute at
/// most.
const LOOKS: u32 = 12_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

fn options(ring: RingMode) -> LogOptions {
    LogOptions {
        ring,
        ring_bytes: 64 << 10,
        segment_bytes: 1 << 20,
        flush_interval: Duration::from_millis(5),
        ..LogOptions::default()
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..LOOKS {
        if is_so() {
            return;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    panic!("{what} has not come about");
}

/// Ends the tasks, also where the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Appends and waits as tasks do, which leaves the background flusher no pause, while `watch` looks
/// on.
fn while_tasks_wait(log: &Log, watch: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut worker = log.worker().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let Ok(span) = worker.append(0, 0, b"kept busy") else {
                        return;
                    };
                    if block_on(log.wait_async(span.end, Level::Disk)).is_err() {
                        return;
                    }
                    log.retain("no reader", span.end);
                }
            });
        }
        let _stop = Stop(&stop);
        watch();
    });
}

fn remove(dir: &Path) {
    std::fs::remove_dir_all(dir).unwrap();
}

fn rename(dir: &Path) {
    std::fs::rename(dir, dir.with_extension("elsewhere")).unwrap();
}

fn replace(dir: &Path) {
    rename(dir);
    std::fs::create_dir(dir).unwrap();
}

#[test]
fn a_log_stops_when_its_directory_is_removed_or_replaced() {
    let ways = [
        (remove as fn(&Path), "it is gone"),
        (rename, "it is gone"),
        (replace, "another directory is in its place"),
    ];
    for (take_away, expected) in ways {
        for is_busy in [false, true] {
            let parent = tempfile::tempdir().unwrap();
            let dir = parent.path().join("log");
            let log = Log::open(&dir, options(RingMode::Private)).unwrap();
            let mut worker = log.worker().unwrap();
            let span = worker.append(0, 0, b"first").unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            let watch = || {
                take_away(&dir);
                until("the end of the log", || log.poisoned().is_some());
            };
            if is_busy {
                while_tasks_wait(&log, watch);
            } else {
                watch();
            }
            let Err(LogError::Poisoned { cause }) = worker.append(0, 0, b"more") else {
                panic!("an append was taken");
            };
            assert!(
                cause.contains(expected) && cause.contains(&dir.display().to_string()),
                "{cause}"
            );
            assert!(matches!(
                log.wait(u64::MAX >> 1, Level::Disk),
                Err(LogError::Poisoned { .. })
            ));
        }
    }
}

#[test]
fn a_log_goes_on_whose_directory_changes_and_stays() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("log");
    let log = Log::open(&dir, options(RingMode::Private)).unwrap();
    while_tasks_wait(&log, || {
        // As long as it takes for many looks.
        for n in 0..100 {
            std::fs::write(parent.path().join(format!("beside {n}")), "x").unwrap();
            std::fs::File::open(&dir).unwrap().sync_all().unwrap();
            std::thread::sleep(BETWEEN_LOOKS);
        }
    });
    assert!(log.poisoned().is_none(), "{:?}", log.poisoned());
    log.close().unwrap();
}

#[test]
fn a_removed_ring_is_missed_although_the_flusher_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let mode = RingMode::Shared {
        dir: rings.path().to_owned(),
    };
    let log = Log::open(dir.path(), options(mode)).unwrap();
    assert!(log.stats().ring_shared);
    while_tasks_wait(&log, || {
        for entry in std::fs::read_dir(rings.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        until("the loss of the ring", || !log.stats().ring_shared);
    });
    assert!(log.poisoned().is_none());
    log.close().unwrap();
}
