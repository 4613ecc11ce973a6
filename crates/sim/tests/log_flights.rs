//! Several writes of one log in the air at once: they end in any order, and are believed in theirs.
//!
//! The device holds the writes and lets them go one by one; what it would leave behind a power cut at that
//! moment is opened as the next process would.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::thread::JoinHandle;

use collie_log::{Level, Log, LogError, LogOptions, Span};
use collie_sim::images::{DIR, Setup};
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice, WriteGate};

/// Two flights' worth of frames: the first one's end lies in a whole block, the second's in the last.
const LENS: [usize; 2] = [16 << 10, 9 << 10];

struct InTheAir {
    /// Dropped before the log, whose close writes.
    gate: WriteGate,
    device: SimDevice,
    log: Log,
    /// Where the log ended before.
    start: u64,
    spans: [Span; 2],
    waiters: [JoinHandle<Result<(), LogError>>; 2],
}

fn options(device: &SimDevice) -> LogOptions {
    let setup = Setup {
        ring_bytes: 64 << 10,
        segment_bytes: 128 << 10,
        ..Setup::small(true, true)
    };
    setup.options(device, false)
}

/// A log with two writes in the air, which the gate holds.
fn two_in_the_air() -> InTheAir {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device)).unwrap();
    let mut worker = log.worker().unwrap();
    let start = log.appended();
    let spans = LENS.map(|len| worker.append(0, 0, &vec![7; len]).unwrap());
    let gate = device.hold_direct_writes();
    let mut came = 0;
    let waiters = spans.map(|span| {
        let log = log.clone();
        let waiter = std::thread::spawn(move || log.wait(span.end, Level::Disk));
        came += 1;
        gate.wait_for(came);
        waiter
    });
    InTheAir {
        device,
        log,
        gate,
        start,
        spans,
        waiters,
    }
}

fn lens(log: &Log, from: u64) -> Vec<usize> {
    let frames = log.read(from).unwrap();
    frames.map(|frame| frame.unwrap().payload.len()).collect()
}

#[test]
fn a_write_that_ends_before_an_earlier_one_is_not_believed() {
    let air = two_in_the_air();
    air.gate.let_go(1);
    // A power cut now leaves a hole before what was written; nothing of either was acknowledged.
    for (name, way) in PowerCut::WAYS {
        for seed in 0..20 {
            let next = air.device.snapshot().power_cut(way, seed).device();
            let log = Log::open(DIR, options(&next)).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
            let found = lens(&log, log.recovery().first_frame);
            assert_eq!(found, [0; 0], "{name}, seed {seed}");
        }
    }
    // The process's death leaves its ring, and with it everything.
    let next = air.device.snapshot().process_death().device();
    let log = Log::open(DIR, options(&next)).unwrap();
    assert_eq!(lens(&log, log.recovery().first_frame), LENS);

    assert!(air.waiters.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(air.log.durable(), air.start);
    air.gate.let_go(0);
    for waiter in air.waiters {
        waiter.join().unwrap().unwrap();
    }
    assert_eq!(air.log.durable(), air.spans[1].end);
    let next = air.device.snapshot().power_cut(PowerCut::WAYS[0].1, 1).device();
    let log = Log::open(DIR, options(&next)).unwrap();
    assert_eq!(lens(&log, log.recovery().first_frame), LENS);
}

#[test]
fn writes_that_end_in_their_order_are_acknowledged_one_by_one() {
    let air = two_in_the_air();
    let [first, second] = air.waiters;
    air.gate.let_go(0);
    first.join().unwrap().unwrap();
    assert!(!second.is_finished());
    let durable = air.log.durable();
    assert!(
        (air.spans[0].end..air.spans[1].end).contains(&durable),
        "{durable}"
    );
    air.gate.let_go(1);
    second.join().unwrap().unwrap();
}

#[test]
fn a_failed_write_takes_those_behind_it_along() {
    let air = two_in_the_air();
    air.gate.let_go(1);
    air.device.inject(Fault::new(FaultKind::WriteFails).on(DIR));
    air.gate.let_go(0);
    for waiter in air.waiters {
        let refused = waiter.join().unwrap();
        assert!(matches!(refused, Err(LogError::Poisoned { .. })), "{refused:?}");
    }
    assert_eq!(air.log.durable(), air.start);
    assert!(air.log.close().is_err());
}

/// Whoever was refused is refused by all: what is in doubt does not become certain in the running log.
#[test]
fn a_write_that_ends_well_after_the_failure_moves_nothing() {
    let air = two_in_the_air();
    air.device
        .inject(Fault::new(FaultKind::WriteFails).on(DIR).once());
    air.gate.let_go(1);
    while air.log.failure().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(air.log.failure().unwrap().durable, air.start);
    air.gate.let_go(0);
    for waiter in air.waiters {
        let refused = waiter.join().unwrap();
        assert!(matches!(refused, Err(LogError::Poisoned { .. })), "{refused:?}");
    }
    assert_eq!(air.log.durable(), air.start);
    for level in [Level::Process, Level::Disk] {
        let refused = air.log.wait(air.spans[0].end, level);
        assert!(
            matches!(refused, Err(LogError::Poisoned { .. })),
            "{level:?}: {refused:?}"
        );
        air.log.wait(air.start, level).unwrap();
    }
}

#[test]
fn no_block_is_in_two_writes_at_once() {
    let device = SimDevice::new(1);
    let log = Log::open(DIR, options(&device)).unwrap();
    let mut worker = log.worker().unwrap();
    let gate = device.hold_direct_writes();
    // The first flight ends in the middle of a block, so the next one has to wait for it.
    let wait = |end| {
        let log = log.clone();
        std::thread::spawn(move || log.wait(end, Level::Disk))
    };
    let first = worker.append(0, 0, &[1; 100]).unwrap();
    let first = wait(first.end);
    gate.wait_for(1);
    let second = worker.append(0, 0, &vec![2; 20 << 10]).unwrap();
    let third = worker.append(0, 0, &vec![3; 9 << 10]).unwrap();
    let others = [wait(second.end), wait(third.end)];
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(gate.came(), 1);
    gate.let_go(0);
    first.join().unwrap().unwrap();
    drop(gate);
    for other in others {
        other.join().unwrap().unwrap();
    }
    let next = device.snapshot().power_cut(PowerCut::WAYS[0].1, 1).device();
    let log = Log::open(DIR, options(&next)).unwrap();
    assert_eq!(lens(&log, log.recovery().first_frame), [100, 20 << 10, 9 << 10]);
}
