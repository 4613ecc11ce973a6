//! Many logs with the threads of one set.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use collie_log::{Level, Log, LogError, LogOptions, LogSet, LogSetOptions, RingMode, Span};
use collie_sim::{Fault, FaultKind, SimDevice};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

fn set(flushers: usize) -> LogSet {
    let period = Duration::from_millis(2);
    LogSet::new(LogSetOptions { flushers, period }).unwrap()
}

fn small(device: &SimDevice, set: &LogSet) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        set: Some(set.clone()),
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 1 << 20,
        max_workers: 4,
        flush_interval: Duration::from_millis(2),
        ..LogOptions::default()
    }
}

fn open_many(count: usize, options: &LogOptions) -> Vec<Log> {
    let dirs = (0..count).map(|n| (PathBuf::from(format!("/data/{n}")), options.clone()));
    let opened = Log::open_all(dirs.collect(), 3);
    opened.into_iter().collect::<Result<_, _>>().unwrap()
}

fn append(log: &Log) -> Span {
    log.worker().unwrap().append(0, 1, &[1; 100]).unwrap()
}

/// Says on which thread it runs, and then returns when it may.
struct Notes {
    ran: Sender<ThreadId>,
    go: Mutex<Option<Receiver<()>>>,
}

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.ran.send(std::thread::current().id()).unwrap();
        if let Some(go) = &*self.go.lock().unwrap() {
            // An error is the sender's end.
            let _ = go.recv();
        }
    }
}

fn notes(ran: &Sender<ThreadId>, go: Option<Receiver<()>>) -> Waker {
    Waker::from(Arc::new(Notes {
        ran: ran.clone(),
        go: Mutex::new(go),
    }))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not within {PATIENCE:?}: {what}");
}

#[test]
fn one_thread_serves_the_tasks_of_all() {
    let device = SimDevice::new(1);
    let logs = open_many(20, &small(&device, &set(1)));
    let (ran, threads) = channel();
    let waker = notes(&ran, None);
    let mut awaited: Vec<_> = logs
        .iter()
        .map(|log| Box::pin(log.wait_async(append(log).end, Level::Disk)))
        .collect();
    let pending = awaited
        .iter_mut()
        .filter_map(|one| {
            let polled = one.as_mut().poll(&mut Context::from_waker(&waker));
            polled.is_pending().then_some(())
        })
        .count();
    let woken: BTreeSet<String> = (0..pending)
        .map(|_| format!("{:?}", threads.recv_timeout(PATIENCE).unwrap()))
        .collect();
    // The flusher, and the writer.
    assert!(pending > 0 && woken.len() <= 2, "{pending}: {woken:?}");
    for (log, one) in logs.iter().zip(&mut awaited) {
        until("durable", || log.durable() == log.appended());
        assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
}

#[test]
fn what_nobody_waits_for_is_flushed_and_sealed_once() {
    let device = SimDevice::new(2);
    let logs = open_many(10, &small(&device, &set(2)));
    for log in &logs {
        let end = append(log).end;
        // The seal comes behind it.
        until("sealed", || {
            log.durable() > end && log.durable() == log.appended()
        });
    }
    let ends: Vec<_> = logs.iter().map(Log::appended).collect();
    let syncs: Vec<_> = logs.iter().map(|log| log.stats().syncs).collect();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ends, logs.iter().map(Log::appended).collect::<Vec<_>>());
    assert_eq!(
        syncs,
        logs.iter().map(|log| log.stats().syncs).collect::<Vec<_>>()
    );
}

#[test]
fn a_small_log_prepares_nothing_before_its_first_append() {
    let device = SimDevice::new(3);
    let set = set(1);
    let log = Log::open("/data/log", small(&device, &set)).unwrap();
    let mut worker = log.worker().unwrap();
    for _ in 0..10 {
        worker.append(0, 1, &[1; 2_000]).unwrap();
    }
    assert_eq!(log.stats().stages.prepare_ns.count, 0);
    // And further room comes as it is taken.
    for _ in 0..2_000 {
        worker.append(0, 1, &[1; 2_000]).unwrap();
    }
    log.flush(Level::Disk).unwrap();
    assert!(log.stats().segments > 2);
}

