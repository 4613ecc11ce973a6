//! Group commit: nobody sleeps for ever, and nobody is told too early.

use std::ops::Range;
use std::sync::{Arc, Weak};

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::{Bytes, FRAME, Model, THREE, TWO, explore};
use crate::Lsn;
use crate::gate::{Gate, IN_FLIGHT_MAX, Pilot, Start, Takeoff};

/// How far a flight goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Written,
    Durable,
}

/// How a flight goes about it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Writes and syncs with the lead in hand, as the log does where it needs a sync.
    Alone,
    /// Writes durably without the lead, so that several are in the air.
    Abreast,
    /// As `Abreast`, but one at a time.
    InTurn,
    /// As `Abreast`, and fails.
    Failing,
    /// As `Failing`, and ends after all who sleep behind it have been told.
    Hanging,
}

/// A log whose frames are complete once they are reserved, and its device.
struct Store {
    gate: Gate<Store>,
    way: Way,
    appended: AtomicU64,
    written: AtomicU64,
    durable: AtomicU64,
    poisoned: AtomicBool,
    flying: AtomicU64,
    device: Bytes,
    /// The most that one flight takes.
    load: Lsn,
    /// Whether somebody waits for room. Telling him is without effect elsewhere, and dear to explore.
    room_wanted: bool,
    me: Weak<Store>,
}

impl Pilot for Store {
    /// Everything below is written or in the air.
    type Desk = Lsn;
    type Load = Range<Lsn>;
    type Until = Until;

    fn start(
        &self,
        started: &mut Lsn,
        end: Lsn,
        until: Until,
        takeoff: &mut Takeoff<'_>,
    ) -> Start<Range<Lsn>> {
        if self.poisoned.load(Ordering::Acquire) {
            return Start::Idle;
        }
        let target = self.appended.load(Ordering::Acquire).min(*started + self.load);
        if self.way == Way::Alone {
            self.write_and_sync(started, target, until, takeoff)
        } else if target > *started {
            takeoff.announce(target);
            Start::Off(std::mem::replace(started, target)..target)
        } else if end > *started {
            Start::Idle
        } else {
            Start::Wait
        }
    }

    fn fly(&self, load: &mut Range<Lsn>) -> bool {
        match self.way {
            Way::Alone => unreachable!(),
            Way::Abreast | Way::InTurn => {
                self.flying.fetch_add(1, Ordering::AcqRel);
                self.write(load.clone());
                self.flying.fetch_sub(1, Ordering::AcqRel);
            }
            Way::Failing => self.poison(),
            Way::Hanging => {
                let me = self.me.upgrade().unwrap();
                let end = load.end;
                let asleep = [
                    run(&me, move |store| !store.wait(end)),
                    run(&me, move |store| !store.wait_for_room(end)),
                ];
                self.poison();
                join(asleep);
            }
        }
        matches!(self.way, Way::Abreast | Way::InTurn)
    }

    fn land(&self, _started: &mut Lsn, load: Range<Lsn>) {
        self.written.store(load.end, Ordering::Release);
        self.durable.store(load.end, Ordering::Release);
    }

    fn must_wait(&self, started: &Lsn) -> bool {
        self.way == Way::InTurn && *started > self.durable.load(Ordering::Acquire)
    }

    fn landed(&self) {}
}

