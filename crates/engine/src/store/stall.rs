//! Write stalls: writes are delayed, and then stopped, while background work lags behind.
//!
//! A family's writes are delayed when all but its last memtable wait to be flushed or level 0 has
//! `level0_slowdown` runs, the more the closer the stop is; they stop when all memtables are full
//! or level 0 has `level0_stop` runs. So memory is bounded by `max_write_buffers` memtables, and
//! what the threads still write that were admitted before the stop.
//!
//! While a manual compaction merges all of a family's tables, nothing leaves its level 0. Stopping
//! writes would not help there, so level 0 may have up to [`RAISED_STOP`] runs until that is over,
//! and until it has drained.
//!
//! A delay is in proportion to the bytes that a write adds, and each writer sleeps its own. A write
//! too small for a sleep adds its share to a pot of the family, and who fills that sleeps for a
//! millisecond. A write of several families is delayed once, as the one next to its stop demands.
//!
//! Writes of all families stop where all memtables together have reached their limit (`memory.rs`).
//!
//! A large commit has memtables of its own, which do not count here, and is not delayed for its
//! size: it waits while those of earlier ones are too many or take too much ([`Store::await_large`]).
//!
//! A write does not wait while its caller holds locks, for all that want these would wait with it: a
//! transaction, and a server's command, wait when they have released them. Only half a memtable or
//! [`BEYOND_STOP`] runs past the stop they wait at once, so that memory stays bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::store::Store;
use crate::store::family_state::FamilyState;
use crate::{Error, FamilyOptions, Result};

/// Delay per byte written right before the stop, in nanoseconds: about 20 MB/s.
const LONGEST_NS_PER_BYTE: f64 = 50.0;
/// Delays are slept in pieces of at least this; a shorter sleep takes longer than asked.
const SLEEP_NS: u64 = 1_000_000;
/// Runs of level 0 past the stop at which a transaction with locks waits too.
const BEYOND_STOP: usize = 8;
/// Runs of level 0 at which writes stop at the earliest while a manual compaction keeps it from
/// draining. Fewer than the table library can count; each costs reads.
const RAISED_STOP: usize = 160;
/// A stopped writer checks again after this long at the latest.
const CHECK_EVERY: Duration = Duration::from_millis(100);

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

/// What a writer keeps from others while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Nothing that the store knows of.
    Nothing,
    /// Locks of a transaction, or of a caller that says so.
    Locks,
}

/// A family's write stall.
#[derive(Default)]
pub(super) struct StallState {
    /// A [`Stall`], which only [`Store::update_stall`] changes.
    stall: AtomicU8,
    /// Delays of writes that were too short for a sleep, and that are not slept yet.
    pot_ns: AtomicU64,
    /// A [`Level0`].
    level0: AtomicU8,
}

