//! Admission: whatever the interleaving, and however stale the looks, no reservation passes the
//! limit.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use super::{COMPLETE, FRAME, THREE, explore};
use crate::lockfree::boundary::{CompletionBoundary, Reservations, SlotId};
use crate::lockfree::limit::{Kept, Limit, Room};

/// A large frame.
const LARGE: u64 = 4 * FRAME;

/// A filler.
const FILLER: u64 = 2 * FRAME;

struct Admission {
    completion: CompletionBoundary,
    next: Reservations,
    limit: Limit,
    /// The turn of large frames, for which `LARGE` bytes are kept beyond the limit.
    large: Mutex<()>,
}

impl Admission {
    fn new(workers: usize, limit: u64) -> Arc<Self> {
        Self::with_marks(workers, 0, limit)
    }

    /// `frames` per worker are left to marks.
    fn with_marks(workers: usize, frames: u64, limit: u64) -> Arc<Self> {
        Self::with(
            workers,
            Kept {
                marks: frames,
                relief: 0,
            },
            0,
            limit,
        )
    }

    /// `bytes` are left to relief, and as many to its largest frame.
    fn with_relief(workers: usize, bytes: u64, limit: u64) -> Arc<Self> {
        Self::with(
            workers,
            Kept {
                marks: 0,
                relief: bytes,
            },
            0,
            limit,
        )
    }

    /// Fillers of up to `filler` bytes may stand between frames.
    fn with_fillers(workers: usize, filler: u64, limit: u64) -> Arc<Self> {
        Self::with(workers, Kept { marks: 0, relief: 0 }, filler, limit)
    }

    fn with(workers: usize, kept: Kept, filler: u64, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            completion: CompletionBoundary::new(workers + 1, 0),
            next: Reservations::new(0),
            limit: Limit::new(workers, [FRAME, filler], kept, limit),
            large: Mutex::new(()),
        })
    }

    /// Places a filler at the boundary, if anything was appended since the one that ended at
    /// `last`; returns where the last one ends now.
    fn pad(&self, slot: &SlotId, last: u64, prepared: u64) -> u64 {
        let at = self.completion.scan(|| self.next.cutoff());
        if at == last || !self.completion.try_reserve_at(slot, &self.next, at, FILLER) {
            return last;
        }
        let end = at + FILLER;
        assert!(end <= prepared, "reserved up to {end}, prepared up to {prepared}");
        self.completion.complete_at_boundary(slot, end);
        end
    }

    /// Appends one frame if it is admitted. The limit may grow meanwhile: `prepared` says how far
    /// at most.
    fn append(&self, slot: &SlotId, len: u64, prepared: u64) -> bool {
        self.append_in(Room::Commit, slot, len, prepared)
    }

    fn append_in(&self, room: Room, slot: &SlotId, len: u64, prepared: u64) -> bool {
        let turn = (!self.limit.is_small(len)).then(|| self.large.lock().unwrap());
        let admitted = self.limit.admits(&self.next, room);
        if admitted {
            let end = self.completion.reserve(slot, &self.next, len, |_| ()) + len;
            assert!(end <= prepared, "reserved up to {end}, prepared up to {prepared}");
            self.completion.set_complete(slot, end);
        }
        drop(turn);
        admitted
    }

    /// Appends one frame, whatever its size, at exactly where it was admitted, or gives up.
    fn try_append(&self, slot: &SlotId, len: u64, prepared: u64) -> bool {
        let at = self.next.glance();
        let placed =
            self.limit.is_ahead(at, len) && self.completion.try_reserve_at(slot, &self.next, at, len);
        if placed {
            let end = at + len;
            assert!(end <= prepared, "reserved up to {end}, prepared up to {prepared}");
            self.completion.set_complete(slot, end);
        }
        placed
    }
}

