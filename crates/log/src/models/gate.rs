//! Group commit: nobody sleeps for ever, and nobody is told too early.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::{Bytes, FRAME, Model, THREE, TWO, explore};
use crate::Lsn;
use crate::gate::{Flight, Gate, stand_by};

/// How far a flight goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Written,
    Durable,
}

/// A log whose frames are complete once they are reserved, and its device.
struct Store {
    gate: Gate<Lsn>,
    appended: AtomicU64,
    written: AtomicU64,
    durable: AtomicU64,
    poisoned: AtomicBool,
    device: Bytes,
    /// The most that one flight takes.
    load: Lsn,
    /// Whether somebody waits for room. Telling him is without effect elsewhere, and dear to explore.
    room_wanted: bool,
}

impl Store {
    fn new(frames: usize, load: Lsn, room_wanted: bool) -> Arc<Self> {
        Arc::new(Self {
            gate: Gate::new(0),
            appended: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            device: Bytes::new(frames),
            load,
            room_wanted,
        })
    }

    fn append(&self) -> Lsn {
        self.appended.fetch_add(FRAME, Ordering::AcqRel) + FRAME
    }

    /// A flight, in the order of the log's own.
    fn fly(&self, written: &mut Lsn, flight: &mut Flight<'_>, until: Until) {
        if self.poisoned.load(Ordering::Acquire) {
            return;
        }
        let target = self.appended.load(Ordering::Acquire).min(*written + self.load);
        flight.announce(target);
        if *written < target {
            while *written < target {
                self.device.write(*written);
                *written += FRAME;
            }
            self.written.store(target, Ordering::Release);
            if self.room_wanted {
                self.gate.made_room();
            }
        }
        if until == Until::Durable {
            self.durable.store(*written, Ordering::Release);
        }
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
        let there = || mark.load(Ordering::Acquire) >= end;
        let answer = self.gate.wait(
            end,
            || match (there(), self.poisoned.load(Ordering::Acquire)) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            |written, flight| {
                self.fly(written, flight, until);
                if !there() {
                    stand_by(0);
                }
            },
        );
        if answer {
            self.device.check_all(0, end);
        }
        answer
    }

    /// Waits until everything below `end` was read out of the ring, as an append to a full ring does.
    fn wait_for_room(&self, end: Lsn) -> bool {
        let written = || self.written.load(Ordering::Acquire) >= end;
        let answer = self.gate.wait_for_room(
            || match (written(), self.poisoned.load(Ordering::Acquire)) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            |flushed, flight| {
                self.fly(flushed, flight, Until::Written);
                if !written() {
                    stand_by(0);
                }
            },
        );
        if answer {
            self.device.check_all(0, end);
        }
        answer
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
fn commit_all(waiters: usize, load: Lsn) {
    let store = Store::new(waiters, load, false);
    let others: Vec<_> = (1..waiters).map(|_| run(&store, Store::commit)).collect();
    assert!(store.commit());
    join(others);
}

#[test]
fn two_waiters_are_both_served_and_never_early() {
    explore("gate, 2 waiters", THREE, || commit_all(2, Lsn::MAX / 2));
}

#[test]
fn three_waiters_are_all_served_and_never_early() {
    explore("gate, 3 waiters", Some(1), || commit_all(3, Lsn::MAX / 2));
}

#[test]
fn waiters_of_the_next_group_are_served_by_the_next_flight() {
    explore("gate, 2 waiters, one frame per flight", THREE, || {
        commit_all(2, FRAME)
    });
}

#[test]
fn who_came_on_board_of_a_flight_that_only_wrote_is_woken_all_the_same() {
    explore("gate, a flight that only wrote and 2 waiters", TWO, || {
        let store = Store::new(2, Lsn::MAX / 2, true);
        let ends = [store.append(), store.append()];
        assert!(store.wait_for_room(2 * FRAME));
        let waiters = ends.map(|end| run(&store, move |store| store.wait(end)));
        assert!(store.wait(2 * FRAME));
        join(waiters);
    });
}

/// A waiter for `Process` and two for `Disk` commit a frame each, over a private ring.
fn commit_at_two_levels(load: Lsn) {
    let store = Store::new(3, load, false);
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
        let store = Store::new(2, Lsn::MAX / 2, false);
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
        let store = Store::new(1, Lsn::MAX / 2, false);
        let wait = |store: &Store| {
            let poisoned = || store.poisoned.load(Ordering::Acquire).then_some(());
            store.gate.wait(FRAME, poisoned, |_, flight| {
                flight.announce(FRAME);
                store.poison();
            });
            true
        };
        let waiter = run(&store, wait);
        wait(&store);
        join([waiter]);
    });
}