impl Store {
    fn new(way: Way, frames: usize, load: Lsn, room_wanted: bool) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            gate: Gate::new(0, IN_FLIGHT_MAX),
            way,
            appended: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            flying: AtomicU64::new(0),
            device: Bytes::new(frames),
            load,
            room_wanted,
            me: me.clone(),
        })
    }

    fn append(&self) -> Lsn {
        self.appended.fetch_add(FRAME, Ordering::AcqRel) + FRAME
    }

    fn write(&self, load: Range<Lsn>) {
        load.step_by(FRAME as usize)
            .for_each(|lsn| self.device.write(lsn));
    }

    /// A flight with the lead in hand, in the order of the log's own.
    fn write_and_sync(
        &self,
        started: &mut Lsn,
        target: Lsn,
        until: Until,
        takeoff: &mut Takeoff<'_>,
    ) -> Start<Range<Lsn>> {
        let unsynced = self.durable.load(Ordering::Acquire) < *started;
        if target == *started && (until == Until::Written || !unsynced) {
            return Start::Idle;
        }
        takeoff.announce(target);
        if *started < target {
            self.write(std::mem::replace(started, target)..target);
            self.written.store(target, Ordering::Release);
            if self.room_wanted {
                self.gate.made_room();
            }
        }
        if until == Until::Durable {
            self.durable.store(target, Ordering::Release);
        }
        Start::Over
    }

    /// Waits for `end` on the device; `false` where the log was poisoned before.
    fn wait(&self, end: Lsn) -> bool {
        self.wait_until(end, Until::Durable)
    }

    /// Waits for `end`, written or durable, as the levels of a log with a private ring do.
    fn wait_until(&self, end: Lsn, until: Until) -> bool {
        let mark = match until {
            Until::Written => &self.written,
            Until::Durable => &self.durable,
        };
        let answer = self.gate.wait(self, end, until, || self.told(mark, end));
        if answer {
            self.device.check_all(0, end);
        }
        answer
    }

    /// Waits until everything below `end` was read out of the ring, as an append to a full ring does.
    fn wait_for_room(&self, end: Lsn) -> bool {
        let told = || self.told(&self.written, end);
        let answer = self.gate.wait_for_room(self, end, Until::Written, told);
        if answer {
            self.device.check_all(0, end);
        }
        answer
    }

    fn told(&self, mark: &AtomicU64, end: Lsn) -> Option<bool> {
        match (
            mark.load(Ordering::Acquire) >= end,
            self.poisoned.load(Ordering::Acquire),
        ) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }

    fn commit(&self) -> bool {
        self.wait(self.append())
    }

    fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
        self.gate.wake_all();
    }
}

