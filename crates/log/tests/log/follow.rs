//! Following a log from outside: what is given was durable, is what was appended, and comes once
//! and in order.

#![expect(clippy::disallowed_methods, reason = "damages files from outside")]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::archive::watched::Watched;
use collie_io::{Device, RealDevice};
use collie_log::follow::{Followed, Follower};
use collie_log::inspect::repair;
use collie_log::{Compression, FIRST_LSN, Level, Log, LogError, LogOptions, RingMode, Span};

/// Small segments, and nothing behind the test's back.
fn options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 16 << 10,
        segment_bytes: 32 << 10,
        max_workers: 4,
        threads: false,
        ..LogOptions::default()
    }
}

fn follow(dir: &Path, from: Option<u64>) -> Result<Follower, LogError> {
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    Follower::open(&device, dir, from)
}

fn payload(n: u64) -> Vec<u8> {
    let len = 8 + n * 131 % 900;
    format!("{n:08}").bytes().cycle().take(len as usize).collect()
}

/// Appends frames with these numbers, each durable before the next: all but the last one are
/// promised.
fn append(log: &Log, numbers: std::ops::Range<u64>) -> Vec<Span> {
    let mut worker = log.worker().unwrap();
    numbers
        .map(|n| {
            let span = worker.append(5, 6, &payload(n)).unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            span
        })
        .collect()
}

fn rest(follower: &mut Follower) -> Result<Vec<Followed>, LogError> {
    let mut all = Vec::new();
    while let Some(followed) = follower.poll_to_end()? {
        all.push(followed);
    }
    Ok(all)
}

fn check(followed: &[Followed], numbers: std::ops::Range<u64>) {
    let seen: Vec<_> = followed.iter().map(|f| f.frame.payload.clone()).collect();
    let expected: Vec<_> = numbers.map(payload).collect();
    assert_eq!(seen.len(), expected.len());
    assert!(seen == expected, "other frames than were appended");
}

#[test]
fn durable_frames_are_given_as_written_and_all_after_the_close() {
    for compression in [Compression::None, Compression::Lz4] {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(
            dir.path(),
            LogOptions {
                compression,
                ..options()
            },
        )
        .unwrap();
        let mut follower = follow(dir.path(), None).unwrap();
        assert_eq!(rest(&mut follower).unwrap(), []);
        let mut spans = Vec::new();
        for n in 0..300 {
            spans.extend(append(&log, n..n + 1));
            if n % 7 == 0 {
                let followed = rest(&mut follower).unwrap();
                let last = n.saturating_sub(7);
                // Nothing says yet that the last frame is durable.
                check(&followed, last..n);
                for (f, n) in followed.iter().zip(last..) {
                    let span = spans[n as usize];
                    assert_eq!((f.frame.start, f.frame.end), (span.start, span.end));
                    assert_eq!((f.frame.stream, f.frame.kind, f.epoch), (5, 6, 1));
                    assert!(f.segment.starts_with(dir.path()) && f.offset >= 8192);
                }
            }
        }
        rest(&mut follower).unwrap();
        log.close().unwrap();
        check(&rest(&mut follower).unwrap(), 299..300);
        check(&rest(&mut follow(dir.path(), None).unwrap()).unwrap(), 0..300);
    }
}

#[test]
fn a_follower_goes_on_through_new_epochs_and_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let mut follower = None;
    let mut followed = Vec::new();
    for round in 0..5 {
        // A floor above the end leaves a gap between two epochs.
        let min_lsn = if round == 3 { FIRST_LSN + (1 << 24) } else { 0 };
        let log = Log::open(dir.path(), LogOptions { min_lsn, ..options() }).unwrap();
        let follower = follower.get_or_insert_with(|| follow(dir.path(), None).unwrap());
        append(&log, round * 40..round * 40 + 40);
        if round != 2 {
            followed.extend(rest(follower).unwrap());
        }
        // What no durable mark covers yet is covered by the close, or copied by the next open.
        log.close().unwrap();
    }
    followed.extend(rest(follower.as_mut().unwrap()).unwrap());
    check(&followed, 0..200);
    check(&rest(&mut follow(dir.path(), None).unwrap()).unwrap(), 0..200);
}