/// A large frame without a turn, beside one that has it and small ones.
#[test]
fn exact_reservations_never_pass_the_limit() {
    // What three workers may overrun their looks by, with room for an exact one and without.
    for exact in [LARGE, 0] {
        explore("admission, exact reservations", THREE, move || {
            let limit = 3 * FRAME + exact;
            let admission = Admission::new(3, limit);
            let mine = admission.completion.register().unwrap();
            let workers: Vec<_> = [LARGE, FRAME]
                .into_iter()
                .map(|len| {
                    let (admission, slot) =
                        (Arc::clone(&admission), admission.completion.register().unwrap());
                    thread::spawn(move || admission.append(&slot, len, limit + LARGE))
                })
                .collect();
            admission.try_append(&mine, LARGE, limit + LARGE);
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }
}

#[test]
fn two_workers_never_pass_the_limit() {
    explore("admission, 2 workers", COMPLETE, || {
        let limit = 4 * FRAME;
        let admission = Admission::new(2, limit);
        let mine = admission.completion.register().unwrap();
        let worker = {
            let (admission, slot) = (Arc::clone(&admission), admission.completion.register().unwrap());
            thread::spawn(move || (0..3).filter(|_| admission.append(&slot, FRAME, limit)).count())
        };
        let ours = (0..3).filter(|_| admission.append(&mine, FRAME, limit)).count();
        let theirs = worker.join().unwrap();
        assert!(ours + theirs >= 3, "room was refused");
    });
}

#[test]
fn three_workers_never_pass_a_limit_that_is_raised_under_them() {
    explore("admission, 3 workers and a raised limit", THREE, || {
        let limit = 4 * FRAME;
        let admission = Admission::new(3, limit);
        let mine = admission.completion.register().unwrap();
        let workers: Vec<_> = (0..2)
            .map(|n| {
                let (admission, slot) = (Arc::clone(&admission), admission.completion.register().unwrap());
                thread::spawn(move || {
                    for _ in 0..=n {
                        admission.append(&slot, FRAME, limit + FRAME);
                    }
                })
            })
            .collect();
        admission.limit.raise(limit + FRAME, 0);
        admission.append(&mine, FRAME, limit + FRAME);
        workers.into_iter().for_each(|w| w.join().unwrap());
    });
}

#[test]
fn large_frames_take_turns_and_never_pass_what_is_kept_for_one() {
    explore("admission, 2 large frames and a small one", THREE, || {
        let limit = 4 * FRAME;
        let admission = Admission::new(3, limit);
        let mine = admission.completion.register().unwrap();
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (admission, slot) = (Arc::clone(&admission), admission.completion.register().unwrap());
                thread::spawn(move || admission.append(&slot, LARGE, limit + LARGE))
            })
            .collect();
        admission.append(&mine, FRAME, limit + LARGE);
        let large: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        assert!(large.contains(&true), "room was refused");
    });
}

/// Commits leave the room of a large frame of relief, and of a small one; however they overrun
/// their looks, both have it.
#[test]
fn relief_uses_its_reserve_and_never_passes_the_limit() {
    explore("admission, commits and a large relief", COMPLETE, || {
        let limit = 3 * FRAME + 2 * LARGE;
        let admission = Admission::with_relief(2, LARGE, limit);
        let mine = admission.completion.register().unwrap();
        let worker = {
            let (admission, slot) = (Arc::clone(&admission), admission.completion.register().unwrap());
            thread::spawn(move || (0..3).filter(|_| admission.append(&slot, FRAME, limit)).count())
        };
        let relieved = admission.append_in(Room::Relief, &mine, LARGE, limit);
        assert!(relieved, "relief was refused");
        admission.append_in(Room::Relief, &mine, FRAME, limit);
        worker.join().unwrap();
    });
}

/// Fillers are not admitted: there is room for one behind every frame that was.
#[test]
fn fillers_never_pass_the_limit() {
    explore("admission, 2 workers and fillers", COMPLETE, || {
        let limit = 2 * (FRAME + FILLER) + FILLER;
        let admission = Admission::with_fillers(2, FILLER, limit);
        let (mine, leader) = (
            admission.completion.register().unwrap(),
            admission.completion.register().unwrap(),
        );
        let worker = {
            let (admission, slot) = (Arc::clone(&admission), admission.completion.register().unwrap());
            thread::spawn(move || usize::from(admission.append(&slot, FRAME, limit)))
        };
        let (mut last, mut ours) = (0, 0);
        for _ in 0..2 {
            ours += usize::from(admission.append(&mine, FRAME, limit));
            last = admission.pad(&leader, last, limit);
        }
        assert!(ours + worker.join().unwrap() > 0, "room was refused");
        admission.pad(&leader, last, limit);
    });
}

/// Commits leave two frames per worker; however far they overrun their looks, one per worker is
/// left.
#[test]
fn marks_use_their_reserve_and_never_pass_the_limit() {
    explore("admission, commits and marks", COMPLETE, || {
        let limit = 7 * FRAME;
        let admission = Admission::with_marks(2, 2, limit);
        let mine = admission.completion.register().unwrap();
        let worker = {
            let (admission, slot) = (Arc::clone(&admission), admission.completion.register().unwrap());
            thread::spawn(move || {
                let commits = (0..3).filter(|_| admission.append(&slot, FRAME, limit)).count();
                commits + usize::from(admission.append_in(Room::Mark, &slot, FRAME, limit))
            })
        };
        let ours = (0..3).filter(|_| admission.append(&mine, FRAME, limit)).count();
        assert!(
            admission.append_in(Room::Mark, &mine, FRAME, limit),
            "a mark was refused"
        );
        let all = ours + worker.join().unwrap();
        assert!(all >= 3, "room was refused");
    });
}
