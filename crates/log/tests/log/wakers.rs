//! Wakers are foreign code: they run, and go, where nothing of the log waits for them. And what is
//! under way when a log is closed.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::future::Future;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use collie_log::{Durable, Level, Log, LogError, LogOptions, RingMode, Span, Worker, WritePath};
use collie_sim::{Fault, FaultKind, SimDevice, VOLATILE_DIR};

const DIR: &str = "/data/log";
/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

fn options(device: &SimDevice) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        ring_bytes: 16 << 10,
        segment_bytes: 64 << 10,
        max_workers: 4,
        flush_interval: Duration::from_secs(3_600),
        ..LogOptions::default()
    }
}

/// A waker that says it runs, and returns when it may.
struct Blocks {
    arrived: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        self.arrived.send(()).unwrap();
        // An error is the sender's end.
        let _ = self.go.lock().unwrap().recv();
    }
}

/// A waker that says on which thread it runs.
struct Notes(Sender<ThreadId>);

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.0.send(std::thread::current().id()).unwrap();
    }
}

/// The frame of an append that waits for room is not copied yet. A waker that waited for a later
/// frame there would wait for ever.
#[test]
fn an_append_that_makes_room_runs_no_waker() {
    let device = SimDevice::new(1);
    let options = LogOptions {
        ring: RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
        write_path: WritePath::Direct,
        ..options(&device)
    };
    let log = Log::open(DIR, options).unwrap();
    assert!(log.recovery().direct);
    let mut worker = log.worker().unwrap();

    // The background flusher is in a waker, so nothing is written but by this thread.
    let (arrived, is_there) = channel();
    let (go, may_go) = channel::<()>();
    let blocks = Waker::from(Arc::new(Blocks {
        arrived,
        go: Mutex::new(may_go),
    }));
    let first = worker.append(0, 0, b"first").unwrap();
    let mut held = pin!(log.wait_async(first.end, Level::Disk));
    assert!(held.as_mut().poll(&mut Context::from_waker(&blocks)).is_pending());
    is_there.recv_timeout(PATIENCE).unwrap();

    let (note, noted) = channel();
    let notes = Waker::from(Arc::new(Notes(note)));
    let second = worker.append(0, 0, b"second").unwrap();
    let mut awaited = pin!(log.wait_async(second.end, Level::Disk));
    assert!(
        awaited
            .as_mut()
            .poll(&mut Context::from_waker(&notes))
            .is_pending()
    );
    while log.durable() < second.end {
        worker.append(0, 0, &[0; 1_000]).unwrap();
    }
    assert!(
        noted.try_recv().is_err(),
        "a waker ran in the middle of an append"
    );
    drop(go);
    let woken_by = noted.recv_timeout(PATIENCE).unwrap();
    assert_ne!(woken_by, std::thread::current().id());
    assert!(awaited.as_mut().poll(&mut Context::from_waker(&notes)).is_ready());
}

/// A waker that takes what a thread holds while that thread waits for the log.
struct Locks(Arc<Mutex<()>>);

impl Wake for Locks {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock());
    }
}

/// The state of a thread of this process, as the kernel names it.
fn state_of(task: &Path) -> String {
    let stat = std::fs::read_to_string(Path::new("/proc").join(task).join("stat")).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    behind_name.split_whitespace().next().unwrap().to_owned()
}

/// A write fails, and the thread that led it wakes the tasks. One waker needs what another holds,
/// which leads a sync and waits for the write to end.
#[test]
fn a_sync_that_waits_for_a_write_gives_up_when_the_write_fails() {
    let device = SimDevice::new(1);
    let options = LogOptions {
        ring: RingMode::Private,
        threads: false,
        ..options(&device)
    };
    let log = Log::open(DIR, options).unwrap();
    let span = log.worker().unwrap().append(0, 0, b"x").unwrap();

    let gate = device.hold_writes();
    let (answer, answers) = channel();
    std::thread::spawn({
        let (log, answer) = (log.clone(), answer.clone());
        move || answer.send(log.wait(span.end, Level::Process)).unwrap()
    });
    gate.wait_for(1);
    let mutex = Arc::new(Mutex::new(()));
    let waker = Waker::from(Arc::new(Locks(Arc::clone(&mutex))));
    let mut task = pin!(log.wait_async(span.end, Level::Process));
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

    let (name, named) = channel();
    std::thread::spawn({
        let log = log.clone();
        move || {
            let _held = mutex.lock().unwrap();
            name.send(std::fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            answer.send(log.wait(span.end, Level::Disk)).unwrap();
        }
    });
    let syncing = named.recv_timeout(PATIENCE).unwrap();
    while state_of(&syncing) != "S" {
        std::thread::yield_now();
    }
    device.inject(Fault::new(FaultKind::WriteFails));
    gate.release();
    for _ in 0..2 {
        let answer = answers
            .recv_timeout(PATIENCE)
            .expect("the threads wait for each other");
        assert!(matches!(answer, Err(LogError::Poisoned { .. })), "{answer:?}");
    }
}

fn on_files(threads: bool) -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 8 << 10,
        segment_bytes: 64 << 10,
        flush_interval: Duration::from_secs(3600),
        threads,
        ..LogOptions::default()
    }
}

fn appended(log: &Log) -> (Worker, Span) {
    let mut worker = log.worker().unwrap();
    let span = worker.append(0, 1, b"a frame").unwrap();
    (worker, span)
}

/// A task of a simple executor: its waker owns it, and it owns what it awaits.
struct Task<T>(Mutex<Option<T>>);

