//! The log on the real file system: what is appended is read back, by this open and by the next.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the real file system from outside"
)]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::sync::Arc;
use std::time::Duration;

use collie_io::{Policy, Scheduler};
use collie_log::{FIRST_LSN, Frame, Level, Log, LogError, LogOptions, RingMode, RingOutcome, WritePath};

fn small() -> LogOptions {
    LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 16,
        flush_interval: Duration::from_millis(5),
        ..LogOptions::default()
    }
}

fn frames(log: &Log, from: u64) -> Vec<Frame> {
    log.read(from).unwrap().collect::<Result<_, _>>().unwrap()
}

fn payload(n: u64) -> Vec<u8> {
    let len = (n * 37 % 700) as usize;
    n.to_le_bytes().into_iter().cycle().take(len).collect()
}

#[test]
fn appended_frames_are_read_in_order_now_and_after_reopening() {
    for (ring, write_path) in [
        (RingMode::default(), WritePath::Direct),
        (RingMode::default(), WritePath::FdataSync),
        (RingMode::Private, WritePath::Direct),
        (RingMode::Private, WritePath::FdataSync),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            ring: ring.clone(),
            write_path,
            ..small()
        };
        let mut expected = Vec::new();
        for round in 0..4 {
            let log = Log::open(dir.path(), options.clone()).unwrap();
            assert_eq!(log.recovery().epoch, round + 1);
            assert_eq!(frames(&log, log.recovery().first_frame), expected);
            let mut worker = log.worker().unwrap();
            for n in 0..500 {
                let payload = payload(n);
                let span = worker.append(n as u32 % 5, (n % 240) as u8, &payload).unwrap();
                let (stream, kind) = (n as u32 % 5, (n % 240) as u8);
                expected.push(Frame {
                    start: span.start,
                    end: span.end,
                    stream,
                    kind,
                    payload,
                });
                if n % 50 == 0 {
                    log.wait(span.end, Level::Disk).unwrap();
                    assert!(log.durable() >= span.end);
                }
            }
            log.flush(Level::Disk).unwrap();
            assert_eq!(frames(&log, FIRST_LSN), expected);
            drop(worker);
            log.close().unwrap();
        }
    }
}

