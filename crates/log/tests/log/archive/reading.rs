//! Readers, tails and followers that go from the archive on into the live log.

use std::sync::Arc;
use std::time::Duration;

use collie_io::{Device, RealDevice};
use collie_log::follow::Follower;
use collie_log::{FIRST_LSN, Log, LogError, LogOptions, Span};

use super::{SEGMENT, append, archived, check, first_lsn, follow, options, read, release};

#[test]
fn a_reader_goes_from_any_archived_frame_on_into_the_live_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let spans = append(&log, 0..200);
    release(&log);
    assert!(archived(dir.path()).len() > 5 && log.oldest() > FIRST_LSN);
    for (n, span) in spans.iter().enumerate().step_by(7) {
        check(&read(&log, span.start).unwrap(), n as u64..200);
        check(&read(&log, span.end).unwrap(), n as u64 + 1..200);
        // No durable mark covers the last frame yet.
        check(
            &follow(RealDevice::new(), dir.path(), Some(span.start)).unwrap(),
            n as u64..199,
        );
        check(
            &follow(RealDevice::new(), dir.path(), Some(span.end)).unwrap(),
            n as u64 + 1..199,
        );
    }
    check(&follow(RealDevice::new(), dir.path(), None).unwrap(), 0..199);
    for from in [FIRST_LSN - 8, 0] {
        for refused in [
            log.read(from).map(drop),
            follow(RealDevice::new(), dir.path(), Some(from)).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, LogError::Missing { wanted, oldest, .. } if (wanted, oldest) == (from, FIRST_LSN)),
                "{error}"
            );
        }
    }
}

#[test]
fn the_archive_is_read_over_epochs_gaps_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut spans = Vec::new();
    for round in 0..6 {
        // A floor above the end leaves a gap between two epochs.
        let min_lsn = if round % 3 == 2 {
            spans.last().map_or(0, |span: &Span| span.end + (1 << 24))
        } else {
            0
        };
        let log = Log::open(dir.path(), LogOptions { min_lsn, ..options() }).unwrap();
        let first = round * 40;
        spans.extend(append(&log, first..first + 1));
        if min_lsn > 0 {
            release(&log);
            // In the gap, nothing is missing up to the new epoch.
            for from in [min_lsn - 4096, min_lsn - 8] {
                check(&read(&log, from).unwrap(), first..first + 1);
            }
        }
        spans.extend(append(&log, first + 1..first + 40));
        // What one process left to the next is archived by that.
        if round != 3 {
            release(&log);
        }
        let all = round * 40 + 40;
        for n in (0..all).step_by(13) {
            let span = spans[n as usize];
            check(&read(&log, span.start).unwrap(), n..all);
            check(&read(&log, span.end).unwrap(), n + 1..all);
        }
        check(&follow(RealDevice::new(), dir.path(), None).unwrap(), 0..all - 1);
        log.close().unwrap();
        check(&follow(RealDevice::new(), dir.path(), None).unwrap(), 0..all);
    }
    assert!(archived(dir.path()).len() > 8);
}

#[test]
fn a_tail_holds_nothing_in_the_archive_and_then_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..100);
    release(&log);
    let mut tail = log.tail("copy", FIRST_LSN).unwrap();
    assert_eq!(log.holders().len(), 1, "only the test's");
    let mut frames = Vec::new();
    while tail.resume_at() < log.oldest() {
        frames.push(tail.try_next().unwrap().unwrap());
        // The live log moves on meanwhile.
        let n = frames.len() as u64;
        if n <= 50 {
            append(&log, 99 + n..100 + n);
            release(&log);
        }
    }
    assert!(frames.len() > 100, "{}", frames.len());
    frames.push(tail.try_next().unwrap().unwrap());
    let holders = log.holders();
    assert!(
        holders
            .iter()
            .any(|(name, at)| name == "tail/copy" && *at <= tail.resume_at()),
        "{holders:?}"
    );
    append(&log, 150..250);
    release(&log);
    assert!(log.oldest() <= tail.resume_at(), "a tail holds what is live");
    while let Some(frame) = tail.try_next().unwrap() {
        frames.push(frame);
    }
    check(&frames, 0..250);
    log.close().unwrap();
    assert!(matches!(tail.try_next(), Err(LogError::Closed)));
}

#[test]
fn what_left_the_archive_is_reported_as_missing() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        archive_ttl: Duration::ZERO,
        archive_bytes: 4 * SEGMENT,
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    append(&log, 0..60);
    release(&log);
    let from = follow(RealDevice::new(), dir.path(), None).unwrap()[0].start;
    let mut tail = log.tail("slow", from).unwrap();
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let mut follower = Follower::open(&device, dir.path(), None).unwrap();
    assert!(tail.try_next().unwrap().is_some() && follower.poll().unwrap().is_some());
    let first = tail.resume_at();
    append(&log, 60..200);
    release(&log);
    let oldest = first_lsn(&archived(dir.path())[0]);
    let expect = |error: LogError| match error {
        LogError::Missing {
            wanted,
            oldest: reported,
            ..
        } => assert!(
            wanted >= first && wanted < oldest && reported == oldest,
            "{wanted} {reported} {oldest}"
        ),
        other => panic!("{other}"),
    };
    // What was begun is read to its end, and nothing behind it.
    let end = loop {
        match tail.try_next() {
            Ok(frame) => assert!(frame.unwrap().end < oldest),
            Err(error) => break error,
        }
    };
    expect(end);
    expect(loop {
        match follower.poll_to_end() {
            Ok(followed) => assert!(followed.unwrap().frame.end < oldest),
            Err(error) => break error,
        }
    });
    expect(read(&log, first).unwrap_err());
    expect(follow(RealDevice::new(), dir.path(), Some(first)).unwrap_err());
}

#[test]
fn behind_a_removed_archived_segment_the_log_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..200);
    release(&log);
    let there = archived(dir.path());
    std::fs::remove_file(&there[3]).unwrap();
    for error in [
        read(&log, FIRST_LSN).unwrap_err(),
        follow(RealDevice::new(), dir.path(), Some(FIRST_LSN)).unwrap_err(),
    ] {
        assert!(
            matches!(error, LogError::Missing { oldest, .. } if oldest == first_lsn(&there[4])),
            "{error}"
        );
    }
    let rest = follow(RealDevice::new(), dir.path(), None).unwrap();
    let first = rest[0].start;
    assert!(first >= first_lsn(&there[4]));
    let all = read(&log, first).unwrap();
    check(&all, 200 - all.len() as u64..200);
}
