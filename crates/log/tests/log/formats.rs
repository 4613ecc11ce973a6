//! Every on-disk format that was ever released opens: the fixtures are logs as earlier versions
//! left them.
//!
//! `COLLIE_WRITE_FIXTURE=1 cargo test -p collie-log --test log formats::` writes the current
//! version's anew, once, when a format comes into being; a released one is never written again.

#![expect(clippy::disallowed_methods, reason = "copies fixtures")]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::{Path, PathBuf};

use collie_log::{Compression, Level, Log, LogOptions, RingMode};

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/log-v{version}"))
}

fn options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 8 << 10,
        segment_bytes: 32 << 10,
        max_workers: 2,
        threads: false,
        ..LogOptions::default()
    }
}

fn payload(n: u64) -> Vec<u8> {
    format!("frame {n} ").repeat(n as usize % 9).into_bytes()
}

const FRAMES: u64 = 300;
const NEWEST: u32 = 3;

/// Two epochs, both closed; several segments. The second one's frames are compressed where that
/// makes them smaller.
fn write(dir: &Path) {
    let halves = [
        (0..FRAMES / 2, Compression::None),
        (FRAMES / 2..FRAMES, Compression::Lz4),
    ];
    for (half, compression) in halves {
        let options = LogOptions {
            compression,
            ..options()
        };
        let log = Log::open(dir, options).unwrap();
        let mut worker = log.worker().unwrap();
        for n in half {
            worker.append(n as u32 % 3, (n % 5) as u8, &payload(n)).unwrap();
        }
        log.flush(Level::Disk).unwrap();
        drop(worker);
        log.close().unwrap();
    }
    std::fs::remove_file(dir.join("LOCK")).unwrap();
}

#[test]
fn logs_of_every_format_version_open() {
    if std::env::var_os("COLLIE_WRITE_FIXTURE").is_some() {
        write(&fixture(NEWEST));
    }
    (1..=NEWEST).for_each(opens);
}

/// With everything that was written, and goes on in the current format.
fn opens(version: u32) {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(version)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let log = Log::open(dir.path(), options()).unwrap();
    assert_eq!(log.recovery().epoch, 3);
    let frames: Vec<_> = log
        .read(log.recovery().first_frame)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(frames.len() as u64, FRAMES);
    for (n, frame) in (0..).zip(&frames) {
        assert_eq!((frame.stream, frame.kind), (n as u32 % 3, (n % 5) as u8));
        assert_eq!(frame.payload, payload(n));
    }
    log.worker().unwrap().append(0, 0, b"later").unwrap();
    log.close().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let first = log.recovery().first_frame;
    assert_eq!(log.read(first).unwrap().count() as u64, FRAMES + 1);
}

#[test]
fn a_format_from_the_future_is_refused_with_both_versions() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    Log::open(dir.path(), options()).unwrap().close().unwrap();
    let path = dir.path().join("0000000000000001.seg");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for copy in [0, 4096] {
        file.write_all_at(&7_u32.to_le_bytes(), copy + 8).unwrap();
    }
    let before = std::fs::read(&path).unwrap();
    let error = Log::open(dir.path(), options()).unwrap_err();
    assert!(
        matches!(
            error,
            collie_log::LogError::Version {
                found: 7,
                supported: NEWEST,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("format version 7") && error.to_string().contains("up to 3"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before, "nothing was changed");
}
