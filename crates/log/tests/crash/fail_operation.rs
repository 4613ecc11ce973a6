//! Every call that the log makes to its device is made to fail in turn, once for a moment and once
//! for good: the error says where and what, and after reopening on a healthy device nothing
//! acknowledged is lost.

#![expect(clippy::print_stdout, reason = "figures for the reader of the test's output")]

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_log::{Level, Log, LogError, Worker};
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice, Snapshot};

/// A process, its log and what it was promised.
struct World {
    setup: Setup,
    device: SimDevice,
    ledger: Ledger,
    log: Option<(Log, Worker)>,
}

type Act = fn(&mut World) -> Result<(), LogError>;

impl World {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            device: SimDevice::new(11),
            ledger: Ledger::new(),
            log: None,
        }
    }

    fn open(&mut self) -> Result<(), LogError> {
        let log = Log::open(DIR, self.setup.options(&self.device, false))?;
        let worker = log.worker()?;
        self.log = Some((log, worker));
        Ok(())
    }

    fn commit(&mut self, times: u32, len: usize, level: Option<Level>) -> Result<(), LogError> {
        let Some((log, worker)) = &mut self.log else {
            return Ok(());
        };
        (0..times).try_for_each(|_| commit(log, worker, &self.ledger, len, level))
    }

    fn flush(&mut self) -> Result<(), LogError> {
        let Some((log, _)) = &self.log else {
            return Ok(());
        };
        log.flush(Level::Disk).map(|_| ())
    }

    fn release(&mut self) -> Result<(), LogError> {
        if let Some((log, _)) = &self.log {
            let durable = log.durable();
            self.ledger.released(durable);
            log.retain("test", durable);
        }
        self.commit(1, 100, Some(Level::Disk))
    }

    fn close(&mut self) -> Result<(), LogError> {
        self.log.take().map_or(Ok(()), |(log, _worker)| log.close())
    }

    /// The process dies; the next one has not opened the log yet.
    fn die(&mut self) -> Result<(), LogError> {
        let next = self.device.snapshot().process_death().device();
        self.go_on(next);
        Ok(())
    }

    fn lose_power(&mut self) -> Result<(), LogError> {
        let (_, any) = PowerCut::WAYS[2];
        let next = self.device.snapshot().power_cut(any, 5).device();
        self.go_on(next);
        Ok(())
    }

    fn go_on(&mut self, next: SimDevice) {
        self.device.kill();
        self.log = None;
        self.device = next;
    }
}

/// What is done before any fault, and what is done with it.
const PHASES: [(&str, Act, Act); 9] = [
    ("open a fresh log", |_| Ok(()), World::open),
    ("append and wait", World::open, |w| {
        w.commit(3, 500, Some(Level::Disk))
    }),
    (
        "flush",
        |w| w.open().and_then(|()| w.commit(3, 500, Some(Level::Process))),
        World::flush,
    ),
    ("rotate", World::open, |w| w.commit(14, 3_000, Some(Level::Disk))),
    ("recover a ring", ring_is_left, World::open),
    ("recover after a power cut", power_was_lost, World::open),
    ("recover a closed log", closed, World::open),
    (
        "release",
        |w| w.open().and_then(|()| w.commit(25, 3_000, Some(Level::Disk))),
        World::release,
    ),
    (
        "close",
        |w| w.open().and_then(|()| w.commit(3, 500, Some(Level::Process))),
        World::close,
    ),
];

fn ring_is_left(w: &mut World) -> Result<(), LogError> {
    w.open()?;
    w.commit(2, 3_000, Some(Level::Disk))?;
    w.commit(3, 500, Some(Level::Process))?;
    w.die()
}

fn power_was_lost(w: &mut World) -> Result<(), LogError> {
    w.open()?;
    w.commit(12, 3_000, Some(Level::Disk))?;
    w.commit(3, 500, Some(Level::Process))?;
    w.lose_power()
}

fn closed(w: &mut World) -> Result<(), LogError> {
    w.open()?;
    w.commit(3, 500, Some(Level::Process))?;
    w.close()
}

