//! The log on the real file system: what is appended is read back, by this open and by the next.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the real file system from outside"
)]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_io::{Clock, Device, Entry, File, OpenMode, RealDevice, Stat};
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
fn what_is_appended_is_read_back_in_order_now_and_after_reopening() {
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
fn many_threads_commit_to_a_log_that_pads_and_its_idleness_costs_nothing() {
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
fn an_open_log_is_locked_against_a_second_one_which_learns_the_holder() {
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
fn a_payload_above_the_limit_is_refused_with_both_sizes_and_one_at_the_limit_is_not() {
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
    log.hold("slow", FIRST_LSN);
    let mut last = FIRST_LSN;
    for n in 0..200_u64 {
        last = worker.append(0, 0, &vec![n as u8; 4000]).unwrap().start;
    }
    log.flush(Level::Disk).unwrap();
    let held = log.stats().segments;
    assert!((10..20).contains(&held), "{held} segments");
    log.hold("fast", last);
    assert_eq!(log.stats().segments, held, "the slow holder pins the log");
    assert_eq!(
        log.holders(),
        [("slow".to_owned(), FIRST_LSN), ("fast".to_owned(), last)]
    );
    log.unhold("slow");
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
    // Without being told where to resume, the first whole frame is found.
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
        drop(log.when(end, Level::Disk));
        let mut future = std::pin::pin!(log.when(end, Level::Disk));
        let mut context = std::task::Context::from_waker(&waker);
        while future.as_mut().poll(&mut context).is_pending() {
            std::thread::park();
        }
        assert!(log.durable() >= end);
    }
}

#[test]
fn a_panic_in_mid_append_poisons_the_log() {
    struct Panics;
    impl collie_log::AppendHook for Panics {
        fn before_reserve(&mut self, _: u64) {}
        fn reserved(&mut self, _: collie_log::Span) {
            panic!("on purpose");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let before = log.worker().unwrap().append(0, 0, b"before").unwrap();
    let appended = log.clone();
    let panicked = std::thread::spawn(move || {
        let mut worker = appended.worker().unwrap();
        let _ = worker.append_with(0, 0, b"never", &mut Panics);
    });
    assert!(panicked.join().is_err());
    let error = log.worker().unwrap().append(0, 0, b"after").unwrap_err();
    assert!(
        matches!(&error, LogError::Poisoned { cause } if cause.contains("between reserving")),
        "{error}"
    );
    assert!(log.flush(Level::Disk).is_err());
    drop(log);
    let log = Log::open(dir.path(), small()).unwrap();
    let recovered = frames(&log, FIRST_LSN);
    assert_eq!(
        recovered.iter().map(|f| f.start).collect::<Vec<_>>(),
        [before.start]
    );
}

/// Flips a byte in the segment that holds the first frame.
fn damage(dir: &std::path::Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.retain(|p| p.extension().is_some_and(|e| e == "seg"));
    names.sort();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&names[0])
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0xff], offset).unwrap();
}

#[test]
fn damage_before_a_durable_point_is_refused_with_its_place_until_repair_cuts_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let mut worker = log.worker().unwrap();
    let spans: Vec<_> = (0..100_u64)
        .map(|n| {
            let span = worker.append(0, 0, &n.to_le_bytes()).unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            span
        })
        .collect();
    drop(worker);
    log.close().unwrap();
    let device: Arc<dyn collie_io::Device> = Arc::new(collie_io::RealDevice::new());
    let mut seen = 0;
    let clean =
        collie_log::inspect::inspect(&device, dir.path(), |f| seen += u64::from(f.kind < 240)).unwrap();
    assert_eq!((seen, clean.torn), (100, None));
    assert_eq!(
        collie_log::inspect::repair(&device, dir.path()).unwrap().damage,
        None
    );

    let offset = 4096 + (spans[40].start - FIRST_LSN) + 33;
    damage(dir.path(), offset);
    let error = Log::open(dir.path(), small()).unwrap_err();
    match &error {
        LogError::Corrupt {
            path,
            offset,
            lsn,
            found,
            ..
        } => {
            assert_eq!(
                (*lsn, *offset),
                (spans[40].start, 4096 + (spans[40].start - FIRST_LSN))
            );
            assert!(
                path.ends_with("0000000000000001.seg") && found.contains("checksum"),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
    let repair = collie_log::inspect::repair(&device, dir.path()).unwrap();
    assert_eq!(repair.end, spans[40].start);
    assert!(
        !repair.kept.is_empty() && repair.kept.iter().all(|p| p.exists()),
        "{repair:?}"
    );
    let log = Log::open(dir.path(), small()).unwrap();
    assert_eq!(frames(&log, FIRST_LSN).len(), 40);
}

#[test]
fn an_old_handle_of_a_closed_log_leaves_the_next_one_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        threads: false,
        ..small()
    };
    let old = Log::open(dir.path(), options.clone()).unwrap();
    let mut worker = old.worker().unwrap();
    for n in 0..1_500 {
        worker.append(0, 1, &payload(n)).unwrap();
    }
    let end = old.flush(Level::Disk).unwrap();
    old.clone().close().unwrap();
    let new = Log::open(dir.path(), options.clone()).unwrap();
    let expected = frames(&new, FIRST_LSN);
    assert_eq!(expected.len(), 1_500);
    // Nothing is below this holder: the old handle would release all segments but the last.
    old.hold("late", end);
    assert!(matches!(worker.append(0, 1, b"late"), Err(LogError::Closed)));
    drop((old, worker));
    new.close().unwrap();
    let again = Log::open(dir.path(), options).unwrap();
    assert_eq!(frames(&again, FIRST_LSN), expected);
}

/// The real device: once it is full no file is made in `dir`, and once its clock is broken that panics.
#[derive(Debug, Default)]
struct Failing {
    real: RealDevice,
    dir: PathBuf,
    full: AtomicBool,
    broken: AtomicBool,
}

impl Clock for Failing {
    fn monotonic(&self) -> u64 {
        assert!(!self.broken.load(Ordering::Relaxed), "on purpose");
        self.real.clock().monotonic()
    }
    fn wall_ms(&self) -> u64 {
        self.real.clock().wall_ms()
    }
}

impl Device for Failing {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if self.full.load(Ordering::Relaxed) && path.starts_with(&self.dir) && !path.exists() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.real.open(path, mode)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.real.stat(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.real.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.real.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_dir(dir)
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.real.boot_id()
    }
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.real.random(buf)
    }
    fn uid(&self) -> u32 {
        self.real.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self
    }
}