#[test]
fn many_threads_append_without_losing_or_mixing_anything() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let threads: Vec<_> = (0..8_u32)
        .map(|stream| {
            let log = log.clone();
            std::thread::spawn(move || {
                let mut worker = log.worker().unwrap();
                for n in 0..2_000_u64 {
                    let span = worker.append(stream, 0, &n.to_le_bytes()).unwrap();
                    if n % 7 == 0 {
                        log.wait(span.end, Level::Disk).unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    log.flush(Level::Disk).unwrap();
    let mut next = [0_u64; 8];
    for frame in frames(&log, FIRST_LSN) {
        let n = u64::from_le_bytes(frame.payload.try_into().unwrap());
        let expected = &mut next[frame.stream as usize];
        assert_eq!(n, *expected, "stream {}", frame.stream);
        *expected += 1;
    }
    assert_eq!(next, [2_000; 8]);
    let stats = log.stats();
    assert_eq!(stats.frames, 16_000);
    assert!(stats.syncs > 0 && stats.group_frames.count > 0, "{stats:?}");
}

#[test]
fn a_log_that_pads_takes_commits_and_costs_nothing_when_idle() {
    for (ring, write_path) in [
        (RingMode::default(), WritePath::Direct),
        (RingMode::default(), WritePath::FdataSync),
        (RingMode::Private, WritePath::FdataSync),
    ] {
        let dir = tempfile::tempdir().unwrap();
        // A small ring, so that appends wait for room while others have their last block filled.
        let options = LogOptions {
            pad_to_block: true,
            ring_bytes: 16 << 10,
            ring,
            write_path,
            ..small()
        };
        let limit = options.max_payload();
        let log = Log::open(dir.path(), options.clone()).unwrap();
        let threads: Vec<_> = (0..8_u32)
            .map(|stream| {
                let log = log.clone();
                std::thread::spawn(move || {
                    let mut worker = log.worker().unwrap();
                    for n in 0..400_usize {
                        let len = if n % 50 == 0 { limit } else { n * 37 % 900 };
                        let span = worker.append(stream, 0, &vec![stream as u8; len]).unwrap();
                        if n % 3 == 0 {
                            log.wait(span.end, Level::Disk).unwrap();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        log.flush(Level::Disk).unwrap();
        let stats = log.stats();
        assert!(stats.filler_bytes > 0);
        // The seal of an idle log and its filler are one block, however long it is idle.
        std::thread::sleep(options.flush_interval * 40);
        let grown = log.appended() - stats.appended;
        assert!(grown <= 3 * 4_096, "an idle log grew by {grown} bytes");
        let expected = frames(&log, FIRST_LSN);
        assert_eq!(expected.len(), 8 * 400);
        log.close().unwrap();
        let log = Log::open(dir.path(), options).unwrap();
        assert_eq!(log.recovery().warnings, [""; 0]);
        assert_eq!(frames(&log, FIRST_LSN), expected);
    }
}

#[test]
fn a_log_is_shown_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let worker = log.worker().unwrap();
    for shown in [format!("{log:?}"), format!("{worker:?}")] {
        assert!(shown.contains("epoch: 1") && shown.len() < 400, "{shown}");
    }
}

#[test]
fn an_open_log_is_locked_and_a_second_one_learns_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    match Log::open(dir.path(), small()) {
        Err(LogError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    log.close().unwrap();
    Log::open(dir.path(), small()).unwrap();
}

#[test]
fn a_foreign_directory_is_left_untouched() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("photos")).unwrap();
    let error = Log::open(dir.path(), small()).unwrap_err();
    assert!(matches!(error, LogError::WrongDirectory { .. }), "{error}");
    assert!(error.to_string().contains("photos"), "{error}");
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["photos"]);
}

#[test]
fn a_payload_above_the_limit_is_refused_with_both_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let limit = small().max_payload();
    let mut worker = log.worker().unwrap();
    match worker.append(0, 0, &vec![1; limit + 1]) {
        Err(LogError::TooLarge { len, limit: l }) => assert_eq!((len, l), (limit as u64 + 1, limit as u64)),
        other => panic!("{other:?}"),
    }
    let span = worker.append(0, 0, &vec![1; limit]).unwrap();
    log.wait(span.end, Level::Disk).unwrap();
    assert_eq!(frames(&log, span.start)[0].payload.len(), limit);
    assert!(matches!(
        worker.append(1 << 24, 0, &[]),
        Err(LogError::Options { option: "stream", .. })
    ));
    assert!(matches!(
        worker.append(0, 240, &[]),
        Err(LogError::Options { option: "kind", .. })
    ));
}

#[test]
fn worker_slots_are_limited_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(
        dir.path(),
        LogOptions {
            max_workers: 3,
            ..small()
        },
    )
    .unwrap();
    let (a, _b, _c) = (
        log.worker().unwrap(),
        log.worker().unwrap(),
        log.worker().unwrap(),
    );
    assert!(matches!(log.worker(), Err(LogError::TooManyWorkers { limit: 3 })));
    drop(a);
    log.worker().unwrap();
}

#[test]
fn segments_below_all_holders_are_released_and_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(
        dir.path(),
        LogOptions {
            threads: false,
            ..small()
        },
    )
    .unwrap();
    let mut worker = log.worker().unwrap();
    log.retain("slow", FIRST_LSN);
    let mut last = FIRST_LSN;
    for n in 0..200_u64 {
        last = worker.append(0, 0, &vec![n as u8; 4000]).unwrap().start;
    }
    log.flush(Level::Disk).unwrap();
    let held = log.stats().segments;
    assert!((10..20).contains(&held), "{held} segments");
    log.retain("fast", last);
    assert_eq!(log.stats().segments, held, "the slow holder pins the log");
    assert_eq!(
        log.holders(),
        [("slow".to_owned(), FIRST_LSN), ("fast".to_owned(), last)]
    );
    log.release("slow");
    let after = log.stats();
    assert!(after.segments <= 2 && after.spare_segments == 2, "{after:?}");
    assert!(log.oldest() <= last && log.oldest() > FIRST_LSN);
    assert!(matches!(log.read(FIRST_LSN), Err(LogError::Missing { .. })));
    for n in 0..40_u64 {
        worker.append(0, 1, &vec![n as u8; 4000]).unwrap();
    }
    log.flush(Level::Disk).unwrap();
    assert_eq!(frames(&log, last).len(), 41);
    drop(worker);
    log.close().unwrap();
    let log = Log::open(
        dir.path(),
        LogOptions {
            resume_at: Some(last),
            ..small()
        },
    )
    .unwrap();
    assert_eq!(frames(&log, last).len(), 41);
    drop(log);
    // Where the caller does not say where to resume, the first whole frame is found.
    let log = Log::open(dir.path(), small()).unwrap();
    let first = log.recovery().first_frame;
    assert!(first <= last, "{first} {last}");
    assert!(frames(&log, first).len() >= 41);
}

#[test]
fn a_closed_log_refuses_and_its_ring_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let ring = RingMode::Shared {
        dir: rings.path().to_owned(),
    };
    let log = Log::open(
        dir.path(),
        LogOptions {
            ring: ring.clone(),
            ..small()
        },
    )
    .unwrap();
    assert!(log.recovery().ring_shared);
    assert_eq!(std::fs::read_dir(rings.path()).unwrap().count(), 1);
    let mut worker = log.worker().unwrap();
    let other = log.clone();
    let span = worker.append(0, 0, b"x").unwrap();
    log.close().unwrap();
    assert_eq!(std::fs::read_dir(rings.path()).unwrap().count(), 0);
    other.wait(span.end, Level::Disk).unwrap();
    assert!(matches!(worker.append(0, 0, b"y"), Err(LogError::Closed)));
    assert!(matches!(
        other.wait(span.end + 4096, Level::Process),
        Err(LogError::Closed)
    ));
    drop((worker, other));
    let log = Log::open(dir.path(), LogOptions { ring, ..small() }).unwrap();
    assert_eq!(log.recovery().ring, RingOutcome::Closed);
    assert_eq!(log.recovery().torn, None);
    assert_eq!(frames(&log, FIRST_LSN).len(), 1);
}

#[test]
fn a_floor_above_the_end_raises_the_next_lsn_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let first = log.worker().unwrap().append(0, 0, b"below").unwrap();
    log.close().unwrap();
    let floor = first.end + (1 << 30);
    let log = Log::open(
        dir.path(),
        LogOptions {
            min_lsn: floor,
            ..small()
        },
    )
    .unwrap();
    let above = log.worker().unwrap().append(0, 0, b"above").unwrap();
    assert!(above.start >= floor);
    log.close().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let payloads: Vec<_> = frames(&log, FIRST_LSN).into_iter().map(|f| f.payload).collect();
    assert_eq!(payloads, [b"below".to_vec(), b"above".to_vec()]);
}

#[test]
fn awaiting_needs_no_runtime_and_no_leader() {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let mut worker = log.worker().unwrap();
    let waker = Arc::new(Unpark(std::thread::current())).into();
    for _ in 0..50 {
        let end = worker.append(0, 0, b"awaited").unwrap().end;
        drop(log.wait_async(end, Level::Disk));
        let mut future = std::pin::pin!(log.wait_async(end, Level::Disk));
        let mut context = std::task::Context::from_waker(&waker);
        while future.as_mut().poll(&mut context).is_pending() {
            std::thread::park();
        }
        assert!(log.durable() >= end);
    }
}

#[test]
fn the_way_to_write_is_measured_at_open_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let auto = LogOptions {
        write_path: WritePath::Auto,
        ..small()
    };
    for round in 0..3 {
        let log = Log::open(dir.path(), auto.clone()).unwrap();
        let report = log.recovery();
        if let Some(probe) = report.probe {
            assert!(probe.direct_ns > 0 && probe.fdatasync_ns > 0, "{probe:?}");
            assert_eq!(
                report.direct,
                probe.fdatasync_ns >= probe.direct_ns / 5 * 4,
                "{probe:?}"
            );
        } else {
            assert!(!report.direct || !report.ring_shared, "{report:?}");
        }
        assert_eq!(frames(&log, FIRST_LSN).len(), round * 300);
        let mut worker = log.worker().unwrap();
        for n in 0..300 {
            worker.append(0, 0, &payload(n)).unwrap();
        }
        log.flush(Level::Disk).unwrap();
        drop(worker);
        log.close().unwrap();
    }
    let asked = LogOptions {
        write_path: WritePath::FdataSync,
        ..small()
    };
    let log = Log::open(dir.path(), asked).unwrap();
    assert!(!log.recovery().direct && log.recovery().probe.is_none());
    drop(log);
    let asked = LogOptions {
        write_path: WritePath::Direct,
        ..small()
    };
    let log = Log::open(dir.path(), asked).unwrap();
    let report = log.recovery();
    assert!(
        report.direct || !report.warnings.is_empty() || !report.ring_shared,
        "{report:?}"
    );
}

#[test]
fn what_lies_behind_a_close_is_no_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        ring: RingMode::Private,
        ring_bytes: 16 << 10,
        segment_bytes: 32 << 10,
        max_workers: 4,
        threads: false,
        ..LogOptions::default()
    };
    let log = Log::open(dir.path(), options.clone()).unwrap();
    let mut worker = log.worker().unwrap();
    // Until segments are used again, and so hold what they held before.
    for _ in 0..300 {
        let span = worker.append(0, 0, &[7; 992]).unwrap();
        log.wait(span.end, Level::Disk).unwrap();
        log.retain("test", log.durable());
    }
    let block = |lsn: u64| (lsn - FIRST_LSN) % 4096;
    while (log.appended() - FIRST_LSN) % (28 << 10) < 8 << 10 {
        worker.append(0, 0, &[7; 992]).unwrap();
    }
    // The mark of the close ends with a block: what follows was there before.
    let len = 8192 - 2 * collie_log::FRAME_HEADER as u64 - block(log.appended());
    worker.append(0, 0, &vec![1; len as usize]).unwrap();
    assert_eq!(block(log.appended()), 4096 - collie_log::FRAME_HEADER as u64);
    drop(worker);
    log.close().unwrap();
    let strict = LogOptions {
        recovery_mode: collie_log::RecoveryMode::AbsoluteConsistency,
        ..options
    };
    let log = Log::open(dir.path(), strict).unwrap();
    assert_eq!(log.recovery().torn, None);
}

#[test]
fn a_scheduler_is_told_of_each_write_and_sync() {
    for write_path in [WritePath::Direct, WritePath::FdataSync] {
        let dir = tempfile::tempdir().unwrap();
        let scheduler = Arc::new(Scheduler::new(Policy::Classes));
        let options = LogOptions {
            write_path,
            scheduler: Some(Arc::clone(&scheduler)),
            flush_interval: Duration::from_secs(3600),
            ..small()
        };
        let log = Log::open(dir.path(), options).unwrap();
        let mut worker = log.worker().unwrap();
        for _ in 0..5 {
            let before = scheduler.begun().foreground;
            let end = worker.append(0, 1, b"durable").unwrap().end;
            log.wait(end, Level::Disk).unwrap();
            let told = scheduler.begun().foreground - before;
            let expected = 1 + u64::from(write_path == WritePath::FdataSync);
            assert_eq!(told, expected, "{write_path:?}");
        }
        assert_eq!(scheduler.begun().background, 0);
    }
}
