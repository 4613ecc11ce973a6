//! Segment files that are shorter than the log ever made them: cut where a frame ends, they look
//! like logs that end there. Some bytes of a closed log on the simulated device are taken away; that
//! no log that a crash leaves is reported is for the crash images to show (`images`, `moments`).

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_check::images::DIR;
use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::inspect::{inspect, repair};
use collie_log::{
    Damaged, FRAME_HEADER, FrameRef, Level, Log, LogError, LogOptions, Lsn, RecoveryMode, RingMode,
};
use collie_sim::{PowerCut, SimDevice};

/// Where in a segment its frames begin.
const DATA: u64 = 8_192;
const BLOCK: u64 = 4_096;
const FRAMES: u64 = 40;

fn options(device: &SimDevice, recovery_mode: RecoveryMode) -> LogOptions {
    LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 32 << 10,
        segment_bytes: 512 << 10,
        max_workers: 4,
        threads: false,
        pad_to_block: true,
        recovery_mode,
        ..LogOptions::default()
    }
}

const MODES: [RecoveryMode; 4] = [
    RecoveryMode::TolerateCorruptedTailRecords,
    RecoveryMode::AbsoluteConsistency,
    RecoveryMode::PointInTimeRecovery,
    RecoveryMode::SkipDamaged,
];

fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("{number:016x}.seg"))
}

/// Appends frames with these numbers, each durable before the next, so that each has a block.
fn append(log: &Log, numbers: std::ops::Range<u64>) -> Lsn {
    let mut worker = log.worker().unwrap();
    let spans = numbers.map(|n| {
        let span = worker.append(1, 1, &n.to_le_bytes()).unwrap();
        log.wait(span.end, Level::Disk).unwrap();
        span.end
    });
    spans.last().unwrap()
}

/// A closed log of one segment, and the end of its last frame.
fn closed() -> (SimDevice, Lsn) {
    let device = SimDevice::new(7);
    let log = Log::open(DIR, options(&device, MODES[0])).unwrap();
    let end = append(&log, 0..FRAMES);
    log.close().unwrap();
    (device, end)
}

fn cut(device: &SimDevice, number: u64, len: u64) {
    let file = device.open(&segment(number), OpenMode::ReadWrite).unwrap();
    assert!(file.stat().unwrap().len > len);
    file.set_len(len).unwrap();
    file.sync_data().unwrap();
}

/// Opens the log; returns it with the numbers of the frames that there are.
fn open(device: &SimDevice, mode: RecoveryMode) -> Result<(Log, Vec<u64>), LogError> {
    let mut seen = Vec::new();
    let log = Log::open_with(DIR, options(device, mode), |frame| {
        seen.push(u64::from_le_bytes(frame.payload.try_into().unwrap()));
        Ok::<(), LogError>(())
    })?;
    Ok((log, seen))
}

#[test]
fn a_file_cut_at_a_frame_end_is_reported_in_each_mode() {
    for mode in MODES {
        for left in [1, 10, FRAMES - 1] {
            let (device, end) = closed();
            cut(&device, 1, DATA + left * BLOCK);
            let shared: Arc<dyn Device> = Arc::new(device.clone());
            let inspected = inspect(&shared, Path::new(DIR), |_| {}).unwrap();
            let torn = inspected.torn.unwrap();
            assert_eq!((&torn.path, torn.offset), (&segment(1), DATA + left * BLOCK));
            assert!(torn.found.contains("the end of the file"), "{}", torn.found);
            let opened = open(&device, mode);
            if mode == RecoveryMode::AbsoluteConsistency {
                let Err(LogError::Corrupt { path, lsn, found, .. }) = opened else {
                    panic!("{opened:?}");
                };
                assert_eq!((path, lsn), (segment(1), torn.lsn));
                assert!(found.contains("the end of the file"), "{found}");
                continue;
            }
            let (log, seen) = opened.unwrap();
            assert_eq!(seen, Vec::from_iter(0..left));
            let report = log.recovery().clone();
            assert!(
                report.warnings.iter().any(|w| w.contains("the end of the file")),
                "{:?}",
                report.warnings
            );
            if mode == RecoveryMode::SkipDamaged {
                let [damaged] = &report.damaged[..] else {
                    panic!("{:?}", report.damaged);
                };
                assert!(report.torn.is_none());
                assert_eq!((&damaged.path, damaged.from), (&segment(1), torn.lsn));
                // No LSN that was given out once is given out again.
                assert!(damaged.to >= end && report.end >= damaged.to, "{damaged:?}");
            } else {
                assert!(report.damaged.is_empty());
                assert_eq!(report.torn, Some(torn));
            }
            append(&log, 100..103);
            log.close().unwrap();
            // The next opening finds the same damage only where it was passed over.
            let again = match mode {
                RecoveryMode::SkipDamaged => mode,
                _ => RecoveryMode::AbsoluteConsistency,
            };
            let (log, seen) = open(&device, again).unwrap();
            assert_eq!(seen, Vec::from_iter((0..left).chain(100..103)));
            // Now the next epoch records where this one ended.
            let stretches = |damaged: &[Damaged]| Vec::from_iter(damaged.iter().map(|d| (d.from, d.to)));
            assert_eq!(stretches(&log.recovery().damaged), stretches(&report.damaged));
            assert_eq!(log.recovery().torn, None);
        }
    }
}

