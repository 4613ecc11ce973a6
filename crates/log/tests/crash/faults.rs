//! Faults that a reading of the log found, each by the shortest program that shows it on the
//! simulated device.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::Device;
use collie_log::{FIRST_LSN, Level, Log, LogError, LogOptions, RingOutcome, inspect};
use collie_sim::{Fault, FaultKind, Points, PowerCut, SimDevice, Snapshot, VOLATILE_DIR};

fn check(ledger: &Ledger, tag: u64, survives: Survives, log: &Log, what: &str) {
    let verdict = ledger.check(tag, survives, &find(log).unwrap());
    assert!(
        verdict.holds(),
        "{what}: {verdict}, ring {:?}",
        log.recovery().ring
    );
}

/// A process death at every operation of write groups that are written in several pieces.
#[test]
fn a_death_between_pieces_of_a_flight_loses_nothing_of_the_ring() {
    let mut images = 0;
    for direct in [true, false] {
        for len in [900, 1500, 1900] {
            let setup = Setup {
                ring_bytes: 16 << 10,
                ..Setup::small(true, direct)
            };
            let (device, ledger) = (SimDevice::new(1), Ledger::new());
            let log = Log::open(DIR, setup.options(&device, false)).unwrap();
            let mut worker = log.worker().unwrap();
            let tags = ledger.clone();
            device.tag_snapshots(move || tags.now());
            device.record(Points::Changes, 1000);
            for _ in 0..60 {
                commit(&log, &mut worker, &ledger, len, Some(Level::Process)).unwrap();
            }
            let shots = device.take_snapshots();
            device.record(Points::Never, 0);
            for shot in shots {
                let next = shot.process_death().device();
                let log = Log::open(DIR, setup.options(&next, false)).unwrap();
                check(
                    &ledger,
                    shot.tag(),
                    Survives::Process,
                    &log,
                    "a death in mid-flight",
                );
                images += 1;
            }
        }
    }
    assert!(images > 100, "{images} images");
}

/// The worker keeps the poisoned log's ring in use: reopening waits for it instead of going on
/// without.
#[test]
fn a_poisoned_log_stays_locked_until_its_last_worker_is_gone() {
    for seed in 0..20 {
        let setup = Setup::small(true, true);
        let (device, ledger) = (SimDevice::new(seed), Ledger::new());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        for _ in 0..3 {
            commit(&log, &mut worker, &ledger, 300, Some(Level::Process)).unwrap();
        }
        device.inject(Fault::new(FaultKind::WriteFails).on(".seg").once());
        log.flush(Level::Disk).unwrap_err();
        drop(log);
        let locked = Log::open(DIR, setup.options(&device, false)).unwrap_err();
        assert!(matches!(locked, LogError::Locked { .. }), "{locked}");
        drop(worker);
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        check(
            &ledger,
            ledger.now(),
            Survives::Process,
            &log,
            "reopened after poison",
        );
    }
}

/// What the next opening will need is unknown: all stays as it is.
#[test]
fn a_log_that_has_stopped_releases_nothing() {
    for direct in [true, false] {
        let setup = Setup::small(false, direct);
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        log.retain("reader", FIRST_LSN);
        let end = |log: &Log| log.stats().segments;
        while end(&log) < 4 {
            commit(&log, &mut worker, &ledger, 900, Some(Level::Disk)).unwrap();
        }
        let before = log.durable();
        device.inject(Fault::new(FaultKind::WriteFails).on(".seg").once());
        commit(&log, &mut worker, &ledger, 900, Some(Level::Disk)).unwrap_err();
        let done = device.trace().len();
        log.retain("reader", before);
        log.release("reader");
        let changes = device.trace().split_off(done);
        let changes: Vec<_> = changes.iter().filter(|op| op.kind.mutates()).collect();
        assert!(changes.is_empty(), "written directly: {direct}: {changes:?}");
        assert!(end(&log) >= 4);
    }
}

