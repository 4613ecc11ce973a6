//! Names in the log's directory that a failed sync has lost: a later process does not see them, no
//! later sync makes up for them, and the next power cut brings them back.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::Path;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::Device;
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

#[test]
fn a_name_that_comes_back_when_what_followed_it_is_gone_is_not_taken_for_the_log() {
    let (mut poisoned, mut came_back) = (0, 0);
    for round in 0..1_200 {
        let number = round % 600;
        let (strike, archive, direct) = (number / 12, number % 2 == 0, number >= 300);
        let setup = Setup::small(false, direct);
        let setup = if number % 3 == 0 { setup.padded() } else { setup };
        let (device, ledger) = (SimDevice::new(number), Ledger::new());
        let tags = ledger.clone();
        device.tag_snapshots(move || tags.now());
        let options = |device: &SimDevice| LogOptions {
            // One that still has in the end what was under the lost name, and one that has not.
            archive_bytes: (u64::from(archive) * setup.segment_bytes) << (number / 2 % 2 * 5),
            ..setup.options(device, false)
        };
        assert!(live(options(&device), &ledger, 2), "a healthy device");
        let fault = Fault::new(FaultKind::SyncFails).on(DIR);
        // A device that is full may have room again: then the same process goes on.
        let code = if round < 600 { libc::EIO } else { libc::ENOSPC };
        device.inject(fault.code(code).after(strike).once());
        poisoned += u32::from(!live(options(&device), &ledger, 6));
        assert!(live(options(&device), &ledger, 4), "{number}: after the fault");

        let snapshot = device.snapshot();
        let after = snapshot.power_cut(PowerCut::WAYS[0].1, number).device();
        let (before, found) = (segments(&device), segments(&after));
        came_back += u32::from(found.iter().any(|name| !before.contains(name)));
        let log = Log::open(DIR, options(&after))
            .unwrap_or_else(|error| panic!("{number}: {error}; there were {before:?}, and now {found:?}"));
        let verdict = ledger.check(snapshot.tag(), Survives::Power, &find(&log).unwrap());
        assert!(verdict.holds(), "{number}: {verdict}");
    }
    println!("figures: {poisoned} failed syncs, after {came_back} of which a lost name came back");
    assert!(poisoned > 100 && came_back > 10);
}
