//! A second boundary on the same counter, over "applied", as a storage engine keeps it through an
//! append's hook.

use std::sync::Arc;

use loom::thread;

use super::{Bytes, FRAME, Model, THREE, explore};
use crate::lockfree::boundary::{CompletionBoundary, SlotId};

/// A log, and what was applied of it.
struct Engine {
    log: Arc<Model>,
    visible: CompletionBoundary,
    applied: Bytes,
}

impl Engine {
    fn new(workers: usize, frames: usize) -> Arc<Self> {
        Arc::new(Self {
            log: Model::new(workers, frames),
            visible: CompletionBoundary::new(workers, 0),
            applied: Bytes::new(frames),
        })
    }

    fn register(&self) -> (SlotId, SlotId) {
        (self.log.register(), self.visible.register().unwrap())
    }

    /// A commit: the hook's two calls, the copy, and the application.
    fn commit(&self, (slot, seat): &(SlotId, SlotId)) {
        let Model {
            completion,
            next,
            bytes,
        } = &*self.log;
        let start = completion.reserve(slot, next, FRAME, |seen| self.visible.set_pending(seat, seen));
        self.visible.set_pending(seat, start);
        bytes.write(start);
        completion.set_complete(slot, start + FRAME);
        self.applied.write(start);
        self.visible.set_complete(seat, start + FRAME);
    }

    /// A snapshot: everything below it is applied, and complete in the log.
    fn snapshot(&self) -> u64 {
        let visible = self.visible.scan(|| self.log.next.cutoff());
        self.applied.check_all(0, visible);
        self.log.bytes.check_all(0, visible);
        assert!(self.log.boundary() >= visible, "visible before it was logged");
        visible
    }
}

#[test]
fn a_snapshot_sees_all_commits_below_it_whole() {
    explore("visible boundary, a committer and a reader", THREE, || {
        let engine = Engine::new(1, 2);
        let worker = {
            let (engine, seats) = (Arc::clone(&engine), engine.register());
            thread::spawn(move || (0..2).for_each(|_| engine.commit(&seats)))
        };
        let first = engine.snapshot();
        assert!(engine.snapshot() >= first, "a snapshot went back");
        worker.join().unwrap();
        assert_eq!(engine.snapshot(), 2 * FRAME);
    });
}

#[test]
fn two_committers_never_hide_each_others_holes_from_a_snapshot() {
    explore("visible boundary, 2 committers and a reader", THREE, || {
        let engine = Engine::new(2, 2);
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (engine, seats) = (Arc::clone(&engine), engine.register());
                thread::spawn(move || engine.commit(&seats))
            })
            .collect();
        engine.snapshot();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(engine.snapshot(), 2 * FRAME);
    });
}
