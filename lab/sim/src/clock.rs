//! A clock that a test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::{Clock, Nanos};

/// Wall time at the start of every simulated world, in milliseconds since the Unix epoch.
const START_WALL_MS: u64 = 1_700_000_000_000;

/// The time of a simulated world: it moves when a test says so, and, if wanted, a little at every
/// look.
///
/// Clones share the time. Relaxed orderings suffice: the time orders nothing but itself.
#[derive(Debug, Clone, Default)]
pub struct SimClock {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    now: AtomicU64,
    step: AtomicU64,
    behind_ms: AtomicU64,
}

impl SimClock {
    /// A clock that stands at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock on by `nanos`.
    pub fn advance(&self, nanos: Nanos) {
        self.inner.now.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Steps the wall clock back by `ms` milliseconds, as an administrator may; the other one goes
    /// on.
    pub fn step_wall_back(&self, ms: u64) {
        self.inner.behind_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// From now on every look moves the clock on by `nanos`; 0 stops it.
    pub fn auto_advance(&self, nanos: Nanos) {
        self.inner.step.store(nanos, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Nanos {
        let step = self.inner.step.load(Ordering::Relaxed);
        self.inner.now.fetch_add(step, Ordering::Relaxed)
    }

    fn wall_ms(&self) -> u64 {
        let behind = self.inner.behind_ms.load(Ordering::Relaxed);
        START_WALL_MS + self.inner.now.load(Ordering::Relaxed) / 1_000_000 - behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_until_it_is_moved() {
        let clock = SimClock::new();
        assert_eq!(clock.monotonic(), 0);
        assert_eq!(clock.monotonic(), 0);
        clock.clone().advance(5_000_000);
        assert_eq!(
            (clock.monotonic(), clock.wall_ms()),
            (5_000_000, START_WALL_MS + 5)
        );
        clock.auto_advance(10);
        assert_eq!((clock.monotonic(), clock.monotonic()), (5_000_000, 5_000_010));
    }
}