impl<T: Send + 'static> Task<T> {
    fn owning(owned: T) -> Waker {
        Waker::from(Arc::new(Self(Mutex::new(Some(owned)))))
    }
}

impl<T: Send + 'static> Wake for Task<T> {
    fn wake(self: Arc<Self>) {}
}

fn poll(future: &mut Durable, waker: Waker) -> Poll<Result<(), LogError>> {
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// What `work` gives, unless it hangs.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || drop(done.send(work())));
    let answer = is_done.recv_timeout(PATIENCE).unwrap();
    thread.join().unwrap();
    answer
}

#[test]
fn a_dropped_future_takes_along_a_waker_with_another_future() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), on_files(false)).unwrap();
    let (_worker, span) = appended(&log);
    let mut owned = log.wait_async(span.end, Level::Disk);
    assert!(poll(&mut owned, Waker::noop().clone()).is_pending());
    let mut future = log.wait_async(span.end, Level::Disk);
    assert!(poll(&mut future, Task::owning(owned)).is_pending());
    in_time(move || drop(future));
    let log = in_time(move || log.wait(span.end, Level::Disk).map(|()| log)).unwrap();
    log.close().unwrap();
}

#[test]
fn a_future_that_moves_takes_along_the_first_tasks_waker() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), on_files(false)).unwrap();
    let (_worker, span) = appended(&log);
    let mut owned = log.wait_async(span.end, Level::Disk);
    assert!(poll(&mut owned, Waker::noop().clone()).is_pending());
    let mut future = log.wait_async(span.end, Level::Disk);
    assert!(poll(&mut future, Task::owning(owned)).is_pending());
    let future = in_time(move || {
        assert!(poll(&mut future, Waker::noop().clone()).is_pending());
        future
    });
    log.wait(span.end, Level::Disk).unwrap();
    drop(future);
    log.close().unwrap();
}

#[test]
fn a_dropped_future_drops_a_waker_with_the_last_handle() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), on_files(false)).unwrap();
    let (worker, span) = appended(&log);
    drop(worker);
    let mut future = log.wait_async(span.end, Level::Disk);
    assert!(poll(&mut future, Task::owning(log)).is_pending());
    in_time(move || drop(future));
    let log = Log::open(dir.path(), on_files(false)).unwrap();
    assert_eq!(log.read(span.start).unwrap().count(), 1);
}

/// Gives up what it owns when it is woken, as an executor's task does that is woken when no thread
/// else has it any more.
struct Last(Mutex<Option<Log>>, mpsc::SyncSender<()>);

impl Wake for Last {
    fn wake(self: Arc<Self>) {
        let log = self.0.lock().unwrap().take();
        drop(log);
        self.1.send(()).unwrap();
    }
}

#[test]
fn the_last_handle_may_go_with_a_waker_on_the_logs_thread() {
    let dir = tempfile::tempdir().unwrap();
    for level in [Level::Process, Level::Disk] {
        let log = Log::open(dir.path(), on_files(true)).unwrap();
        let (mut worker, span) = appended(&log);
        let mut future = log.wait_async(span.end, level);
        let (closed, is_closed) = mpsc::sync_channel(1);
        let waker = Waker::from(Arc::new(Last(Mutex::new(Some(log)), closed)));
        if poll(&mut future, waker).is_pending() {
            is_closed.recv_timeout(PATIENCE).unwrap();
            assert!(matches!(
                poll(&mut future, Waker::noop().clone()),
                Poll::Ready(Ok(()))
            ));
        }
        assert!(matches!(worker.append(0, 1, b"late"), Err(LogError::Closed)));
        // It was closed like any other: the directory is free although the worker is still there.
        let log = Log::open(dir.path(), on_files(true)).unwrap();
        assert_eq!(log.read(span.start).unwrap().count(), 1);
        log.close().unwrap();
    }
}

#[test]
fn appends_to_a_closed_log_with_a_full_ring_poison_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // So large a segment that these frames do not take turns.
    let options = LogOptions {
        segment_bytes: 4 << 20,
        ..on_files(true)
    };
    let log = Log::open(dir.path(), options.clone()).unwrap();
    let (arrived, closed) = (AtomicU32::new(0), (Mutex::new(false), Condvar::new()));
    let appends = 20; // More than the ring holds.
    let refused = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..appends)
            .map(|_| {
                let mut worker = log.worker().unwrap();
                let (arrived, closed) = (&arrived, &closed);
                // Between the check that the log is open and the reservation.
                let mut late = move |_| {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    let is_closed = closed.0.lock().unwrap();
                    drop(closed.1.wait_while(is_closed, |is_closed| !*is_closed).unwrap());
                };
                scope.spawn(move || worker.append_paused(0, 1, &[0; 600], [&mut late, &mut |_| ()]))
            })
            .collect();
        while arrived.load(Ordering::SeqCst) < appends {
            std::thread::yield_now();
        }
        log.clone().close().unwrap();
        *closed.0.lock().unwrap() = true;
        closed.1.notify_all();
        let answers = threads.into_iter().map(|thread| thread.join().unwrap());
        let refused: Vec<_> = answers.filter_map(Result::err).collect();
        refused
    });
    assert!(!refused.is_empty());
    assert!(
        refused.iter().all(|e| matches!(e, LogError::Closed)),
        "{refused:?}"
    );
    assert!(log.poisoned().is_none(), "{:?}", log.poisoned());
    assert!(matches!(log.flush(Level::Disk), Err(LogError::Closed)));
    Log::open(dir.path(), options).unwrap().close().unwrap();
}
