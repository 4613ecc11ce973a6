//! What is appended and applied: the applied boundary of a log, and of a sequence without one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's helpers end the test"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use collie_log::{AppendError, Level, Log, LogError, LogOptions, RingMode, Room, Sequence, Span};
use collie_sim::{Fault, FaultKind, SimDevice};

fn options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 4,
        ..LogOptions::default()
    }
}

fn log() -> (tempfile::TempDir, Log) {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    (dir, log)
}

/// What a wait answers; a wait without an answer fails the test.
fn answer(wait: impl FnOnce() -> Result<(), LogError> + Send + 'static) -> Result<(), LogError> {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(wait()));
    is_done
        .recv_timeout(Duration::from_secs(20))
        .expect("a wait for ever")
}

#[test]
fn the_applied_boundary_waits_for_the_slowest() {
    let (_dir, log) = log();
    let begin = log.applied();
    let (arrived, is_there) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let slow = {
        let mut worker = log.worker().unwrap();
        std::thread::spawn(move || {
            let apply = |span: Span| {
                arrived.send(span).unwrap();
                let _ = may_go.recv();
                "slow"
            };
            worker.append_then(Room::Commit, 0, 1, b"slow", apply).unwrap()
        })
    };
    let held = is_there.recv().unwrap();
    let mut worker = log.worker().unwrap();
    let (fast, ()) = worker.append_then(Room::Commit, 0, 1, b"fast", |_| ()).unwrap();
    assert!(fast.start >= held.end);
    assert_eq!(
        log.applied(),
        held.start.max(begin),
        "it passed what is being applied"
    );
    // It is durable all the same: another thing.
    log.wait(fast.end, Level::Disk).unwrap();
    let waiter = {
        let log = log.clone();
        std::thread::spawn(move || log.wait_applied(fast.end).map(|()| log.applied()))
    };
    drop(go);
    assert_eq!(slow.join().unwrap(), (held, "slow"));
    assert!(waiter.join().unwrap().unwrap() >= fast.end);
}

#[test]
fn a_panic_while_applying_ends_the_waits_behind_it() {
    let (_dir, log) = log();
    let mut broken = log.worker().unwrap();
    let mut worker = log.worker().unwrap();
    let before = worker.append_then(Room::Commit, 0, 1, b"a", |_| ()).unwrap().0;
    let panics = |_| -> () { panic!("on purpose") };
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        broken.append_then(Room::Commit, 0, 1, b"b", panics)
    }));
    assert!(panicked.is_err());
    log.wait_applied(before.end).unwrap();
    let behind = worker.append_then(Room::Commit, 0, 1, b"c", |_| ()).unwrap().0;
    let waiting = log.clone();
    let waited = answer(move || waiting.wait_applied(behind.end));
    assert!(matches!(waited, Err(LogError::Unapplied)), "{waited:?}");
    assert_eq!(log.applied(), before.end);
    let again = broken.append_then(Room::Commit, 0, 1, b"d", |_| ());
    assert!(
        matches!(again, Err(AppendError::Rejected(LogError::Unapplied))),
        "{again:?}"
    );
    // The log itself goes on, with the frame that was not applied.
    let plain = broken.append(0, 1, b"e").unwrap();
    log.wait(plain.end, Level::Disk).unwrap();
    drop((broken, worker));
    assert_eq!(log.read(before.start).unwrap().count(), 4);
    log.close().unwrap();
}

