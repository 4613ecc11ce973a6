//! The core's words, as its models see them: every step on one is counted for its thread.
//!
//! Loom tries another order of two steps only where the second depends on the *last* step on that
//! word. A thread that loads a word and then stores to it hides from loom that its store also
//! competes with another thread's load before. Where a model asks for every order, each step first
//! touches one common word, on which then every step depends; it is touched Relaxed and orders
//! nothing. That takes many more schedules.

use std::cell::Cell;

use crate::lockfree::sync::Ordering;

loom::thread_local! {
    static STEPS: Cell<u64> = Cell::new(0);
}

std::thread_local! {
    /// All threads of a model run on one of the system's.
    static EVERY_ORDER: Cell<bool> = const { Cell::new(false) };
}

loom::lazy_static! {
    static ref TURN: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
}

/// How many steps the calling thread takes on the core's words in `work`.
pub(crate) fn of(work: impl FnOnce()) -> u64 {
    let before = STEPS.with(Cell::get);
    work();
    STEPS.with(Cell::get) - before
}

/// Whether the models that the calling thread runs from here on try every order of steps.
pub(super) fn try_every_order(yes: bool) {
    EVERY_ORDER.set(yes);
}

fn step() {
    if EVERY_ORDER.get() {
        TURN.fetch_add(1, Ordering::Relaxed);
    }
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

macro_rules! counted {
    ($($name:ident, $value:ty;)*) => {$(
        /// Loom's word, counted.
        #[derive(Debug)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            #[track_caller]
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_add(value, order)
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_max(value, order)
            }

            #[track_caller]
            pub(crate) fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_min(value, order)
            }
        }
    )*};
}

counted! {
    AtomicU64, u64;
    AtomicUsize, usize;
}
