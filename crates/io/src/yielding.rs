//! Giving up the processor while that pays.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Clock, Nanos};

/// A yield that took longer gave the processor to a thread that had much to do. Threads that commit
/// are back in less, 64 of them on two cores in 0.3 ms; a thread that only computes keeps the
/// processor for its slice, 3 ms and more.
const LONG: Nanos = 1_500_000;
/// So many calls after such a yield do not yield. One call in so many may take a slice.
const REST: u32 = 1024;

/// Yields for threads that wait for one another, such as the committers of a group.
///
/// A thread that is about to sleep may give up its time slice first: others, which are about to
/// arrive where it waits, do so meanwhile, and it need not sleep and be woken. That holds as long as
/// the others are its like. Beside a thread that computes, the kernel runs that one for a whole
/// slice, and a group that waits for its leader stands still for so long. A thread that sleeps
/// instead is run soon after it is woken. So each yield is timed, and after a long one callers sleep
/// instead, for a while.
#[derive(Debug, Default)]
pub struct Yielding {
    /// Calls that are yet to be answered with `false`.
    resting: AtomicU32,
}

impl Yielding {
    /// One that yields at its first call.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            resting: AtomicU32::new(0),
        }
    }

    /// Yields the processor, and returns whether it did; where not, the caller had better sleep.
    /// Takes a few hundred nanoseconds where no other thread wants to run.
    pub fn give_way(&self, clock: &dyn Clock) -> bool {
        // Relaxed, and not one step: how many calls rest is no more than a guess.
        let resting = self.resting.load(Ordering::Relaxed);
        if resting > 0 {
            self.resting.store(resting - 1, Ordering::Relaxed);
            return false;
        }
        let began = clock.monotonic();
        std::thread::yield_now();
        if clock.monotonic().saturating_sub(began) > LONG {
            self.resting.store(REST, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock on which each yield takes as long as was said.
    #[derive(Debug)]
    struct Steps(Nanos, std::sync::atomic::AtomicU64);

    impl Clock for Steps {
        fn monotonic(&self) -> Nanos {
            self.1.fetch_add(self.0, Ordering::Relaxed)
        }

        fn wall_ms(&self) -> u64 {
            0
        }
    }

    fn taking(step: Nanos) -> Steps {
        Steps(step, 0.into())
    }

    #[test]
    fn short_yields_go_on() {
        let yielding = Yielding::new();
        assert!((0..3 * REST).all(|_| yielding.give_way(&taking(LONG))));
    }

    #[test]
    fn a_long_yield_is_tried_again_only_after_a_while() {
        let yielding = Yielding::new();
        for _ in 0..3 {
            assert!(yielding.give_way(&taking(LONG + 1)));
            assert!((0..REST).all(|_| !yielding.give_way(&taking(1))));
        }
        assert!(yielding.give_way(&taking(1)));
        assert!(yielding.give_way(&taking(1)));
    }
}
