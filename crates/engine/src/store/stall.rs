//! What a family's background work does to its writes, and where writers wait. `write/throttle.rs`
//! decides by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::background::threads::shared::Budget;

/// Delays are slept in pieces of at least this; a shorter sleep takes longer than asked.
const SLEEP_NS: u64 = 1_000_000;

/// What a family does to writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stall {
    /// Nothing.
    None,
    /// It delays them.
    Delayed,
    /// It makes them wait until background work has caught up.
    Stopped,
}

/// A family's write stall.
#[derive(Default)]
pub(crate) struct StallState {
    /// A [`Stall`], which only [`Store::update_stall`](crate::store::Store::update_stall) changes.
    stall: AtomicU8,
    /// Delays of writes that were too short for a sleep, and that are not slept yet.
    pot_ns: AtomicU64,
    /// A [`Level0`].
    pub(crate) level0: AtomicU8,
}

/// What level 0 may grow to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level0 {
    /// As the options say.
    Usual,
    /// Further: a manual compaction keeps it from draining.
    Raised,
    /// Further: the manual compaction has ended, and level 0 has not drained yet.
    Draining,
}

/// Keeps the limits on a family's level 0 raised, until it has drained after this was dropped. The
/// holder has the family's compactions for itself.
pub(crate) struct RaisedLevel0<'a>(pub(crate) &'a StallState);

impl Drop for RaisedLevel0<'_> {
    fn drop(&mut self) {
        // Relaxed, as all accesses: compactions take turns by a lock, and a write that sees an older
        // value waits or not as it did right before.
        self.0.level0.store(Level0::Draining as u8, Ordering::Relaxed);
    }
}

impl StallState {
    pub(crate) fn get(&self) -> Stall {
        // Relaxed: a write that is admitted right before a stop changes little.
        match self.stall.load(Ordering::Relaxed) {
            0 => Stall::None,
            1 => Stall::Delayed,
            _ => Stall::Stopped,
        }
    }

    /// Returns whether writes go on faster than before.
    pub(crate) fn set(&self, stall: Stall) -> bool {
        (stall as u8) < self.stall.swap(stall as u8, Ordering::Relaxed)
    }

    pub(crate) fn level0(&self) -> Level0 {
        match self.level0.load(Ordering::Relaxed) {
            0 => Level0::Usual,
            1 => Level0::Raised,
            _ => Level0::Draining,
        }
    }

    /// Level 0 has drained: unless another manual compaction has begun, the usual limits hold again.
    pub(crate) fn drained(&self) {
        let (before, after) = (Level0::Draining as u8, Level0::Usual as u8);
        // An error says that it was something else.
        let _ = self
            .level0
            .compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How long a writer is to sleep whose own delay is `ns`.
    pub(crate) fn sleep_for(&self, ns: u64) -> u64 {
        if ns >= SLEEP_NS {
            return ns;
        }
        // Relaxed: delays need not add up exactly at any moment; nothing is published by them.
        let pot = self.pot_ns.fetch_add(ns, Ordering::Relaxed) + ns;
        if pot < SLEEP_NS {
            return 0;
        }
        // The rest is left to others, so that none sleeps for all of them.
        let take = |pot: u64| pot.checked_sub(SLEEP_NS);
        match self
            .pot_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        {
            Ok(_) => SLEEP_NS,
            Err(_) => 0,
        }
    }
}

/// Where stopped writers of all families wait.
#[derive(Default)]
pub(crate) struct StoppedWriters {
    /// Held by a writer from its check of the stall until it waits, so that no wake-up is lost.
    pub(crate) checking: Mutex<()>,
    pub(crate) changed: Condvar,
}

/// What delays and stops the writes of a store.
pub(crate) struct ThrottleState {
    pub(crate) stopped: StoppedWriters,
    /// The limit on the memory of memtables, of this store or of all that share it.
    pub(crate) budget: Arc<Budget>,
    /// Flushes that wait for the log.
    pub(crate) log_waits: AtomicUsize,
}

impl ThrottleState {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self {
            stopped: StoppedWriters::default(),
            budget,
            log_waits: AtomicUsize::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_limits_hold_again_when_level_0_has_drained() {
        let state = StallState::default();
        assert_eq!(state.level0(), Level0::Usual);
        state.level0.store(Level0::Raised as u8, Ordering::Relaxed);
        state.drained();
        assert_eq!(state.level0(), Level0::Raised, "it goes on");
        drop(RaisedLevel0(&state));
        assert_eq!(state.level0(), Level0::Draining);
        state.drained();
        assert_eq!(state.level0(), Level0::Usual);
    }

    /// A small write beside a large one once slept for both.
    #[test]
    fn each_writer_sleeps_its_own_delay_and_small_ones_share_a_pot() {
        let state = StallState::default();
        let large = 800 * SLEEP_NS;
        assert_eq!(state.sleep_for(SLEEP_NS - 1), 0);
        assert_eq!(state.sleep_for(large), large);
        assert_eq!(state.sleep_for(1), SLEEP_NS);
        // What others have added beyond that stays for the next ones.
        state.pot_ns.store(3 * SLEEP_NS, Ordering::Relaxed);
        let slept: Vec<_> = (0..5).map(|_| state.sleep_for(10)).collect();
        assert_eq!(slept, [SLEEP_NS, SLEEP_NS, SLEEP_NS, 0, 0]);
    }
}
