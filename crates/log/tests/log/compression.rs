//! Payloads that are stored compressed are read back as they were appended, beside others that are
//! not.

#![expect(clippy::disallowed_methods, reason = "copies a log that is in use")]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::Path;

use collie_log::{Compression, FIRST_LSN, Level, Log, LogOptions, RingMode, inspect};

fn options(compression: Compression) -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        max_workers: 4,
        threads: false,
        compression,
        ..LogOptions::default()
    }
}

fn payload(n: u64) -> Vec<u8> {
    format!("sheep {n}, ").repeat(n as usize % 400).into_bytes()
}

fn append(log: &Log, range: std::ops::Range<u64>) {
    let mut worker = log.worker().unwrap();
    for n in range {
        worker.append(n as u32, 7, &payload(n)).unwrap();
    }
    log.flush(Level::Disk).unwrap();
}

fn check(log: &Log, frames: u64) {
    let mut n = 0;
    for frame in log.read(FIRST_LSN).unwrap() {
        let frame = frame.unwrap();
        assert_eq!((frame.stream, frame.kind), (n as u32, 7));
        assert_eq!(frame.payload, payload(n), "frame {n}");
        n += 1;
    }
    assert_eq!(n, frames);
}

#[test]
fn a_log_holds_compressed_frames_and_plain_ones() {
    let dir = tempfile::tempdir().unwrap();
    let sorts = [Compression::Lz4, Compression::None, Compression::Lz4];
    for (round, compression) in (0..).zip(sorts) {
        let log = Log::open(dir.path(), options(compression)).unwrap();
        check(&log, round * 400);
        append(&log, round * 400..(round + 1) * 400);
        check(&log, (round + 1) * 400);
        let stats = log.stats();
        if compression == Compression::Lz4 {
            let compressed = stats.compression;
            let before: u64 = (0..400).map(|n| payload(round * 400 + n).len() as u64).sum();
            assert_eq!(compressed.bytes_before, before);
            assert!(
                compressed.bytes_after < before / 4 && compressed.frames > 380,
                "{compressed:?}"
            );
            assert!(stats.frame_bytes >= compressed.bytes_after);
            assert!(stats.frame_bytes < before / 2, "the log is smaller for it");
        } else {
            assert_eq!(stats.compression, Default::default());
        }
        log.close().unwrap();
    }
    let (mut compressed, mut plain) = (0, 0);
    inspect::inspect(&options(Compression::None).device, dir.path(), |frame| {
        if frame.kind == 7 {
            let n = u64::from(frame.stream);
            assert_eq!(frame.payload, payload(n));
            let counted = if frame.compressed {
                &mut compressed
            } else {
                &mut plain
            };
            *counted += 1;
        }
    })
    .unwrap();
    assert!(
        compressed > 2 * 380 && plain >= 400,
        "{compressed} compressed, {plain} plain"
    );
}

/// What follows the last durable mark is copied into the next epoch as it is stored.
#[test]
fn recovery_copies_compressed_frames_as_they_are() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = Log::open(dir.path(), options(Compression::Lz4)).unwrap();
    append(&log, 0..300);
    copy_segments(dir.path(), copy.path());
    // The copy lacks the close's durable mark.
    let copied = Log::open(copy.path(), options(Compression::None)).unwrap();
    assert!(copied.recovery().copied_bytes > 1000, "{:?}", copied.recovery());
    check(&copied, 300);
    copied.close().unwrap();
    check(&Log::open(copy.path(), options(Compression::None)).unwrap(), 300);
}

fn copy_segments(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "seg") {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

#[test]
fn the_limit_is_that_of_the_payload_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options(Compression::Lz4)).unwrap();
    let limit = options(Compression::Lz4).max_payload();
    let mut worker = log.worker().unwrap();
    assert!(worker.append(0, 0, &vec![0; limit + 1]).is_err());
    let span = worker.append(0, 0, &vec![0; limit]).unwrap();
    assert!(span.end - span.start < limit as u64 / 100);
    log.wait(span.end, Level::Disk).unwrap();
    let frame = log.read(span.start).unwrap().next().unwrap().unwrap();
    assert_eq!(frame.payload, vec![0; limit]);
}
