//! The state of write stalls: of a family, of a store, and the budget of memory that stores may share.
//! `write/throttle.rs` decides by it.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use crate::background::threads::pool::Member;

/// Delays are slept in pieces of at least this; a shorter sleep takes longer than asked.
const SLEEP_NS: u64 = 1_000_000;

/// What a family does to writes.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    level0: AtomicU8,
}

/// What level 0 may grow to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level0 {
    /// As the options say.
    Usual,
    /// Further: a manual compaction keeps it from draining.
    Raised,
    /// Further: the manual compaction has ended, and level 0 has not drained yet.
    Draining,
}

/// Keeps the limits on a family's level 0 raised, until it has drained after this was dropped. The
/// holder has the family's compactions for itself.
pub(crate) struct RaisedLevel0<'a>(&'a StallState);

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
    pub(super) fn set(&self, stall: Stall) -> bool {
        (stall as u8) < self.stall.swap(stall as u8, Ordering::Relaxed)
    }

    pub(super) fn level0(&self) -> Level0 {
        match self.level0.load(Ordering::Relaxed) {
            0 => Level0::Usual,
            1 => Level0::Raised,
            _ => Level0::Draining,
        }
    }

    /// From here on a manual compaction keeps level 0 from draining.
    pub(super) fn raise_level0(&self) -> RaisedLevel0<'_> {
        self.level0.store(Level0::Raised as u8, Ordering::Relaxed);
        RaisedLevel0(self)
    }

    /// Level 0 has drained: unless another manual compaction has begun, the usual limits hold again.
    pub(super) fn drained(&self) {
        let (before, after) = (Level0::Draining as u8, Level0::Usual as u8);
        // An error says that it was something else.
        let _ = self
            .level0
            .compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How long a writer is to sleep whose own delay is `ns`.
    pub(super) fn sleep_for(&self, ns: u64) -> u64 {
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

/// What delays and stops the writes of a store.
pub(crate) struct Throttle {
    /// Held by a writer from its check of a stop until it waits, so that no wake-up is lost.
    pub(super) checking: Mutex<()>,
    /// Where stopped writers of all families wait.
    pub(super) changed: Condvar,
    /// The limit on the memory of memtables, of this store or of all that share it.
    pub(crate) budget: Arc<Budget>,
    /// Flushes that wait for the log.
    pub(super) log_waits: AtomicUsize,
}

impl Throttle {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            checking: Mutex::new(()),
            changed: Condvar::new(),
            budget,
            log_waits: AtomicUsize::new(0),
        }
    }
}

/// The limit where none is set, unless a single family may have half of it or more.
const BUDGET_LEAST: u64 = 1 << 30;
/// Of what may be in memory before anything is sealed so large a part is sealed at a time, and the
/// next look comes after half of it.
const AT_ONCE: u64 = 16;

/// The limit on the memory of memtables, of one store or of all that share it. All atomics are
/// Relaxed: they decide when to look, and publish nothing.
pub(crate) struct Budget {
    most: AtomicU64,
    is_set: bool,
    /// The bytes in memory at which memtables are looked at next.
    look_at: AtomicU64,
    /// Held by the thread that seals.
    sealing: Mutex<()>,
    members: Mutex<Vec<Weak<dyn Member>>>,
}

impl Budget {
    pub(crate) fn new(most: Option<u64>) -> Self {
        let is_set = most.is_some();
        let most = most.unwrap_or(BUDGET_LEAST);
        Self {
            most: AtomicU64::new(most),
            is_set,
            look_at: AtomicU64::new(most / 2),
            sealing: Mutex::new(()),
            members: Mutex::default(),
        }
    }

    /// A store's memtables count from now on.
    pub(crate) fn join(&self, store: Weak<dyn Member>) {
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(store);
    }

    /// A single family never meets a limit that was not set.
    pub(crate) fn fit(&self, write_buffer_bytes: u64, max_write_buffers: usize) {
        if !self.is_set {
            let of_family = write_buffer_bytes.saturating_mul(max_write_buffers as u64);
            let most = of_family.saturating_mul(4);
            if self.most.fetch_max(most, Ordering::Relaxed) < most {
                self.look_at.fetch_max(most / 2, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// From here on memtables are sealed.
    fn soft(&self) -> u64 {
        self.most() / 2
    }

    /// Whether so many bytes in memory ask for a look at the memtables.
    pub(crate) fn asks_for_look(&self, bytes: u64) -> bool {
        bytes >= self.look_at.load(Ordering::Relaxed)
    }

    /// `bytes` are in memory, perhaps fewer than before.
    pub(crate) fn has_eased(&self, bytes: u64) {
        let soft = self.soft();
        if bytes < soft {
            self.look_at.store(soft, Ordering::Relaxed);
        }
    }

    /// Seals the largest active memtables, where all together, `bytes`, have grown large, unless more
    /// is on its way to tables already than is active. What waits for a log is not on its way: a log
    /// that stands still would keep the memtables of all other stores from being flushed.
    #[cold]
    pub(crate) fn seal_largest(&self, bytes: impl FnOnce() -> u64) {
        let Some(_sealing) = self.sealing.try_lock() else {
            return;
        };
        let (bytes, soft) = (bytes(), self.soft());
        if bytes < soft {
            return;
        }
        let stores: Vec<Arc<dyn Member>> = self.members.lock().iter().filter_map(Weak::upgrade).collect();
        let mut by_size = Vec::new();
        for store in &stores {
            let mems = store.active_mems();
            by_size.extend(mems.into_iter().map(|(bytes, family)| (bytes, store, family)));
        }
        if by_size.is_empty() {
            return;
        }
        self.look_at.store(bytes + soft / AT_ONCE / 2, Ordering::Relaxed);
        let active: u64 = by_size.iter().map(|(bytes, ..)| bytes).sum();
        let waiting: u64 = stores.iter().map(|store| store.waiting_mem_bytes()).sum();
        if active < bytes.saturating_sub(waiting) / 2 {
            return;
        }
        by_size.sort_unstable_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
        let mut sealed = 0;
        for (bytes, store, family) in by_size {
            if sealed >= soft / AT_ONCE || bytes == 0 {
                break;
            }
            if store.seal(family) {
                sealed += bytes;
            }
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
        let raised = state.raise_level0();
        state.drained();
        assert_eq!(state.level0(), Level0::Raised, "it goes on");
        drop(raised);
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
