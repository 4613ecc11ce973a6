//! Appends that wait for nothing, and tasks that await room instead.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use collie_log::{FRAME_HEADER, Level, Log, LogError, LogOptions, RingMode, WritePath};
use collie_sim::{Fault, FaultKind, SimDevice, VOLATILE_DIR};

use crate::task::{block_on, poll_once};

const DIR: &str = "/data/log";
const RING: usize = 16 << 10;

fn options(device: &SimDevice) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        ring_bytes: RING,
        segment_bytes: 64 << 10,
        max_workers: 8,
        flush_interval: Duration::from_secs(3_600),
        ..LogOptions::default()
    }
}

/// A log without threads: only a thread that waits would write, and none does.
#[test]
fn an_append_that_would_wait_is_refused_and_writes_nothing() {
    let device = SimDevice::new(1);
    let options = LogOptions {
        threads: false,
        ..options(&device)
    };
    let log = Log::open(DIR, options).unwrap();
    let mut worker = log.worker().unwrap();
    let start = log.appended();
    let payload = vec![7; 1_000];
    let mut frames = 0;
    loop {
        match worker.try_append(0, 1, &payload) {
            Ok(span) => {
                frames += 1;
                assert!(
                    span.end <= start + RING as u64,
                    "{span:?} has no place in the ring"
                );
            }
            Err(LogError::WouldBlock) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(frames, RING / (1_000 + FRAME_HEADER), "the ring is not full");
    assert_eq!(log.written(), start, "the appending thread has written");
    let end = log.appended();
    assert!(matches!(
        worker.try_append(0, 1, &payload),
        Err(LogError::WouldBlock)
    ));
    assert_eq!(log.appended(), end, "what was refused is in the log");
    // A small one still has a place.
    worker.try_append(0, 1, b"small").unwrap();
    let mut room = pin!(log.room(payload.len()));
    assert!(poll_once(room.as_mut()).is_pending());
    log.flush(Level::Disk).unwrap();
    assert!(matches!(poll_once(room.as_mut()), Poll::Ready(Ok(()))));
    let span = worker.try_append(0, 1, &payload).unwrap();
    log.flush(Level::Disk).unwrap();
    let last = log.read(span.start).unwrap().next().unwrap().unwrap();
    assert_eq!(last.payload, payload);
}

/// Also where the device has none prepared yet: that is left to the log's thread.
#[test]
fn an_append_prepares_no_segment() {
    let device = SimDevice::new(2);
    let options = LogOptions {
        threads: false,
        ..options(&device)
    };
    let log = Log::open(DIR, options).unwrap();
    let mut worker = log.worker().unwrap();
    let before = log.stats().segments;
    loop {
        match worker.try_append(0, 1, &[1; 3_000]) {
            Ok(span) => log.wait(span.end, Level::Disk).unwrap(),
            Err(LogError::WouldBlock) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(log.stats().segments, before);
    assert_eq!(
        log.written(),
        log.appended(),
        "the ring is empty: segments are missing"
    );
    worker.append(0, 1, &[1; 3_000]).unwrap();
    assert!(log.stats().segments >= before);
}

/// Many rings and segments of frames by tasks, large ones among them, beside a thread that appends
/// as it always did.
#[test]
fn tasks_append_more_than_the_ring_holds() {
    let rings = [
        RingMode::Private,
        RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
    ];
    for (ring, write_path) in rings.into_iter().zip([WritePath::FdataSync, WritePath::Direct]) {
        let device = SimDevice::new(3);
        let options = LogOptions {
            ring,
            write_path,
            ..options(&device)
        };
        let log = Log::open(DIR, options.clone()).unwrap();
        let largest = options.max_payload();
        let payload = |task: u32, n: u64| {
            let len = match n % 16 {
                0 => largest,
                5 => 3_000,
                _ => (n * 53 % 900) as usize,
            };
            (0..len)
                .map(|at| (u64::from(task) * 31 + n * 7 + at as u64) as u8)
                .collect::<Vec<_>>()
        };
        let appended = std::thread::scope(|scope| {
            let tasks: Vec<_> = (0..4_u32)
                .map(|task| {
                    let log = log.clone();
                    scope.spawn(move || {
                        let mut worker = log.worker().unwrap();
                        let mut own = Vec::new();
                        for n in 0..200 {
                            let payload = payload(task, n);
                            let span = match task {
                                0 => worker.append(task, 1, &payload),
                                _ => block_on(worker.append_async(task, 1, &payload)),
                            };
                            own.push((span.unwrap().start, (task, payload)));
                        }
                        own
                    })
                })
                .collect();
            let appended = tasks.into_iter().flat_map(|task| task.join().unwrap());
            appended.collect::<BTreeMap<_, _>>()
        });
        log.flush(Level::Disk).unwrap();
        let first = log.recovery().first_frame;
        let found: BTreeMap<_, _> = log
            .read(first)
            .unwrap()
            .map(|frame| frame.unwrap())
            .map(|frame| (frame.start, (frame.stream, frame.payload)))
            .collect();
        assert!(
            found == appended,
            "{} found, {} appended",
            found.len(),
            appended.len()
        );
    }
}

#[test]
fn a_task_is_told_of_a_full_device_and_of_room_later() {
    let device = SimDevice::new(4);
    let log = Log::open(DIR, options(&device)).unwrap();
    let mut worker = log.worker().unwrap();
    device.limit_space(Some(device.used_space()));
    let refused = loop {
        match block_on(worker.append_async(0, 1, &[1; 3_000])) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, LogError::StorageFull { .. }), "{refused}");
    let setback = log.setback();
    assert!(
        matches!(setback, Some(LogError::StorageFull { .. })),
        "{setback:?}"
    );
    let end = log.appended();
    device.limit_space(None);
    // Until the log's thread has tried again.
    let span = loop {
        match block_on(worker.append_async(0, 1, &[2; 3_000])) {
            Ok(span) => break span,
            Err(LogError::StorageFull { .. }) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    };
    assert!(span.start >= end);
    log.wait(span.end, Level::Disk).unwrap();
    while log.setback().is_some() {
        std::thread::yield_now();
    }
    assert!(log.has_prepared(3_000));
}

/// A wait for such a room never ended, or was for the few bytes that are left of an overflow.
#[test]
fn room_for_more_than_any_frame_holds_is_refused_at_once() {
    let device = SimDevice::new(6);
    let options = options(&device);
    let limit = options.max_payload();
    let log = Log::open(DIR, options).unwrap();
    for payload in [limit + 1, RING, usize::MAX - FRAME_HEADER, usize::MAX] {
        let answer = poll_once(pin!(log.room(payload)).as_mut());
        let Poll::Ready(Err(LogError::TooLarge { len, limit: most })) = answer else {
            panic!("{payload} bytes: {answer:?}");
        };
        assert_eq!((len, most), (payload as u64, limit as u64));
    }
    assert!(block_on(log.room(limit)).is_ok());
}

#[test]
fn a_task_that_awaits_room_hears_of_the_logs_end() {
    for poisoned in [false, true] {
        let device = SimDevice::new(5);
        let options = LogOptions {
            threads: false,
            ..options(&device)
        };
        let log = Log::open(DIR, options).unwrap();
        let mut worker = log.worker().unwrap();
        while worker.try_append(0, 1, &[1; 1_000]).is_ok() {}
        let waiting = {
            let log = log.clone();
            std::thread::spawn(move || block_on(log.room(1_000)))
        };
        if poisoned {
            device.inject(Fault::new(FaultKind::WriteFails).on(".seg"));
            assert!(log.flush(Level::Disk).is_err());
            let answer = waiting.join().unwrap();
            assert!(matches!(answer, Err(LogError::Poisoned { .. })), "{answer:?}");
            let answer = worker.try_append(0, 1, b"late");
            assert!(matches!(answer, Err(LogError::Poisoned { .. })), "{answer:?}");
        } else {
            // The last flush makes room: either is right.
            log.close().unwrap();
            let answer = waiting.join().unwrap();
            assert!(matches!(answer, Ok(()) | Err(LogError::Closed)), "{answer:?}");
            let answer = worker.try_append(0, 1, b"late");
            assert!(matches!(answer, Err(LogError::Closed)), "{answer:?}");
        }
    }
}
