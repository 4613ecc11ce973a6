//! Names in the log's directory that a failed sync has lost: a later process does not see them, no
//! later sync makes up for them, and the next power cut brings them back.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::Path;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::{Level, Log, LogOptions};
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice};

/// One process: commits about `segments` segments' worth, and gives up each. Ends early where the
/// log is poisoned.
fn live(options: LogOptions, ledger: &Ledger, segments: u32) -> bool {
    let Ok(log) = Log::open(DIR, options) else {
        return false;
    };
    let mut worker = log.worker().unwrap();
    for _ in 0..segments {
        for _ in 0..11 {
            if commit(&log, &mut worker, ledger, 3_000, Some(Level::Disk)).is_err() {
                // Its user may not have heard of the failure yet.
                log.retain("test", log.durable());
                return false;
            }
        }
        ledger.released(log.durable());
        log.retain("test", log.durable());
    }
    true
}

fn segments(device: &SimDevice) -> Vec<String> {
    let entries = device.list(Path::new(DIR)).unwrap().into_iter();
    let names = entries.map(|entry| entry.name);
    names.filter(|name| name.ends_with(".seg")).collect()
}

/// When the fault strikes, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strikes {
    /// The second process, of which it may be the end, and no further one.
    Second,
    /// The same, and nothing was released, or archived, before.
    SecondOfAFreshLog,
    /// Also those that open the log next, until one can.
    Openings,
}

/// Processes one after the other: the second one meets the fault, the last one uses the log for long enough to
/// release all that those before left, and then the power goes. Gives whether the second one ended early, and
/// whether the power cut brought back a name.
fn name_comes_back(number: u64, fault: Fault, strikes: Strikes) -> (bool, bool) {
    let (archive, direct) = (number.is_multiple_of(2), number >= 300);
    let setup = Setup::small(false, direct);
    let setup = if number.is_multiple_of(3) {
        setup.padded()
    } else {
        setup
    };
    let (device, ledger) = (SimDevice::new(number), Ledger::new());
    let tags = ledger.clone();
    device.tag_snapshots(move || tags.now());
    let options = |device: &SimDevice| LogOptions {
        // One that still has in the end what was under the lost name, and one that has not.
        archive_bytes: (u64::from(archive) * setup.segment_bytes) << (number / 2 % 2 * 5),
        ..setup.options(device, false)
    };
    if strikes != Strikes::SecondOfAFreshLog {
        assert!(live(options(&device), &ledger, 2), "a healthy device");
    }
    device.inject(fault);
    let poisoned = !live(options(&device), &ledger, 6);
    let mut went_on = false;
    for _ in 0..50 {
        if strikes != Strikes::Openings {
            device.heal();
        }
        went_on = live(options(&device), &ledger, 4);
        if went_on {
            break;
        }
    }
    let opened = Log::open(DIR, options(&device)).map(drop);
    assert!(went_on, "{number}: it does not go on after the fault: {opened:?}");

    let (snapshot, before, mut came_back) = (device.snapshot(), segments(&device), false);
    for (way, cut) in [PowerCut::WAYS[0], PowerCut::WAYS[2], PowerCut::WAYS[9]] {
        let after = snapshot.power_cut(cut, number).device();
        let found = segments(&after);
        let log = Log::open(DIR, options(&after)).unwrap_or_else(|error| {
            panic!("{number}, {way}: {error}; there were {before:?}, and now {found:?}")
        });
        let verdict = ledger.check(snapshot.tag(), Survives::Power, &find(&log).unwrap());
        assert!(verdict.holds(), "{number}, {way}: {verdict}");
        came_back |= found.iter().any(|name| !before.contains(name));
    }
    (poisoned, came_back)
}

#[test]
fn a_name_that_comes_back_alone_is_not_taken_for_the_log() {
    let (mut poisoned, mut came_back) = (0, 0);
    for round in 0..1_200 {
        let number = round % 600;
        // A device that is full may have room again: then the same process goes on.
        let code = if round < 600 { libc::EIO } else { libc::ENOSPC };
        let fault = Fault::new(FaultKind::SyncFails).on(DIR).code(code);
        let (ended, back) = name_comes_back(number, fault.after(number / 12).once(), Strikes::Second);
        poisoned += u32::from(ended);
        came_back += u32::from(back);
    }
    println!("figures: {poisoned} failed syncs, after {came_back} of which a lost name came back");
    assert!(poisoned > 100 && came_back > 10);
}

/// What could be done about the first failure fails as well, be it for want of room or not.
#[test]
fn nor_is_one_whose_device_failed_for_a_while() {
    let (mut poisoned, mut came_back) = (0, 0);
    for round in 0..4_800 {
        let code = if round % 5 > 0 { libc::EIO } else { libc::ENOSPC };
        let fault = Fault::new(FaultKind::AnyFails).on(DIR).code(code);
        let fault = fault.after(round / 24).times(2 + round % 7);
        let strikes = match round % 4 {
            0 => Strikes::SecondOfAFreshLog,
            _ => Strikes::Second,
        };
        let (ended, back) = name_comes_back(round % 600, fault, strikes);
        poisoned += u32::from(ended);
        came_back += u32::from(back);
    }
    println!("figures: {poisoned} failures, after {came_back} of which a lost name came back");
    assert!(poisoned > 1_000 && came_back > 10);
}

