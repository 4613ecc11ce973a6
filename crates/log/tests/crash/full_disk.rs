//! A full disk: appends are refused, nothing is lost, and the log goes on when there is room again.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::Path;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::Device;
use collie_log::{Level, Log, LogError, LogOptions, RingOutcome, Room, Worker};
use collie_sim::{FaultKind, Points, PowerCut, SimDevice, VOLATILE_DIR};

fn open(device: &SimDevice, setup: Setup) -> (Log, Worker) {
    let log = Log::open(DIR, setup.options(device, false)).unwrap();
    let worker = log.worker().unwrap();
    (log, worker)
}

fn assert_all_there(ledger: &Ledger, survives: Survives, device: &SimDevice, setup: Setup) {
    let (log, _worker) = open(device, setup);
    let verdict = ledger.check(ledger.now(), survives, &find(&log).unwrap());
    assert!(verdict.holds(), "{verdict}");
}

#[test]
fn a_full_disk_refuses_appends_loses_nothing_and_goes_on_later() {
    for (shared, direct) in [(true, true), (true, false), (false, true), (false, false)] {
        for room in (0..150_000).step_by(17_000) {
            let setup = Setup::small(shared, direct);
            let (device, ledger) = (SimDevice::new(room), Ledger::new());
            let (log, mut worker) = open(&device, setup);
            device.limit_space(Some(room));
            let mut refused = None;
            for _ in 0..200 {
                refused = commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).err();
                if refused.is_some() {
                    break;
                }
            }
            let error = refused.expect("the disk is full at last");
            assert!(matches!(error, LogError::StorageFull { .. }), "{error}");
            assert!(error.to_string().contains(DIR), "{error}");
            assert!(device.fired(FaultKind::NoSpace) > 0);
            assert!(log.poisoned().is_none());
            // It is refused again, and what was promised can be kept nonetheless.
            let again = commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).unwrap_err();
            assert!(matches!(again, LogError::StorageFull { .. }), "{again}");
            log.flush(Level::Disk).unwrap();
            let snapshot = device.snapshot();
            assert_all_there(
                &ledger,
                Survives::Process,
                &snapshot.process_death().device(),
                setup,
            );
            for (seed, (_, cut)) in PowerCut::WAYS.iter().enumerate() {
                let after = snapshot.power_cut(*cut, seed as u64).device();
                assert_all_there(&ledger, Survives::Power, &after, setup);
            }
            device.limit_space(None);
            for _ in 0..40 {
                commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).unwrap();
            }
            drop(worker);
            log.close().unwrap();
            assert_all_there(&ledger, Survives::Process, &device, setup);
        }
    }
}

#[test]
fn releasing_makes_room_on_a_full_disk() {
    let setup = Setup::small(true, true);
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let (log, mut worker) = open(&device, setup);
    device.limit_space(Some(100_000));
    while commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).is_ok() {}
    let durable = log.durable();
    ledger.released(durable);
    log.retain("reader", durable);
    for _ in 0..20 {
        commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).unwrap();
    }
    assert_all_there(
        &ledger,
        Survives::Process,
        &device.snapshot().process_death().device(),
        setup,
    );
}

/// There is no room to say in the segments that the log was closed, and its ring stays locked for
/// as long as an old handle has it.
#[test]
fn a_log_closed_on_a_full_disk_opens_beside_old_handles() {
    for direct in [true, false] {
        let setup = Setup::small(true, direct);
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let (log, mut worker) = open(&device, setup);
        device.limit_space(Some(40_000));
        for len in [1_500, 24] {
            while commit(&log, &mut worker, &ledger, len, Some(Level::Process)).is_ok() {}
        }
        let old = log.clone();
        log.close().unwrap();
        let rings = || device.list(Path::new(VOLATILE_DIR)).unwrap().len();
        assert_eq!(rings(), 1, "the ring stands in for the mark");
        device.limit_space(None);
        let (new, mut next) = open(&device, setup);
        assert_eq!(new.recovery().warnings, [""; 0]);
        assert_eq!(rings(), 1);
        let expected = RingOutcome::Recovered { frames: 0, holes: 0 };
        assert_eq!(new.recovery().ring, expected);
        assert!(matches!(worker.append(0, 0, &[0; 24]), Err(LogError::Closed)));
        commit(&new, &mut next, &ledger, 24, Some(Level::Process)).unwrap();
        drop((old, worker));
        new.flush(Level::Disk).unwrap();
        let verdict = ledger.check(ledger.now(), Survives::Process, &find(&new).unwrap());
        assert!(verdict.holds(), "{verdict}");
    }
}