#[test]
fn a_log_that_closed_on_a_full_device_opens_again_beside_its_old_handles() {
    let dir = tempfile::tempdir().unwrap();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = Arc::new(Failing {
        dir: dir.path().to_owned(),
        ..Failing::default()
    });
    let options = LogOptions {
        device: Arc::clone(&device) as Arc<dyn Device>,
        ring: RingMode::Shared {
            dir: rings.path().to_owned(),
        },
        ..small()
    };
    let old = Log::open(dir.path(), options.clone()).unwrap();
    let mut worker = old.worker().unwrap();
    device.full.store(true, Ordering::Relaxed);
    let mut frames_before = 0;
    for len in [1_000, 0] {
        while let Ok(span) = worker.append(0, 0, &vec![1; len]) {
            old.wait(span.end, Level::Process).unwrap();
            frames_before += 1;
        }
    }
    assert!(old.stats().refused > 0 && old.poisoned().is_none());
    old.clone().close().unwrap();
    let ring_files = || std::fs::read_dir(rings.path()).unwrap().count();
    assert_eq!(ring_files(), 1, "the ring stands in for the mark");
    device.full.store(false, Ordering::Relaxed);
    let new = Log::open(dir.path(), options).unwrap();
    assert_eq!(new.recovery().warnings, [""; 0]);
    assert_eq!(frames(&new, FIRST_LSN).len(), frames_before);
    assert!(matches!(worker.append(0, 0, b"late"), Err(LogError::Closed)));
    drop((old, worker));
    new.close().unwrap();
    assert_eq!(ring_files(), 0);
}

#[test]
fn a_panic_in_the_middle_of_a_flush_poisons_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let device = Arc::new(Failing::default());
    let options = LogOptions {
        device: Arc::clone(&device) as Arc<dyn Device>,
        threads: false,
        ..small()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let span = log.worker().unwrap().append(0, 0, b"x").unwrap();
    device.broken.store(true, Ordering::Relaxed);
    let leader = log.clone();
    let panicked = std::thread::spawn(move || leader.wait(span.end, Level::Disk));
    assert!(panicked.join().is_err());
    device.broken.store(false, Ordering::Relaxed);
    // On a thread of its own: who is not told would wait for ever.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(log.wait(span.end, Level::Disk)));
    let error = told.recv_timeout(Duration::from_secs(20)).unwrap().unwrap_err();
    assert!(
        matches!(&error, LogError::Poisoned { cause } if cause.contains("in the middle of a flush")),
        "{error}"
    );
}

#[test]
fn the_way_to_write_is_found_out_at_open_and_nothing_of_the_trial_is_left() {
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
            assert!(probe.pair_ns > 0, "{probe:?}");
            let several = report.direct && probe.pair_ns <= probe.direct_ns / 10 * 11;
            assert_eq!(report.writes_in_flight, if several { 3 } else { 1 }, "{probe:?}");
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
        writes_in_flight: Some(2),
        ..small()
    };
    let log = Log::open(dir.path(), asked).unwrap();
    let report = log.recovery();
    assert!(report.probe.is_none() && report.writes_in_flight == if report.direct { 2 } else { 1 });
    drop(log);
    let wrong = LogOptions {
        writes_in_flight: Some(4),
        ..small()
    };
    let error = Log::open(dir.path(), wrong).unwrap_err().to_string();
    assert!(error.contains("4 is not from 1 to 3"), "{error}");
}

#[test]
fn a_waker_that_panics_takes_no_other_wake_up_along() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    #[derive(Default)]
    struct Notes(AtomicBool);
    impl std::task::Wake for Notes {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        threads: false,
        ..small()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let span = log.worker().unwrap().append(0, 0, b"x").unwrap();
    let notes = Arc::new(Notes::default());
    let wakers = [Arc::new(Panics).into(), Arc::clone(&notes).into()];
    let mut futures = [log.when(span.end, Level::Disk), log.when(span.end, Level::Disk)];
    for (future, waker) in futures.iter_mut().zip(&wakers) {
        let mut context = std::task::Context::from_waker(waker);
        assert!(std::future::Future::poll(std::pin::Pin::new(future), &mut context).is_pending());
    }
    let leader = log.clone();
    let leading = std::thread::spawn(move || leader.wait(span.end, Level::Disk));
    assert!(leading.join().is_err(), "who woke them hears of the panic");
    assert!(notes.0.load(Ordering::Relaxed));
    assert!(log.durable() >= span.end);
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
        log.hold("test", log.durable());
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
fn an_archived_segment_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let name = "0000000000000001-000000000001.seg";
    std::fs::create_dir(dir.path().join(name)).unwrap();
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let error = collie_log::inspect::inspect(&device, dir.path(), |_| ()).unwrap_err();
    let expected = format!("cannot open {}", dir.path().join(name).display());
    assert!(error.to_string().starts_with(&expected), "{error}");
}
