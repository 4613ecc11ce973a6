//! Wakers are foreign code: they run where nothing of the log waits for them to return.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use collie_log::{Level, Log, LogError, LogOptions, RingMode, WritePath};
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
