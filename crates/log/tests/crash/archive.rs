//! The archive of released segments: who goes there, who leaves, and what a crash in between leaves
//! behind.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::{Clock, Device};
use collie_log::inspect::inspect;
use collie_log::{Level, Log, LogError, LogOptions, Worker};
use collie_sim::{Fault, FaultKind, Points, PowerCut, SimDevice};

const SEGMENT: u64 = 32 << 10;
const HOUR: Duration = Duration::from_secs(3_600);

fn options(device: &SimDevice, ttl: Duration, bytes: u64) -> LogOptions {
    LogOptions {
        archive_ttl: ttl,
        archive_bytes: bytes,
        ..Setup::small(true, true).options(device, false)
    }
}

fn open(device: &SimDevice, ttl: Duration, bytes: u64) -> (Log, Worker) {
    let log = Log::open(DIR, options(device, ttl, bytes)).unwrap();
    let worker = log.worker().unwrap();
    (log, worker)
}

/// Commits about a segment's worth, and gives up everything before it.
fn fill_segment(log: &Log, worker: &mut Worker, ledger: &Ledger) {
    fill_segments(1, log, worker, ledger);
}

/// Commits so many segments' worth, and gives up all of them at once.
fn fill_segments(count: usize, log: &Log, worker: &mut Worker, ledger: &Ledger) {
    commit_segments(count, log, worker, ledger);
    ledger.released(log.durable());
    log.retain("test", log.durable());
}

fn commit_segments(count: usize, log: &Log, worker: &mut Worker, ledger: &Ledger) {
    for _ in 0..11 * count {
        commit(log, worker, ledger, 3_000, Some(Level::Disk)).unwrap();
    }
}

/// The time in an archived segment's name.
fn archived_at(name: &str) -> u64 {
    u64::from_str_radix(&name[17..29], 16).unwrap()
}

fn archive() -> PathBuf {
    Path::new(DIR).join("archive")
}

