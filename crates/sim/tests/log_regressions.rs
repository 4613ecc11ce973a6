//! Crashes that recovery once got wrong, each by itself.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use collie_log::{Level, Log, Worker};
use collie_sim::images::{DIR, Setup, commit, find};
use collie_sim::{Commit, Image, Ledger, Points, PowerCut, SimDevice, Snapshot, Survives};

const SETUPS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

struct Process {
    setup: Setup,
    device: SimDevice,
    log: Log,
    worker: Worker,
}

impl Process {
    fn start(setup: Setup, device: SimDevice) -> Self {
        let log = Log::open(DIR, setup.options(&device, false)).unwrap();
        let worker = log.worker().unwrap();
        Self {
            setup,
            device,
            log,
            worker,
        }
    }

    fn commit(&mut self, ledger: &Ledger, len: usize, level: Level) {
        commit(&self.log, &mut self.worker, ledger, len, Some(level)).unwrap();
    }

    /// This process crashes; the next one starts with what it left.
    fn crash(self, leave: impl FnOnce(&Snapshot) -> Image) -> Self {
        let next = leave(&self.device.snapshot()).device();
        self.device.kill();
        Self::start(self.setup, next)
    }

    fn assert_all_there(&self, ledger: &Ledger, survives: Survives) {
        let verdict = ledger.check(ledger.now(), survives, &find(&self.log).unwrap());
        assert!(
            verdict.holds() && verdict.acknowledged > 0,
            "{:?}: {verdict}",
            self.setup
        );
    }
}

fn names_lost(snapshot: &Snapshot) -> Image {
    let way = PowerCut::WAYS.iter().find(|(name, _)| *name == "names lost");
    snapshot.power_cut(way.unwrap().1, 1)
}

#[test]
fn an_empty_epoch_that_comes_back_does_not_hide_the_older_ones() {
    for (shared, direct) in SETUPS {
        let ledger = Ledger::new();
        let mut process = Process::start(Setup::small(shared, direct), SimDevice::new(1));
        process.commit(&ledger, 500, Level::Disk);
        process.commit(&ledger, 500, Level::Disk);
        // The second epoch gets nothing; the third removes its segment, and that removal is lost.
        process = process.crash(Snapshot::process_death);
        process = process.crash(Snapshot::process_death);
        process.commit(&ledger, 500, Level::Disk);
        process = process.crash(names_lost);
        process.assert_all_there(&ledger, Survives::Power);
    }
}

#[test]
fn a_superseded_segment_that_comes_back_is_no_part_of_the_log_after_a_release() {
    for (shared, direct) in SETUPS {
        let ledger = Ledger::new();
        let mut process = Process::start(Setup::small(shared, direct), SimDevice::new(1));
        process.commit(&ledger, 100, Level::Disk);
        // The second epoch carries the frame over and removes the first segment, and that is lost.
        process = process.crash(Snapshot::process_death);
        process.commit(&ledger, 100, Level::Disk);
        process = process.crash(names_lost);
        process.assert_all_there(&ledger, Survives::Power);
        // Everything is given up: the segments that masked the old one go.
        process.commit(&ledger, 100, Level::Disk);
        process = process.crash(Snapshot::process_death);
        let durable = process.log.durable();
        ledger.released(durable);
        process.log.hold("test", durable);
        process.commit(&ledger, 100, Level::Disk);
        for crash in [names_lost, Snapshot::process_death] {
            let image = crash(&process.device.snapshot());
            let next = Process::start(process.setup, image.device());
            next.assert_all_there(&ledger, Survives::Power);
        }
    }
}

/// Opens the log and returns what it holds, and the moments of the recovery.
fn recover(setup: Setup, device: &SimDevice) -> (Vec<Commit>, Vec<Snapshot>) {
    device.record(Points::Changes, 1_000);
    let log = Log::open(DIR, setup.options(device, false)).unwrap();
    let moments = device.take_snapshots();
    let found = find(&log).unwrap();
    device.kill();
    (found, moments)
}

#[test]
fn a_recovery_interrupted_twice_anywhere_comes_to_the_same_end() {
    let mut recoveries = 0;
    for (shared, direct) in SETUPS {
        let ledger = Ledger::new();
        let mut process = Process::start(Setup::small(shared, direct), SimDevice::new(1));
        for (len, level) in [
            (900, Level::Disk),
            (60, Level::Process),
            (3_000, Level::Disk),
            (24, Level::Process),
        ] {
            process.commit(&ledger, len, level);
        }
        let left = process.device.snapshot().process_death();
        let (expected, moments) = recover(process.setup, &left.device());
        assert_eq!(expected.len(), 4);
        for once in &moments {
            let (found, again) = recover(process.setup, &once.process_death().device());
            assert_eq!(found, expected, "interrupted at {:?}", once.at());
            recoveries += 1;
            for twice in again.iter().step_by(3) {
                let (found, _) = recover(process.setup, &twice.process_death().device());
                assert_eq!(
                    found,
                    expected,
                    "interrupted at {:?} and {:?}",
                    once.at(),
                    twice.at()
                );
                recoveries += 1;
            }
        }
    }
    assert!(recoveries > 200, "{recoveries} recoveries");
}