/// A released segment would be used for the next one, but the full device has no room for the rest
/// of this one.
#[test]
fn releasing_makes_room_for_the_rest_of_a_segment() {
    let device = SimDevice::new(1);
    let options = LogOptions {
        ring_bytes: 1 << 20,
        segment_bytes: 12 << 20,
        ..Setup::small(false, false).options(&device, false)
    };
    let log = Log::open(DIR, options).unwrap();
    let mut worker = log.worker().unwrap();
    device.limit_space(Some(16 << 20));
    let payload = vec![7; 200_000];
    while let Ok(frame) = worker.append(0, 1, &payload) {
        log.wait(frame.end, Level::Disk).unwrap();
    }
    assert!(log.stats().segments > 1);
    log.retain("reader", log.durable());
    for _ in 0..100 {
        let frame = worker.append(0, 1, &payload).unwrap();
        log.wait(frame.end, Level::Disk).unwrap();
        log.retain("reader", frame.end);
    }
}

/// Fills a log's device, and returns its capacity.
fn filled(device: &SimDevice, ledger: &Ledger, setup: Setup, room: u64) -> (Log, Worker, u64) {
    let (log, mut worker) = open(device, setup);
    device.limit_space(Some(room));
    let capacity = device.used_space() + room;
    for len in [1_500, 24] {
        while commit(&log, &mut worker, ledger, len, Some(Level::Disk)).is_ok() {}
    }
    (log, worker, capacity)
}

/// The same disk for another process: as full as it was.
fn limit(device: &SimDevice, capacity: u64) {
    device.limit_space(Some(capacity.saturating_sub(device.used_space())));
}

#[test]
fn a_log_opens_on_a_full_disk_however_often_its_process_dies() {
    let small = [(true, true), (true, false), (false, true), (false, false)];
    let small = small.map(|(shared, direct)| (Setup::small(shared, direct), [24, 1_500, 24]));
    // With frames that are larger than the room for one that each log has from the beginning.
    let larger = Setup {
        ring_bytes: 32 << 10,
        segment_bytes: 64 << 10,
        ..Setup::small(true, true)
    };
    for (setup, lens) in small.into_iter().chain([(larger, [24, 6_000, 24])]) {
        for room in (0..100_000).step_by(31_000) {
            let (mut device, ledger) = (SimDevice::new(room), Ledger::new());
            let (log, worker, capacity) = filled(&device, &ledger, setup, room);
            let next = device.snapshot().process_death().device();
            device.kill();
            drop((log, worker));
            device = next;
            for life in 0..113 {
                limit(&device, capacity);
                let (log, mut worker) = open(&device, setup);
                let verdict = ledger.check(ledger.now(), Survives::Process, &find(&log).unwrap());
                assert!(verdict.holds(), "{room}, {life}: {verdict}");
                for len in lens {
                    let refused = commit(&log, &mut worker, &ledger, len, Some(Level::Disk));
                    assert!(
                        matches!(refused, Err(LogError::StorageFull { .. }) | Ok(_)),
                        "{refused:?}"
                    );
                }
                let next = device.snapshot().process_death().device();
                device.kill();
                drop((log, worker));
                device = next;
            }
            assert!(device.used_space() <= capacity);
            device.limit_space(None);
            let (log, mut worker) = open(&device, setup);
            commit(&log, &mut worker, &ledger, 1_500, Some(Level::Disk)).unwrap();
            drop(worker);
            log.close().unwrap();
        }
    }
}

