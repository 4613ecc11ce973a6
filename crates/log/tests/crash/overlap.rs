//! A write beside a running sync: what needs no sync does not wait for it, and nothing written
//! since it began is taken for durable when it ends.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use collie_check::images::{DIR, Setup};
use collie_log::{Level, Log, LogError, LogOptions, Span, Worker};
use collie_sim::{Fault, FaultKind, Gate, PowerCut, SimDevice};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A private ring, whose writes go to the page cache.
fn options(device: &SimDevice, threads: bool) -> LogOptions {
    let setup = Setup {
        segment_bytes: 128 << 10,
        ..Setup::small(false, false)
    };
    setup.options(device, threads)
}

/// A log with one sync under way, which the gate holds.
struct Syncing {
    /// Dropped before the log, whose close syncs.
    gate: Gate,
    device: SimDevice,
    worker: Worker,
    log: Log,
    first: Span,
    waiter: JoinHandle<Result<(), LogError>>,
}

fn wait(log: &Log, end: u64) -> JoinHandle<Result<(), LogError>> {
    let log = log.clone();
    std::thread::spawn(move || log.wait(end, Level::Disk))
}

fn syncing(threads: bool) -> Syncing {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device, threads)).unwrap();
    let mut worker = log.worker().unwrap();
    // What the worker finds prepared below need no longer be synced.
    let span = worker.append(0, 0, &[0; 100]).unwrap();
    log.wait(span.end, Level::Disk).unwrap();
    let first = worker.append(0, 0, &[1; 1_000]).unwrap();
    let gate = device.hold_syncs();
    let waiter = wait(&log, first.end);
    gate.wait_for(1);
    Syncing {
        gate,
        device,
        worker,
        log,
        first,
        waiter,
    }
}

