//! Segments that go to the archive, or leave it, during a read.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_io::{Device, RealDevice};
use collie_log::follow::Follower;
use collie_log::{FIRST_LSN, Log, LogError, LogOptions};

use super::watched::Watched;
use super::{SEGMENT, append, archived, check, first_lsn, follow, options, read, release};

#[test]
fn at_every_step_of_an_archiving_all_frames_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let device = Watched::new();
    let options = LogOptions {
        device: Arc::new(device.clone()),
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let spans = append(&log, 0..150);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let tail = Arc::new(Mutex::new(log.tail("before", log.durable()).unwrap()));
    device.call({
        let (log, spans, dir) = (log.clone(), spans.clone(), dir.path().to_owned());
        let (steps, tail) = (Arc::clone(&steps), Arc::clone(&tail));
        move |moment, _| {
            if moment.ends_with("stat") {
                return;
            }
            for n in (0..150).step_by(29) {
                let from = spans[n as usize].start;
                let context = format!("{moment}, from frame {n}");
                let frames = read(&log, from).unwrap_or_else(|e| panic!("{context}: {e}"));
                check(&frames, n..150);
                let frames =
                    follow(RealDevice::new(), &dir, Some(from)).unwrap_or_else(|e| panic!("{context}: {e}"));
                check(&frames, n..149);
                let frame = log.get(from).unwrap_or_else(|e| panic!("{context}: {e}"));
                check([&frame], n..n + 1);
            }
            assert!(tail.lock().unwrap().try_next().unwrap().is_none());
            steps.lock().unwrap().push(moment.to_owned());
        }
    });
    release(&log);
    device.leave();
    let steps = steps.lock().unwrap();
    for step in ["before rename", "after rename", "before sync", "after sync"] {
        assert!(steps.iter().filter(|s| *s == step).count() > 2, "{steps:?}");
    }
}

/// The file that a get opens is released and used again before it is read.
#[test]
fn a_frame_recycled_in_mid_read_is_missing_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let device = Watched::new();
    let options = LogOptions {
        device: Arc::new(device.clone()),
        archive_ttl: Duration::ZERO,
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let wanted = append(&log, 0..150)[1];
    let before = log.stats();
    let other = log.clone();
    let mut uses = 1;
    device.call(move |moment, path| {
        if moment == "after open" && path.ends_with("0000000000000001.seg") && uses > 0 {
            uses -= 1;
            release(&other);
            append(&other, 150..300);
        }
    });
    let got = log.get(wanted.start);
    device.leave();
    let LogError::Missing {
        wanted: lsn, oldest, ..
    } = got.unwrap_err()
    else {
        panic!("another error than that it was released");
    };
    assert_eq!((lsn, oldest), (wanted.start, log.oldest()));
    assert!(log.oldest() > before.oldest, "nothing was released");
}

#[test]
fn no_room_for_a_name_costs_only_the_oldest_segments() {
    for full in [1, 3, 1000] {
        let dir = tempfile::tempdir().unwrap();
        let device = Watched::new();
        let options = LogOptions {
            device: Arc::new(device.clone()),
            ..options()
        };
        let log = Log::open(dir.path(), options).unwrap();
        append(&log, 0..100);
        release(&log);
        let before = archived(dir.path());
        append(&log, 100..200);
        device.full.store(full, Ordering::Relaxed);
        release(&log);
        device.full.store(0, Ordering::Relaxed);
        assert!(log.poisoned().is_none());
        let there = archived(dir.path());
        let lost = before.iter().filter(|path| !there.contains(path)).count();
        assert_eq!(lost, before.len().min(full as usize));
        let frames = follow(RealDevice::new(), dir.path(), None).unwrap();
        check(&frames, 199 - frames.len() as u64..199);
        let frames = read(&log, frames[0].start).unwrap();
        check(&frames, 200 - frames.len() as u64..200);
        let oldest = there.first().map_or(log.oldest(), |first| first_lsn(first));
        assert!(frames[0].start - oldest < SEGMENT, "all that is there is read");
    }
}