/// What level 0 may grow to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level0 {
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
    pub(super) fn get(&self) -> Stall {
        // Relaxed: a write that is admitted right before a stop changes little.
        match self.stall.load(Ordering::Relaxed) {
            0 => Stall::None,
            1 => Stall::Delayed,
            _ => Stall::Stopped,
        }
    }

    /// Returns whether writes go on faster than before.
    fn set(&self, stall: Stall) -> bool {
        (stall as u8) < self.stall.swap(stall as u8, Ordering::Relaxed)
    }

    fn level0(&self) -> Level0 {
        match self.level0.load(Ordering::Relaxed) {
            0 => Level0::Usual,
            1 => Level0::Raised,
            _ => Level0::Draining,
        }
    }

    /// Level 0 has drained: unless another manual compaction has begun, the usual limits hold again.
    fn drained(&self) {
        let (before, after) = (Level0::Draining as u8, Level0::Usual as u8);
        // An error says that it was something else.
        let _ = self
            .level0
            .compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How long a writer is to sleep whose own delay is `ns`.
    fn sleep_for(&self, ns: u64) -> u64 {
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
pub(super) struct StoppedWriters {
    /// Held by a writer from its check of the stall until it waits, so that no wake-up is lost.
    checking: Mutex<()>,
    changed: Condvar,
}

impl Store {
    /// Computes a family's stall anew, and wakes its writers where it has eased. To be called
    /// whenever its memtables or its level 0 have changed.
    pub(crate) fn update_stall(&self, family: &FamilyState) {
        family.tables().set_urgent(is_close(family));
        if family.level0_runs() < family.options().level0_slowdown {
            family.stall_state().drained();
        }
        let checking = self.stopped.checking.lock();
        let eased = family.stall_state().set(current(family));
        drop(checking);
        if eased {
            self.stopped.changed.notify_all();
        }
    }

    /// From here on a manual compaction keeps level 0 from draining.
    pub(crate) fn raise_level0<'a>(&self, family: &'a FamilyState) -> RaisedLevel0<'a> {
        let state = family.stall_state();
        state.level0.store(Level0::Raised as u8, Ordering::Relaxed);
        let raised = RaisedLevel0(state);
        self.update_stall(family);
        raised
    }

    /// Wakes all stopped writers, to check what keeps them.
    pub(crate) fn wake_stalled(&self) {
        drop(self.stopped.checking.lock());
        self.stopped.changed.notify_all();
    }

    /// Delays a write of `bytes` to these families, or keeps it until their stops are over. One
    /// that holds locks goes on, unless a stop is long past. Fails where a stop may never be over.
    pub(crate) fn throttle(&self, families: &[Arc<FamilyState>], bytes: usize, holds: Holds) -> Result<()> {
        if self.is_memory_full(holds)
            && let Some(family) = families.first()
        {
            self.wait_for_memory(family)?;
        }
        let mut slowest: Option<(&FamilyState, f64)> = None;
        for family in families {
            match family.stall() {
                Stall::None => {}
                Stall::Delayed => {
                    let pressure = pressure(family);
                    if slowest.is_none_or(|(_, most)| pressure > most) {
                        slowest = Some((family, pressure));
                    }
                }
                Stall::Stopped if holds == Holds::Locks && !is_long_past_stop(family) => {}
                Stall::Stopped => self.wait_out_stop(family)?,
            }
        }
        if let Some((family, pressure)) = slowest
            && holds == Holds::Nothing
        {
            self.delay(family, (bytes as f64 * LONGEST_NS_PER_BYTE * pressure) as u64);
        }
        Ok(())
    }

    /// Whether [`throttle`](Self::throttle) would delay or stop a write to these families that holds
    /// no locks.
    pub(crate) fn would_throttle(&self, families: &[Arc<FamilyState>]) -> bool {
        self.is_memory_full(Holds::Nothing) || families.iter().any(|family| family.stall() != Stall::None)
    }

    fn delay(&self, family: &FamilyState, ns: u64) {
        let counters = family.counters();
        counters.delays.add(1);
        let sleep = family.stall_state().sleep_for(ns);
        if sleep > 0 {
            let started = self.now();
            std::thread::sleep(Duration::from_nanos(sleep));
            counters.delay_ns.add(self.ns_since(started));
        }
    }

    /// Keeps a write to `family` until all memtables together are smaller than their limit.
    #[cold]
    fn wait_for_memory(&self, family: &FamilyState) -> Result<()> {
        let counters = family.counters();
        counters.stops.add(1);
        let started = self.now();
        let passed = loop {
            // Without the lock, which it takes itself.
            self.seal_largest();
            let mut checking = self.stopped.checking.lock();
            if let Some(error) = self.failure() {
                break Err(error);
            }
            if let Err(error) = family.check_not_dropped() {
                break Err(error);
            }
            if !self.is_memory_full(Holds::Nothing) {
                break Ok(());
            }
            if let Some(error) = self.flushes_fail() {
                break Err(error);
            }
            self.stopped.changed.wait_for(&mut checking, CHECK_EVERY);
        };
        counters.stop_ns.add(self.ns_since(started));
        passed
    }

    fn wait_out_stop(&self, family: &FamilyState) -> Result<()> {
        self.wait_while(
            family,
            || family.stall() == Stall::Stopped,
            || lagging_error(family),
        )
    }

    /// Keeps a large commit until the memtables of earlier ones that wait to be flushed leave room
    /// for its own: none of its families is full of them, and all together are below their limit.
    /// Beyond that is what is under way. The caller holds no locks. Fails where that may never be.
    ///
    /// A commit over thousands of families takes little in each, and as many flushes as families. So
    /// the next one does not wait for these.
    pub(crate) fn await_large(&self, families: &[Arc<FamilyState>]) -> Result<()> {
        for family in families {
            let is_full = || family.view().is_full_of_large(family.options());
            if is_full() {
                self.wait_while(family, is_full, || lagging_error(family))?;
            }
        }
        match families.first() {
            Some(family) if self.is_full_of_large() => {
                self.wait_while(family, || self.is_full_of_large(), || self.flushes_fail())
            }
            _ => Ok(()),
        }
    }

    /// Waits for background work to end what `is_behind` asks for. Fails where that may never be, as
    /// `fails` says.
    fn wait_while(
        &self,
        family: &FamilyState,
        is_behind: impl Fn() -> bool,
        fails: impl Fn() -> Option<Error>,
    ) -> Result<()> {
        let counters = family.counters();
        counters.stops.add(1);
        let started = self.now();
        let mut checking = self.stopped.checking.lock();
        let passed = loop {
            if let Some(error) = self.failure() {
                break Err(error);
            }
            if let Err(error) = family.check_not_dropped() {
                break Err(error);
            }
            if !is_behind() {
                break Ok(());
            }
            // Background work fails: say why, instead of waiting for what may not come.
            if let Some(error) = fails() {
                break Err(error);
            }
            self.stopped.changed.wait_for(&mut checking, CHECK_EVERY);
        };
        drop(checking);
        counters.stop_ns.add(self.ns_since(started));
        passed
    }
}

