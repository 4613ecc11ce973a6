//! Many streams in one log: recovery hands out each frame, and any of them is read by its LSN.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::sync::Arc;

use collie_log::{
    Compression, FIRST_LSN, FRAME_HEADER, Frame, Level, Log, LogError, LogOptions, Lsn, RecoveryMode,
    RingMode, Span,
};
use collie_sim::{OpKind, SimDevice, VOLATILE_DIR};
use proptest::prelude::{Strategy, any, proptest};
use proptest::test_runner::Config;

const DIR: &str = "/data/log";

fn options(device: &SimDevice) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 16 << 10,
        segment_bytes: 32 << 10,
        max_workers: 4,
        threads: false,
        ..LogOptions::default()
    }
}

fn payload(stream: u32, len: usize) -> Vec<u8> {
    format!("{stream} of {len};").bytes().cycle().take(len).collect()
}

fn append(log: &Log, stream: u32, len: usize) -> Frame {
    let payload = payload(stream, len);
    let kind = (len % 240) as u8;
    let Span { start, end } = log.worker().unwrap().append(stream, kind, &payload).unwrap();
    Frame {
        start,
        end,
        stream,
        kind,
        payload,
    }
}

/// Opens the log and returns what it handed out.
fn open(options: LogOptions) -> (Log, Vec<Frame>) {
    let mut seen = Vec::new();
    let log = Log::open_with(DIR, options, |frame| {
        seen.push(frame.to_frame());
        Ok::<(), LogError>(())
    });
    (log.unwrap(), seen)
}

fn read(log: &Log) -> Vec<Frame> {
    let frames = log.read(log.recovery().first_frame).unwrap();
    frames.collect::<Result<_, _>>().unwrap()
}

/// Appends `lens` in each of some lives, which end with a close or with the process; and demands that
/// all is handed out and got, and nothing else.
fn hand_out(lives: &[(Vec<usize>, bool)], options: impl Fn(&SimDevice) -> LogOptions) {
    let mut device = SimDevice::new(7);
    let mut expected: Vec<Frame> = Vec::new();
    for (lens, closes) in lives {
        let (log, seen) = open(options(&device));
        assert_eq!(seen, expected, "what was handed out");
        assert_eq!(read(&log), expected, "what was read");
        for (n, len) in lens.iter().enumerate() {
            expected.push(append(&log, n as u32 % 5, *len));
            // What is in the ring alone, and what a group brought.
            if n % 3 == 1 {
                log.flush(Level::Disk).unwrap();
            }
        }
        log.flush(Level::Process).unwrap();
        check_gets(&log, &expected);
        device = if *closes {
            log.close().unwrap();
            device
        } else {
            device.snapshot().process_death().device()
        };
    }
    let (log, seen) = open(options(&device));
    assert_eq!(seen, expected);
    check_gets(&log, &expected);
}

/// Every durable frame is got by its LSN, and no other LSN near one gives anything.
fn check_gets(log: &Log, frames: &[Frame]) {
    for frame in frames {
        if frame.end > log.durable() {
            assert!(is_missing(log.get(frame.start)), "not durable: {}", frame.start);
            continue;
        }
        assert_eq!(log.get(frame.start).unwrap(), *frame);
        let inside = (frame.start + 1..frame.start + 17).chain(frame.end - 7..frame.end);
        for lsn in inside {
            match log.get(lsn) {
                Err(LogError::Corrupt {
                    lsn: at, expected, ..
                }) => {
                    assert_eq!(at, lsn);
                    assert!(expected.contains("begins at this LSN"), "{expected}");
                }
                other => panic!("LSN {lsn}, in {} to {}: {other:?}", frame.start, frame.end),
            }
        }
    }
    assert!(is_missing(log.get(log.durable())));
    assert!(is_missing(log.get(Lsn::MAX)));
}

fn is_missing(got: Result<Frame, LogError>) -> bool {
    matches!(got, Err(LogError::Missing { .. }))
}

#[test]
fn recovery_readers_and_get_give_the_same_frames() {
    // A frame across two segments, a large one, an empty one.
    let lens = || vec![100, 8_000, 0, 7_000, 1, 7_900, 33, 8_100, 64, 500];
    let lives = [(lens(), true), (lens(), false), (lens(), false), (vec![], true)];
    hand_out(&lives, options);
    hand_out(&lives, |device| LogOptions {
        compression: Compression::Lz4,
        ..options(device)
    });
    // What only the ring has, and what fills blocks.
    hand_out(&lives, |device| LogOptions {
        ring: RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
        pad_to_block: true,
        ring_bytes: 32 << 10,
        ..options(device)
    });
}

fn lives() -> impl Strategy<Value = Vec<(Vec<usize>, bool)>> {
    let lens = proptest::collection::vec(0_usize..3_000, 0..12);
    proptest::collection::vec((lens, any::<bool>()), 1..5)
}

