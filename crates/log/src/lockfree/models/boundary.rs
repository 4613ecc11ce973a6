//! The boundary: no hole below it, its bytes visible, never back, and no thread waits for a stalled
//! peer.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{Bytes, COMPLETE, FRAME, Model, THREE, TWO, explore, explore_every_order, steps};
use crate::lockfree::boundary::{CompletionBoundary, Reservations, SlotId};

#[test]
fn no_hole_lies_below_the_boundary_of_one_worker() {
    explore_every_order("boundary, 1 worker", COMPLETE, || {
        let model = Model::new(1, 2);
        let slot = model.register();
        let worker = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.append_some(2, &slot))
        };
        model.check();
        worker.join().unwrap();
        assert_eq!(model.check(), 2 * FRAME);
    });
}

#[test]
fn no_hole_lies_below_the_boundary_of_two_workers() {
    explore("boundary, 2 workers of which one scans", COMPLETE, || {
        let model = Model::new(2, 3);
        let (mine, other) = (model.register(), model.register());
        let worker = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.append_some(2, &other))
        };
        let first = model.check();
        model.append(&mine);
        assert!(model.check() >= first, "the boundary went back");
        worker.join().unwrap();
        assert_eq!(model.check(), 3 * FRAME);
    });
}

#[test]
fn no_hole_lies_below_the_boundary_of_two_workers_and_a_scanner() {
    explore_every_order("boundary, 2 workers and a scanner", THREE, || {
        let model = Model::new(2, 2);
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (model, slot) = (Arc::clone(&model), model.register());
                thread::spawn(move || model.append_some(1, &slot))
            })
            .collect();
        model.check();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(model.check(), 2 * FRAME);
    });
}

#[test]
fn no_hole_lies_below_the_boundary_of_three_workers() {
    explore("boundary, 3 workers of which one scans", THREE, || {
        let model = Model::new(3, 3);
        let mine = model.register();
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (model, slot) = (Arc::clone(&model), model.register());
                thread::spawn(move || model.append_some(1, &slot))
            })
            .collect();
        model.append(&mine);
        model.check();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(model.check(), 3 * FRAME);
    });
}

#[test]
fn a_late_registrant_hides_no_hole() {
    explore_every_order("boundary, late registrant", THREE, || {
        let model = Model::new(2, 2);
        let early = model.register();
        let workers = [
            {
                let model = Arc::clone(&model);
                thread::spawn(move || model.append_some(1, &early))
            },
            {
                let model = Arc::clone(&model);
                thread::spawn(move || model.append_some(1, &model.register()))
            },
        ];
        model.check();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(model.check(), 2 * FRAME);
    });
}

#[test]
fn a_slot_that_changes_hands_keeps_its_frames_visible() {
    explore_every_order("boundary, slot freed and reused", TWO, || {
        let model = Model::new(2, 2);
        let passers: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    let slot = model.register();
                    model.append(&slot);
                    model.completion.unregister(slot);
                })
            })
            .collect();
        model.check();
        passers.into_iter().for_each(|p| p.join().unwrap());
        assert_eq!(model.check(), 2 * FRAME);
    });
}

#[test]
fn concurrent_scans_never_move_the_boundary_back() {
    explore("boundary, 2 scanners and a reader of the boundary", THREE, || {
        let model = Model::new(1, 2);
        let slot = model.register();
        let worker = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.append_some(2, &slot))
        };
        let scanner = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.check())
        };
        // Another thread's scan makes the bytes visible to one that only reads its result.
        let stored = model.completion.boundary();
        model.bytes.check_all(0, stored);
        assert!(model.check() >= stored, "the boundary went back");
        let theirs = scanner.join().unwrap();
        assert!(model.completion.boundary() >= theirs, "the boundary went back");
        worker.join().unwrap();
    });
}

#[test]
fn a_filler_leaves_no_hole_below_the_boundary() {
    explore("boundary, a worker, a filler and a scanner", THREE, || {
        let model = Model::new(2, 2);
        let leader = model.register();
        let worker = {
            let (model, slot) = (Arc::clone(&model), model.register());
            thread::spawn(move || model.append_some(1, &slot))
        };
        let scanner = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.check())
        };
        let padded = model.pad(&leader);
        if let Some(end) = padded {
            assert!(
                model.check() >= end,
                "the boundary is before a filler that is complete"
            );
        }
        scanner.join().unwrap();
        worker.join().unwrap();
        let frames = 1 + u64::from(padded.is_some());
        assert_eq!(
            model.check(),
            frames * FRAME,
            "a place was reserved twice, or none"
        );
    });
}

