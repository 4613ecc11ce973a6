//! One task that is told how far the log is durable, for all that appended.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use collie_log::{Level, Log, LogError, LogOptions, LogSet, LogSetOptions, Lsn, RingMode, WritePath};
use collie_sim::{Fault, FaultKind, SimDevice, VOLATILE_DIR};

use crate::task::{block_on, poll_once};

const DIR: &str = "/data/log";
/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nothing is flushed for the time that has passed.
fn options(device: &SimDevice) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 256 << 10,
        max_workers: 32,
        flush_interval: Duration::from_secs(3_600),
        ..LogOptions::default()
    }
}

/// Runs `work` on another thread, and fails where it does not end.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = channel();
    let thread = std::thread::spawn(move || {
        let answer = work();
        let _ = done.send(());
        answer
    });
    // An error is the end of the thread: joining it says why.
    if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = is_done.recv_timeout(PATIENCE) {
        panic!("nobody brought to the device what the task waits for");
    }
    thread.join().unwrap()
}

/// Awaits boundaries until `end` is durable; each lies beyond the one before.
fn until_durable(changes: &mut collie_log::DurableChanges, end: Lsn) -> Result<(), LogError> {
    while changes.last() < end {
        let last = changes.last();
        let durable = block_on(changes.next())?;
        assert!(durable > last && durable == changes.last());
    }
    Ok(())
}

/// Written both ways, by the log's own threads and by those of a set, with a ring that survives and
/// one that does not, and for a user that flushes by hand.
#[test]
fn frames_without_waiters_are_synced_for_the_one_task() {
    let set = LogSet::new(LogSetOptions::default()).unwrap();
    let variants: [fn(&mut LogOptions, &LogSet); 5] = [
        |_, _| {},
        |o, _| o.write_path = WritePath::Direct,
        |o, set| o.set = Some(set.clone()),
        |o, _| o.manual_flush = true,
        |o, _| {
            o.ring = RingMode::Shared {
                dir: VOLATILE_DIR.into(),
            };
            o.pad_to_block = true;
        },
    ];
    for (n, vary) in variants.into_iter().enumerate() {
        let mut options = options(&SimDevice::new(1));
        vary(&mut options, &set);
        in_time(move || {
            let log = Log::open(DIR, options).unwrap();
            let mut worker = log.worker().unwrap();
            let early = worker
                .append(0, 1, b"before there is anybody to call for")
                .unwrap();
            let mut changes = log.durable_changes();
            assert_eq!(changes.last(), 0);
            until_durable(&mut changes, early.end).unwrap();
            // It sleeps, and does not look again.
            while poll_once(pin!(changes.next())).is_ready() {}
            let span = worker.try_append(0, 1, b"while it sleeps").unwrap();
            while log.durable() < span.end {
                std::thread::sleep(Duration::from_millis(1));
            }
            for _ in 0..50 {
                let span = worker.try_append(0, 1, &[n as u8; 300]).unwrap();
                until_durable(&mut changes, span.end).unwrap();
                assert!(log.durable() >= span.end);
            }
        });
    }
}

/// The first answer comes at once, and says where the log stands; the next one not before it moved.
#[test]
fn the_first_answer_is_where_the_log_stands_and_none_repeats() {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device)).unwrap();
    let span = log.worker().unwrap().append(0, 1, b"x").unwrap();
    log.wait(span.end, Level::Disk).unwrap();
    let mut changes = log.durable_changes();
    assert_eq!(block_on(changes.next()).unwrap(), span.end);
    assert!(poll_once(pin!(changes.next())).is_pending());
    assert_eq!(changes.last(), span.end);
}

#[test]
fn the_task_neither_writes_nor_syncs_on_its_own_thread() {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device)).unwrap();
    let gate = device.hold_writes();
    let mut worker = log.worker().unwrap();
    let mut changes = log.durable_changes();
    block_on(changes.next()).unwrap();
    let span = worker.try_append(0, 1, b"x").unwrap();
    // Where this thread led, it would stand at the gate.
    for _ in 0..100 {
        assert!(poll_once(pin!(changes.next())).is_pending());
    }
    gate.wait_for(1);
    gate.release();
    until_durable(&mut changes, span.end).unwrap();
}

