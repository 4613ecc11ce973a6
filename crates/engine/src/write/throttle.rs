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
//! size: it waits while those of earlier ones are too many or take too much ([`Rule::LargeOfFamily`]).
//!
//! A write does not wait while its caller holds locks, for all that want these would wait with it: a
//! transaction, and a server's command, wait when they have released them. Only at hard limits they
//! wait at once ([`ThrottleMode::HardLimitsOnly`]), so that memory stays bounded: half a memtable or
//! [`BEYOND_STOP`] runs past the stop, or an eighth past the limit on all memtables.
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

use crate::events::Event;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::write::stall::{Level0, RaisedLevel0};
use crate::{Error, Result, Stall, ThrottleMode};

/// Delay per byte written right before the stop, in nanoseconds: about 20 MB/s.
const LONGEST_NS_PER_BYTE: f64 = 50.0;
/// Runs of level 0 past the stop at which a write waits whose caller holds locks.
const BEYOND_STOP: usize = 8;
/// Runs of level 0 at which writes stop at the earliest while a manual compaction keeps it from
/// draining. Fewer than the table library can count; each costs reads.
const RAISED_STOP: usize = 160;
/// A stopped writer checks again after this long at the latest.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// What may delay or stop a write of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Of a large commit: in the family, memtables of earlier ones that wait to be flushed leave no
    /// room for its own. Beyond that is what is under way.
    LargeOfFamily,
    /// Of a large commit: those of all families take as much as all other memtables may.
    ///
    /// A commit over thousands of families takes little in each, and as many flushes as families. So
    /// the next one does not wait for these.
    Large,
    /// All memtables together have reached their limit.
    Memory,
    /// The family's memtables are full, or its level 0 is.
    Family,
}

impl Store {
    /// Computes a family's stall anew, and wakes its writers where it has eased. To be called
    /// whenever its memtables or its level 0 have changed.
    pub(crate) fn update_stall(&self, family: &FamilyState) {
        self.throttle.budget.has_eased(self.memtable_bytes());
        family.tables().set_urgent(Backlog::of(family).is_close);
        if family.level0_runs() < family.options().level0_slowdown {
            family.stall_state().drained();
        }
        let checking = self.throttle.checking.lock();
        let before = family.stall();
        let eased = family.stall_state().set(Backlog::of(family).stall);
        let now = family.stall();
        if before != now {
            let family = Arc::clone(family.name());
            self.events().tell(|| Event::StallChanged { family, now });
        }
        drop(checking);
        if eased {
            self.throttle.changed.notify_all();
        }
    }

