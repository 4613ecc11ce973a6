//! Crashes at every moment of what recovery, rotation and release do; most of them were got wrong
//! once.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Commit, Ledger, Survives};
use collie_log::{Level, Log, Worker};
use collie_sim::{Image, Points, PowerCut, SimDevice, Snapshot};

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

    /// A fresh log, every moment of which is recorded with what the ledger held.
    fn recorded((shared, direct): (bool, bool), ledger: &Ledger) -> Self {
        let device = SimDevice::new(1);
        let process = Self::start(Setup::small(shared, direct), device);
        process.device.record(Points::Changes, 150);
        let tags = ledger.clone();
        process.device.tag_snapshots(move || tags.now());
        process
    }

    fn commit(&mut self, ledger: &Ledger, len: usize, level: Level) {
        commit(&self.log, &mut self.worker, ledger, len, Some(level)).unwrap();
    }

    fn release(&self, ledger: &Ledger) {
        let durable = self.log.durable();
        ledger.released(durable);
        self.log.retain("test", durable);
    }

    /// This process crashes; the next one starts with what it left.
    fn crash(self, leave: impl FnOnce(&Snapshot) -> Image) -> Self {
        let next = leave(&self.device.snapshot()).device();
        self.device.kill();
        Self::start(self.setup, next)
    }

    fn assert_all_there(&self, ledger: &Ledger, tag: u64, survives: Survives, context: &str) {
        let found = find(&self.log).unwrap_or_else(|e| panic!("{context}: {e}"));
        let verdict = ledger.check(tag, survives, &found);
        assert!(verdict.holds(), "{context}, {:?}: {verdict}", self.setup);
    }
}

fn way(name: &str) -> PowerCut {
    PowerCut::WAYS.iter().find(|(n, _)| *n == name).unwrap().1
}

/// Crashes a moment in the ways that matter most: the process dies, and the power goes and leaves
/// names lost, nothing but what was synced, and any of the rest.
fn crashes(moment: &Snapshot, seeds: u64) -> Vec<(String, Image, Survives)> {
    let at = format!("{:?}", moment.at());
    let mut images = vec![(
        format!("process death at {at}"),
        moment.process_death(),
        Survives::Process,
    )];
    for name in ["names lost", "lost"] {
        images.push((
            format!("{name} at {at}"),
            moment.power_cut(way(name), 1),
            Survives::Power,
        ));
    }
    for seed in 0..seeds {
        let image = moment.power_cut(way("any sectors"), seed);
        images.push((format!("any sectors ({seed}) at {at}"), image, Survives::Power));
    }
    images
}

/// Recovers every crash of every moment and judges it.
fn judge(moments: &[Snapshot], ledger: &Ledger, setup: Setup, seeds: u64) {
    for moment in moments {
        for (context, image, survives) in crashes(moment, seeds) {
            let next = Process::start(setup, image.device());
            next.assert_all_there(ledger, moment.tag(), survives, &context);
        }
    }
}

#[test]
fn epochs_that_come_back_neither_hide_nor_pass_for_the_log() {
    for (shared, direct) in SETUPS {
        // One commit: all of the first segment is superseded. Two: the last of them marks the
        // first.
        for (deaths, commits) in [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2)] {
            let ledger = Ledger::new();
            let mut process = Process::start(Setup::small(shared, direct), SimDevice::new(1));
            for _ in 0..commits {
                process.commit(&ledger, 500, Level::Disk);
            }
            for _ in 1..deaths {
                process = process.crash(Snapshot::process_death);
            }
            // The last recovery removes what it supersedes, and crashes anywhere.
            let device = process.device.snapshot().process_death().device();
            device.record(Points::Changes, 400);
            let last = Process::start(process.setup, device);
            for moment in last.device.take_snapshots() {
                for (context, image, _) in crashes(&moment, 2) {
                    let ledger = ledger.after(&find(&last.log).unwrap());
                    let mut next = Process::start(process.setup, image.device());
                    next.assert_all_there(&ledger, ledger.now(), Survives::Power, &context);
                    // What masks the superseded segments goes, and what is left begins after they
                    // end.
                    next.commit(&ledger, 100, Level::Disk);
                    next.commit(&ledger, 100, Level::Disk);
                    let dark = next.device.snapshot().power_cut(way("lost"), 1);
                    let dark = Process::start(process.setup, dark.device());
                    dark.assert_all_there(&ledger, ledger.now(), Survives::Power, &context);
                    next = next.crash(Snapshot::process_death);
                    next.release(&ledger);
                    next.commit(&ledger, 100, Level::Disk);
                    next = next.crash(|snapshot| snapshot.power_cut(way("names lost"), 1));
                    next.assert_all_there(&ledger, ledger.now(), Survives::Power, &context);
                }
            }
        }
    }
}

#[test]
fn reused_segments_keep_what_is_new_and_give_back_nothing_old() {
    for modes in SETUPS {
        let ledger = Ledger::new();
        let mut process = Process::recorded(modes, &ledger);
        // Frames of 512 bytes, of which a segment holds a whole number: old ones lie where new ones
        // go.
        for n in 0..400 {
            process.commit(&ledger, 480, Level::Disk);
            if n % 40 == 39 {
                process.release(&ledger);
            }
        }
        judge(&process.device.take_snapshots(), &ledger, process.setup, 1);
    }
}

#[test]
fn a_release_never_leaves_a_gap() {
    for modes in SETUPS {
        let ledger = Ledger::new();
        let mut process = Process::recorded(modes, &ledger);
        for _ in 0..70 {
            process.commit(&ledger, 3_000, Level::Disk);
        }
        let _ = process.device.take_snapshots();
        process.release(&ledger);
        process.commit(&ledger, 3_000, Level::Disk);
        judge(&process.device.take_snapshots(), &ledger, process.setup, 8);
    }
}

#[test]
fn a_death_in_the_middle_of_a_flight_loses_nothing_of_the_ring() {
    for modes in SETUPS {
        let ledger = Ledger::new();
        let mut process = Process::recorded(modes, &ledger);
        // Flights that straddle segments, with more in the ring than they take.
        for n in 0..60 {
            process.commit(&ledger, 700 + 37 * n, Level::Process);
        }
        judge(&process.device.take_snapshots(), &ledger, process.setup, 1);
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