/// Many workers append and hand their ends to one task, which drops every third of its futures in
/// mid-wait.
#[test]
fn one_task_completes_what_many_workers_appended() {
    const WORKERS: u32 = 8;
    const FRAMES: u64 = 400;
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device)).unwrap();
    let pending = Arc::new(Mutex::new(BinaryHeap::new()));
    let completed = Arc::new(AtomicU64::new(0));
    let all = u64::from(WORKERS) * FRAMES;
    let writers: Vec<_> = (0..WORKERS)
        .map(|stream| {
            let (log, pending) = (log.clone(), Arc::clone(&pending));
            let mut worker = log.worker().unwrap();
            std::thread::spawn(move || {
                for n in 0..FRAMES {
                    let payload = vec![stream as u8; (n % 300) as usize];
                    let span = block_on(worker.append_async(stream, 1, &payload)).unwrap();
                    pending.lock().unwrap().push(Reverse(span.end));
                }
            })
        })
        .collect();
    in_time({
        let (log, completed, pending) = (log.clone(), Arc::clone(&completed), Arc::clone(&pending));
        move || {
            let mut changes = log.durable_changes();
            let mut rounds = 0_u64;
            while completed.load(Ordering::Relaxed) < all {
                rounds += 1;
                if rounds.is_multiple_of(3) {
                    let mut dropped = pin!(changes.next());
                    // Where it is ready, its answer counts.
                    let _ = poll_once(dropped.as_mut());
                } else {
                    // All may be durable that was appended so far, and a worker yet to say so.
                    let done = completed.load(Ordering::Relaxed);
                    let waits = log.durable() > changes.last() || log.appended() > changes.last();
                    if waits && done < all {
                        block_on(changes.next()).unwrap();
                    } else {
                        std::thread::yield_now();
                    }
                }
                let durable = changes.last();
                let mut pending = pending.lock().unwrap();
                while pending.peek().is_some_and(|Reverse(end)| *end <= durable) {
                    pending.pop();
                    completed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    writers.into_iter().for_each(|w| w.join().unwrap());
    assert_eq!(completed.load(Ordering::Relaxed), all);
    assert!(pending.lock().unwrap().is_empty());
}

#[test]
fn a_failed_log_gives_what_was_durable_and_then_its_error() {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device)).unwrap();
    let mut worker = log.worker().unwrap();
    let mut changes = log.durable_changes();
    let good = worker.append(0, 1, b"good").unwrap();
    log.wait(good.end, Level::Disk).unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).on(".seg"));
    worker.append(0, 1, b"in doubt").unwrap();
    in_time(move || {
        // It may be there before the failure is.
        until_durable(&mut changes, good.end).unwrap();
        for _ in 0..3 {
            let error = block_on(changes.next()).unwrap_err();
            assert!(matches!(error, LogError::Poisoned { .. }), "{error}");
        }
        assert_eq!(changes.last(), good.end);
    });
    assert_eq!(log.failure().unwrap().durable, good.end);
}

#[test]
fn a_close_brings_the_last_frames_and_then_the_end() {
    for last_handle in [false, true] {
        let device = SimDevice::new(1);
        let log = Log::open(DIR, options(&device)).unwrap();
        let mut changes = log.durable_changes();
        let span = log.worker().unwrap().append(0, 1, b"the last one").unwrap();
        let waits = std::thread::spawn(move || {
            until_durable(&mut changes, span.end).unwrap();
            let mut errors = Vec::new();
            while errors.len() < 2 {
                errors.extend(block_on(changes.next()).err());
            }
            errors
        });
        if last_handle {
            drop(log);
        } else {
            log.close().unwrap();
        }
        let errors = in_time(move || waits.join().unwrap());
        assert!(errors.iter().all(|e| matches!(e, LogError::Closed)), "{errors:?}");
        // The task kept neither the files nor the lock.
        Log::open(DIR, options(&device)).unwrap();
    }
}

struct Notes(std::sync::mpsc::Sender<ThreadId>);

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(std::thread::current().id());
    }
}

/// As long as there is one, frames are flushed; without it they stay in the ring.
#[test]
fn without_a_task_nothing_is_flushed_and_nobody_is_woken() {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device)).unwrap();
    let mut worker = log.worker().unwrap();
    let mut changes = log.durable_changes();
    block_on(changes.next()).unwrap();
    let (note, noted) = channel();
    let waker = Waker::from(Arc::new(Notes(note)));
    {
        let mut dropped = pin!(changes.next());
        let poll = std::future::Future::poll(dropped.as_mut(), &mut Context::from_waker(&waker));
        assert!(poll.is_pending());
    }
    drop(changes);
    let span = worker.append(0, 1, b"x").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(log.durable() < span.end, "flushed for nobody");
    log.wait(span.end, Level::Disk).unwrap();
    assert!(noted.try_recv().is_err(), "the waker of a dropped future ran");
}
