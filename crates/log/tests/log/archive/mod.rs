//! Reading released segments back from the archive, from inside and from outside: every frame once
//! and in order, on into the live log, wherever a segment is on its way meanwhile; or an error that
//! says what is there.

#![expect(clippy::disallowed_methods, reason = "damages and removes files from outside")]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

mod damage;
mod inspecting;
mod meanwhile;
mod reading;
mod unread;
pub(crate) mod watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Device, RealDevice};
use collie_log::follow::Follower;
use collie_log::{FIRST_LSN, Frame, Level, Log, LogError, LogOptions, Lsn, RingMode, Span};

const SEGMENT: u64 = 32 << 10;
const HOUR: Duration = Duration::from_secs(3600);

/// Nothing leaves the archive, and nothing happens behind the test's back.
fn options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: SEGMENT,
        max_workers: 4,
        threads: false,
        archive_ttl: HOUR,
        ..LogOptions::default()
    }
}

fn payload(n: u64) -> Vec<u8> {
    let len = 8 + n * 131 % 3000;
    format!("{n:08}").bytes().cycle().take(len as usize).collect()
}

fn append(log: &Log, numbers: std::ops::Range<u64>) -> Vec<Span> {
    let mut worker = log.worker().unwrap();
    numbers
        .map(|n| {
            let span = worker.append(1, 2, &payload(n)).unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            span
        })
        .collect()
}

/// Gives up all that is durable.
fn release(log: &Log) {
    log.retain("test", log.durable());
}

fn check<'a>(frames: impl IntoIterator<Item = &'a Frame>, numbers: std::ops::Range<u64>) {
    let mut numbers_left = numbers.clone();
    for frame in frames {
        let Some(n) = numbers_left.next() else {
            panic!("more frames than {numbers:?}");
        };
        assert!(frame.payload == payload(n), "another frame than number {n}");
    }
    assert_eq!(numbers_left.next(), None, "frames of {numbers:?} are missing");
}

fn read(log: &Log, from: Lsn) -> Result<Vec<Frame>, LogError> {
    log.read(from)?.collect()
}

fn follow(device: impl Device + 'static, dir: &Path, from: Option<Lsn>) -> Result<Vec<Frame>, LogError> {
    let device: Arc<dyn Device> = Arc::new(device);
    let mut follower = Follower::open(&device, dir, from)?;
    let mut frames = Vec::new();
    while let Some(followed) = follower.poll_to_end()? {
        frames.push(followed.frame);
    }
    Ok(frames)
}

/// The errors of a reader from the beginning, inside and outside of the process.
fn refusals(log: &Log, dir: &Path) -> [LogError; 2] {
    [
        read(log, FIRST_LSN).unwrap_err(),
        follow(RealDevice::new(), dir, None).unwrap_err(),
    ]
}

fn archived(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(dir.join("archive"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

/// The first LSN of an archived segment.
fn first_lsn(path: &Path) -> Lsn {
    u64::from_le_bytes(std::fs::read(path).unwrap()[40..48].try_into().unwrap())
}