fn names(device: &SimDevice) -> Vec<String> {
    let entries = device.list(&archive()).unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

/// The numbers in the segments' names, lowest first.
fn numbers(device: &SimDevice, dir: &Path) -> Vec<u64> {
    let entries = device.list(dir).unwrap();
    let segments = entries.iter().filter(|entry| entry.name.ends_with(".seg"));
    let mut numbers: Vec<_> = segments
        .map(|entry| u64::from_str_radix(&entry.name[..16], 16).unwrap())
        .collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn without_an_archive_there_is_none() {
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let (log, mut worker) = open(&device, Duration::ZERO, 0);
    (0..5).for_each(|_| fill_segment(&log, &mut worker, &ledger));
    assert!(device.list(&archive()).is_err());
    assert!(log.stats().spare_segments > 0);
    assert_eq!(
        (log.stats().archived_segments, log.stats().archived_bytes),
        (0, 0)
    );
}

#[test]
fn segments_leave_when_they_are_too_old_whatever_the_clock_does() {
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let (log, mut worker) = open(&device, HOUR, 0);
    (0..5).for_each(|_| fill_segment(&log, &mut worker, &ledger));
    let before = log.stats().archived_segments;
    assert!(before >= 4, "{before}");
    assert_eq!(log.stats().spare_segments, 0);
    device.sim_clock().advance(30 * 60 * 1_000_000_000);
    (0..3).for_each(|_| fill_segment(&log, &mut worker, &ledger));
    let both = log.stats().archived_segments;
    assert!(both > before, "none is an hour old");
    // The time is kept across opens.
    drop(worker);
    log.close().unwrap();
    let (log, _worker) = open(&device, HOUR, 0);
    assert_eq!(log.stats().archived_segments, both);
    device.sim_clock().advance(31 * 60 * 1_000_000_000);
    log.retain("test", log.durable());
    let left = names(&device);
    assert_eq!(log.stats().archived_segments, left.len());
    assert!(!left.is_empty() && left.len() < both, "{left:?} of {both}");
    let hour_ago = device.sim_clock().wall_ms() - 3_600_000;
    assert!(left.iter().all(|name| archived_at(name) > hour_ago), "{left:?}");
    // What seems to come from the future is kept for an hour from now on, and no longer.
    device.sim_clock().step_wall_back(10 * 3_600_000);
    log.retain("test", log.durable());
    assert_eq!(names(&device), left);
    device.sim_clock().advance(60 * 60 * 1_000_000_000);
    log.retain("test", log.durable());
    assert_eq!(log.stats().archived_segments, 0);
}

#[test]
fn the_oldest_segments_leave_when_all_take_too_much() {
    for ttl in [Duration::ZERO, HOUR] {
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let (log, mut worker) = open(&device, ttl, 3 * SEGMENT);
        (0..12).for_each(|_| fill_segment(&log, &mut worker, &ledger));
        let stats = log.stats();
        assert_eq!((stats.archived_segments, stats.archived_bytes), (3, 3 * SEGMENT));
        let (live, archived) = (numbers(&device, Path::new(DIR)), numbers(&device, &archive()));
        assert_eq!(archived.last().unwrap() + 1, live[0], "the newest ones stay");
    }
}

#[test]
fn a_full_disk_gives_up_the_archive_before_it_refuses() {
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let (log, mut worker) = open(&device, HOUR, 0);
    (0..6).for_each(|_| fill_segment(&log, &mut worker, &ledger));
    let archived = log.stats().archived_segments;
    assert!(archived > 3);
    device.limit_space(Some(0));
    let refused = loop {
        if let Err(error) = commit(&log, &mut worker, &ledger, 3_000, Some(Level::Disk)) {
            break error;
        }
    };
    assert!(matches!(refused, LogError::StorageFull { .. }), "{refused}");
    assert_eq!(log.stats().archived_segments, 0);
    assert!(log.poisoned().is_none());
}

#[test]
fn an_open_without_an_archive_removes_it_and_says_so() {
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let (log, mut worker) = open(&device, HOUR, 0);
    (0..4).for_each(|_| fill_segment(&log, &mut worker, &ledger));
    drop(worker);
    log.close().unwrap();
    assert!(!names(&device).is_empty());
    let (log, _worker) = open(&device, Duration::ZERO, 0);
    let warnings = &log.recovery().warnings;
    assert!(
        warnings
            .iter()
            .any(|w| w.contains("archived segments were removed")),
        "{warnings:?}"
    );
    assert_eq!(names(&device), [""; 0]);
    let verdict = ledger.check(ledger.now(), Survives::Process, &find(&log).unwrap());
    assert!(verdict.holds(), "{verdict}");
}

#[test]
fn an_archive_is_inspected_under_an_open_log_and_never_opened() {
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let (log, mut worker) = open(&device, HOUR, 0);
    (0..5).for_each(|_| fill_segment(&log, &mut worker, &ledger));
    let shared = Arc::new(device.clone()) as Arc<dyn Device>;
    let mut frames = 0;
    let found = inspect(&shared, &archive(), |_| frames += 1).unwrap();
    assert_eq!(found.segments.len(), log.stats().archived_segments);
    assert!(frames > 30, "{frames}");
    assert!(found.end <= log.oldest());
    let refused = Log::open(archive(), options(&device, HOUR, 0)).unwrap_err();
    assert!(matches!(refused, LogError::WrongDirectory { .. }), "{refused}");
}

#[test]
fn a_crash_while_archiving_loses_nothing_and_leaves_no_gap() {
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let (log, mut worker) = open(&device, HOUR, 3 * SEGMENT);
    fill_segment(&log, &mut worker, &ledger);
    let tags = ledger.clone();
    device.tag_snapshots(move || tags.now());
    let mut moments = Vec::new();
    for count in [1, 4, 1, 3] {
        commit_segments(count, &log, &mut worker, &ledger);
        ledger.released(log.durable());
        device.record(Points::Changes, 100);
        log.retain("test", log.durable());
        moments.extend(device.take_snapshots());
        device.record(Points::Never, 0);
    }
    let (mut archived, mut in_both_places) = (0, 0);
    // Coprime to the number of images of a moment, so that each kind of them has its turn.
    let (one_in, mut number) = (if crate::thorough() { 1 } else { 7 }, 0);
    for moment in moments {
        let any = std::iter::repeat_n(&PowerCut::WAYS[2], 8);
        let cuts = PowerCut::WAYS.iter().chain(any).enumerate();
        let images =
            cuts.map(|(seed, (name, cut))| (*name, Survives::Power, moment.power_cut(*cut, seed as u64)));
        let verified = |device: &SimDevice| {
            let shared = Arc::new(device.clone()) as Arc<dyn Device>;
            match device.list(&archive()) {
                Ok(names) if !names.is_empty() => inspect(&shared, &archive(), |_| {}).map(drop),
                _ => Ok(()),
            }
        };
        let death = [("process death", Survives::Process, moment.process_death())];
        for (name, survives, image) in images.chain(death) {
            number += 1;
            if number % one_in != 0 {
                continue;
            }
            let next = image.device();
            let context = format!("{name} at {:?}", moment.at());
            in_both_places += image.effects().in_both_places;
            verified(&next).unwrap_or_else(|e| panic!("{context}, before it is opened: {e}"));
            // With room for what comes, so that what is there twice does not leave.
            let log = Log::open(DIR, options(&next, HOUR, 30 * SEGMENT))
                .unwrap_or_else(|e| panic!("{context}: {e}"));
            let verdict = ledger.check(moment.tag(), survives, &find(&log).unwrap());
            assert!(verdict.holds(), "{context}: {verdict}");
            let oldest = numbers(&next, Path::new(DIR))[0];
            let there = numbers(&next, &archive());
            let gone: Vec<_> = there.iter().filter(|number| **number < oldest).collect();
            assert!(
                gone.windows(2).all(|two| *two[0] + 1 == *two[1]),
                "{context}: {there:?}, {oldest}"
            );
            archived += there.len();
            // It goes on, and archives what it finds, and what is in both places once more: at the
            // same moment, or later.
            next.sim_clock().advance(moment.op() % 2 * 1_000_000_000);
            let mut worker = log.worker().unwrap();
            let after = ledger.after(&find(&log).unwrap());
            (0..2).for_each(|_| fill_segment(&log, &mut worker, &after));
            let there = numbers(&next, &archive());
            assert!(
                there.windows(2).all(|two| two[0] < two[1]),
                "{context}: one is archived twice, {there:?}"
            );
            verified(&next).unwrap_or_else(|e| panic!("{context}, afterwards: {e}"));
            assert!(log.poisoned().is_none(), "{context}");
        }
    }
    assert!(archived > 100 / one_in, "{archived}");
    assert!(in_both_places > 10 / one_in as u64, "{in_both_places}");
}

#[test]
fn a_device_that_fails_while_archiving_loses_nothing() {
    for after in 0..12 {
        let (device, ledger) = (SimDevice::new(after), Ledger::new());
        let (log, mut worker) = open(&device, HOUR, 2 * SEGMENT);
        fill_segment(&log, &mut worker, &ledger);
        for _ in 0..22 {
            commit(&log, &mut worker, &ledger, 3_000, Some(Level::Disk)).unwrap();
        }
        device.inject(Fault::new(FaultKind::AnyFails).on(DIR).after(after).once());
        ledger.released(log.durable());
        log.retain("test", log.durable());
        device.heal();
        let left = device.snapshot().process_death().device();
        device.kill();
        let log = Log::open(DIR, options(&left, HOUR, 2 * SEGMENT)).unwrap();
        let verdict = ledger.check(ledger.now(), Survives::Process, &find(&log).unwrap());
        assert!(verdict.holds(), "fault {after}: {verdict}");
    }
}

/// Segments below `resume_at` are not read when the log is opened, and are when they are released.
#[test]
fn segments_not_read_at_open_are_released_damaged_or_not() {
    for kind in [FaultKind::ReadFails, FaultKind::OpenFails] {
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let (log, mut worker) = open(&device, HOUR, 0);
        commit_segments(5, &log, &mut worker, &ledger);
        let resume_at = log.durable();
        drop(worker);
        log.close().unwrap();
        let options = LogOptions {
            resume_at: Some(resume_at),
            ..options(&device, HOUR, 0)
        };
        let log = Log::open(DIR, options).unwrap();
        let mut worker = log.worker().unwrap();
        (0..2).for_each(|_| commit(&log, &mut worker, &ledger, 3_000, Some(Level::Disk)).unwrap());
        device.inject(Fault::new(kind).on("0000000000000001.seg"));
        log.retain("test", log.durable());
        assert!(log.poisoned().is_none() && device.fired(kind) > 0, "{kind:?}");
        if kind == FaultKind::OpenFails {
            assert_eq!(
                names(&device).len(),
                0,
                "it can be opened later, and is waited for"
            );
            device.heal();
            log.retain("test", log.durable());
        }
        assert!(names(&device).len() >= 5, "{kind:?}: {:?}", names(&device));
        device.heal();
        let first = archive().join(&names(&device)[0]);
        device.remove_file(&first).unwrap();
        let device: Arc<dyn Device> = Arc::new(device);
        match (kind, inspect(&device, &archive(), |_| {})) {
            (FaultKind::ReadFails, Err(LogError::BeginningUnknown { .. })) => {}
            (FaultKind::OpenFails, Ok(found)) => assert!(found.frames > 30),
            (_, other) => panic!("{kind:?}: {other:?}"),
        }
    }
}
