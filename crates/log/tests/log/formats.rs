//! Every on-disk format that was ever released opens: the fixtures are logs as earlier versions
//! left them.
//!
//! `COLLIE_WRITE_FIXTURE=1 cargo test -p collie-log --test log formats::` writes the current
//! version's anew, once, when a format comes into being; a released one is never written again.

#![expect(clippy::disallowed_methods, reason = "copies fixtures")]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::{Path, PathBuf};

use collie_log::{Compression, FIRST_LSN, Frame, Level, Log, LogOptions, RingMode};

fn fixture(version: u32) -> PathBuf {
    fixture_at(&format!("log-v{version}"))
}

fn fixture_at(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
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
    if std::env::var_os("COLLIE_WRITE_FIXTURE").is_some() && !fixture(NEWEST).exists() {
        write(&fixture(NEWEST));
    }
    (1..=NEWEST).for_each(opens);
}

/// With everything that was written, and goes on in the current format.
fn opens(version: u32) {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture(version), dir.path());
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

const ARCHIVED: &str = "log-v3-archive";
const IN_ARCHIVE: u64 = 40;

fn with_archive() -> LogOptions {
    LogOptions {
        archive_bytes: 1 << 30,
        reserve_bytes: Some(0),
        ..options()
    }
}

/// Frames that do not compress, some of them in archived segments only.
fn write_archive(dir: &Path) {
    let log = Log::open(dir, with_archive()).unwrap();
    let mut worker = log.worker().unwrap();
    for n in 0..IN_ARCHIVE {
        worker.append(1, 2, &archived_payload(n)).unwrap();
        log.flush(Level::Disk).unwrap();
        log.retain("test", log.durable());
    }
    drop(worker);
    log.close().unwrap();
    std::fs::remove_file(dir.join("LOCK")).unwrap();
}

fn archived_payload(n: u64) -> Vec<u8> {
    (0..800_u64).map(|at| ((at ^ n) % 251) as u8).collect()
}

/// An archive of version 3 is read from its first frame on into the live log.
#[test]
fn an_archive_is_read_and_goes_on() {
    let from = fixture_at(ARCHIVED);
    if std::env::var_os("COLLIE_WRITE_FIXTURE").is_some() && !from.exists() {
        write_archive(&from);
    }
    let dir = tempfile::tempdir().unwrap();
    copy(&from, dir.path());
    let archived = std::fs::read_dir(dir.path().join("archive")).unwrap().count();
    assert_eq!(archived, 1);
    let log = Log::open(dir.path(), with_archive()).unwrap();
    let frames = |log: &Log| {
        log.read(FIRST_LSN)
            .unwrap()
            .collect::<Result<Vec<_>, _>>()
            .unwrap()
    };
    let check = |frames: &[Frame]| {
        for (n, frame) in (0..).zip(frames) {
            assert_eq!((frame.stream, frame.kind), (1, 2));
            assert_eq!(frame.payload, archived_payload(n));
        }
    };
    let found = frames(&log);
    assert_eq!(found.len() as u64, IN_ARCHIVE);
    check(&found);
    log.worker()
        .unwrap()
        .append(1, 2, &archived_payload(IN_ARCHIVE))
        .unwrap();
    log.close().unwrap();
    let log = Log::open(dir.path(), with_archive()).unwrap();
    let found = frames(&log);
    assert_eq!(found.len() as u64, IN_ARCHIVE + 1);
    check(&found);
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
