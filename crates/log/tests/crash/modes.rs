//! What the modes of recovery do about an unclean end, and about damage in what was durable.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_check::Ledger;
use collie_check::images::{DIR, Setup, commit, find};
use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::{FIRST_LSN, Level, Log, LogError, LogOptions, Lsn, RecoveryMode};
use collie_sim::{Fault, FaultKind, Image, PowerCut, SimDevice, VOLATILE_DIR};

const TOLERATE: RecoveryMode = RecoveryMode::TolerateCorruptedTailRecords;
const ABSOLUTE: RecoveryMode = RecoveryMode::AbsoluteConsistency;
const POINT: RecoveryMode = RecoveryMode::PointInTimeRecovery;

/// Where the frames of the first segment begin.
const DATA: u64 = 8_192;
/// A frame with a payload of 300 bytes.
const FRAME: u64 = 336;

fn setup() -> Setup {
    Setup::small(false, false)
}

fn open(device: &SimDevice, mode: RecoveryMode) -> Result<Log, LogError> {
    open_above(device, mode, FIRST_LSN)
}

fn open_above(device: &SimDevice, mode: RecoveryMode, min_lsn: Lsn) -> Result<Log, LogError> {
    let options = LogOptions {
        recovery_mode: mode,
        min_lsn,
        ..setup().options(device, false)
    };
    Log::open(DIR, options)
}

/// A log with so many commits, each waited for at the level, and never closed.
fn filled_at(commits: usize, level: Level) -> Image {
    let (device, ledger) = (SimDevice::new(5), Ledger::new());
    let log = open(&device, TOLERATE).unwrap();
    let mut worker = log.worker().unwrap();
    for _ in 0..commits {
        commit(&log, &mut worker, &ledger, 300, Some(level)).unwrap();
    }
    device.snapshot().process_death()
}

fn filled(commits: usize) -> Image {
    filled_at(commits, Level::Disk)
}

fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("{number:016x}.seg"))
}

fn rot(image: &mut Image, frame: u64) {
    assert!(image.flip_bit(&segment(1), (DATA + frame * FRAME + 40) * 8));
}

/// All files of the log, with their content.
fn content(device: &SimDevice) -> Vec<(String, Vec<u8>)> {
    let entries = device.list(Path::new(DIR)).unwrap();
    let files = entries.into_iter().filter(|entry| entry.name != "LOCK");
    files
        .map(|entry| {
            let bytes = read(device, &Path::new(DIR).join(&entry.name));
            (entry.name, bytes)
        })
        .collect()
}

fn read(device: &SimDevice, path: &Path) -> Vec<u8> {
    let file = device.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().len as usize];
    read_exact_at(&*file, &mut bytes, 0).unwrap();
    bytes
}

/// Ids of the commits that are there.
fn ids(log: &Log) -> Vec<u64> {
    find(log)
        .unwrap()
        .into_iter()
        .filter_map(|commit| commit.id)
        .collect()
}