#[test]
fn a_filler_is_refused_only_where_a_worker_appends() {
    explore(
        "boundary, a worker and a leader that pads twice",
        COMPLETE,
        || {
            let model = Model::new(2, 4);
            let leader = model.register();
            let worker = {
                let (model, slot) = (Arc::clone(&model), model.register());
                thread::spawn(move || model.append_some(2, &slot))
            };
            let early = usize::from(model.pad(&leader).is_some());
            worker.join().unwrap();
            let late = model.pad(&leader);
            assert_eq!(late, Some((3 + early as u64) * FRAME), "appends have ended");
            assert_eq!(late, Some(model.check()));
        },
    );
}

/// The bytes of a ring that fits one frame, and what is read out of it.
struct Tiny {
    completion: CompletionBoundary,
    next: Reservations,
    ring: Bytes,
    written: AtomicU64,
    flusher: Mutex<()>,
}

impl Tiny {
    /// An append as a worker does it, with a wait for room that flushes by itself.
    fn append(&self, slot: &SlotId) {
        let start = self.completion.reserve(slot, &self.next, FRAME, |_| ());
        let mut looks = 0;
        while start > self.written.load(Ordering::Acquire) {
            self.flush();
            looks += 1;
            assert!(looks < 30, "a full ring waits for a boundary that is pinned");
            thread::yield_now();
        }
        self.ring.write(start);
        self.completion.set_complete(slot, start + FRAME);
    }

    fn flush(&self) {
        if let Ok(_lead) = self.flusher.try_lock() {
            let boundary = self.completion.scan(|| self.next.cutoff());
            let written = self.written.load(Ordering::Relaxed);
            self.ring.check_all(written, boundary);
            self.written.store(boundary, Ordering::Release);
        }
    }
}

fn full_ring(frames: [usize; 2]) -> Arc<Tiny> {
    let tiny = Arc::new(Tiny {
        completion: CompletionBoundary::new(2, 0),
        next: Reservations::new(0),
        ring: Bytes::new(1),
        written: AtomicU64::new(0),
        flusher: Mutex::new(()),
    });
    let workers: Vec<_> = frames
        .into_iter()
        .map(|frames| {
            let (tiny, slot) = (Arc::clone(&tiny), tiny.completion.register().unwrap());
            thread::spawn(move || (0..frames).for_each(|_| tiny.append(&slot)))
        })
        .collect();
    workers.into_iter().for_each(|w| w.join().unwrap());
    tiny
}

#[test]
fn a_ring_of_one_frame_never_deadlocks() {
    explore("boundary, ring of one frame, 2 frames", THREE, || {
        let tiny = full_ring([1, 1]);
        assert_eq!(tiny.completion.scan(|| tiny.next.cutoff()), 2 * FRAME);
    });
}

#[test]
fn a_ring_of_one_frame_is_overwritten_only_once_it_is_read_out() {
    explore("boundary, ring of one frame, 3 frames", TWO, || {
        let tiny = full_ring([1, 2]);
        assert_eq!(tiny.completion.scan(|| tiny.next.cutoff()), 3 * FRAME);
    });
}

/// The steps of an append on shared words: the counter, pending, the reservation, pending,
/// complete.
const STEPS_OF_AN_APPEND: u64 = 5;
/// The steps of a scan beyond one per slot: the cutoff, the number of slots, and the boundary.
const STEPS_OF_A_HERD: u64 = 3;

#[test]
fn an_append_takes_five_steps_whatever_its_peers_do() {
    explore("boundary, steps of an append", THREE, || {
        let model = Model::new(3, 4);
        // One peer stalls for good between its reservation and its completion.
        let stalled = model.register();
        let hole = model.completion.reserve(&stalled, &model.next, FRAME, |_| ());
        let workers: Vec<_> = (0..2)
            .map(|n| {
                let (model, slot) = (Arc::clone(&model), model.register());
                thread::spawn(move || {
                    for _ in 0..=n {
                        let steps = steps::of(|| model.append_some(1, &slot));
                        assert_eq!(steps, STEPS_OF_AN_APPEND);
                    }
                })
            })
            .collect();
        let steps = steps::of(|| assert_eq!(model.boundary(), hole));
        assert_eq!(steps, STEPS_OF_A_HERD + 3);
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(model.boundary(), hole, "nothing passes a hole");
    });
}