    /// From here on a manual compaction keeps level 0 from draining.
    pub(crate) fn raise_level0<'a>(&self, family: &'a FamilyState) -> RaisedLevel0<'a> {
        let raised = family.stall_state().raise_level0();
        self.update_stall(family);
        raised
    }

    /// Wakes all stopped writers, to check what keeps them.
    pub(crate) fn wake_stalled(&self) {
        drop(self.throttle.checking.lock());
        self.throttle.changed.notify_all();
    }

    /// Delays a write of `bytes` to these families, or keeps it until the stops that count in this
    /// mode are over. Fails where a stop may never be over.
    pub(crate) fn throttle(
        &self,
        families: &[Arc<FamilyState>],
        bytes: usize,
        mode: ThrottleMode,
    ) -> Result<()> {
        // What nothing does in full mode nothing does in another one.
        match self.is_large(bytes) || self.would_throttle(families) {
            true => self.wait_or_delay(families, bytes, mode),
            false => Ok(()),
        }
    }

    #[cold]
    fn wait_or_delay(&self, families: &[Arc<FamilyState>], bytes: usize, mode: ThrottleMode) -> Result<()> {
        let Some(first) = families.first() else {
            return Ok(());
        };
        let is_large = self.is_large(bytes);
        if is_large {
            for family in families {
                self.wait_out(Rule::LargeOfFamily, family, mode)?;
            }
            self.wait_out(Rule::Large, first, mode)?;
        }
        self.wait_out(Rule::Memory, first, mode)?;
        let mut slowest: Option<(&FamilyState, f64)> = None;
        for family in families {
            if self.wait_out(Rule::Family, family, mode)? == Stall::Delayed {
                let Backlog { pressure, .. } = Backlog::of(family);
                if slowest.is_none_or(|(_, most)| pressure > most) {
                    slowest = Some((family, pressure));
                }
            }
        }
        if let Some((family, pressure)) = slowest {
            // A large commit is not delayed for its size, for it takes no room of ordinary memtables.
            let bytes = if is_large { 0 } else { bytes };
            let own_ns = (bytes as f64 * LONGEST_NS_PER_BYTE * pressure) as u64;
            let counters = family.counters();
            counters.delays.add(1);
            let sleep = family.stall_state().sleep_for(own_ns);
            if sleep > 0 {
                let started = self.now();
                std::thread::sleep(Duration::from_nanos(sleep));
                counters.delay_ns.add(self.ns_since(started));
            }
        }
        Ok(())
    }

    /// Waits for a write of [`ThrottleMode::HardLimitsOnly`] whose locks are released by now. An error
    /// is left to the next write.
    pub(crate) fn throttle_after(&self, families: &[Arc<FamilyState>], bytes: usize) {
        if self.check_process().is_err() {
            return;
        }
        if let Err(error) = self.throttle(families, bytes, ThrottleMode::Full) {
            tracing::debug!(%error, "writes stay stalled");
        }
    }

    /// Whether [`throttle`](Self::throttle) would delay or stop a write that is not large.
    pub(crate) fn would_throttle(&self, families: &[Arc<FamilyState>]) -> bool {
        let is_delayed = |rule, family| self.stall_by(rule, family, ThrottleMode::Full) != Stall::None;
        // The memory is that of all families.
        let memory = families
            .first()
            .is_some_and(|family| is_delayed(Rule::Memory, family));
        memory || families.iter().any(|family| is_delayed(Rule::Family, family))
    }

    /// What the rule does to a write of the family.
    fn stall_by(&self, rule: Rule, family: &FamilyState, mode: ThrottleMode) -> Stall {
        let is_full = mode == ThrottleMode::Full;
        let stops = match rule {
            Rule::LargeOfFamily => is_full && family.view().is_full_of_large(&family.options()),
            Rule::Large => is_full && self.is_full_of_large(),
            Rule::Memory => {
                let most = self.throttle.budget.most();
                let beyond = if is_full { 0 } else { most / 8 };
                self.memtable_bytes() >= most.saturating_add(beyond)
            }
            Rule::Family if is_full => return family.stall(),
            Rule::Family => family.stall() == Stall::Stopped && Backlog::of(family).is_past_hard_limit,
        };
        if stops { Stall::Stopped } else { Stall::None }
    }

    /// Why a stop by the rule may never be over, if the background work that it waits for fails.
    fn stop_error(&self, rule: Rule, family: &FamilyState) -> Option<Error> {
        match rule {
            // Where each of the families that have a memtable to flush fails to.
            Rule::Large | Rule::Memory => {
                let families = self.families();
                let waiting = families.iter().filter(|family| !family.view().sealed.is_empty());
                let mut errors = waiting.map(|family| family.flushes().error());
                let first = errors.next().flatten()?;
                errors.all(|error| error.is_some()).then_some(first)
            }
            Rule::LargeOfFamily | Rule::Family => {
                if family.level0_runs() >= level0_limits(family).1 {
                    let failed = family.compactions().error();
                    if failed.is_some() || !family.tables().has_unrecorded() {
                        return failed;
                    }
                    // Compactions wait for a flush to record its tables in the manifest.
                }
                family.flushes().error()
            }
        }
    }

    /// Keeps a write of the family until the rule does not stop it, also one that a hard limit has
    /// stopped. Returns what the rule did to it at first. Fails where the stop may never be over.
    fn wait_out(&self, rule: Rule, family: &FamilyState, mode: ThrottleMode) -> Result<Stall> {
        let stall = self.stall_by(rule, family, mode);
        if stall != Stall::Stopped {
            return Ok(stall);
        }
        let counters = family.counters();
        counters.stops.add(1);
        let started = self.now();
        let passed = loop {
            if rule == Rule::Memory {
                // Without the lock, which it takes itself.
                self.throttle.budget.seal_largest(|| self.memtable_bytes());
            }
            let mut checking = self.throttle.checking.lock();
            if let Some(error) = self.failure() {
                break Err(error);
            }
            if let Err(error) = family.check_not_dropped() {
                break Err(error);
            }
            if self.stall_by(rule, family, ThrottleMode::Full) != Stall::Stopped {
                break Ok(stall);
            }
            // Background work fails: say why, instead of waiting for what may not come.
            if let Some(error) = self.stop_error(rule, family) {
                break Err(error);
            }
            self.throttle.changed.wait_for(&mut checking, CHECK_EVERY);
        };
        counters.stop_ns.add(self.ns_since(started));
        passed
    }
}

