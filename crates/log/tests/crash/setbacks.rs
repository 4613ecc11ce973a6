//! Failures by which no frame is at stake, injected on the simulated device: while a segment is
//! prepared, archived or removed. They are refused or put off, and pass when their cause goes.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::Path;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::Device;
use collie_log::{FIRST_LSN, Level, Log, LogError, LogOptions, Worker};
use collie_sim::{Fault, FaultKind, Op, OpKind, PowerCut, SimDevice};

fn check(device: &SimDevice, ledger: &Ledger, options: impl Fn(&SimDevice) -> LogOptions, what: &str) {
    let snapshot = device.snapshot();
    let died = (Survives::Process, snapshot.process_death().device());
    let cut = (
        Survives::Power,
        snapshot.power_cut(PowerCut::WAYS[0].1, 7).device(),
    );
    for (survives, device) in [died, cut] {
        let log = Log::open(DIR, options(&device)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let verdict = ledger.check(ledger.now(), survives, &find(&log).unwrap());
        assert!(verdict.holds(), "{what}: {verdict}");
    }
}

/// Commits, and gives up what is durable now and then. Returns how many were refused.
fn work(log: &Log, worker: &mut Worker, ledger: &Ledger, commits: u32) -> u32 {
    let mut refused = 0;
    for n in 0..commits {
        match commit(log, worker, ledger, 1_500, Some(Level::Disk)) {
            Ok(_) => {}
            Err(LogError::Unprepared { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if n % 10 == 9 {
            ledger.released(log.durable());
            log.retain("test", log.durable());
        }
    }
    refused
}

#[test]
fn failures_without_frames_at_stake_pass_with_their_cause() {
    let kinds = [
        FaultKind::OpenFails,
        FaultKind::RemoveFails,
        FaultKind::RenameFails,
    ];
    for kind in kinds {
        let (mut refused, mut fired) = (0, 0);
        for round in 0..40 {
            let (strike, archive, direct) = (round / 4, round % 2 == 0, round % 4 < 2);
            let what = format!("{kind:?} {strike}, archive {archive}, direct {direct}");
            let setup = Setup::small(round % 3 == 0, direct);
            let options = |device: &SimDevice| LogOptions {
                archive_bytes: u64::from(archive) * setup.segment_bytes,
                ..setup.options(device, false)
            };
            let (device, ledger) = (SimDevice::new(round), Ledger::new());
            let log = Log::open(DIR, options(&device)).unwrap();
            let mut worker = log.worker().unwrap();
            assert_eq!(work(&log, &mut worker, &ledger, 60), 0, "{what}");
            device.inject(Fault::new(kind).on(DIR).after(strike));
            refused += work(&log, &mut worker, &ledger, 120);
            fired += device.fired(kind);
            assert_eq!(log.poisoned().map(|e| e.to_string()), None, "{what}");
            check(&device, &ledger, options, &what);
            device.heal();
            assert_eq!(work(&log, &mut worker, &ledger, 60), 0, "{what}: healed");
            assert!(log.stats().segments <= 3, "{what}: {:?}", log.stats());
            check(&device, &ledger, options, &format!("{what}: healed"));
        }
        println!("figures: {kind:?} {fired} times, {refused} appends refused");
        assert!(fired > 40, "{kind:?} {fired} times");
        assert_eq!(refused > 0, kind == FaultKind::OpenFails, "{kind:?}: {refused}");
    }
}

/// A sync that fails while a segment is made, or one is removed, has no frames at stake; that of a
/// segment in use has.
#[test]
fn failed_syncs_of_names_and_new_segments_do_not_stop_the_log() {
    let (mut stopped, mut went_on) = (0, 0);
    for strike in 0..60 {
        let setup = Setup::small(true, true);
        let options = |device: &SimDevice| setup.options(device, false);
        let (device, ledger) = (SimDevice::new(strike), Ledger::new());
        let log = Log::open(DIR, options(&device)).unwrap();
        let mut worker = log.worker().unwrap();
        // Past the page cache frames need no sync: those that there are belong to housekeeping.
        device.inject(Fault::new(FaultKind::SyncFails).on(DIR).after(strike).once());
        work(&log, &mut worker, &ledger, 300);
        let fired = device.fired(FaultKind::SyncFails) > 0;
        stopped += u32::from(log.poisoned().is_some());
        went_on += u32::from(fired && log.poisoned().is_none());
        device.heal();
        assert_eq!(work(&log, &mut worker, &ledger, 60), 0, "{strike}");
        check(&device, &ledger, options, &format!("sync {strike}"));
    }
    assert_eq!(stopped, 0);
    assert!(went_on > 20, "{went_on}");
}

/// In the page cache frames and zeros of one file are synced together: the failure may have lost
/// either.
#[test]
fn a_failed_sync_of_a_segment_in_use_stops_the_log() {
    let device = SimDevice::new(1);
    let options = LogOptions {
        ring_bytes: 1 << 20,
        segment_bytes: 12 << 20,
        ..Setup::small(false, false).options(&device, false)
    };
    let log = Log::open(DIR, options).unwrap();
    let mut worker = log.worker().unwrap();
    device.inject(Fault::new(FaultKind::SyncFails).on(".seg").once());
    let error = (0..400).find_map(|_| {
        let frame = worker.append(0, 1, &[7; 50_000]);
        frame.and_then(|frame| log.wait(frame.end, Level::Process)).err()
    });
    let error = error.expect("more of the segment was prepared");
    assert!(matches!(error, LogError::Poisoned { .. }), "not stopped: {error}");
    assert!(log.poisoned().is_some());
}

/// A segment was made, its name could not be synced, and it could not be removed again.
#[test]
fn a_left_over_name_that_a_failed_sync_has_lost_is_not_used() {
    let mut met = 0;
    for round in 0..80 {
        let setup = Setup::small(true, true);
        let options = |device: &SimDevice| setup.options(device, false);
        let (device, ledger) = (SimDevice::new(round), Ledger::new());
        let log = Log::open(DIR, options(&device)).unwrap();
        let mut worker = log.worker().unwrap();
        device.inject(Fault::new(FaultKind::RemoveFails).on(DIR).once());
        device.inject(Fault::new(FaultKind::SyncFails).on(DIR).after(round / 4).once());
        for _ in 0..200 {
            match commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)) {
                Ok(_) | Err(LogError::Unprepared { .. }) => {}
                Err(error) => panic!("{round}: {error}"),
            }
        }
        met += device.fired(FaultKind::RemoveFails);
        check(&device, &ledger, options, &format!("round {round}"));
    }
    assert!(met > 40, "{met}");
}

/// Neither the removal of a segment nor its emptying was synced at first; when the log has removed
/// it, no power cut brings it back.
#[test]
fn a_removal_that_a_failed_sync_has_lost_is_made_anew() {
    let mut met = 0;
    for round in 0..60 {
        let setup = Setup::small(false, round % 2 == 0);
        let options = |device: &SimDevice| setup.options(device, false);
        let (device, ledger) = (SimDevice::new(round), Ledger::new());
        let log = Log::open(DIR, options(&device)).unwrap();
        let mut worker = log.worker().unwrap();
        work(&log, &mut worker, &ledger, 79);
        drop((log, worker));
        // What an earlier epoch left is removed, and not used again.
        let log = Log::open(DIR, options(&device)).unwrap();
        let mut worker = log.worker().unwrap();
        commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).unwrap();
        // The sync of the directory, and then those of the emptied file.
        device.inject(Fault::new(FaultKind::SyncFails).on(DIR).after(round / 6).times(3));
        ledger.released(log.durable());
        log.retain("test", log.durable());
        device.heal();
        let removal = |op: &Op| op.kind == OpKind::SyncDir && op.failed;
        met += u64::from(device.trace().iter().any(removal));
        log.retain("test", log.durable());
        for (way, cut) in PowerCut::WAYS {
            let image = device.snapshot().power_cut(cut, round);
            let log = Log::open(DIR, options(&image.device()));
            let log = log.unwrap_or_else(|error| panic!("round {round}, {way}: {error}"));
            let verdict = ledger.check(ledger.now(), Survives::Power, &find(&log).unwrap());
            assert!(verdict.holds(), "round {round}, {way}: {verdict}");
        }
    }
    assert!(met > 10, "{met}");
}

/// Room is taken by writing zeros then.
#[test]
fn a_file_system_without_a_call_to_reserve_space_is_good_enough() {
    let device = SimDevice::new(1);
    device.inject(Fault::new(FaultKind::AllocateFails).on(DIR));
    let options = LogOptions {
        ring_bytes: 1 << 20,
        segment_bytes: 12 << 20,
        ..Setup::small(true, true).options(&device, false)
    };
    let log = Log::open(DIR, options.clone()).unwrap();
    assert!(log.recovery().direct);
    let mut worker = log.worker().unwrap();
    for _ in 0..100 {
        let frame = worker.append(0, 1, &[7; 200_000]).unwrap();
        log.wait(frame.end, Level::Disk).unwrap();
    }
    assert!(device.fired(FaultKind::AllocateFails) > 3);
    drop(worker);
    log.close().unwrap();
    assert_eq!(
        Log::open(DIR, options).unwrap().read(FIRST_LSN).unwrap().count(),
        100
    );
}

#[test]
fn a_retained_segment_needs_no_descriptor() {
    for direct in [true, false] {
        let setup = Setup::small(false, direct);
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        let before = device.open_files();
        while log.stats().segments < 200 {
            commit(&log, &mut worker, &ledger, 3_000, Some(Level::Disk)).unwrap();
        }
        let open = device.open_files();
        assert!(open <= before + 2, "{open} files are open, at first {before}");
        let mut read = log.read(FIRST_LSN).unwrap();
        while read.next().is_some() {
            assert!(device.open_files() <= open + 2);
        }
        drop(read);
        ledger.released(log.durable());
        log.retain("test", log.durable());
        assert!(device.open_files() <= open);
        let segments = device.list(Path::new(DIR)).unwrap();
        assert!(segments.len() < 8, "{segments:?}");
    }
}

/// What was to be removed and could not be goes before anything behind it, so that there never is a
/// gap.
#[test]
fn a_segment_that_cannot_be_removed_has_no_gap_behind_it() {
    for round in 0..30 {
        let setup = Setup::small(false, round % 2 == 0);
        // A cut epoch's segments are not used again.
        let options = |device: &SimDevice| setup.options(device, false);
        let (device, ledger) = (SimDevice::new(round), Ledger::new());
        let log = Log::open(DIR, options(&device)).unwrap();
        let mut worker = log.worker().unwrap();
        for _ in 0..80 {
            commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).unwrap();
        }
        drop((log, worker));
        let log = Log::open(DIR, options(&device)).unwrap();
        let mut worker = log.worker().unwrap();
        device.inject(
            Fault::new(FaultKind::RemoveFails)
                .on(DIR)
                .after(round / 6)
                .times(1 + round % 3),
        );
        for _ in 0..4 {
            work(&log, &mut worker, &ledger, 20);
            check(&device, &ledger, options, &format!("round {round}"));
        }
        assert!(device.fired(FaultKind::RemoveFails) > 0);
        assert_eq!(log.poisoned().map(|e| e.to_string()), None);
    }
}