#[test]
fn a_log_whose_device_fails_takes_no_other_along() {
    let device = SimDevice::new(4);
    let logs = open_many(3, &small(&device, &set(1)));
    device.inject(Fault::new(FaultKind::SyncFails).on("/data/1/"));
    for log in &logs {
        append(log);
    }
    until("poisoned", || {
        logs.get(1).is_some_and(|log| log.poisoned().is_some())
    });
    device.heal();
    for (n, log) in logs.iter().enumerate() {
        if n != 1 {
            let end = append(log).end;
            until("durable", || log.durable() >= end);
        }
    }
    for (n, log) in logs.into_iter().enumerate() {
        assert_eq!(log.close().is_err(), n == 1, "log {n}");
    }
}

#[test]
fn a_thread_that_waits_in_one_log_leaves_the_others_to_the_next() {
    let device = SimDevice::new(5);
    let logs = open_many(2, &small(&device, &set(2)));
    let [slow, other] = logs.as_slice() else { panic!() };
    let (ran, runs) = channel();
    let (go, may_go) = channel();
    let blocks = notes(&ran, Some(may_go));
    // A waker that does not return: the log's next flushes wait, as it is in its turn.
    let mut held = pin!(slow.wait_async(append(slow).end, Level::Disk));
    if held.as_mut().poll(&mut Context::from_waker(&blocks)).is_pending() {
        runs.recv_timeout(PATIENCE).unwrap();
    }
    let end = append(other).end;
    until("durable", || other.durable() >= end);
    drop(go);
    // Called in its turn, it has another.
    let end = append(slow).end;
    until("durable", || slow.durable() >= end);
}

/// Closes a log as its last handle.
struct Closes(Mutex<Option<Log>>, Sender<()>);

impl Wake for Closes {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.send(()).unwrap();
    }
}

#[test]
fn a_waker_may_close_its_log_on_a_thread_of_the_set() {
    let device = SimDevice::new(6);
    let (closed, is_closed) = channel();
    {
        let set = set(1);
        let log = Log::open("/data/log", small(&device, &set)).unwrap();
        let end = append(&log).end;
        let mut awaited = pin!(log.wait_async(end, Level::Disk));
        let waker = Waker::from(Arc::new(Closes(Mutex::new(Some(log.clone())), closed.clone())));
        let pending = awaited
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending();
        // The waker's handle is the last one, and the set's last one goes with it.
        drop((log, set));
        if pending {
            is_closed.recv_timeout(PATIENCE).unwrap();
        }
    }
    // Its directory is free.
    until("closed", || {
        Log::open(
            "/data/log",
            LogOptions {
                set: None,
                ..small(&device, &set(1))
            },
        )
        .is_ok()
    });
}

#[test]
fn what_cannot_be_opened_is_told_in_its_place() {
    let device = SimDevice::new(7);
    let options = small(&device, &set(1));
    let held = Log::open("/data/1", options.clone()).unwrap();
    let dirs = (0..3).map(|n| (PathBuf::from(format!("/data/{n}")), options.clone()));
    let opened = Log::open_all(dirs.collect(), 8);
    assert!(matches!(
        opened.as_slice(),
        [Ok(_), Err(LogError::Locked { .. }), Ok(_)]
    ));
    drop(held);
    assert!(Log::open_all(Vec::new(), 0).is_empty());
}

#[test]
fn options_out_of_their_range_are_refused() {
    let refused = |options: LogSetOptions| LogSet::new(options).unwrap_err().to_string();
    let defaults = LogSetOptions::default;
    for flushers in [0, 65] {
        assert!(
            refused(LogSetOptions {
                flushers,
                ..defaults()
            })
            .contains("flushers")
        );
    }
    let period = Duration::from_micros(999);
    assert!(refused(LogSetOptions { period, ..defaults() }).contains("period"));
    let device = SimDevice::new(8);
    let options = LogOptions {
        threads: false,
        ..small(&device, &set(1))
    };
    assert!(
        Log::open("/data/log", options)
            .unwrap_err()
            .to_string()
            .contains("set")
    );
}

/// The last look may have been a moment ago, and the seal comes before the next one is due.
#[test]
fn a_log_stops_after_its_directory_was_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let set = set(1);
    let options = LogOptions {
        device: Arc::new(collie_io::RealDevice::new()),
        ..small(&SimDevice::new(9), &set)
    };
    let path = dir.path().join("log");
    let log = Log::open(&path, options).unwrap();
    let mut worker = log.worker().unwrap();
    let end = worker.append(0, 1, b"before").unwrap().end;
    log.wait(end, Level::Disk).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    collie_io::Device::rename(&collie_io::RealDevice::new(), &path, &elsewhere).unwrap();
    // It may be poisoned already.
    let _ = worker
        .append(0, 1, b"behind")
        .and_then(|span| log.wait(span.end, Level::Disk));
    until("poisoned", || log.poisoned().is_some());
}