proptest! {
    #![proptest_config(Config { cases: 32, ..Config::default() })]

    #[test]
    fn random_lives_are_handed_out_as_they_are_read(lives in lives(), shared in any::<bool>()) {
        hand_out(&lives, |device| LogOptions {
            ring: match shared {
                true => RingMode::Shared { dir: VOLATILE_DIR.into() },
                false => RingMode::Private,
            },
            ..options(device)
        });
    }
}

/// The engine's own error.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Enough,
    Log(String),
}

impl From<LogError> for Refusal {
    fn from(error: LogError) -> Self {
        Self::Log(error.to_string())
    }
}

/// Wherever it fails, also at a frame that only the ring has: the opening ends there, the caller's own
/// error comes back, and the next opening finds all.
#[test]
fn an_error_of_the_visitor_ends_the_opening_and_changes_nothing() {
    for shared in [false, true] {
        let device = SimDevice::new(3);
        let options = |device: &SimDevice| LogOptions {
            ring: match shared {
                true => RingMode::Shared {
                    dir: VOLATILE_DIR.into(),
                },
                false => RingMode::Private,
            },
            ..options(device)
        };
        let (log, _) = open(options(&device));
        let frames: Vec<_> = [900; 9].map(|len| append(&log, 1, len)).into();
        log.wait(frames[4].end, Level::Disk).unwrap();
        let level = if shared { Level::Process } else { Level::Disk };
        log.flush(level).unwrap();
        let left = device.snapshot().process_death();
        for enough in 0..frames.len() {
            let device = left.device();
            let before = left.files(DIR.as_ref());
            let mut seen = 0;
            let refused = Log::open_with(DIR, options(&device), |frame| {
                assert_eq!(frame.to_frame(), frames[seen]);
                if seen == enough {
                    return Err(Refusal::Enough);
                }
                seen += 1;
                Ok(())
            });
            assert_eq!(refused.unwrap_err(), Refusal::Enough);
            assert_eq!(seen, enough, "it went on after the error");
            let now = device.snapshot().process_death();
            let mut names = now.files(DIR.as_ref());
            names.retain(|path| before.contains(path) || !path.ends_with("LOCK"));
            assert_eq!(names, before, "shared {shared}, {enough}");
            // The same process opens it: it is unlocked.
            assert_eq!(open(options(&device)).1, frames);
        }
        let device = left.device();
        let other = LogOptions {
            log_id: Some(collie_log::LogId([7; 16])),
            ..options(&device)
        };
        match Log::open_with(DIR, other, |_| Err(Refusal::Enough)) {
            Err(Refusal::Log(error)) => assert!(error.contains("holds the log"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn where_recovery_starts_over_no_frame_is_handed_out_twice() {
    let device = SimDevice::new(3);
    let (log, _) = open(options(&device));
    let frames: Vec<_> = [900; 20]
        .map(|len| {
            let frame = append(&log, 1, len);
            log.wait(frame.end, Level::Disk).unwrap();
            frame
        })
        .into();
    log.close().unwrap();
    let mut image = device.snapshot().process_death();
    let segment = format!("{DIR}/0000000000000001.seg");
    let place = 8_192 + frames[12].start - FIRST_LSN + 100;
    assert!(image.flip_bit(segment.as_ref(), place * 8));
    let options = LogOptions {
        recovery_mode: RecoveryMode::PointInTimeRecovery,
        ..options(&image.device())
    };
    let (log, seen) = open(options);
    assert!(log.recovery().truncated.is_some());
    assert_eq!(seen, frames[..12]);
    assert_eq!(read(&log), frames[..12]);
}

#[test]
fn what_lies_below_where_the_caller_resumes_is_not_handed_out() {
    let device = SimDevice::new(3);
    let (log, _) = open(options(&device));
    let frames: Vec<_> = [900; 40].map(|len| append(&log, 1, len)).into();
    log.close().unwrap();
    for from in [0, 1, 25, 39] {
        let options = LogOptions {
            resume_at: Some(frames[from].start),
            ..options(&device)
        };
        let (log, seen) = open(options);
        assert_eq!(seen, frames[from..]);
        log.close().unwrap();
    }
}

/// A frame is read at its place: the reads do not grow with the log, nor with where it lies there.
#[test]
fn a_get_reads_its_frame_and_little_else() {
    let device = SimDevice::new(3);
    let options = LogOptions {
        ring_bytes: 256 << 10,
        segment_bytes: 1 << 20,
        ..options(&device)
    };
    let (log, _) = open(options);
    let frames: Vec<_> = (0..4_000)
        .map(|n| {
            let frame = append(&log, 1, if n % 100 == 7 { 60_000 } else { 200 });
            log.wait(frame.end, Level::Disk).unwrap();
            frame
        })
        .collect();
    for frame in frames.iter().step_by(37).chain(&frames[7..8]) {
        let before = device.operations();
        assert_eq!(log.get(frame.start).unwrap(), *frame);
        let trace = device.trace();
        let reads = trace
            .iter()
            .filter(|op| op.number > before && op.kind == OpKind::Read);
        let (count, bytes) = reads.fold((0, 0), |(count, bytes), op| (count + 1, bytes + op.len));
        // Across two segments each of two reads becomes two.
        assert!(count <= 4, "{count} reads");
        let len = frame.payload.len() + FRAME_HEADER;
        assert!(
            bytes <= len as u64 + (12 << 10),
            "{bytes} bytes for a frame of {len}"
        );
    }
}

#[test]
fn what_was_released_is_missing_and_a_closed_log_says_so() {
    let device = SimDevice::new(3);
    let (log, _) = open(options(&device));
    let frames: Vec<_> = [900; 100]
        .map(|len| {
            let frame = append(&log, 1, len);
            log.wait(frame.end, Level::Disk).unwrap();
            frame
        })
        .into();
    log.retain("test", frames[80].start);
    let oldest = log.oldest();
    assert!(oldest > frames[40].end, "nothing was released");
    for frame in &frames {
        match log.get(frame.start) {
            Ok(got) => assert!(got == *frame && frame.start >= oldest, "{}", frame.start),
            Err(LogError::Missing {
                wanted, oldest: from, ..
            }) => {
                assert_eq!((wanted, from), (frame.start, oldest));
                assert!(frame.start < oldest);
            }
            Err(other) => panic!("{other}"),
        }
    }
    let other = log.clone();
    log.close().unwrap();
    assert!(matches!(other.get(frames[99].start), Err(LogError::Closed)));
}

/// The gap that a floor leaves between two epochs, and the log's own frames.
#[test]
fn where_no_user_appended_a_get_says_what_is_there() {
    let device = SimDevice::new(3);
    let (log, _) = open(options(&device));
    let last = append(&log, 1, 100);
    log.close().unwrap();
    let min_lsn = last.end + (1 << 20);
    let options = LogOptions {
        min_lsn,
        ..options(&device)
    };
    let (log, seen) = open(options);
    assert_eq!(seen, std::slice::from_ref(&last));
    let next = append(&log, 1, 100);
    log.flush(Level::Disk).unwrap();
    let found_at = |lsn| match log.get(lsn) {
        Err(LogError::Corrupt { found, .. }) => found,
        other => panic!("{other:?}"),
    };
    let own = found_at(last.end);
    assert!(own.contains("the log's own"), "{own}");
    let gap = found_at(min_lsn - 8);
    assert!(gap.contains("between two epochs"), "{gap}");
    assert_eq!(log.get(next.start).unwrap(), next);
}

/// Damage that came after the log was opened.
#[test]
fn a_get_of_a_damaged_frame_says_where_and_what() {
    let device = SimDevice::new(3);
    let (log, _) = open(options(&device));
    let frames: Vec<_> = [900; 3].map(|len| append(&log, 1, len)).into();
    log.flush(Level::Disk).unwrap();
    let path = format!("{DIR}/0000000000000001.seg");
    let offset = 8_192 + frames[1].start - FIRST_LSN;
    let file = collie_io::Device::open(&device, path.as_ref(), collie_io::OpenMode::ReadWrite).unwrap();
    collie_io::write_all_at(&*file, b"rot", offset + 200).unwrap();
    match log.get(frames[1].start) {
        Err(LogError::Corrupt {
            path: at,
            offset: byte,
            lsn,
            found,
            ..
        }) => {
            assert_eq!((at.to_str(), byte, lsn), (Some(&*path), offset, frames[1].start));
            assert!(found.contains("wrong checksum"), "{found}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(log.get(frames[2].start).unwrap(), frames[2]);
}

/// Readers that get frames while others append them, and segments are released behind them.
#[test]
fn many_threads_get_frames_while_others_append_and_release() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 8,
        ..LogOptions::default()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let threads: Vec<_> = (0..4_u32)
        .map(|stream| {
            let log = log.clone();
            std::thread::spawn(move || {
                let mut got = 0;
                for n in 0..300 {
                    let frame = append(&log, stream, (n * 37) % 900);
                    log.wait(frame.end, Level::Disk).unwrap();
                    match log.get(frame.start) {
                        Ok(same) => {
                            assert_eq!(same, frame);
                            got += 1;
                        }
                        // Another thread has released it since.
                        Err(LogError::Missing { oldest, .. }) => assert!(frame.start < oldest),
                        Err(other) => panic!("{other}"),
                    }
                    if n % 10 == 9 {
                        log.retain("all", log.durable());
                    }
                }
                got
            })
        })
        .collect();
    let got: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert!(got > 1_000, "{got} of 1,200 frames were got");
}