/// The ring is full and the device fails: the frame has its place and is never copied.
#[test]
fn a_failure_before_the_copy_ends_the_waits_behind_it() {
    let device = SimDevice::new(3);
    let options = LogOptions {
        device: Arc::new(device.clone()),
        threads: false,
        // No room is prepared meanwhile.
        segment_bytes: 4 << 20,
        ..options()
    };
    let log = Log::open("/data/log", options).unwrap();
    let mut worker = log.worker().unwrap();
    device.inject(Fault::new(FaultKind::WriteFails).on("/log/"));
    let mut last = 0;
    let failed = loop {
        match worker.append_then(Room::Commit, 0, 1, &[7; 1_000], |_| ()) {
            Ok((span, ())) => last = span.end,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(failed, AppendError::Unapplied(LogError::Poisoned { .. })),
        "{failed:?}"
    );
    log.wait_applied(last).unwrap();
    assert!(log.appended() > last);
    let waited = answer(move || log.wait_applied(log.appended()));
    assert!(matches!(waited, Err(LogError::Unapplied)), "{waited:?}");
}

/// Such a wait would never end.
#[test]
fn a_wait_for_what_was_not_appended_is_refused() {
    let (_dir, log) = log();
    let beyond = log.appended() + 8;
    let waited = answer(move || log.wait_applied(beyond));
    assert!(
        matches!(waited, Err(LogError::Options { option: "end", .. })),
        "{waited:?}"
    );
    let sequence = Sequence::new(1, 8);
    let taken = sequence.worker().unwrap().place_then(7, 1, |_| ());
    assert!(
        matches!(taken, Err(LogError::Options { option: "at", .. })),
        "{taken:?}"
    );
    sequence.advance_to(20);
    assert_eq!(sequence.applied(), 20, "what is skipped counts as applied");
    let waited = answer(move || sequence.wait_applied(21));
    assert!(
        matches!(waited, Err(LogError::Options { option: "end", .. })),
        "{waited:?}"
    );
}

#[test]
fn what_is_refused_leaves_the_applied_boundary_alone() {
    let (_dir, log) = log();
    let mut worker = log.worker().unwrap();
    let too_large = vec![0; 64 << 10];
    let refused = worker.append_then(Room::Commit, 0, 1, &too_large, |_| unreachable!());
    assert!(matches!(
        refused,
        Err::<(_, ()), _>(AppendError::Rejected(LogError::TooLarge { .. }))
    ));
    let span = worker.append_then(Room::Commit, 0, 1, b"a", |_| ()).unwrap().0;
    log.wait_applied(span.end).unwrap();
    log.clone().close().unwrap();
    let refused = worker.append_then(Room::Commit, 0, 1, b"b", |_| unreachable!());
    assert!(matches!(
        refused,
        Err::<(_, ()), _>(AppendError::Rejected(LogError::Closed))
    ));
    assert_eq!(log.applied(), span.end);
}

#[test]
fn a_sequence_orders_and_applies_without_a_log() {
    let sequence = Sequence::new(3, 100);
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut worker = sequence.worker().unwrap();
            let (sequence, total) = (&sequence, &total);
            scope.spawn(move || {
                for _ in 0..1_000 {
                    let apply = |_| total.fetch_add(1, Ordering::Relaxed);
                    let (span, _) = worker.take_then(8, apply).unwrap();
                    sequence.wait_applied(span.end).unwrap();
                    let applied = total.load(Ordering::Relaxed);
                    assert!(100 + 8 * applied >= span.end, "{applied} applied below {span:?}");
                }
            });
        }
    });
    let end = 100 + 8 * 2_000;
    assert_eq!((sequence.next(), sequence.applied()), (end, end));
    let mut worker = sequence.worker().unwrap();
    let (mark, ()) = worker.take_then(0, |_| ()).unwrap();
    assert_eq!((mark.start, mark.end), (end, end));
    let (placed, ()) = worker.place_then(end + 50, 1, |_| ()).unwrap();
    assert_eq!((placed.start, placed.end), (end + 50, end + 51));
    assert_eq!((sequence.next(), sequence.applied()), (end + 51, end + 51));
    sequence.advance_to(end);
    assert_eq!(sequence.next(), end + 51, "an order went back");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        worker.take_then(8, |_| -> () { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    assert!(matches!(worker.take_then(8, |_| ()), Err(LogError::Unapplied)));
    let waited = answer(move || sequence.wait_applied(sequence.next()));
    assert!(matches!(waited, Err(LogError::Unapplied)), "{waited:?}");
}