/// From outside a directory is not seen all at once: segments move between two looks, and between a
/// look and an open.
#[test]
fn a_follower_misses_no_segment_that_is_archived_while_it_looks() {
    for moment in ["after list", "before open", "before list"] {
        for count in 1..8 {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path(), options()).unwrap();
            append(&log, 0..80);
            let device = Watched::new();
            let (mut calls, moving) = (0, log.clone());
            device.call(move |now, _| {
                calls += u64::from(now == moment);
                if now == moment && calls == count {
                    // All that was listed is archived.
                    append(&moving, 80..120);
                    release(&moving);
                }
            });
            let frames = follow(device, dir.path(), Some(FIRST_LSN))
                .unwrap_or_else(|e| panic!("{moment} {count}: {e}"));
            assert!(frames.len() >= 79);
            check(&frames, 0..frames.len() as u64);
        }
    }
}

/// The oldest live segment, from which the archive is looked through, may be archived before the
/// reader has opened it.
#[test]
fn a_reader_misses_no_segment_that_is_archived_while_it_looks() {
    for moment in ["before open", "after open"] {
        for count in 1..8 {
            let dir = tempfile::tempdir().unwrap();
            let device = Watched::new();
            let options = LogOptions {
                device: Arc::new(device.clone()),
                ..options()
            };
            let log = Log::open(dir.path(), options).unwrap();
            append(&log, 0..80);
            log.retain("test", log.oldest() + 2 * SEGMENT);
            assert_eq!(archived(dir.path()).len(), 2);
            let (mut calls, moving) = (0, log.clone());
            device.call(move |now, _| {
                calls += u64::from(now == moment);
                if now == moment && calls == count {
                    append(&moving, 80..120);
                    release(&moving);
                }
            });
            let frames = read(&log, FIRST_LSN).unwrap_or_else(|e| panic!("{moment} {count}: {e}"));
            device.leave();
            check(&frames, 0..80);
        }
    }
}

/// Without an archive. A follower that stands still between its looks at two of the listed segments
/// finds the first one there, and all others gone: that is not where the log ends.
#[test]
fn a_late_follower_says_where_the_log_begins() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        archive_ttl: Duration::ZERO,
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    append(&log, 0..100);
    let watched = Watched::new();
    let device: Arc<dyn Device> = Arc::new(watched.clone());
    let mut follower = Follower::open(&device, dir.path(), None).unwrap();
    while follower.poll_to_end().unwrap().is_some() {}
    release(&log);
    let (mut looks, moving) = (0, log.clone());
    watched.call(move |moment, _| {
        looks += u64::from(moment == "after stat");
        if moment == "after stat" && looks == 1 {
            append(&moving, 100..200);
            release(&moving);
        }
    });
    let error = follower.poll().unwrap_err();
    // From outside the log begins with what was released and is not used again yet.
    assert!(
        matches!(error, LogError::Missing { wanted, oldest, .. }
            if wanted == follower.resume_at() && wanted < oldest && oldest <= log.oldest()),
        "{error}"
    );
}

#[test]
fn readers_and_tails_find_everything_while_segments_leave() {
    const FRAMES: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        threads: true,
        flush_interval: Duration::from_millis(1),
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let rounds = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let readers: Vec<_> = (0..2)
        .map(|outside| {
            let (log, done, dir) = (log.clone(), Arc::clone(&done), dir.path().to_owned());
            let rounds = Arc::clone(&rounds[outside]);
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let frames = if outside == 1 {
                        follow(RealDevice::new(), &dir, Some(FIRST_LSN)).unwrap()
                    } else {
                        read(&log, FIRST_LSN).unwrap()
                    };
                    check(&frames, 0..frames.len() as u64);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let tail = log.tail("all", FIRST_LSN).unwrap();
    let tailing = std::thread::spawn(move || {
        let frames: Vec<_> = tail.map_while(Result::ok).collect();
        check(&frames, 0..FRAMES);
    });
    let made = || rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
    let is_reading = || readers.iter().all(|reader| !reader.is_finished());
    let mut before = made();
    for n in (0..FRAMES).step_by(10) {
        append(&log, n..n + 10);
        release(&log);
        // Each has read all of it some times before the end.
        if n % 500 == 0 {
            while is_reading() && made().iter().zip(before).any(|(now, before)| *now == before) {
                std::thread::yield_now();
            }
            before = made();
        }
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    log.close().unwrap();
    tailing.join().unwrap();
}