#[test]
fn poison_wakes_who_sleeps_behind_a_flight_that_hangs() {
    explore("gate, poison under a flight that hangs, 2 waiters", THREE, || {
        let store = Store::new(1, Lsn::MAX / 2, true);
        let mut waiters = None;
        store.gate.wait(
            FRAME,
            || store.poisoned.load(Ordering::Acquire).then_some(()),
            |_, flight| {
                let asleep = [
                    run(&store, |store| !store.wait(FRAME)),
                    run(&store, |store| !store.wait_for_room(FRAME)),
                ];
                flight.announce(0);
                store.poison();
                // The flight ends after all who wait for it have been told.
                waiters = Some(asleep.into_iter().for_each(|t| t.join().unwrap()));
            },
        );
        assert!(waiters.is_some());
    });
}

#[test]
fn who_wants_room_is_woken_by_the_flight_of_another() {
    explore("gate, a room waiter and a waiter", THREE, || {
        let store = Store::new(1, Lsn::MAX / 2, true);
        let end = store.append();
        let room = run(&store, move |store| store.wait_for_room(end));
        assert!(store.wait(end));
        join([room]);
    });
}

#[test]
fn two_who_want_room_and_a_waiter_are_all_served() {
    explore("gate, 2 room waiters and a waiter", TWO, || {
        let store = Store::new(2, FRAME, true);
        let ends = [store.append(), store.append()];
        let rooms = ends.map(|end| run(&store, move |store| store.wait_for_room(end)));
        assert!(store.wait(ends[0]));
        join(rooms);
    });
}

#[test]
fn a_leader_that_gives_up_leaves_nobody_asleep() {
    explore("gate, a leader that gives up and a waiter", THREE, || {
        let store = Store::new(1, Lsn::MAX / 2, false);
        let waiter = run(&store, Store::commit);
        // The course of a leader that panics: nothing announced, landed by the guard, never seen again.
        let gave_up = std::cell::Cell::new(false);
        store.gate.wait(
            FRAME,
            || (gave_up.get() || store.durable.load(Ordering::Acquire) == FRAME).then_some(()),
            |_, _| gave_up.set(true),
        );
        join([waiter]);
    });
}

#[test]
fn the_gate_and_the_herd_together_acknowledge_only_complete_frames() {
    explore("gate over a herd, 2 committers", THREE, || {
        let store = Store::new(2, Lsn::MAX / 2, false);
        let log = Model::new(2, 2);
        let commit = |store: &Store, log: &Model| {
            let end = log.append(&log.register());
            let durable = || store.durable.load(Ordering::Acquire) >= end;
            store.gate.wait(
                end,
                || durable().then_some(()),
                |written, flight| {
                    let target = log.boundary();
                    flight.announce(target);
                    log.bytes.check_all(*written, target);
                    (*written..target)
                        .step_by(FRAME as usize)
                        .for_each(|lsn| store.device.write(lsn));
                    *written = target;
                    store.durable.store(target, Ordering::Release);
                    if !durable() {
                        stand_by(0);
                    }
                },
            );
            store.device.check_all(0, end);
        };
        let other = {
            let (store, log) = (Arc::clone(&store), Arc::clone(&log));
            thread::spawn(move || commit(&store, &log))
        };
        commit(&store, &log);
        join([other]);
    });
}