#[test]
fn an_incomplete_end_is_cut_or_under_absolute_mode_refused() {
    let mut image = filled(3);
    // No durable mark covers the last commit: it could have been under way.
    rot(&mut image, 2);
    let device = image.device();
    let before = content(&device);
    let refused = open(&device, ABSOLUTE).unwrap_err();
    let LogError::Corrupt { path, lsn, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!((path, *lsn), (&segment(1), FIRST_LSN + 2 * FRAME), "{refused}");
    assert_eq!(content(&device), before, "a refusal changes nothing");
    for mode in [TOLERATE, POINT] {
        let log = open(&image.device(), mode).unwrap();
        assert_eq!(ids(&log), [0, 1]);
        assert!(log.recovery().torn.is_some() && log.recovery().truncated.is_none());
    }
}

/// The first of two blocks that were written together did not reach the device, the second did.
#[test]
fn zeros_with_a_frame_behind_them_are_no_clean_end() {
    let mut image = filled_at(3, Level::Process);
    // All of frame 1 becomes zeros. Frame 2 was appended when that was not yet known to be durable.
    let bytes = read(&image.device(), &segment(1));
    for bit in (DATA + FRAME) * 8..(DATA + 2 * FRAME) * 8 {
        if bytes[(bit / 8) as usize] >> (bit % 8) & 1 == 1 {
            assert!(image.flip_bit(&segment(1), bit));
        }
    }
    let tolerated = open(&image.device(), TOLERATE).unwrap();
    assert_eq!(ids(&tolerated), [0]);
    let refused = open(&image.device(), ABSOLUTE).unwrap_err();
    assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
}

#[test]
fn what_is_closed_or_whole_in_the_ring_is_absolutely_consistent() {
    for shared in [false, true] {
        let setup = Setup::small(shared, false);
        let (device, ledger) = (SimDevice::new(5), Ledger::new());
        let absolute = |device: &SimDevice| LogOptions {
            recovery_mode: ABSOLUTE,
            ..setup.options(device, false)
        };
        let log = Log::open(DIR, absolute(&device)).unwrap();
        let mut worker = log.worker().unwrap();
        for level in [Level::Disk, Level::Process, Level::Process] {
            commit(&log, &mut worker, &ledger, 300, Some(level)).unwrap();
        }
        let died = device.snapshot().process_death().device();
        assert_eq!(ids(&Log::open(DIR, absolute(&died)).unwrap()), [0, 1, 2]);
        drop(worker);
        log.close().unwrap();
        assert_eq!(ids(&Log::open(DIR, absolute(&device)).unwrap()), [0, 1, 2]);
    }
}

#[test]
fn a_ring_gone_within_its_boot_is_not_absolutely_consistent() {
    let setup = Setup::small(true, false);
    let (device, ledger) = (SimDevice::new(5), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
    let mut image = device.snapshot().process_death();
    image.clear_volatile();
    let absolute = |device: &SimDevice| LogOptions {
        recovery_mode: ABSOLUTE,
        ..setup.options(device, false)
    };
    let refused = Log::open(DIR, absolute(&image.device())).unwrap_err();
    assert!(refused.to_string().contains("ring"), "{refused}");
    // A power cut takes it, and no acknowledgement covers it.
    let cut = device.snapshot().power_cut(PowerCut::WAYS[0].1, 1).device();
    assert_eq!(ids(&Log::open(DIR, absolute(&cut)).unwrap()), [0]);
}

/// As one that is gone: it has what was acknowledged at the process level.
#[test]
fn absolute_consistency_refuses_an_unusable_ring() {
    let setup = Setup::small(true, false);
    let (device, ledger) = (SimDevice::new(5), Ledger::new());
    let log = Log::open(DIR, setup.options(&device, false)).unwrap();
    let mut worker = log.worker().unwrap();
    for level in [Level::Disk, Level::Process] {
        commit(&log, &mut worker, &ledger, 300, Some(level)).unwrap();
    }
    let open = |device: &SimDevice, recovery_mode| {
        let options = LogOptions {
            recovery_mode,
            ..setup.options(device, false)
        };
        Log::open(DIR, options)
    };
    let volatile = Path::new(VOLATILE_DIR);
    let rings = device.list(volatile).unwrap();
    assert_eq!(rings.len(), 1, "{rings:?}");
    let ring = volatile.join(&rings[0].name);
    for damage in ["damaged", "length"] {
        let died = device.snapshot().process_death().device();
        let file = died.open(&ring, OpenMode::ReadWrite).unwrap();
        match damage {
            "damaged" => write_all_at(&*file, &[0xff], 14).unwrap(),
            _ => file.set_len(4096 + 1).unwrap(),
        }
        drop(file);
        let image = died.snapshot().process_death();
        let refused = open(&image.device(), ABSOLUTE).unwrap_err().to_string();
        assert!(refused.contains("ring") && refused.contains(damage), "{refused}");
        assert_eq!(ids(&open(&image.device(), TOLERATE).unwrap()), [0]);
    }
    // A copy's ring is not lost, and one from before a restart kept what no acknowledgement covers.
    for elsewhere in [true, false] {
        let mut image = device.snapshot().process_death();
        if elsewhere {
            image.copy_dir(Path::new(DIR));
        } else {
            image.change_boot_id();
        }
        assert_eq!(ids(&open(&image.device(), ABSOLUTE).unwrap()), [0]);
    }
}

#[test]
fn durable_damage_is_refused_unless_a_point_in_time_will_do() {
    let mut image = filled(5);
    rot(&mut image, 2);
    for mode in [TOLERATE, ABSOLUTE] {
        let refused = open(&image.device(), mode).unwrap_err();
        assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
    }
    let device = image.device();
    let whole = read(&device, &segment(1));
    let log = open(&device, POINT).unwrap();
    assert_eq!(ids(&log), [0, 1]);
    let report = log.recovery();
    let truncated = report.truncated.as_ref().unwrap();
    assert_eq!(truncated.lsn, FIRST_LSN + 2 * FRAME);
    let [kept] = &truncated.kept[..] else {
        panic!("{truncated:?}")
    };
    assert_eq!(read(&device, kept), whole, "all that was there is kept");
    assert_eq!(&report.set_aside, &truncated.kept);
    assert!(
        report
            .warnings
            .iter()
            .any(|w| w.contains(&kept.display().to_string())),
        "{:?}",
        report.warnings
    );
    log.close().unwrap();
    // From then on it is whole, and what was truncated is still named.
    let log = open(&device, ABSOLUTE).unwrap();
    assert_eq!(ids(&log), [0, 1]);
    assert_eq!(
        (&log.recovery().truncated, log.recovery().set_aside.len()),
        (&None, 1)
    );
}

/// The caller's tables hold what lies behind the damage: they would be of a later time than the
/// log.
#[test]
fn the_log_is_not_cut_below_what_the_tables_hold() {
    let mut image = filled(5);
    rot(&mut image, 2);
    let damage = FIRST_LSN + 2 * FRAME;
    let device = image.device();
    let before = content(&device);
    let refused = open_above(&device, POINT, damage + 8).unwrap_err();
    assert!(refused.to_string().contains("tables"), "{refused}");
    assert_eq!(content(&device), before, "a refusal changes nothing");
    assert_eq!(ids(&open_above(&device, POINT, damage).unwrap()), [0, 1]);
}

#[test]
fn a_log_without_a_good_beginning_has_no_point_to_go_back_to() {
    let mut image = filled(5);
    // Both copies of the header.
    assert!(image.flip_bit(&segment(1), 0) && image.flip_bit(&segment(1), 4096 * 8));
    let device = image.device();
    let before = content(&device);
    let refused = open(&device, POINT).unwrap_err();
    assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
    assert_eq!(content(&device), before, "a refusal changes nothing");
}

/// Several segments, damage at the end of the second, so that only the third proves that it was
/// durable; the device dies at every operation of the cutting, and the next open comes to the same
/// point with all that was truncated still there.
#[test]
fn an_interrupted_cut_ends_the_same_and_keeps_everything() {
    let commits = 2 * setup().segment_bytes / FRAME + 40;
    let mut image = filled(commits as usize);
    assert!(image.flip_bit(&segment(2), (setup().segment_bytes - 400) * 8));
    let whole = open(&image.device(), POINT).unwrap();
    let expected = ids(&whole);
    assert!(!expected.is_empty() && expected.len() < commits as usize);
    let originals: Vec<_> = (2..=3).map(|n| read(&image.device(), &segment(n))).collect();
    let mut died = 0;
    for n in 0.. {
        let device = image.device();
        device.inject(Fault::new(FaultKind::AnyFails).after(n));
        let interrupted = open(&device, POINT);
        if device.fired(FaultKind::AnyFails) == 0 {
            assert!(interrupted.is_ok());
            break;
        }
        died += 1;
        let snapshot = device.snapshot();
        device.kill();
        drop(interrupted);
        for way in 0..=PowerCut::WAYS.len() {
            let next = match way.checked_sub(1) {
                None => snapshot.process_death().device(),
                Some(way) => snapshot.power_cut(PowerCut::WAYS[way].1, n).device(),
            };
            let context = format!("operation {n}, way {way}");
            let log = open(&next, POINT).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(ids(&log), expected, "{context}");
            let kept: Vec<_> = log
                .recovery()
                .set_aside
                .iter()
                .map(|path| read(&next, path))
                .collect();
            for original in &originals {
                assert!(
                    kept.contains(original),
                    "{context}: {:?}",
                    log.recovery().set_aside
                );
            }
        }
    }
    assert!(died > 20, "{died}");
}

#[test]
fn a_second_cut_keeps_what_the_first_one_kept() {
    let mut image = filled(5);
    rot(&mut image, 3);
    let device = image.device();
    let log = open(&device, POINT).unwrap();
    let first = log.recovery().set_aside.clone();
    let mut worker = log.worker().unwrap();
    let ledger = Ledger::new();
    for _ in 0..5 {
        commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
    }
    drop((worker, log));
    let mut image = device.snapshot().process_death();
    rot(&mut image, 1);
    let device = image.device();
    let seam = Arc::new(device.clone()) as Arc<dyn Device>;
    let repaired = collie_log::inspect::repair(&seam, Path::new(DIR)).unwrap();
    assert!(
        repaired.kept.iter().all(|kept| !first.contains(kept)),
        "{repaired:?}"
    );
    let log = open(&device, POINT).unwrap();
    let set_aside = &log.recovery().set_aside;
    assert!(
        first
            .iter()
            .chain(&repaired.kept)
            .all(|kept| set_aside.contains(kept)),
        "{set_aside:?}"
    );
}