fn judge(ledger: &Ledger, tag: u64, survives: Survives, device: &SimDevice, setup: Setup, context: &str) {
    let log = Log::open(DIR, setup.options(device, false)).unwrap_or_else(|e| panic!("{context}: {e}"));
    let found = find(&log).unwrap_or_else(|e| panic!("{context}: {e}"));
    let verdict = ledger.check(tag, survives, &found);
    assert!(verdict.holds(), "{context}: {verdict}");
}

/// The error, and with it every error of the log, says what was tried and on which path.
fn assert_says_where(error: &LogError, context: &str) {
    let text = error.to_string();
    assert!(
        [DIR, "/data", "/dev/shm", "boot id", "random"]
            .iter()
            .any(|place| text.contains(place)),
        "{context}: {text:?} does not say where"
    );
    assert!(
        text.contains("os error 5"),
        "{context}: {text:?} does not say what the device answered"
    );
}

/// Runs one phase with its `n`-th operation of a kind failing; `false` where it has no such operation.
fn run(number: usize, setup: Setup, kind: FaultKind, n: u64, lasting: bool) -> bool {
    let (name, before, act) = PHASES[number];
    let context = format!("{name}, {kind:?}, operation {n}, lasting: {lasting}, {setup:?}");
    let mut world = World::new(setup);
    before(&mut world).unwrap_or_else(|e| panic!("{context}: before any fault: {e}"));
    let fault = Fault::new(kind).after(n);
    world.device.inject(if lasting { fault } else { fault.once() });
    let result = act(&mut world);
    if world.device.fired(kind) == 0 {
        result.unwrap_or_else(|e| panic!("{context}: failed without a fault: {e}"));
        return false;
    }
    if let Err(error) = &result {
        assert_says_where(error, &context);
    }
    let tag = world.ledger.now();
    let snapshot: Snapshot = world.device.snapshot();
    let survives = if number == 5 {
        Survives::Power
    } else {
        Survives::Process
    };
    let after = |survives, device: &SimDevice, how: &str| {
        judge(
            &world.ledger,
            tag,
            survives,
            device,
            setup,
            &format!("{context}, {how}"),
        );
    };
    after(survives, &snapshot.process_death().device(), "process death");
    for shift in [0, 5] {
        let (how, cut) = PowerCut::WAYS[(usize::try_from(n).unwrap_or(0) + shift) % PowerCut::WAYS.len()];
        after(Survives::Power, &snapshot.power_cut(cut, n).device(), how);
    }
    world.device.heal();
    drop(world.log.take());
    after(survives, &world.device, "the same process opens it again");
    true
}

fn every_operation(number: usize) {
    let mut failed = 0;
    for (shared, direct) in [(true, true), (true, false), (false, true), (false, false)] {
        let setup = Setup::small(shared, direct);
        // What a sync fails to write is lost, and the next one succeeds: a failure of its own.
        for (kind, lasting) in [
            (FaultKind::AnyFails, false),
            (FaultKind::AnyFails, true),
            (FaultKind::SyncFails, false),
        ] {
            failed += (0..)
                .take_while(|&n| run(number, setup, kind, n, lasting))
                .count();
        }
    }
    println!("figures: {}: {failed} operations made to fail", PHASES[number].0);
    assert!(failed > 0);
}

macro_rules! phases {
    ($($name:ident = $number:literal),*) => {
        $(#[test]
        fn $name() {
            every_operation($number);
        })*
    };
}

phases!(
    nothing_is_lost_when_opening_a_fresh_log_fails = 0,
    nothing_is_lost_when_an_append_fails = 1,
    nothing_is_lost_when_a_flush_fails = 2,
    nothing_is_lost_when_a_rotation_fails = 3,
    nothing_is_lost_when_the_recovery_of_a_ring_fails = 4,
    nothing_is_lost_when_the_recovery_after_a_power_cut_fails = 5,
    nothing_is_lost_when_the_recovery_of_a_closed_log_fails = 6,
    nothing_is_lost_when_a_release_fails = 7,
    nothing_is_lost_when_closing_fails = 8
);
