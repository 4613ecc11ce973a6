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
//! Writes of all families stop where all memtables together have reached their limit.
//!
//! A large commit has memtables of its own, which do not count here, and is not delayed for its
//! size: it waits while those of earlier ones are too many or take too much ([`Store::await_large`]).
//!
//! A write does not wait while its caller holds locks, for all that want these would wait with it: a
//! transaction, and a server's command, wait when they have released them. Only half a memtable or
//! [`BEYOND_STOP`] runs past the stop they wait at once, so that memory stays bounded.
//!
//! # The memory of all memtables
//!
//! It is that of all stores, where they share it. Each family bounds its own memtables, and with a
//! thousand families that bounds nothing. So the bytes of all memtables that wait to be flushed are
//! counted, active ones included. From half of the limit on the largest active memtables are sealed
//! and flushed; at the limit writes stop until flushes have caught up.
//!
//! A large commit's memtables do not count: at as many bytes again the next large commit waits, and
//! no other write. Nor do those that are flushed and that a snapshot or an iterator still reads.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use collie_log::{Level, Lsn};

use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::stall::{Level0, RaisedLevel0};
use crate::{Error, FamilyOptions, Result, Stall};

/// Delay per byte written right before the stop, in nanoseconds: about 20 MB/s.
const LONGEST_NS_PER_BYTE: f64 = 50.0;
/// Runs of level 0 past the stop at which a transaction with locks waits too.
const BEYOND_STOP: usize = 8;
/// Runs of level 0 at which writes stop at the earliest while a manual compaction keeps it from
/// draining. Fewer than the table library can count; each costs reads.
const RAISED_STOP: usize = 160;
/// A stopped writer checks again after this long at the latest.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// What a writer keeps from others while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Nothing that the store knows of.
    Nothing,
    /// Locks of a transaction, or of a caller that says so.
    Locks,
}

impl Store {
    /// Computes a family's stall anew, and wakes its writers where it has eased. To be called
    /// whenever its memtables or its level 0 have changed.
    pub(crate) fn update_stall(&self, family: &FamilyState) {
        family.tables().set_urgent(is_close(family));
        if family.level0_runs() < family.options().level0_slowdown {
            family.stall_state().drained();
        }
        let checking = self.throttle.stopped.checking.lock();
        let eased = family.stall_state().set(current(family));
        drop(checking);
        if eased {
            self.throttle.stopped.changed.notify_all();
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
        drop(self.throttle.stopped.checking.lock());
        self.throttle.stopped.changed.notify_all();
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
            let mut checking = self.throttle.stopped.checking.lock();
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
            self.throttle.stopped.changed.wait_for(&mut checking, CHECK_EVERY);
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
        let mut checking = self.throttle.stopped.checking.lock();
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
            self.throttle.stopped.changed.wait_for(&mut checking, CHECK_EVERY);
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

impl Store {
    /// Its memtables count in the budget from now on.
    pub(crate) fn join_budget(&self, this: Weak<Self>) {
        self.throttle.budget.join(this);
    }

    /// The limit on them.
    pub(crate) fn max_memtable_bytes(&self) -> u64 {
        self.throttle.budget.most()
    }

    /// Seals the largest memtables where all of them together have grown large. For writers, after
    /// each commit.
    pub(crate) fn check_memory(&self) {
        if self.throttle.budget.asks_for_look(self.memtable_bytes()) {
            self.seal_largest();
        }
    }

    /// Whether a writer has to wait until memtables are flushed. One that holds locks goes on for an
    /// eighth more.
    pub(crate) fn is_memory_full(&self, holds: Holds) -> bool {
        let most = self.throttle.budget.most();
        let more = match holds {
            Holds::Nothing => 0,
            Holds::Locks => most / 8,
        };
        self.memtable_bytes() >= most + more
    }

    /// The most that is done to writes now.
    pub(crate) fn stall(&self) -> Stall {
        match self.is_memory_full(Holds::Nothing) {
            true => Stall::Stopped,
            false => self.worst_family(),
        }
    }

    /// Whether the memtables of large commits that wait to be flushed take as much as all others may.
    pub(crate) fn is_full_of_large(&self) -> bool {
        let families = self.families();
        let bytes: u64 = families.iter().map(|family| family.view().large_bytes()).sum();
        bytes >= self.throttle.budget.most()
    }

    /// Waits until the log is durable up to `end`. For flushes: what they would flush does not leave
    /// memory meanwhile.
    pub(crate) fn wait_for_log(&self, end: Lsn) -> Result<()> {
        // Relaxed, as the load: it decides which memtables are sealed, and publishes nothing.
        self.throttle.log_waits.fetch_add(1, Ordering::Relaxed);
        let durable = self.sequencer().wait(end, Level::Disk);
        self.throttle.log_waits.fetch_sub(1, Ordering::Relaxed);
        durable
    }

    /// Whether a flush waits for the log.
    pub(crate) fn waits_for_log(&self) -> bool {
        self.throttle.log_waits.load(Ordering::Relaxed) > 0
    }

    /// Memtables were flushed.
    pub(crate) fn memory_has_eased(&self) {
        self.throttle.budget.has_eased(self.memtable_bytes());
    }

    /// Seals the largest active memtables, those of stores with which this one shares included.
    #[cold]
    pub(crate) fn seal_largest(&self) {
        self.throttle.budget.seal_largest(|| self.memtable_bytes());
    }

    /// Why no memtable can be flushed, where each of the families that have one to flush fails to.
    pub(crate) fn flushes_fail(&self) -> Option<Error> {
        let families = self.families();
        let waiting = families.iter().filter(|family| !family.view().sealed.is_empty());
        let mut errors = waiting.map(|family| family.flushes().error());
        let first = errors.next().flatten()?;
        errors.all(|error| error.is_some()).then_some(first)
    }
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
    fn writes_go_on_while_a_compaction_keeps_level_0_from_draining() {
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
}