/// The runs of level 0 at which writes are delayed, and at which they stop.
struct Limits {
    slowdown: usize,
    stop: usize,
}

impl Limits {
    fn of(family: &FamilyState) -> Self {
        let FamilyOptions {
            level0_slowdown: slowdown,
            level0_stop: stop,
            ..
        } = *family.options();
        match family.stall_state().level0() {
            Level0::Raised | Level0::Draining if stop < RAISED_STOP => Self {
                slowdown: stop,
                stop: RAISED_STOP,
            },
            _ => Self { slowdown, stop },
        }
    }
}

fn current(family: &FamilyState) -> Stall {
    let view = family.view();
    let options = family.options();
    let (level0, limits) = (family.level0_runs(), Limits::of(family));
    let buffers = view.buffers(options);
    let full = view.active.bytes() >= options.write_buffer_bytes;
    if level0 >= limits.stop || (buffers >= options.max_write_buffers && full) {
        Stall::Stopped
    } else if level0 >= limits.slowdown || (buffers >= options.max_write_buffers && buffers > 2) {
        Stall::Delayed
    } else {
        Stall::None
    }
}

/// Whether a stop has not ended the writes that it should have.
fn is_long_past_stop(family: &FamilyState) -> bool {
    let options = family.options();
    let active = family.view().active.bytes();
    family.level0_runs() >= Limits::of(family).stop + BEYOND_STOP
        || (family.view().buffers(options) >= options.max_write_buffers
            && active >= options.write_buffer_bytes + options.write_buffer_bytes / 2)
}

/// Whether writes are delayed soon, or are: half of the runs or all but one of the memtables that it
/// takes are there.
fn is_close(family: &FamilyState) -> bool {
    let options = family.options();
    let buffers = family.view().buffers(options);
    family.level0_runs() * 2 >= options.level0_slowdown || buffers + 1 >= options.max_write_buffers
}

/// How close the stop is, from 0 to 1.
fn pressure(family: &FamilyState) -> f64 {
    let options = family.options();
    let view = family.view();
    let fill = view.active.bytes() as f64 / options.write_buffer_bytes as f64;
    let limits = Limits::of(family);
    let over = family.level0_runs().saturating_sub(limits.slowdown);
    let span = (limits.stop - limits.slowdown).max(1);
    let memory = if view.buffers(options) >= options.max_write_buffers {
        fill
    } else {
        0.0
    };
    memory.max(over as f64 / span as f64).clamp(0.02, 1.0)
}

/// Why the background work that the stop waits for fails, if it does.
fn lagging_error(family: &FamilyState) -> Option<Error> {
    let level0 = family.level0_runs();
    if level0 >= Limits::of(family).stop {
        let failed = family.compactions().error();
        if failed.is_some() || !family.tables().has_unrecorded() {
            return failed;
        }
        // Compactions wait for a flush to record its tables in the manifest.
    }
    family.flushes().error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Db;
    use crate::background::compaction;
    use crate::test::hold;
    use crate::test::interleavings::{new_store, put};

    /// Nothing leaves level 0 meanwhile, so a stop would last until the end.
    #[test]
    fn writes_go_on_while_a_manual_compaction_keeps_level_0_from_draining() {
        let (_dir, db) = new_store();
        let options = FamilyOptions {
            level0_compaction: 2,
            level0_slowdown: 2,
            level0_stop: 3,
            ..FamilyOptions::default()
        };
        let family = db.open_family("compacted", options).unwrap();
        let state = Arc::clone(family.state());
        let another_run = |n: u32| {
            put(&family, "k", &n.to_string());
            family.flush().unwrap();
        };
        another_run(0);
        let compaction = {
            let (store, state) = (Arc::clone(Db::store(&db)), Arc::clone(&state));
            hold("tables are merged", move || {
                compaction::compact_all(&store, &state)
            })
            .at_point()
        };
        for n in 0..10 {
            another_run(n);
            assert_ne!(state.stall(), Stall::Stopped, "{} runs", state.level0_runs());
        }
        assert!(state.level0_runs() > 3 && state.stall() == Stall::Delayed);
        compaction.finish().unwrap();
        // As long as it has more runs than usual, and no longer.
        while state.stall_state().level0() != Level0::Usual || state.stall() == Stall::Delayed {
            assert_ne!(state.stall(), Stall::Stopped, "{} runs", state.level0_runs());
            std::thread::yield_now();
        }
        assert_eq!((Limits::of(&state).slowdown, Limits::of(&state).stop), (2, 3));
        assert_eq!(state.stall(), Stall::None);
    }

    #[test]
    fn the_usual_limits_hold_again_when_level_0_has_drained_after_the_compaction() {
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