fn lens(log: &Log, from: u64) -> Vec<usize> {
    let frames = log.read(from).unwrap();
    frames.map(|frame| frame.unwrap().payload.len()).collect()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_commit_at_process_does_not_wait_for_a_sync() {
    let mut run = syncing(false);
    let second = run.worker.append(0, 0, &[2; 500]).unwrap();
    let (done, answer) = channel();
    let log = run.log.clone();
    std::thread::spawn(move || done.send(log.wait(second.end, Level::Process)));
    let answer = answer.recv_timeout(PATIENCE);
    answer.expect("a commit at Process waits for the sync").unwrap();
    assert!(run.log.written() >= second.end && run.log.durable() < run.first.end);
    run.gate.release();
    run.waiter.join().unwrap().unwrap();
}

#[test]
fn a_task_at_process_does_not_wait_for_a_sync() {
    let mut run = syncing(true);
    for n in 0..20 {
        let span = run.worker.append(0, 0, &[2; 500]).unwrap();
        if n == 0 {
            // From here on the background flusher waits for the sync, too.
            let waker = Waker::noop();
            let durable = pin!(run.log.wait_async(span.end, Level::Disk));
            assert!(durable.poll(&mut Context::from_waker(waker)).is_pending());
        }
        block_on(run.log.wait_async(span.end, Level::Process)).unwrap();
        assert!(run.log.durable() < run.first.end);
    }
    run.gate.release();
    run.waiter.join().unwrap().unwrap();
}

#[test]
fn an_append_that_needs_room_does_not_wait_for_a_sync() {
    let mut run = syncing(false);
    // Several times what the ring holds.
    for _ in 0..30 {
        run.worker.append(0, 0, &[2; 1_000]).unwrap();
    }
    assert!(run.log.durable() < run.first.end);
    run.gate.release();
    run.waiter.join().unwrap().unwrap();
}

#[test]
fn what_is_written_beside_a_sync_is_durable_with_the_next_one() {
    let mut run = syncing(false);
    let second = run.worker.append(0, 0, &[2; 500]).unwrap();
    run.log.wait(second.end, Level::Process).unwrap();
    run.gate.release();
    run.waiter.join().unwrap().unwrap();
    assert_eq!(run.log.durable(), run.first.end);
    for (name, way) in PowerCut::WAYS {
        let next = run.device.snapshot().power_cut(way, 7).device();
        let log = Log::open(DIR, options(&next, false)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = lens(&log, log.recovery().first_frame);
        assert!(found.starts_with(&[100, 1_000]), "{name}: {found:?}");
    }
    run.log.wait(second.end, Level::Disk).unwrap();
    let (name, way) = PowerCut::WAYS[0];
    let next = run.device.snapshot().power_cut(way, 7).device();
    let log = Log::open(DIR, options(&next, false)).unwrap();
    let found = lens(&log, log.recovery().first_frame);
    assert_eq!(found, [100, 1_000, 500], "{name}");
}

#[test]
fn one_sync_runs_at_a_time() {
    let mut run = syncing(false);
    let second = run.worker.append(0, 0, &[2; 500]).unwrap();
    let other = wait(&run.log, second.end);
    run.log.wait(second.end, Level::Process).unwrap();
    // The other waiter cannot be seen to sleep, but has had a write and this long to begin a sync.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(run.gate.at_once(), 1);
    run.gate.release();
    run.waiter.join().unwrap().unwrap();
    other.join().unwrap().unwrap();
}

/// A commit that was refused stays in doubt in the running log, although its sync succeeds.
#[test]
fn a_sync_after_a_failed_write_makes_nothing_durable() {
    let mut run = syncing(false);
    let before = run.log.durable();
    run.device
        .inject(Fault::new(FaultKind::WriteFails).on(DIR).once());
    let second = run.worker.append(0, 0, &[2; 500]).unwrap();
    let refused = run.log.wait(second.end, Level::Process);
    assert!(matches!(refused, Err(LogError::Poisoned { .. })), "{refused:?}");
    assert_eq!(run.log.failure().unwrap().durable, before);
    run.gate.release();
    let refused = run.waiter.join().unwrap();
    assert!(matches!(refused, Err(LogError::Poisoned { .. })), "{refused:?}");
    for level in [Level::Process, Level::Disk] {
        let refused = run.log.wait(run.first.end, level);
        assert!(
            matches!(refused, Err(LogError::Poisoned { .. })),
            "{level:?}: {refused:?}"
        );
        run.log.wait(before, level).unwrap();
    }
    assert!(run.log.close().is_err());
}

/// What was written beside a sync stays in doubt when the next sync fails.
#[test]
fn a_failed_sync_ends_the_writes_beside_it() {
    let mut run = syncing(false);
    let second = run.worker.append(0, 0, &[2; 500]).unwrap();
    run.log.wait(second.end, Level::Process).unwrap();
    run.device.inject(Fault::new(FaultKind::SyncFails).on(DIR).once());
    let third = wait(&run.log, second.end);
    run.gate.release();
    // The fault meets the second sync: the first one was past it.
    run.waiter.join().unwrap().unwrap();
    let refused = third.join().unwrap();
    assert!(matches!(refused, Err(LogError::Poisoned { .. })), "{refused:?}");
    assert_eq!(run.log.failure().unwrap().durable, run.first.end);
    assert!(run.worker.append(0, 0, &[3; 8]).is_err());
}

/// A waker that waits for the log itself.
struct Waits {
    log: Log,
    end: u64,
    done: Sender<Result<(), LogError>>,
}

impl Wake for Waits {
    fn wake(self: Arc<Self>) {
        let _ = self.done.send(self.log.wait(self.end, Level::Disk));
    }
}

#[test]
fn a_task_may_wait_for_the_log_when_it_is_woken() {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    let span = worker.append(0, 0, &[1; 100]).unwrap();
    let (done, woken) = channel();
    let waker = Waker::from(Arc::new(Waits {
        log: log.clone(),
        end: span.end,
        done,
    }));
    let mut written = Box::pin(log.wait_async(span.end, Level::Process));
    let polled = written.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    // Its leader writes, which is what the task waits for, and then syncs.
    let leader = wait(&log, span.end);
    let answer = woken.recv_timeout(PATIENCE);
    answer
        .expect("the task waits for ever for the thread that woke it")
        .unwrap();
    leader.join().unwrap().unwrap();
}