/// How far a family's background work is behind.
struct Backlog {
    stall: Stall,
    /// Whether a stop has not ended the writes that it should have.
    is_past_hard_limit: bool,
    /// Whether writes are delayed soon, or are: half of the runs or all but one of the memtables that
    /// it takes are there.
    is_close: bool,
    /// How close the stop is, from 0 to 1.
    pressure: f64,
}

impl Backlog {
    fn of(family: &FamilyState) -> Self {
        let (view, options) = (family.view(), family.options());
        let (runs, (slowdown, stop)) = (family.level0_runs(), level0_limits(family));
        let (active, full) = (view.active.bytes(), options.write_buffer_bytes);
        let buffers = view.buffers(&options);
        let is_last = buffers >= options.max_write_buffers;
        let stall = if runs >= stop || (is_last && active >= full) {
            Stall::Stopped
        } else if runs >= slowdown || (is_last && buffers > 2) {
            Stall::Delayed
        } else {
            Stall::None
        };
        let memory = if is_last { active as f64 / full as f64 } else { 0.0 };
        let level0 = runs.saturating_sub(slowdown) as f64 / stop.saturating_sub(slowdown).max(1) as f64;
        Self {
            stall,
            is_past_hard_limit: runs >= stop.saturating_add(BEYOND_STOP)
                || (is_last && active >= full.saturating_add(full / 2)),
            is_close: runs * 2 >= options.level0_slowdown || buffers + 1 >= options.max_write_buffers,
            pressure: memory.max(level0).clamp(0.02, 1.0),
        }
    }
}

/// The runs of level 0 at which writes are delayed, and at which they stop.
fn level0_limits(family: &FamilyState) -> (usize, usize) {
    let options = family.options();
    match family.stall_state().level0() {
        Level0::Raised | Level0::Draining if options.level0_stop < RAISED_STOP => {
            (options.level0_stop, RAISED_STOP)
        }
        _ => (options.level0_slowdown, options.level0_stop),
    }
}

impl Store {
    /// Its memtables count in the budget from now on.
    pub(crate) fn join_budget(&self, this: Weak<Self>) {
        self.throttle.budget.join(this);
    }

    /// Seals the largest memtables, those of stores with which this one shares included, where all of
    /// them together have grown large. For writers, after each commit.
    pub(crate) fn check_memory(&self) {
        if self.throttle.budget.asks_for_look(self.memtable_bytes()) {
            self.throttle.budget.seal_largest(|| self.memtable_bytes());
        }
    }

    /// The most that is done to writes now.
    pub(crate) fn stall(&self) -> Stall {
        match self.memtable_bytes() >= self.throttle.budget.most() {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::compaction;
    use crate::test::hold;
    use crate::test::interleavings::{new_store, put};
    use crate::{Db, FamilyOptions};

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
        assert_eq!(level0_limits(&state), (2, 3));
        assert_eq!(state.stall(), Stall::None);
    }
}