/// The ring's frames mark as durable what the repair truncates; repaired means that it opens. (What is
/// damaged is damaged in the ring, too: else that would make it good.)
#[test]
fn a_repaired_log_opens_although_its_ring_knew_more() {
    let setup = Setup::small(true, true);
    let (device, ledger) = (SimDevice::new(5), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    for level in [Level::Disk, Level::Disk, Level::Process, Level::Process] {
        commit(&log, &mut worker, &ledger, 300, Some(level)).unwrap();
    }
    let mut image = device.snapshot().process_death();
    let segment = Path::new(DIR).join("0000000000000001.seg");
    assert!(image.flip_bit(&segment, (8192 + 336 + 40) * 8));
    let ring = image.files(Path::new(VOLATILE_DIR)).remove(0);
    assert!(image.flip_bit(&ring, (4096 + 336 + 40) * 8));
    let device = image.device();
    let damage = Log::open(DIR, setup.options(&device, false)).unwrap_err();
    assert!(matches!(damage, LogError::Corrupt { .. }), "{damage}");
    let seam = Arc::new(device.clone()) as Arc<dyn Device>;
    let repair = inspect::repair(&seam, Path::new(DIR)).unwrap();
    assert!(
        repair.kept.iter().any(|kept| kept.starts_with(VOLATILE_DIR)),
        "{repair:?}"
    );
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    assert_eq!(find(&log).unwrap().len(), 1);
    assert!(
        log.appended() < FIRST_LSN + 4096,
        "the log goes on where it was cut"
    );
}

#[test]
fn opens_that_fail_for_want_of_space_leave_nothing_behind() {
    let setup = Setup::small(true, true);
    let options = |device: &SimDevice| LogOptions {
        reserve_bytes: Some(0),
        ..setup.options(device, false)
    };
    let (device, ledger) = (SimDevice::new(5), Ledger::new());
    let log = Log::open(DIR, options(&device)).unwrap();
    let mut worker = log.worker().unwrap();
    commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
    let device = device.snapshot().process_death().device();
    device.limit_space(Some(10_000));
    for _ in 0..4 {
        Log::open(DIR, options(&device)).unwrap_err();
        assert_eq!(
            device.list(Path::new(VOLATILE_DIR)).unwrap().len(),
            1,
            "the old ring, and no other"
        );
        let files = device.list(Path::new(DIR)).unwrap();
        assert!(
            files.iter().all(|e| !e.name.starts_with("0000000000000002")),
            "{files:?}"
        );
    }
    device.limit_space(None);
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    check(&ledger, ledger.now(), Survives::Process, &log, "with room again");
}

#[test]
fn a_missing_log_is_not_a_fresh_one_when_resuming() {
    let setup = Setup::small(true, true);
    let device = SimDevice::new(5);
    let wanted = FIRST_LSN + 8000;
    let resume = LogOptions {
        resume_at: Some(wanted),
        min_lsn: wanted,
        ..setup.options(&device, false)
    };
    let error = Log::open(DIR, resume.clone()).unwrap_err();
    assert!(
        matches!(error, LogError::Missing { wanted: w, .. } if w == wanted),
        "{error}"
    );
    // Nor is one that ends before.
    Log::open(DIR, setup.options(&device, false))
        .unwrap()
        .close()
        .unwrap();
    let error = Log::open(DIR, resume).unwrap_err();
    assert!(
        matches!(error, LogError::Missing { end, .. } if end < wanted),
        "{error}"
    );
}

#[test]
fn a_log_closes_cleanly_with_all_slots_taken() {
    let setup = Setup::small(true, true);
    let device = SimDevice::new(5);
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let workers: Vec<_> = std::iter::from_fn(|| log.worker().ok()).collect();
    log.close().unwrap();
    drop(workers);
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    assert_eq!(log.recovery().ring, RingOutcome::Closed);
    assert_eq!(log.recovery().warnings, Vec::<String>::new());
}

/// The header's sync fails, the page stays in the cache: it is not on the device because it can be
/// read.
#[test]
fn an_epoch_with_an_unsynced_header_is_written_again_first() {
    for seed in 0..20 {
        let setup = Setup::small(true, false);
        let (device, ledger) = (SimDevice::new(seed), Ledger::new());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        for level in [Level::Disk, Level::Process, Level::Process] {
            commit(&log, &mut worker, &ledger, 300, Some(level)).unwrap();
        }
        let device = device.snapshot().process_death().device();
        device.inject(
            Fault::new(FaultKind::SyncFails)
                .on("0000000000000002.seg")
                .after(2)
                .once(),
        );
        Log::open(DIR, setup.options(&device, false)).unwrap_err();
        device.heal();
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
        let next = device.snapshot().power_cut(PowerCut::WAYS[0].1, seed).device();
        let log = Log::open(DIR, setup.options(&next, false)).unwrap();
        check(
            &ledger,
            ledger.now(),
            Survives::Power,
            &log,
            "a power cut after a failed open",
        );
    }
}

/// A worker is still preparing room while close lets go of the directory.
#[test]
fn a_closed_log_never_touches_its_directory_again() {
    for seed in 0..10 {
        let setup = Setup {
            ring_bytes: 256 << 10,
            ..Setup::small(true, true)
        };
        let (device, ledger) = (SimDevice::new(seed), Ledger::new());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
        device.delay_syncs(Duration::from_millis(1));
        let gate = device.hold_syncs();
        let large = std::thread::spawn(move || worker.append(0, 0, &vec![1; 100_000]).map(|_| ()));
        gate.wait_for(1);
        // Close waits for the extension that is under way, so the gate must open meanwhile.
        let closing = std::thread::spawn(move || log.close());
        std::thread::sleep(Duration::from_millis(5));
        gate.release();
        closing.join().unwrap().unwrap();
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        for _ in 0..20 {
            commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
        }
        // Whether it came before the close or not: it ends, and does no harm.
        drop(large.join().unwrap());
        let next = device.snapshot().process_death().device();
        let log = Log::open(DIR, setup.options(&next, false)).unwrap();
        let verdict = ledger.check(ledger.now(), Survives::Power, &find(&log).unwrap());
        // The large frame itself, which the ledger does not know, may be there.
        assert_eq!((verdict.lost, verdict.reordered), (0, 0), "{verdict}");
    }
}

#[test]
fn damage_where_an_epoch_begins_is_seen_behind_a_clean_close() {
    let setup = Setup::small(false, true);
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
    drop(worker);
    let other = log.clone();
    log.close().unwrap();
    let end = other.appended();
    drop(other);
    let resume = LogOptions {
        resume_at: Some(end),
        ..setup.options(&device, false)
    };
    let log = Log::open(DIR, resume).unwrap();
    let mut worker = log.worker().unwrap();
    for _ in 0..5 {
        commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
    }
    let mut image = device.snapshot().process_death();
    assert!(image.flip_bit(&Path::new(DIR).join("0000000000000002.seg"), (8192 + 40) * 8));
    let error = Log::open(DIR, setup.options(&image.device(), false)).unwrap_err();
    assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
}

/// A log before and after its first segments were released, and all its commits.
fn released(setup: Setup) -> (Snapshot, Snapshot, Ledger) {
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    let mut commit = || commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
    commit();
    let before = device.snapshot();
    for _ in 0..200 {
        commit();
    }
    ledger.released(log.durable());
    log.retain("test", log.durable());
    assert!(log.oldest() > FIRST_LSN, "nothing was released");
    for _ in 0..80 {
        commit();
    }
    let after = device.snapshot();
    device.kill();
    (before, after, ledger)
}

/// The oldest segment may begin with the end of a frame; a damaged one at its beginning must not
/// pass for that.
#[test]
fn damage_in_the_first_frame_after_a_release_is_noticed() {
    for setup in [Setup::small(false, true), Setup::small(false, true).padded()] {
        let (_, after, ledger) = released(setup);
        let mut image = after.process_death();
        let seam = Arc::new(image.device()) as Arc<dyn Device>;
        let whole = inspect::inspect(&seam, Path::new(DIR), |_| {}).unwrap();
        let (segment, first) = (&whole.segments[0], whole.first_frame);
        assert!(image.flip_bit(&segment.path, (8192 + first - segment.first_lsn + 40) * 8));
        let error = Log::open(DIR, setup.options(&image.device(), false)).unwrap_err();
        assert!(
            matches!(error, LogError::Corrupt { lsn, .. } if lsn == first),
            "{error}"
        );
        let log = Log::open(DIR, setup.options(&after.process_death().device(), false)).unwrap();
        check(&ledger, ledger.now(), Survives::Power, &log, "undamaged");
    }
}

/// Such a ring was left by an earlier state of the machine, say a snapshot that was restored in
/// part.
#[test]
fn a_ring_that_is_older_than_the_oldest_segment_is_refused() {
    let setup = Setup::small(true, true);
    let (before, after, ledger) = released(setup);
    let mut image = after.process_death();
    image.take_volatile_from(&before.process_death());
    let log = Log::open(DIR, setup.options(&image.device(), false)).unwrap();
    check(
        &ledger,
        ledger.now(),
        Survives::Power,
        &log,
        "a ring from before the release",
    );
    let ring = &log.recovery().ring;
    assert!(
        matches!(ring, RingOutcome::Refused { reason } if reason.contains("older")),
        "{ring:?}"
    );
}

/// Reports that an error was logged, and takes its time over it.
struct SlowSubscriber(Mutex<mpsc::Sender<()>>);

impl tracing::Subscriber for SlowSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        // The receiver may be gone by the time that the log is dropped.
        let _ = self.0.lock().unwrap().send(());
        std::thread::sleep(Duration::from_millis(100));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn an_append_waiting_for_room_gets_none_from_a_poisoned_log() {
    let (sender, poisoned) = mpsc::channel();
    let setup = Setup {
        ring_bytes: 16 << 10,
        ..Setup::small(true, true)
    };
    let (device, ledger) = (SimDevice::new(3), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    for _ in 0..10 {
        commit(&log, &mut worker, &ledger, 1_500, Some(Level::Process)).unwrap();
    }
    device.inject(Fault::new(FaultKind::WriteFails).on(".seg"));
    let other = log.clone();
    let flush = std::thread::spawn(move || {
        let slow = SlowSubscriber(Mutex::new(sender));
        tracing::subscriber::with_default(slow, || other.flush(Level::Disk)).unwrap_err()
    });
    poisoned.recv().unwrap();
    for _ in 0..4 {
        worker.append(0, 0, &[7; 1_500]).unwrap_err();
    }
    flush.join().unwrap();
    let next = device.snapshot().process_death().device();
    let log = Log::open(DIR, setup.options(&next, false)).unwrap();
    check(&ledger, ledger.now(), Survives::Process, &log, "after the poison");
}