/// What a process leaves that dies: its files as they are.
fn copy(from: &Path, to: &Path) {
    for path in segments(from) {
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    paths.sort();
    paths
}

#[test]
fn what_a_dead_process_left_unmarked_is_given_once_copied() {
    let (dir, left) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..20);
    let mut worker = log.worker().unwrap();
    for n in 20..30 {
        worker.append(5, 6, &payload(n)).unwrap();
    }
    log.flush(Level::Disk).unwrap();
    copy(dir.path(), left.path());
    let mut follower = follow(left.path(), None).unwrap();
    check(&rest(&mut follower).unwrap(), 0..20);
    let log = Log::open(left.path(), options()).unwrap();
    check(&rest(&mut follower).unwrap(), 20..30);
    append(&log, 30..50);
    check(&rest(&mut follower).unwrap(), 30..49);
}

#[test]
fn a_place_is_taken_up_again_and_no_other_than_a_frames() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let spans = append(&log, 0..200);
    for n in [0, 1, 50, 120, 198] {
        let mut follower = follow(dir.path(), Some(spans[n].start)).unwrap();
        assert_eq!(follower.resume_at(), spans[n].start);
        check(&rest(&mut follower).unwrap(), n as u64..199);
        for from in [spans[n].start + 8, spans[n].start + 1] {
            let error = follow(dir.path(), Some(from)).unwrap_err();
            assert!(
                matches!(error, LogError::Missing { wanted, .. } if wanted == from),
                "{error}"
            );
        }
    }
    // At the end there is no frame yet.
    let mut follower = follow(dir.path(), Some(spans[199].end)).unwrap();
    append(&log, 200..210);
    check(&rest(&mut follower).unwrap(), 200..209);
    for from in [0, FIRST_LSN - 8, spans[199].end + (1 << 30)] {
        assert!(matches!(
            follow(dir.path(), Some(from)),
            Err(LogError::Missing { .. })
        ));
    }
    let empty = tempfile::tempdir().unwrap();
    for nothing in [empty.path().to_owned(), empty.path().join("nothing")] {
        for from in [None, Some(spans[0].start)] {
            let error = follow(&nothing, from).unwrap_err();
            let is_missing = matches!(&error, LogError::Missing { path, .. } if *path == nothing);
            assert!(is_missing, "{error}");
        }
    }
}

/// Whatever is looked at has been released at the next look. A segment is seen while the one before it
/// is there, and its header says where it begins only before that goes.
#[test]
fn a_log_that_is_released_while_it_is_listed_has_a_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let mut worker = log.worker().unwrap();
    let mut spans = Vec::new();
    for n in 0..4000 {
        spans.push(worker.append(5, 6, &payload(n)).unwrap());
        if n % 16 == 0 {
            log.wait(spans[n as usize].end, Level::Disk).unwrap();
        }
    }
    spans.extend(append(&log, 4000..4010));
    let watched = Watched::new();
    let mut looks = 0;
    watched.call({
        let (log, spans) = (log.clone(), spans.clone());
        let mut is_first = false;
        move |moment, _| {
            // Two of them are kept, to be used again.
            let segments = match moment {
                // So that what is known by now begins with one that was not the oldest.
                "before list" => 4,
                // So that what is listed has a gap, and is listed again.
                "after open" if is_first => 4,
                _ => 0,
            };
            is_first = moment == "after list" || is_first && moment != "after open";
            looks += 1;
            for _ in 0..segments {
                let oldest = log.oldest_end();
                let next = spans.iter().find(|span| span.start >= oldest).unwrap();
                log.retain("writer", next.start);
                assert!(log.oldest() >= oldest, "nothing was released at look {looks}");
            }
        }
    });
    let device: Arc<dyn Device> = Arc::new(watched.clone());
    let follower = Follower::open(&device, dir.path(), None);
    watched.leave();
    let mut follower = follower.unwrap();
    let given = rest(&mut follower).unwrap();
    let first = 4009 - given.len() as u64;
    assert!(first > 400, "{first} frames were released");
    check(&given, first..4009);
}

/// A writer that releases all that it can, and a follower that falls behind at times: it finds its
/// place gone, or gives what was appended. No third.
#[test]
fn a_follower_that_fell_behind_a_release_says_what_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..100);
    let mut follower = follow(dir.path(), None).unwrap();
    let first = follower.poll().unwrap().unwrap();
    assert_eq!(first.frame.payload, payload(0));
    let spans = append(&log, 100..600);
    log.retain("writer", spans[499].start);
    append(&log, 600..700);
    let released_to = log.stats().oldest;
    assert!(
        released_to > spans[0].end,
        "{released_to}: several segments went, and frames that were not given"
    );
    // What it has read already it may give.
    let mut given = 1;
    let missing = loop {
        match follower.poll() {
            Ok(Some(followed)) => {
                assert_eq!(followed.frame.payload, payload(given), "a frame was left out");
                given += 1;
            }
            Ok(None) => panic!("after {given} frames there are no more"),
            Err(LogError::Missing { wanted, oldest, .. }) => break (wanted, oldest),
            Err(error) => panic!("after {given} frames: {error}"),
        }
    };
    assert!(missing.0 < missing.1 && missing.1 == released_to, "{missing:?}");
}