/// Nothing is missing there: the close says that nothing followed.
#[test]
fn a_file_cut_behind_a_close_is_whole() {
    let (device, _) = closed();
    cut(&device, 1, DATA + (FRAMES + 1) * BLOCK);
    let (log, seen) = open(&device, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(seen, Vec::from_iter(0..FRAMES));
    assert!(
        log.recovery().warnings.is_empty(),
        "{:?}",
        log.recovery().warnings
    );
}

/// What a repair truncates is kept beside the log, and the shorter file is its own doing.
#[test]
fn a_log_that_a_repair_truncated_is_clean() {
    let (device, _) = closed();
    let file = device.open(&segment(1), OpenMode::ReadWrite).unwrap();
    let mut byte = [0];
    let at = DATA + 10 * BLOCK + 33;
    read_exact_at(&*file, &mut byte, at).unwrap();
    write_all_at(&*file, &[byte[0] ^ 1], at).unwrap();
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let repaired = repair(&shared, Path::new(DIR)).unwrap();
    assert!(repaired.damage.is_some());
    let (log, seen) = open(&device, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(seen, Vec::from_iter(0..10));
    assert_eq!(log.recovery().torn, None);
}

/// A segment is begun when the one before it is whole, however little of that has frames.
#[test]
fn a_file_that_another_follows_was_whole() {
    let device = SimDevice::new(7);
    let log = Log::open(DIR, options(&device, MODES[0])).unwrap();
    append(&log, 0..130);
    assert!(log.stats().segments > 1);
    log.close().unwrap();
    // All but ten frames is gone, and the file is longer than it was made at first.
    let len = 450 << 10;
    cut(&device, 1, len);
    for (number, from) in [(1, DATA + 10 * BLOCK), (2, DATA)] {
        let file = device.open(&segment(number), OpenMode::ReadWrite).unwrap();
        let zeros = vec![0; (file.stat().unwrap().len - from) as usize];
        write_all_at(&*file, &zeros, from).unwrap();
        file.sync_data().unwrap();
    }
    let refused = open(&device, RecoveryMode::AbsoluteConsistency).map(drop);
    let Err(LogError::Corrupt { offset, found, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(offset, DATA + 10 * BLOCK);
    assert!(found.contains(&format!("of {len} bytes")), "{found}");
}

/// In segments of several steps, and whatever of a file the power or a death leaves: a frame is written
/// only where the file already is.
#[test]
fn a_death_while_a_file_grows_is_not_taken_for_cut_short() {
    let device = SimDevice::new(8);
    let large = |device: &SimDevice, mode| LogOptions {
        ring_bytes: 512 << 10,
        segment_bytes: 9 << 20,
        ..options(device, mode)
    };
    let log = Log::open(DIR, large(&device, MODES[0])).unwrap();
    let mut worker = log.worker().unwrap();
    // With its header each takes 32 blocks, so that frames end where steps do.
    let payload = vec![7; (128 << 10) - FRAME_HEADER];
    let mut lengths = Vec::new();
    for n in 1..=72 {
        let span = worker.append(1, 1, &payload).unwrap();
        log.wait(span.end, Level::Disk).unwrap();
        let len = device.stat(&segment(1)).unwrap().len;
        if !lengths.contains(&len) {
            lengths.push(len);
        } else if n % 6 > 0 {
            continue;
        }
        let snapshot = device.snapshot();
        let cut = |(_, way): (_, PowerCut)| snapshot.power_cut(way, n);
        let images = PowerCut::WAYS.into_iter().map(cut);
        for image in images.chain([snapshot.process_death()]) {
            let mut frames = 0;
            let counted = |_: FrameRef<'_>| {
                frames += 1;
                Ok::<(), LogError>(())
            };
            let mode = RecoveryMode::AbsoluteConsistency;
            let opened = Log::open_with(DIR, large(&image.device(), mode), counted);
            assert_eq!(opened.unwrap().recovery().torn, None);
            assert_eq!(frames, n);
        }
    }
    assert!(lengths.len() >= 2, "it never grew: {lengths:?}");
}
