//! The applied boundary: a snapshot below it sees whole commits and a prefix of the order, and no
//! thread that waits for it is forgotten.

use std::sync::Arc;

use loom::thread;

use super::{Bytes, COMPLETE, FRAME, Model, THREE, TWO, explore};
use crate::lockfree::applied::{Applied, Stuck};
use crate::lockfree::boundary::SlotId;

/// A log, and what was applied of it.
struct Engine {
    log: Arc<Model>,
    applied: Applied,
    table: Bytes,
}

impl Engine {
    fn new(workers: usize, frames: usize) -> Arc<Self> {
        Arc::new(Self {
            log: Model::new(workers, frames),
            applied: Applied::new(workers, 0),
            table: Bytes::new(frames),
        })
    }

    fn register(&self) -> (SlotId, SlotId) {
        (self.log.register(), self.applied.register().unwrap())
    }

    /// Up to the copy, as `Worker::append_then`. Returns the frame's start.
    fn append(&self, (copied, applied): &(SlotId, SlotId)) -> u64 {
        let Model {
            completion,
            next,
            bytes,
        } = &*self.log;
        let start = completion.reserve(copied, next, FRAME, |seen| {
            self.applied.set_pending(applied, seen)
        });
        self.applied.set_pending(applied, start);
        bytes.write(start);
        completion.set_complete(copied, start + FRAME);
        start
    }

    /// A commit: the append and the application. Returns the frame's end.
    fn commit(&self, slots: &(SlotId, SlotId)) -> u64 {
        let start = self.append(slots);
        self.table.write(start);
        self.applied.complete(&slots.1, start + FRAME, &self.log.next);
        start + FRAME
    }

    /// Everything below the boundary is applied, and complete in the log.
    fn check_below(&self, boundary: u64) {
        self.table.check_all(0, boundary);
        self.log.bytes.check_all(0, boundary);
    }

    /// A snapshot: everything below it is applied, and complete in the log. (A scan of the completion
    /// boundary may find less: who begins to append is pending at an old value of the counter.)
    fn snapshot(&self) -> u64 {
        let applied = self.applied.scan(&self.log.next);
        self.check_below(applied);
        applied
    }
}

#[test]
fn a_snapshot_sees_all_commits_below_it_whole() {
    explore("applied boundary, a committer and a reader", THREE, || {
        let engine = Engine::new(1, 2);
        let worker = {
            let (engine, slots) = (Arc::clone(&engine), engine.register());
            thread::spawn(move || {
                for _ in 0..2 {
                    engine.commit(&slots);
                }
            })
        };
        let first = engine.snapshot();
        assert!(engine.snapshot() >= first, "a snapshot went back");
        worker.join().unwrap();
        assert_eq!(engine.snapshot(), 2 * FRAME);
    });
}

#[test]
fn two_committers_hide_no_holes_from_a_snapshot() {
    explore("applied boundary, 2 committers and a reader", THREE, || {
        let engine = Engine::new(2, 2);
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (engine, slots) = (Arc::clone(&engine), engine.register());
                thread::spawn(move || engine.commit(&slots))
            })
            .collect();
        engine.snapshot();
        workers.into_iter().for_each(|w| {
            w.join().unwrap();
        });
        assert_eq!(engine.snapshot(), 2 * FRAME);
    });
}

/// Each waits for what it committed, and so for what the other one has before it.
#[test]
fn two_committers_that_wait_see_all_before_them() {
    explore("applied boundary, 2 committers that wait", THREE, || {
        let engine = Engine::new(2, 2);
        let work = |engine: &Engine, slots: &(SlotId, SlotId)| {
            let end = engine.commit(slots);
            engine.applied.wait(end, &engine.log.next).unwrap();
            engine.check_below(end);
        };
        let other = {
            let (engine, slots) = (Arc::clone(&engine), engine.register());
            thread::spawn(move || work(&engine, &slots))
        };
        let slots = engine.register();
        work(&engine, &slots);
        other.join().unwrap();
    });
}

/// Of two that wait for different commits the one whose commit is first is woken by it: it makes the
/// other one.
#[test]
fn two_that_wait_for_different_commits_are_both_woken() {
    explore("applied boundary, 2 that wait for different commits", TWO, || {
        let engine = Engine::new(1, 2);
        let waiter = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.applied.wait(2 * FRAME, &engine.log.next).unwrap())
        };
        let slots = engine.register();
        let committer = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                engine.commit(&slots);
                slots
            })
        };
        engine.applied.wait(FRAME, &engine.log.next).unwrap();
        engine.check_below(FRAME);
        engine.commit(&committer.join().unwrap());
        waiter.join().unwrap();
    });
}

#[test]
fn a_wait_behind_a_commit_that_never_ends_fails() {
    explore("applied boundary, a commit that never ends", COMPLETE, || {
        let engine = Engine::new(1, 1);
        let slots = engine.register();
        let start = engine.append(&slots);
        let waiter = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.applied.wait(start + FRAME, &engine.log.next))
        };
        engine.applied.leave_stuck();
        assert_eq!(waiter.join().unwrap(), Err(Stuck));
    });
}