#[test]
fn a_follower_reads_recycled_segments_right_or_as_gone() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(
        dir.path(),
        LogOptions {
            threads: true,
            flush_interval: Duration::from_millis(1),
            ..options()
        },
    )
    .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (log, stop) = (log.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut worker = log.worker().unwrap();
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let span = worker.append(5, 6, &payload(n)).unwrap();
                if n % 20 == 0 {
                    log.wait(span.end, Level::Disk).unwrap();
                    log.retain("writer", span.start);
                }
                n += 1;
            }
        })
    };
    let (mut given, mut gone, mut naps) = (0_u64, 0_u64, 0_u64);
    while given < 20_000 || gone < 3 {
        let mut follower = match follow(dir.path(), None) {
            Ok(follower) => follower,
            // It went between two looks.
            Err(LogError::Missing { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let mut next = None;
        loop {
            match follower.poll() {
                Ok(Some(f)) => {
                    let n: u64 = std::str::from_utf8(&f.frame.payload[..8])
                        .unwrap()
                        .parse()
                        .unwrap();
                    assert_eq!(f.frame.payload, payload(n));
                    assert_eq!(n, next.unwrap_or(n), "a frame was left out");
                    next = Some(n + 1);
                    given += 1;
                    naps += 1;
                    if naps.is_multiple_of(5000) {
                        // Long enough to fall behind, sooner or later.
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
                Ok(None) => std::thread::yield_now(),
                Err(LogError::Missing { wanted, oldest, .. }) => {
                    assert!(wanted < oldest, "{wanted} {oldest}");
                    gone += 1;
                    break;
                }
                Err(error) => panic!("after {given} frames: {error}"),
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

/// Turns a bit of a frame's payload.
fn damage(dir: &Path, span: Span) -> (PathBuf, u64) {
    use std::os::unix::fs::FileExt;
    for path in segments(dir) {
        let bytes = std::fs::read(&path).unwrap();
        let first = u64::from_le_bytes(bytes[40..48].try_into().unwrap());
        let offset = 8192 + span.start.wrapping_sub(first);
        if span.start >= first && offset < bytes.len() as u64 {
            let at = offset + 34;
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[bytes[at as usize] ^ 1], at).unwrap();
            return (path, offset);
        }
    }
    panic!("LSN {} is in no segment", span.start);
}

#[test]
fn damage_below_a_durable_mark_is_corruption_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let spans = append(&log, 0..200);
    // At the scout, with the durable mark far behind it; and in what the giver has yet to give.
    let (path, offset) = damage(dir.path(), spans[100]);
    let mut follower = follow(dir.path(), None).unwrap();
    for n in 0..100 {
        let followed = follower.poll_to_end().unwrap().unwrap();
        assert_eq!(followed.frame.payload, payload(n));
    }
    match follower.poll_to_end() {
        Err(LogError::Corrupt {
            path: p,
            offset: o,
            lsn,
            ..
        }) => assert_eq!((p, o, lsn), (path, offset, spans[100].start)),
        other => panic!("{other:?}"),
    }
    // No durable mark covers the last frame, and it takes along that of the one before: it may be in the
    // middle of being written.
    damage(dir.path(), spans[199]);
    let mut follower = follow(dir.path(), Some(spans[150].start)).unwrap();
    check(&rest(&mut follower).unwrap(), 150..198);
}

#[test]
fn a_repair_that_cuts_off_what_was_given_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let spans = append(&log, 0..30);
    log.close().unwrap();
    let mut follower = follow(dir.path(), None).unwrap();
    check(&rest(&mut follower).unwrap(), 0..30);
    damage(dir.path(), spans[10]);
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    assert_eq!(repair(&device, dir.path()).unwrap().end, spans[10].start);
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 100..130);
    let error = rest(&mut follower).unwrap_err();
    assert!(
        matches!(&error, LogError::Corrupt { found, .. } if found.contains("the log was truncated")),
        "{error}"
    );
}

#[test]
fn another_log_in_the_same_place_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..10);
    log.close().unwrap();
    let mut follower = follow(dir.path(), None).unwrap();
    rest(&mut follower).unwrap();
    std::fs::remove_dir_all(dir.path()).unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..20);
    assert!(matches!(
        rest(&mut follower),
        Err(LogError::LogIdMismatch { .. } | LogError::Missing { .. })
    ));
    log.close().unwrap();
}