/// Processes that open the log then fail in the middle of that, too.
#[test]
fn nor_is_one_whose_device_failed_through_openings() {
    let mut poisoned = 0;
    for round in 0..2_400 {
        let fault = Fault::new(FaultKind::AnyFails).on(DIR);
        let fault = fault.after(round / 12).times(2 + round % 37);
        poisoned += u32::from(name_comes_back(round % 600, fault, Strikes::Openings).0);
    }
    assert!(poisoned > 500, "{poisoned}");
}

/// Where a renaming finds no room, and a removal does.
#[test]
fn nor_is_one_that_a_full_device_removed() {
    let mut struck = 0;
    for round in 0..3_600 {
        let kind = match round % 3 {
            0 => FaultKind::SyncFails,
            1 => FaultKind::RenameFails,
            _ => FaultKind::AnyFails,
        };
        let fault = Fault::new(kind).on(DIR).code(libc::ENOSPC);
        let fault = fault.after(round / 36).times(1 + round % 5);
        // What fails first is also the first archiving ever, of which nothing else can make room.
        let strikes = match round / 2 % 2 {
            0 => Strikes::SecondOfAFreshLog,
            _ => Strikes::Second,
        };
        struck += u32::from(name_comes_back(round % 600, fault, strikes).0);
    }
    println!("figures: {struck} processes ended");
}

/// What a slip of the hand does to the segments of a closed log.
#[derive(Debug, Clone, Copy)]
enum Slip {
    Swap,
    CopyOver,
    Rename,
    Remove,
}

fn read(device: &SimDevice, name: &str) -> Vec<u8> {
    let file = device.open(&Path::new(DIR).join(name), OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().len as usize];
    read_exact_at(&*file, &mut bytes, 0).unwrap();
    bytes
}

fn write(device: &SimDevice, name: &str, bytes: &[u8]) {
    let file = device
        .open(&Path::new(DIR).join(name), OpenMode::OpenOrCreate)
        .unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    write_all_at(&*file, bytes, 0).unwrap();
}

/// A file with the header of another segment looks like a released one that was to be used again.
#[test]
fn a_missing_or_misnamed_segment_is_refused() {
    let (setup, mut refused, mut lost) = (Setup::small(false, true), 0, Vec::new());
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    // The last one fills a segment nearly, so that the next one is there and empty.
    for commits in [12, 13, 7] {
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        for _ in 0..commits {
            commit(&log, &mut worker, &ledger, 3_000, Some(Level::Disk)).unwrap();
        }
        drop(worker);
        log.close().unwrap();
    }
    let (image, names) = (device.snapshot().process_death(), segments(&device));
    assert!(names.len() > 5, "{names:?}");
    let next = "00000000000000ff.seg".to_owned();
    let mut slips = Vec::new();
    for (at, name) in names.iter().enumerate() {
        slips.push((Slip::Rename, name, &next));
        if at + 1 < names.len() {
            slips.push((Slip::Remove, name, &next));
        }
        for other in names.iter().skip(at + 1) {
            slips.push((Slip::Swap, name, other));
            slips.push((Slip::CopyOver, name, other));
            slips.push((Slip::CopyOver, other, name));
        }
    }
    for (slip, from, to) in slips {
        let device = image.device();
        let (bytes, there) = (read(&device, from), segments(&device));
        match slip {
            Slip::Swap => {
                write(&device, from, &read(&device, to));
                write(&device, to, &bytes);
            }
            Slip::CopyOver => write(&device, to, &bytes),
            Slip::Remove => device.remove_file(&Path::new(DIR).join(from)).unwrap(),
            Slip::Rename => {
                let (from, to) = (Path::new(DIR).join(from), Path::new(DIR).join(to));
                device.rename(&from, &to).unwrap();
            }
        }
        let before = segments(&device);
        match Log::open(DIR, setup.options(&device, false)) {
            Ok(log) => {
                let verdict = ledger.check(ledger.now(), Survives::Power, &find(&log).unwrap());
                if !verdict.holds() {
                    lost.push((slip, from, to));
                }
            }
            Err(error) => {
                assert!(
                    error.to_string().contains(".seg"),
                    "{slip:?} {from} {to}: {error}"
                );
                assert_eq!(
                    segments(&device),
                    before,
                    "{slip:?} {from} {to} of {there:?}: {error}"
                );
                refused += 1;
            }
        }
    }
    println!("figures: {refused} refused");
    assert!(
        lost.is_empty(),
        "opened without all commits: {lost:?} of {names:?}"
    );
    assert!(refused > 50);
}