/// Whenever a process dies while it opens the log on a full disk, the next one opens. After a power
/// cut, which may take back what was removed, it opens or finds the disk full; nothing is lost
/// either way.
#[test]
fn a_log_opens_on_a_full_disk_after_an_interrupted_opening() {
    for (shared, direct) in [(true, true), (false, false)] {
        let setup = Setup::small(shared, direct);
        let (device, ledger) = (SimDevice::new(9), Ledger::new());
        let (log, worker, capacity) = filled(&device, &ledger, setup, 40_000);
        let next = device.snapshot().process_death().device();
        device.kill();
        drop((log, worker));
        limit(&next, capacity);
        let tags = ledger.clone();
        next.tag_snapshots(move || tags.now());
        next.record(Points::Changes, 1_000);
        let (log, _worker) = open(&next, setup);
        let shots = next.take_snapshots();
        drop(log);
        assert!(shots.len() > 5, "{}", shots.len());
        let (mut refused, cuts) = (0, shots.len() * PowerCut::WAYS.len());
        for shot in shots {
            let died = shot.process_death().device();
            limit(&died, capacity);
            assert_all_there(&ledger, Survives::Process, &died, setup);
            for (_, cut) in PowerCut::WAYS {
                let after = shot.power_cut(cut, 3).device();
                limit(&after, capacity);
                if Log::open(DIR, setup.options(&after, false)).is_err() {
                    refused += 1;
                    after.limit_space(None);
                }
                assert_all_there(&ledger, Survives::Power, &after, setup);
            }
        }
        println!("figures: {refused} of {cuts} power cuts left no room to open");
        assert!(refused < cuts / 4, "{refused} of {cuts}");
    }
}

/// What takes data away has room where commits have none, and so have marks; commits take none of
/// it.
#[test]
fn relief_has_room_on_a_full_disk() {
    for (shared, direct) in [(true, true), (false, false)] {
        let setup = Setup {
            segment_bytes: 256 << 10,
            ring_bytes: 16 << 10,
            ..Setup::small(shared, direct)
        };
        let (device, ledger) = (SimDevice::new(4), Ledger::new());
        let (log, mut worker, _) = filled(&device, &ledger, setup, 600_000);
        let kept = setup.segment_bytes / 16;
        let large = worker.append_in(Room::Relief, 0, 1, &[1; 3_000]).unwrap();
        log.wait(large.end, Level::Disk).unwrap();
        let mut relieved = large.end - large.start;
        while let Ok(span) = worker.append_in(Room::Relief, 0, 1, &[1; 100]) {
            log.wait(span.end, Level::Disk).unwrap();
            relieved += span.end - span.start;
            let refused = worker.append(0, 1, &[1; 24]);
            assert!(
                matches!(refused, Err(LogError::StorageFull { .. })),
                "{refused:?}"
            );
        }
        // A frame and what a worker may overrun its look by are left.
        assert!(relieved + 1_000 >= kept, "{relieved} bytes of {kept}");
        // What calls itself a mark and is none has the room of a commit.
        let disguised = worker.append_in(Room::Mark, 0, 1, &[1; 3_000]);
        assert!(
            matches!(disguised, Err(LogError::StorageFull { .. })),
            "{disguised:?}"
        );
        for _ in 0..8 {
            worker.append_in(Room::Mark, 0, 1, &[]).unwrap();
        }
        log.flush(Level::Disk).unwrap();
    }
}

#[test]
fn full_shared_memory_falls_back_to_a_private_ring_and_says_so() {
    let setup = Setup::small(true, true);
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    device.limit_volatile_space(Some(4_096));
    let (log, mut worker) = open(&device, setup);
    assert!(!log.recovery().ring_shared);
    assert!(!log.recovery().warnings.is_empty());
    commit(&log, &mut worker, &ledger, 100, Some(Level::Process)).unwrap();
    assert_all_there(
        &ledger,
        Survives::Process,
        &device.snapshot().process_death().device(),
        setup,
    );
}
