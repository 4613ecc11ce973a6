//! What a crash may find where segments were released: the log begins in the middle of an epoch
//! then, and often in the middle of a frame.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::path::Path;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::{BLOCK, Device, OpenMode, read_exact_at, write_all_at};
use collie_log::{FIRST_LSN, Level, Log, LogError, Worker};
use collie_sim::{Data, Keep, Points, PowerCut, SimDevice, Snapshot};

/// A program that gives up all that is durable after each commit.
struct Releasing {
    setup: Setup,
    ledger: Ledger,
    device: SimDevice,
    log: Log,
    worker: Worker,
}

impl Releasing {
    /// All moments between its operations are remembered.
    fn begin(setup: Setup, seed: u64) -> Self {
        let (device, ledger) = (SimDevice::new(seed), Ledger::new());
        let tags = ledger.clone();
        device.tag_snapshots(move || tags.now());
        device.record(Points::Changes, 1_000);
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let worker = log.worker().unwrap();
        Self {
            setup,
            ledger,
            device,
            log,
            worker,
        }
    }

    fn commit(&mut self, len: usize, count: u32) {
        for left in (0..count).rev() {
            let level = (left == 0).then_some(Level::Disk);
            commit(&self.log, &mut self.worker, &self.ledger, len, level).unwrap();
        }
        self.ledger.released(self.log.durable());
        self.log.retain("test", self.log.durable());
    }

    fn open(&self, device: &SimDevice) -> Result<Log, LogError> {
        Log::open(DIR, self.setup.options(device, false))
    }

    /// Demands that a log holds what was acknowledged at that moment.
    fn check(&self, moment: &Snapshot, survives: Survives, log: &Log, context: &str) {
        let found = find(log).unwrap();
        let verdict = self.ledger.check(moment.tag(), survives, &found);
        assert!(verdict.holds(), "{context}: {verdict}");
    }
}

/// With frames of a block each, several with one write, that end where a segment of seven blocks
/// does.
fn of_blocks(direct: bool) -> Setup {
    Setup {
        ring_bytes: 32 << 10,
        segment_bytes: 9 * BLOCK as u64,
        ..Setup::small(true, direct).padded()
    }
}

/// Whole blocks are there or not, in any order.
const ANY_BLOCKS: PowerCut = PowerCut {
    data: Data::AnyBlocks,
    lengths: Keep::Kept,
    names: Keep::Kept,
};

#[test]
fn a_log_does_not_begin_behind_blocks_that_the_power_took() {
    let mut images = 0;
    for seed in 0..3 {
        let mut program = Releasing::begin(of_blocks(true), seed);
        for frames in [3, 4, 3, 4, 2, 5, 4, 3] {
            program.commit(4_064, frames);
        }
        for moment in program.device.take_snapshots() {
            for cut in 0..4 {
                let device = moment.power_cut(ANY_BLOCKS, cut).device();
                let context = format!("seed {seed}, {:?}, cut {cut}", moment.at());
                let log = program.open(&device).unwrap_or_else(|e| panic!("{context}: {e}"));
                program.check(&moment, Survives::Power, &log, &context);
                images += 1;
            }
        }
    }
    assert!(images > 400, "{images} images");
}

/// Makes a segment what a version with format 2 would have left: both copies of the header in one
/// block, without the LSN of its first frame.
fn make_format_2(device: &SimDevice, path: &Path) {
    let file = device.open(path, OpenMode::ReadWrite).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().len as usize];
    read_exact_at(&*file, &mut bytes, 0).unwrap();
    let mut header = bytes[..378].to_vec();
    header[8] = 2;
    let crc = crc32c::crc32c(&header).to_le_bytes();
    let mut block = [header, crc.to_vec()].concat();
    block.resize(BLOCK / 2, 0);
    let old = [&block, &block, &bytes[2 * BLOCK..]].concat();
    file.set_len(0).unwrap();
    write_all_at(&*file, &old, 0).unwrap();
}

#[test]
fn first_frames_that_only_the_ring_knows_are_missed() {
    for (blocks, format) in (1..=7).flat_map(|blocks| [(blocks, 2), (blocks, 3)]) {
        let setup = Setup {
            // What is archived is not in the log's directory any more.
            archive: true,
            ..of_blocks(true)
        };
        let mut program = Releasing::begin(setup, 7);
        // The second segment is not full: it stays when the first one is released.
        for frames in [3, 4, 3, 3] {
            program.commit(4_064, frames);
        }
        let device = program.device.snapshot().process_death().device();
        let oldest = Path::new(DIR).join("0000000000000002.seg");
        let begins = FIRST_LSN + 7 * BLOCK as u64;
        if format == 2 {
            let names = device.list(Path::new(DIR)).unwrap().into_iter().map(|e| e.name);
            for name in names.filter(|name| name.ends_with(".seg")) {
                make_format_2(&device, &Path::new(DIR).join(name));
            }
        }
        let file = device.open(&oldest, OpenMode::ReadWrite).unwrap();
        let data = if format == 2 { BLOCK } else { 2 * BLOCK };
        write_all_at(&*file, &vec![0; blocks * BLOCK], data as u64).unwrap();
        match (program.open(&device), format) {
            (Err(LogError::BeginningUnknown { path, lsn, why }), 2) => {
                assert!(why.contains("the ring knows of a frame"), "{why}");
                assert_eq!((path, lsn), (oldest, begins));
            }
            (Err(LogError::Corrupt { path, lsn, .. }), 3) => assert_eq!((path, lsn), (oldest, begins)),
            // The ring has all of it: it is read from there.
            (Ok(log), 3) if log.recovery().first_frame == begins => {
                let ledger = &program.ledger;
                let verdict = ledger.check(ledger.now(), Survives::Process, &find(&log).unwrap());
                assert!(verdict.holds(), "{blocks} blocks are gone: {verdict}");
            }
            (opened, _) => panic!(
                "format {format}, {blocks} blocks are gone: {:?}",
                opened.map(|log| log.recovery().clone())
            ),
        }
    }
}
