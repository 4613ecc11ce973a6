//! The headers of segments that hold what was acknowledged are written again: by the next open, by
//! a release, by a repair. A power cut then leaves anything in the block under way, and the next
//! recovery meets another one.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::Path;
use std::sync::Arc;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::{BLOCK, Device, OpenMode, write_all_at};
use collie_log::{Level, Log, LogError, RecoveryMode, inspect};
use collie_sim::{Data, Keep, Op, OpKind, Points, PowerCut, SimDevice};

const SETUPS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// Whole blocks that were on their way are destroyed, whatever they held before.
const DESTROYED: PowerCut = PowerCut {
    data: Data::GarbageBlocks,
    lengths: Keep::Kept,
    names: Keep::Kept,
};

fn demand_all(device: &SimDevice, setup: Setup, ledger: &Ledger, context: &str) {
    let log = Log::open(DIR, setup.options(device, false)).unwrap_or_else(|e| panic!("{context}: {e}"));
    let verdict = ledger.check(ledger.now(), Survives::Power, &find(&log).unwrap());
    assert!(verdict.holds(), "{context}: {verdict}");
}

/// Images of each moment.
fn seeds() -> u64 {
    if crate::thorough() { 6 } else { 2 }
}

/// The images of an open at the moments at which it has headers under way.
fn cuts_of_an_open(device: &SimDevice, setup: Setup) -> Vec<(String, SimDevice)> {
    let before = device.operations();
    device.record(Points::Changes, 400);
    let opened = Log::open(DIR, setup.options(device, false));
    let moments = device.take_snapshots();
    let trace = device.trace().into_iter().filter(|op| op.number > before);
    let is_header = |op: &Op| op.path.extension().is_some_and(|e| e == "seg") && op.offset < 2 * BLOCK as u64;
    let headers = trace.filter(|op| op.kind == OpKind::Write && op.len <= 2 * BLOCK as u64 && is_header(op));
    let headers: Vec<_> = headers.map(|op| op.number).collect();
    drop(opened);
    let mut images = Vec::new();
    for moment in moments {
        if headers
            .iter()
            .any(|header| (*header..header + 3).contains(&moment.op()))
        {
            for seed in 0..seeds() {
                let context = format!("{:?}, seed {seed}", moment.at());
                images.push((context, moment.power_cut(DESTROYED, seed).device()));
            }
        }
    }
    images
}

#[test]
fn two_power_cuts_in_recovery_lose_nothing() {
    let mut images = 0;
    for (shared, direct) in SETUPS {
        let setup = Setup::small(shared, direct);
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        for len in [100, 700, 24] {
            commit(&log, &mut worker, &ledger, len, Some(Level::Disk)).unwrap();
        }
        let left = device.snapshot().power_cut(DESTROYED, 0);
        device.kill();
        drop((worker, log));
        for (first, device) in cuts_of_an_open(&left.device(), setup) {
            let again = device.snapshot().process_death();
            demand_all(&device, setup, &ledger, &format!("{setup:?}, {first}"));
            for (second, device) in cuts_of_an_open(&again.device(), setup) {
                let context = format!("{setup:?}, {first}, then {second}");
                demand_all(&device, setup, &ledger, &context);
                images += 1;
            }
        }
    }
    // Of two openings.
    let least = 1_000 * seeds().pow(2) / 36;
    assert!(images > least, "{images} images");
}

#[test]
fn a_power_cut_in_a_reuse_destroys_no_live_header() {
    let mut images = 0;
    let one_in = if crate::thorough() { 1 } else { 3 };
    for (shared, direct) in SETUPS {
        // Blocks of data are not written again there.
        let setup = Setup::small(shared, direct).padded();
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let tags = ledger.clone();
        device.tag_snapshots(move || tags.now());
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        device.record(Points::Changes, 1_000);
        for n in 0..60 {
            commit(&log, &mut worker, &ledger, 3_000, Some(Level::Disk)).unwrap();
            if n % 10 == 9 {
                ledger.released(log.durable());
                log.retain("test", log.durable());
            }
        }
        for moment in device.take_snapshots().into_iter().step_by(one_in) {
            let context = format!("{setup:?}, {:?}", moment.at());
            let next = moment.power_cut(DESTROYED, images).device();
            let log =
                Log::open(DIR, setup.options(&next, false)).unwrap_or_else(|e| panic!("{context}: {e}"));
            let verdict = ledger.check(moment.tag(), Survives::Power, &find(&log).unwrap());
            assert!(verdict.holds(), "{context}: {verdict}");
            images += 1;
        }
    }
    assert!(images > 400 / one_in as u64, "{images} images");
}

/// A cut lowers what headers record: each keeps a whole copy.
#[test]
fn a_repair_never_has_both_copies_of_a_header_under_way() {
    let setup = Setup::small(false, false);
    let (device, ledger) = (SimDevice::new(1), Ledger::new());
    for _ in 0..3 {
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let mut worker = log.worker().unwrap();
        for _ in 0..4 {
            commit(&log, &mut worker, &ledger, 300, Some(Level::Disk)).unwrap();
        }
    }
    let options = setup.options(&device, false);
    let newest = device.list(Path::new(DIR)).unwrap().into_iter().map(|e| e.name);
    let newest = Path::new(DIR).join(newest.filter(|name| name.ends_with(".seg")).max().unwrap());
    let file = device.open(&newest, OpenMode::ReadWrite).unwrap();
    write_all_at(&*file, &[0xa5; 64], 2 * BLOCK as u64 + 400).unwrap();
    file.sync_data().unwrap();
    drop(file);
    let seam = Arc::new(device.clone()) as Arc<dyn Device>;
    let damage = inspect::inspect(&seam, Path::new(DIR), |_| {}).unwrap_err();
    assert!(matches!(damage, LogError::Corrupt { .. }), "{damage}");
    let before = device.operations();
    let options = collie_log::LogOptions {
        recovery_mode: RecoveryMode::PointInTimeRecovery,
        ..options
    };
    Log::open(DIR, options).unwrap();
    let mut under_way = None;
    let mut rewritten = 0;
    for op in device.trace().into_iter().filter(|op| op.number > before) {
        if *op.path != newest {
            continue;
        }
        match op.kind {
            OpKind::Write if op.offset < 2 * BLOCK as u64 => {
                let other = under_way.replace(op.offset);
                assert!(
                    other.is_none_or(|other| other == op.offset),
                    "{op}: the other copy is under way"
                );
                assert!(
                    op.offset % BLOCK as u64 + op.len <= BLOCK as u64,
                    "{op}: both copies with one write"
                );
                rewritten += 1;
            }
            OpKind::SyncData => under_way = None,
            _ => {}
        }
    }
    assert!(rewritten >= 2, "{rewritten} copies were written");
}
