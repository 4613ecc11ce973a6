//! The rows of recovery's decision table that need a world around them: rings of every kind, and
//! damage below and above the last durable mark.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::Path;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::{Device, OpenMode, write_all_at};
use collie_log::{Level, Log, LogError, LogOptions, Lsn, RingOutcome, Worker};
use collie_sim::{Image, PowerCut, SECTOR, SimDevice, Snapshot, VOLATILE_DIR};

/// A log with two commits on disk and two more in its ring.
fn world(shared: bool) -> (SimDevice, Ledger, Log, Worker, Setup) {
    let setup = Setup::small(shared, true);
    let (device, ledger) = (SimDevice::new(5), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    for level in [Level::Disk, Level::Disk, Level::Process, Level::Process] {
        commit(&log, &mut worker, &ledger, 300, Some(level)).unwrap();
    }
    (device, ledger, log, worker, setup)
}

/// Recovers an image; checks the ledger, and returns what became of the ring, and the warnings.
fn recover(image: &Image, ledger: &Ledger, survives: Survives, setup: Setup) -> (RingOutcome, Vec<String>) {
    let device = image.device();
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let verdict = ledger.check(ledger.now(), survives, &find(&log).unwrap());
    assert!(verdict.holds() && verdict.acknowledged > 0, "{verdict}");
    let report = log.recovery();
    (report.ring.clone(), report.warnings.clone())
}

fn kept(snapshot: &Snapshot) -> Image {
    snapshot.power_cut(PowerCut::WAYS[1].1, 1)
}

#[test]
fn the_ring_of_a_dead_process_is_recovered() {
    let (device, ledger, _log, _worker, setup) = world(true);
    let image = device.snapshot().process_death();
    let (ring, warnings) = recover(&image, &ledger, Survives::Process, setup);
    assert_eq!(ring, RingOutcome::Recovered { frames: 2, holes: 0 });
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_complete_frame_behind_a_hole_of_the_ring_counts() {
    let (device, ledger, log, mut worker, setup) = world(true);
    let mut slow = log.worker().unwrap();
    let mut moment = None;
    // Another worker appends and is acknowledged between reservation and copy.
    let mut overtake = |_| {
        commit(&log, &mut worker, &ledger, 24, Some(Level::Process)).unwrap();
        moment = Some(device.snapshot());
    };
    slow.append_paused(1, 2, b"never completed", [&mut |_| (), &mut overtake])
        .unwrap();
    let image = moment.unwrap().process_death();
    let (ring, _) = recover(&image, &ledger, Survives::Process, setup);
    assert_eq!(ring, RingOutcome::Recovered { frames: 3, holes: 1 });
}

#[test]
fn a_ring_gone_within_its_boot_is_reported_as_a_possible_loss() {
    let (device, ledger, _log, _worker, setup) = world(true);
    let mut image = device.snapshot().process_death();
    image.clear_volatile();
    let (ring, warnings) = recover(&image, &ledger, Survives::Power, setup);
    assert_eq!(ring, RingOutcome::Gone { same_boot: true });
    assert!(warnings.iter().any(|w| w.contains("may be lost")), "{warnings:?}");
}

#[test]
fn a_ring_that_went_with_the_power_is_no_news() {
    let (device, ledger, _log, _worker, setup) = world(true);
    let (ring, warnings) = recover(&kept(&device.snapshot()), &ledger, Survives::Power, setup);
    assert_eq!(ring, RingOutcome::Gone { same_boot: false });
    assert!(!warnings.iter().any(|w| w.contains("ring")), "{warnings:?}");
}

#[test]
fn a_ring_of_another_boot_or_directory_is_refused() {
    for reason in ["restarted", "another directory"] {
        let (device, ledger, _log, _worker, setup) = world(true);
        let mut image = device.snapshot().process_death();
        match reason {
            "restarted" => image.change_boot_id(),
            _ => image.copy_dir(Path::new(DIR)),
        }
        let (ring, warnings) = recover(&image, &ledger, Survives::Power, setup);
        assert!(
            matches!(&ring, RingOutcome::Refused { reason: r } if r.contains(reason)),
            "{ring:?}"
        );
        assert!(warnings.iter().any(|w| w.contains(reason)), "{warnings:?}");
    }
}

#[test]
fn a_closed_log_and_a_private_ring_leave_nothing_to_look_for() {
    let (device, ledger, log, worker, setup) = world(true);
    drop(worker);
    log.close().unwrap();
    assert_eq!(device.list(Path::new(VOLATILE_DIR)).unwrap(), []);
    let image = device.snapshot().process_death();
    assert_eq!(
        recover(&image, &ledger, Survives::Process, setup).0,
        RingOutcome::Closed
    );
    let (device, ledger, _log, _worker, setup) = world(false);
    let image = device.snapshot().process_death();
    assert_eq!(
        recover(&image, &ledger, Survives::Process, setup).0,
        RingOutcome::None
    );
}

/// Where the frames of the first segment begin.
const DATA: u64 = 8_192;
/// Where a ring says up to where the segments hold what it held.
const MARK: u64 = 2_048;

#[test]
fn rot_is_refused_below_a_durable_mark_and_cuts_above_it() {
    let setup = Setup::small(false, false);
    let (device, ledger) = (SimDevice::new(5), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    let mut places = Vec::new();
    for _ in 0..5 {
        let before = log.appended() - collie_log::FIRST_LSN;
        commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
        places.push(DATA + before);
    }
    let segment = Path::new(DIR).join("0000000000000001.seg");
    let last = places.len() - 1;
    for (number, place) in places.iter().enumerate() {
        for byte in [0, 4, 8, 16, 24, 31, 40, 330] {
            let mut image = kept(&device.snapshot());
            assert!(image.flip_bit(&segment, (place + byte) * 8 + 3));
            let device = image.device();
            match Log::open(DIR, setup.options(&device, false)) {
                // The last frame that was written marks everything before itself as durable.
                Err(LogError::Corrupt { path, offset, .. }) if number < last => {
                    assert_eq!((path.as_path(), offset), (segment.as_path(), *place));
                }
                Ok(log) if number == last => {
                    assert_eq!(find(&log).unwrap().len(), last);
                    let torn = log.recovery().torn.clone().unwrap();
                    assert_eq!((torn.path, torn.offset), (segment.clone(), *place));
                }
                Ok(_) => panic!("frame {number}, byte {byte}: rot was taken for the log's end"),
                Err(e) => panic!("frame {number}, byte {byte}: {e}"),
            }
        }
    }
}

#[test]
fn a_segment_header_survives_the_loss_of_one_sector_not_both() {
    let (device, ledger, _log, _worker, setup) = world(false);
    let segment = Path::new(DIR).join("0000000000000001.seg");
    let rot = |image: &mut Image, at: usize| {
        (at..at + SECTOR).for_each(|byte| assert!(image.flip_bit(&segment, byte as u64 * 8)));
    };
    let second = 4_096;
    for copy in [0, second] {
        let mut image = device.snapshot().process_death();
        rot(&mut image, copy);
        recover(&image, &ledger, Survives::Process, setup);
    }
    let mut image = device.snapshot().process_death();
    rot(&mut image, 0);
    rot(&mut image, second);
    let error = Log::open(DIR, setup.options(&image.device(), false)).map(|_| ());
    let text = error.expect_err("the segment holds frames").to_string();
    assert!(text.contains("0000000000000001.seg"), "{text}");
}

/// Above tables that were written without a log an epoch begins far from the one before.
#[test]
fn a_lost_header_is_noticed_however_far_its_epoch_begins() {
    for ahead in [0, 1 << 33, 1 << 45] {
        let (device, ledger, log, mut worker, setup) = world(false);
        commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
        let before = device.snapshot().process_death().device();
        let options = LogOptions {
            min_lsn: log.appended() + ahead,
            ..setup.options(&before, false)
        };
        let next = Log::open(DIR, options).unwrap();
        commit(
            &next,
            &mut next.worker().unwrap(),
            &ledger,
            300,
            Some(Level::Disk),
        )
        .unwrap();
        let mut image = before.snapshot().process_death();
        let files = before.list(Path::new(DIR)).unwrap();
        let segments = files.iter().filter(|file| file.name.ends_with(".seg"));
        let newest = Path::new(DIR).join(&segments.max().unwrap().name);
        for copy in [0, 4_096] {
            assert!(image.flip_bit(&newest, copy * 8 + 3));
        }
        match Log::open(DIR, setup.options(&image.device(), false)) {
            Err(LogError::Corrupt { .. }) => {}
            other => panic!("{ahead} ahead: {:?}", other.map(|log| log.recovery().clone())),
        }
    }
}

/// A power cut in the first write to a segment that is being made leaves anything in its blocks.
#[test]
fn garbage_in_a_segment_that_was_being_made_is_no_durable_mark() {
    let (device, ledger, _log, _worker, setup) = world(false);
    let snapshot = device.snapshot();
    let mut last = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..64 {
        let mut garbage = [0; 3 * 4_096];
        for word in garbage.as_chunks_mut::<8>().0 {
            last ^= last << 13;
            last ^= last >> 7;
            last ^= last << 17;
            *word = last.to_le_bytes();
        }
        let next = snapshot.process_death().device();
        let made = Path::new(DIR).join("0000000000000002.seg");
        let file = next.open(&made, OpenMode::CreateNew).unwrap();
        write_all_at(&*file, &garbage, 0).unwrap();
        drop(file);
        recover(
            &next.snapshot().process_death(),
            &ledger,
            Survives::Process,
            setup,
        );
    }
}

/// Every frame that is on disk is damaged in turn, and the log is opened from the beginning or from
/// any later frame: the ring of the dead process has all of them. Nothing is lost, so no reader may
/// find anything missing afterwards, not even one that reads from the beginning.
#[test]
fn what_the_ring_makes_good_is_good_for_later_readers() {
    for levels in [
        [Level::Disk, Level::Disk, Level::Process, Level::Process],
        [Level::Disk, Level::Disk, Level::Disk, Level::Disk],
        [Level::Process, Level::Process, Level::Process, Level::Disk],
    ] {
        let setup = Setup::small(true, true);
        let (device, ledger) = (SimDevice::new(5), Ledger::new());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        let mut starts = Vec::new();
        for level in levels {
            starts.push(log.appended());
            commit(&log, &mut worker, &ledger, 300, Some(level)).unwrap();
        }
        let snapshot = device.snapshot();
        for damaged in &starts {
            for resume_at in std::iter::once(None).chain(starts.iter().copied().map(Some)) {
                let mut image = snapshot.process_death();
                let segment = Path::new(DIR).join("0000000000000001.seg");
                let rotten = image.flip_bit(&segment, (DATA + damaged - collie_log::FIRST_LSN + 40) * 8);
                let context = format!("{levels:?}: {rotten} at {damaged}, read from {resume_at:?}");
                read_back(&image, &ledger, setup, resume_at, &context);
            }
        }
    }
}

/// Opens an image from `resume_at` and, once that is closed, from the beginning.
fn read_back(image: &Image, ledger: &Ledger, setup: Setup, resume_at: Option<Lsn>, context: &str) {
    let device = image.device();
    let options = LogOptions {
        resume_at,
        ..setup.options(&device, false)
    };
    let log = Log::open(DIR, options).unwrap_or_else(|e| panic!("{context}: {e}"));
    log.close().unwrap();
    let seam = std::sync::Arc::new(device.clone()) as std::sync::Arc<dyn Device>;
    let verified = collie_log::inspect::inspect(&seam, Path::new(DIR), |_| {});
    assert!(verified.is_ok(), "{context}: {}", verified.unwrap_err());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap_or_else(|e| panic!("{context}: {e}"));
    let verdict = ledger.check(ledger.now(), Survives::Process, &find(&log).unwrap());
    assert!(
        verdict.holds() && verdict.acknowledged == 4,
        "{context}: {verdict}"
    );
}

#[test]
fn damage_that_the_ring_makes_good_is_told() {
    let (device, ledger, _log, _worker, setup) = world(true);
    let mut image = device.snapshot().process_death();
    let segment = Path::new(DIR).join("0000000000000001.seg");
    assert!(image.flip_bit(&segment, (DATA + 40) * 8));
    let (ring, warnings) = recover(&image, &ledger, Survives::Process, setup);
    assert_eq!(ring, RingOutcome::Recovered { frames: 4, holes: 0 });
    assert!(
        warnings
            .iter()
            .any(|w| w.contains("byte 8192") && w.contains("nothing is lost")),
        "{warnings:?}"
    );
}

/// The mark stands in shared memory without a checksum. Recovery looks for frames up to where it
/// points.
#[test]
fn a_ring_whose_mark_points_far_behind_the_segments_is_refused() {
    for mark in [1 << 40, 1 << 63, u64::MAX - 7, u64::MAX] {
        let (device, ledger, _log, _worker, setup) = world(true);
        let next = device.snapshot().process_death().device();
        let rings = next.list(Path::new(VOLATILE_DIR)).unwrap();
        assert_eq!(rings.len(), 1, "{rings:?}");
        let ring = Path::new(VOLATILE_DIR).join(&rings[0].name);
        let file = next.open(&ring, OpenMode::ReadWrite).unwrap();
        write_all_at(&*file, &u64::to_le_bytes(mark), MARK).unwrap();
        drop(file);
        let image = next.snapshot().process_death();
        let (ring, _) = recover(&image, &ledger, Survives::Power, setup);
        let RingOutcome::Refused { reason } = ring else {
            panic!("mark {mark}: {ring:?}");
        };
        assert!(reason.contains("mark"), "{reason}");
    }
}

/// A ring that went on has overwritten what it had: then the damage stands.
#[test]
fn damage_that_the_ring_has_passed_is_refused() {
    let (device, ledger, log, mut worker, setup) = world(true);
    for _ in 0..setup.ring_bytes / 300 {
        commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
    }
    let mut image = device.snapshot().process_death();
    let segment = Path::new(DIR).join("0000000000000001.seg");
    assert!(image.flip_bit(&segment, (DATA + 40) * 8));
    let refused = Log::open(DIR, setup.options(&image.device(), false)).unwrap_err();
    assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
}