/// Runs `work` on a thread of its own; it must come out true.
fn run(store: &Arc<Store>, work: impl FnOnce(&Store) -> bool + 'static) -> thread::JoinHandle<()> {
    let store = Arc::clone(store);
    thread::spawn(move || assert!(work(&store)))
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// `waiters` threads, the caller among them, commit a frame each.
fn commit_all(way: Way, waiters: usize, load: Lsn) {
    let store = Store::new(way, waiters, load, false);
    let others: Vec<_> = (1..waiters).map(|_| run(&store, Store::commit)).collect();
    assert!(store.commit());
    join(others);
}

#[test]
fn two_waiters_are_both_served_and_never_early() {
    explore("gate, 2 waiters", THREE, || {
        commit_all(Way::Alone, 2, Lsn::MAX / 2)
    });
}

#[test]
fn three_waiters_are_all_served_and_never_early() {
    explore("gate, 3 waiters", Some(1), || {
        commit_all(Way::Alone, 3, Lsn::MAX / 2)
    });
}

#[test]
fn waiters_of_the_next_group_are_served_by_the_next_flight() {
    explore("gate, 2 waiters, one frame per flight", THREE, || {
        commit_all(Way::Alone, 2, FRAME)
    });
}

#[test]
fn two_flights_abreast_serve_their_waiters_and_never_early() {
    explore("gate, 2 waiters, flights abreast", THREE, || {
        commit_all(Way::Abreast, 2, FRAME);
    });
}

#[test]
fn flights_that_must_wait_for_each_other_serve_all_waiters() {
    explore("gate, 2 waiters, flights in turn", THREE, || {
        commit_all(Way::InTurn, 2, FRAME);
    });
    explore("gate, 3 waiters, flights in turn", Some(1), || {
        commit_all(Way::InTurn, 3, FRAME);
    });
}

#[test]
fn who_wants_room_is_served_by_flights_in_turn() {
    explore("gate, a room waiter and a waiter, flights in turn", THREE, || {
        let store = Store::new(Way::InTurn, 2, FRAME, true);
        let ends = [store.append(), store.append()];
        let room = run(&store, move |store| store.wait_for_room(ends[1]));
        assert!(store.wait(ends[0]));
        join([room]);
    });
}

#[test]
fn three_flights_abreast_land_in_their_order() {
    explore("gate, 3 waiters, flights abreast", Some(1), || {
        commit_all(Way::Abreast, 3, FRAME);
    });
}

#[test]
fn one_who_waits_for_the_second_of_two_flights_abreast_is_served() {
    explore("gate, flights abreast, a waiter for both", THREE, || {
        let store = Store::new(Way::Abreast, 2, FRAME, false);
        let ends = [store.append(), store.append()];
        let first = run(&store, move |store| store.wait(ends[0]));
        assert!(store.wait(ends[1]));
        join([first]);
    });
}

/// Two waiters for one flight, and a third thread.
fn two_on_board_and(third: impl FnOnce(&Store, Lsn) -> bool + 'static) {
    let store = Store::new(Way::Abreast, 2, Lsn::MAX / 2, false);
    let end = store.append();
    let others = [
        run(&store, move |store| store.wait(end)),
        run(&store, move |store| third(store, end)),
    ];
    assert!(store.wait(end));
    join(others);
}

/// With five preemptions, which take minutes, it also shows that who was served does not sleep among the next group.
#[test]
fn three_on_board_of_one_flight_are_all_served() {
    explore("gate, 3 waiters for one flight", TWO, || {
        two_on_board_and(Store::wait);
    });
}

#[test]
fn who_is_served_wakes_the_next_group_all_the_same() {
    explore("gate, 2 waiters for one flight and a committer", TWO, || {
        two_on_board_and(|store, _| store.commit());
    });
}

#[test]
fn what_is_done_alone_meets_no_flight() {
    explore("gate, flights abreast and one alone", THREE, || {
        let store = Store::new(Way::Abreast, 1, FRAME, false);
        let waiter = run(&store, Store::commit);
        store
            .gate
            .alone(|| assert_eq!(store.flying.load(Ordering::Acquire), 0));
        join([waiter]);
    });
}

#[test]
fn who_came_on_board_of_a_flight_that_only_wrote_is_woken_all_the_same() {
    explore("gate, a flight that only wrote and 2 waiters", TWO, || {
        let store = Store::new(Way::Alone, 2, Lsn::MAX / 2, true);
        let ends = [store.append(), store.append()];
        assert!(store.wait_for_room(2 * FRAME));
        let waiters = ends.map(|end| run(&store, move |store| store.wait(end)));
        assert!(store.wait(2 * FRAME));
        join(waiters);
    });
}

/// A waiter for `Process` and two for `Disk` commit a frame each, over a private ring.
fn commit_at_two_levels(load: Lsn) {
    let store = Store::new(Way::Alone, 3, load, false);
    let others = [Until::Written, Until::Durable]
        .map(|until| run(&store, move |store| store.wait_until(store.append(), until)));
    assert!(store.commit());
    join(others);
}

#[test]
fn waiters_of_two_levels_are_all_served() {
    explore("gate, waiters of two levels", TWO, || {
        commit_at_two_levels(Lsn::MAX / 2);
    });
}

#[test]
fn waiters_of_two_levels_are_all_served_by_flights_of_one_frame() {
    explore(
        "gate, waiters of two levels, one frame per flight",
        Some(1),
        || {
            commit_at_two_levels(FRAME);
        },
    );
}

#[test]
fn a_flight_that_only_wrote_and_one_that_fails_leave_nobody_asleep() {
    explore("gate, waiters of two levels and poison", TWO, || {
        let store = Store::new(Way::Alone, 2, Lsn::MAX / 2, false);
        let ends = [store.append(), store.append()];
        // Each is told either way.
        let waiter = run(&store, move |store| {
            store.wait(ends[0]);
            true
        });
        let writer = run(&store, move |store| {
            store.wait_until(ends[1], Until::Written);
            true
        });
        store.poison();
        join([waiter, writer]);
    });
}

#[test]
fn a_flight_that_fails_tells_everybody() {
    explore("gate, a flight that fails and 2 waiters", THREE, || {
        let store = Store::new(Way::Failing, 2, FRAME, false);
        let ends = [store.append(), store.append()];
        let waiter = run(&store, move |store| !store.wait(ends[0]));
        assert!(!store.wait(ends[1]));
        join([waiter]);
    });
}

#[test]
fn poison_wakes_who_sleeps_behind_a_flight_that_hangs() {
    explore("gate, poison under a flight that hangs, 2 waiters", THREE, || {
        let store = Store::new(Way::Hanging, 1, Lsn::MAX / 2, true);
        assert!(!store.wait(store.append()));
    });
}

#[test]
fn who_wants_room_is_woken_by_the_flight_of_another() {
    explore("gate, a room waiter and a waiter", THREE, || {
        let store = Store::new(Way::Alone, 1, Lsn::MAX / 2, true);
        let end = store.append();
        let room = run(&store, move |store| store.wait_for_room(end));
        assert!(store.wait(end));
        join([room]);
    });
}

#[test]
fn two_who_want_room_and_a_waiter_are_all_served() {
    explore("gate, 2 room waiters and a waiter", TWO, || {
        let store = Store::new(Way::Alone, 2, FRAME, true);
        let ends = [store.append(), store.append()];
        let rooms = ends.map(|end| run(&store, move |store| store.wait_for_room(end)));
        assert!(store.wait(ends[0]));
        join(rooms);
    });
}

/// A log that is herded, and its device.
struct Herded {
    gate: Gate<Herded>,
    log: Arc<Model>,
    durable: AtomicU64,
    device: Bytes,
}

impl Pilot for Herded {
    type Desk = Lsn;
    type Load = Range<Lsn>;
    type Until = ();

    fn start(&self, started: &mut Lsn, end: Lsn, (): (), takeoff: &mut Takeoff<'_>) -> Start<Range<Lsn>> {
        let target = self.log.boundary();
        if target > *started {
            self.log.bytes.check_all(*started, target);
            takeoff.announce(target);
            Start::Off(std::mem::replace(started, target)..target)
        } else if end > *started {
            Start::Idle
        } else {
            Start::Wait
        }
    }

    fn fly(&self, load: &mut Range<Lsn>) -> bool {
        load.clone()
            .step_by(FRAME as usize)
            .for_each(|lsn| self.device.write(lsn));
        true
    }

    fn land(&self, _started: &mut Lsn, load: Range<Lsn>) {
        self.durable.store(load.end, Ordering::Release);
    }

    fn must_wait(&self, _started: &Lsn) -> bool {
        false
    }

    fn landed(&self) {}
}

impl Herded {
    fn commit(&self) {
        let end = self.log.append(&self.log.register());
        self.gate.wait(self, end, (), || {
            (self.durable.load(Ordering::Acquire) >= end).then_some(())
        });
        self.device.check_all(0, end);
    }
}

#[test]
fn the_gate_and_the_herd_together_acknowledge_only_complete_frames() {
    explore("gate over a herd, 2 committers", THREE, || {
        let herded = Arc::new(Herded {
            gate: Gate::new(0, IN_FLIGHT_MAX),
            log: Model::new(2, 2),
            durable: AtomicU64::new(0),
            device: Bytes::new(2),
        });
        let other = {
            let herded = Arc::clone(&herded);
            thread::spawn(move || herded.commit())
        };
        herded.commit();
        join([other]);
    });
}
