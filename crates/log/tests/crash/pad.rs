//! Flights that end with a block: no block that holds acknowledged bytes is written again, so that
//! a device may destroy what it is about to replace.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::Path;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::{BLOCK, Device, OpenMode, read_exact_at};
use collie_log::{Level, Log, LogError, Lsn, RingOutcome, Room, Worker};
use collie_sim::{Data, Keep, Op, OpKind, Points, PowerCut, SimDevice, Snapshot};

const SETUPS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];
/// Lengths of payloads: such as leave a block with less than a header's room, fill it, or go beyond
/// it.
const LENS: [usize; 9] = [24, 100, 4_040, 4_000, 4_064, 3_000, 4_048, 500, 2_000];

/// The power goes, and whole blocks that were on their way are destroyed, whatever they held
/// before.
const DESTROYED: PowerCut = PowerCut {
    data: Data::GarbageBlocks,
    lengths: Keep::Kept,
    names: Keep::Kept,
};

fn open(device: &SimDevice, setup: Setup) -> (Log, Worker) {
    let log = Log::open(DIR, setup.options(device, false)).unwrap();
    let worker = log.worker().unwrap();
    (log, worker)
}

/// Where in the log the data of a segment begins, as its header says.
fn first_lsn(device: &SimDevice, path: &Path) -> Lsn {
    let mut lsn = [0; 8];
    let file = device.open(path, OpenMode::Read).unwrap();
    read_exact_at(&*file, &mut lsn, 40).unwrap();
    Lsn::from_le_bytes(lsn)
}

/// The LSN from which on an operation wrote, if it wrote to a segment's data.
fn written_from(device: &SimDevice, op: &Op) -> Option<Lsn> {
    let is_write = matches!(op.kind, OpKind::Write | OpKind::DirectWrite);
    if !is_write || op.offset < 2 * BLOCK as u64 || op.path.extension().is_none_or(|e| e != "seg") {
        return None;
    }
    Some(first_lsn(device, &op.path) + op.offset - 2 * BLOCK as u64)
}

/// Demands that nothing below `acknowledged` was written since operation `since`; returns the
/// number of writes.
fn demand_fresh_blocks(device: &SimDevice, since: u64, acknowledged: Lsn, context: &str) -> usize {
    let trace = device.trace().into_iter().filter(|op| op.number > since);
    let starts = trace.filter_map(|op| written_from(device, &op).map(|start| (op, start)));
    let mut count = 0;
    for (op, start) in starts {
        assert!(
            start >= acknowledged,
            "{context}: {op} writes again from LSN {start} on, of which all below {acknowledged} was acknowledged"
        );
        count += 1;
    }
    count
}

#[test]
fn no_block_that_holds_acknowledged_bytes_is_written_again() {
    for (shared, direct) in SETUPS {
        let setup = Setup::small(shared, direct).padded();
        let (device, ledger) = (SimDevice::new(1), Ledger::new());
        let mut writes = 0;
        for life in 0..4 {
            let (log, mut worker) = open(&device, setup);
            for n in 0..60 {
                let context = format!("{setup:?}, life {life}, commit {n}");
                let level = [Level::Disk, Level::Process, Level::Disk, Level::Buffered][n % 4];
                let (since, acknowledged) = (device.operations(), log.written());
                let len = LENS[(n * 7 + life) % LENS.len()];
                commit(&log, &mut worker, &ledger, len, Some(level)).unwrap();
                writes += demand_fresh_blocks(&device, since, acknowledged, &context);
            }
            log.flush(Level::Disk).unwrap();
            let (since, acknowledged) = (device.operations(), log.durable());
            assert_eq!(acknowledged, log.appended(), "a filler stands at the end");
            assert!(log.stats().filler_bytes > 0);
            drop(worker);
            log.close().unwrap();
            writes += demand_fresh_blocks(&device, since, acknowledged, &format!("{setup:?}, close {life}"));
            let (log, _worker) = open(&device, setup);
            assert_eq!(log.recovery().ring, RingOutcome::Closed);
            assert_eq!(log.recovery().torn, None);
            let verdict = ledger.check(ledger.now(), Survives::Process, &find(&log).unwrap());
            assert!(verdict.holds(), "{setup:?}, life {life}: {verdict}");
        }
        assert!(writes > 100, "{setup:?}: {writes} writes");
    }
}

/// The moments of a process that commits, dies and goes on with what it left.
fn moments(setup: Setup, ledger: &Ledger) -> Vec<Snapshot> {
    let device = SimDevice::new(1);
    let (log, mut worker) = open(&device, setup);
    commit(&log, &mut worker, ledger, 700, Some(Level::Disk)).unwrap();
    let device = device.snapshot().process_death().device();
    drop((log, worker));
    let tags = ledger.clone();
    device.tag_snapshots(move || tags.now());
    // The open writes the header of the epoch before again, as it is.
    let (log, mut worker) = open(&device, setup);
    device.record(Points::Changes, 200);
    for n in 0..40 {
        commit(&log, &mut worker, ledger, LENS[n % LENS.len()], Some(Level::Disk)).unwrap();
    }
    drop(worker);
    log.close().unwrap();
    device.take_snapshots()
}

/// How many images lost what was acknowledged, or refused to open.
fn failures(setup: Setup) -> usize {
    let ledger = Ledger::new();
    let mut failures = 0;
    for moment in moments(setup, &ledger) {
        for seed in 0..4 {
            let next = moment.power_cut(DESTROYED, seed).device();
            let holds = match Log::open(DIR, setup.options(&next, false)) {
                Ok(log) => ledger
                    .check(moment.tag(), Survives::Power, &find(&log).unwrap())
                    .holds(),
                Err(LogError::Corrupt { .. }) => false,
                Err(error) => panic!("{error}"),
            };
            failures += usize::from(!holds);
        }
    }
    failures
}

#[test]
fn destroying_a_rewritten_block_takes_nothing_acknowledged() {
    for (shared, direct) in SETUPS {
        let setup = Setup::small(shared, direct);
        assert!(
            failures(setup) > 0,
            "{setup:?}: without fillers something is lost"
        );
        assert_eq!(failures(setup.padded()), 0, "{setup:?}");
    }
}

#[test]
fn a_full_disk_refuses_appends_and_has_room_for_every_filler() {
    for (shared, direct) in SETUPS {
        let setup = Setup::small(shared, direct).padded();
        for room in (100_000..600_000).step_by(41_000) {
            let (device, ledger) = (SimDevice::new(room), Ledger::new());
            let (log, mut worker) = open(&device, setup);
            device.limit_space(Some(room));
            let mut n = 0;
            let refused = loop {
                n += 1;
                match commit(
                    &log,
                    &mut worker,
                    &ledger,
                    LENS[n % LENS.len()],
                    Some(Level::Disk),
                ) {
                    Ok(()) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(refused, LogError::StorageFull { .. }), "{refused}");
            // Marks have room left, and each is flushed by itself.
            let mut marks = 0;
            while let Ok(span) = worker.append_in(Room::Mark, 0, 0, &[]) {
                log.wait(span.end, Level::Disk).unwrap();
                marks += 1;
            }
            assert!(marks > 0, "{setup:?} with room for {room}: no mark");
            log.flush(Level::Disk).unwrap();
            assert!(log.poisoned().is_none());
        }
    }
}
