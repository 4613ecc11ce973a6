//! Counts each thread's steps on shared words, since an exploration alone does not bound them.

use std::cell::Cell;

use crate::sync::Ordering;

loom::thread_local! {
    static STEPS: Cell<u64> = Cell::new(0);
}

/// How many steps on 64-bit words the calling thread takes in `work`.
pub(crate) fn of(work: impl FnOnce()) -> u64 {
    let before = STEPS.with(Cell::get);
    work();
    STEPS.with(Cell::get) - before
}

fn step() {
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Loom's word, counted.
#[derive(Debug)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    #[track_caller]
    pub(crate) fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        step();
        self.0.load(order)
    }

    #[track_caller]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        step();
        self.0.store(value, order);
    }

    #[track_caller]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.fetch_add(value, order)
    }

    #[track_caller]
    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.fetch_max(value, order)
    }
}
