//! Row locks: the right to write a key, or to read it while no other owner writes it, until the
//! transaction ends.
//!
//! The table is sharded by the hash of family and key; a row is in it only while it has a holder or
//! a waiter.
//!
//! *Fair.* A request that does not get a row is repeated a few times and then queued, and a later
//! request does not overtake it there. Locks are handed over: the release of a row grants it to the
//! first in its queue, under the same mutex. Two kinds of requests are queued at the front, for
//! those in the queue may wait for their owners: of an owner that holds the row already and asks
//! for a stronger mode, and of one that holds a range around it. So no owner is ever queued behind
//! one that waits for it, and the search for deadlocks need not follow the queue: those before an
//! owner wait for the same holders.
//!
//! *Ranges.* A range is locked by an entry in every shard, so that a request for a row sees it
//! under the one mutex that it takes in any case. Rows in the range that others hold at that moment
//! in a conflicting mode are waited for one by one; no further ones can be taken. A range that is
//! denied in between is removed from all shards. Ranges are locked shared, for reads, and only a
//! whole family is locked exclusively: the lock of a range includes a row that stands for the
//! family, shared, and the lock of the whole family includes that row exclusively.
//!
//! *Deadlocks* are detected when an owner begins to wait (`deadlock.rs`).
//!
//! Order of the mutexes: the graph of waits, then a shard, then an owner.

use std::ops::{Bound, Deref};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use collie_io::{Clock, RealClock};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::deadlock::{Graph, Link};
use super::owner::Owner;
use super::shard::{Asked, Mode, Request, RowRef, Shard, contains};
use crate::Key;
use crate::bounds::Bounds;

/// Many more than threads that run at once.
const SHARDS: usize = 64;

/// How often a row is asked for before its queue is joined: first with pauses that double from
/// [`SHORTEST_SPIN`] on, then with a yield of the processor. Most locks are held for a few
/// microseconds, and waking a thread takes many times as long. An owner that was queued at once
/// would be granted the row asleep, and all behind it would wait until it runs
/// (docs/decisions/0006).
const ASKED_SPINNING: u32 = 4;
const ASKED_YIELDING: u32 = 14;
const SHORTEST_SPIN: u32 = 8;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// Waits before a row is asked for again.
fn pause(round: u32) {
    if round < ASKED_SPINNING {
        (0..SHORTEST_SPIN << round).for_each(|_| std::hint::spin_loop());
    } else {
        std::thread::yield_now();
    }
}

/// How long a request for a lock waits.
struct Deadline {
    timeout: Duration,
    began: u64,
}

impl Deadline {
    fn new(timeout: Duration) -> Self {
        let began = RealClock.monotonic();
        Self { timeout, began }
    }

    fn waited_ns(&self) -> u64 {
        RealClock.monotonic().saturating_sub(self.began)
    }

    fn left(&self) -> Duration {
        self.timeout
            .saturating_sub(Duration::from_nanos(self.waited_ns()))
    }
}

/// Why a lock was denied.
#[derive(Debug)]
pub(crate) enum Denied {
    /// The wait timed out.
    Timeout { waited: Duration },
    /// The wait would never end: each of these waits for the next, and the last for the first.
    Deadlock(Vec<Link>),
    /// The table is full.
    TooMany { limit: usize },
}

/// Counters of requests. On cache lines of their own: every request reads the rest of the table.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LockCounters {
    pub(crate) waits: AtomicU64,
    pub(crate) wait_ns: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) deadlocks: AtomicU64,
    /// How long owners held locks, from their first one on, and how many owners.
    pub(crate) held_ns: AtomicU64,
    pub(crate) held: AtomicU64,
}

/// All locks of a store.
#[derive(Debug)]
pub(crate) struct LockTable {
    shards: Box<[Padded]>,
    graph: Graph,
    /// Set when the first transaction begins, or the first rows are locked without one, and never
    /// reset. Plain writes check it while they have an appender (see `Store::appender`) and take
    /// row locks too from then on.
    in_use: AtomicBool,
    first_use: Once,
    limit: usize,
    next_owner: AtomicU64,
    pub(crate) counters: LockCounters,
}

impl LockTable {
    /// A table for about `limit` locks.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
            graph: Graph::default(),
            in_use: AtomicBool::new(false),
            first_use: Once::new(),
            limit,
            next_owner: AtomicU64::new(1),
            counters: LockCounters::default(),
        }
    }

    /// Whether plain writes take locks. The caller has an appender.
    pub(crate) fn in_use(&self) -> bool {
        // Relaxed: the thread that sets it takes every appender once after that, and the appenders'
        // mutexes make it visible to those who take them later.
        self.in_use.load(Ordering::Relaxed)
    }

    /// Makes plain writes take locks. `wait_until_applied` waits until the writes that did not see
    /// this are applied; this returns, for every caller, after that.
    pub(crate) fn enable(&self, wait_until_applied: impl FnOnce()) {
        self.first_use.call_once(|| {
            self.in_use.store(true, Ordering::Relaxed);
            wait_until_applied();
        });
    }

    pub(crate) fn owner(&self, name: &str) -> Arc<Owner> {
        // Relaxed: only uniqueness counts.
        let id = self.next_owner.fetch_add(1, Ordering::Relaxed);
        Arc::new(Owner::new(id, name))
    }

    /// The row that an owner waits for.
    pub(crate) fn waits_for(&self, owner: u64) -> Option<(u32, Key)> {
        self.graph.waits_for(owner)
    }

    /// Rows that are held or waited for, and ranges; a range counts once per shard.
    pub(crate) fn entries(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().entries()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // The upper bits: the hash table in the shard uses the lower ones.
        self.shards[(hash >> 32) as usize % SHARDS].0.lock()
    }

    fn shard_limit(&self) -> usize {
        self.limit.div_ceil(SHARDS)
    }

    /// Takes a row lock, or waits for it until `timeout` has passed. Returns whether it was not
    /// held before.
    fn lock(
        &self,
        owner: &Arc<Owner>,
        row: RowRef<'_>,
        mode: Mode,
        front: bool,
        timeout: Duration,
    ) -> Result<bool, Denied> {
        let hash = row.hash();
        let request = Request { owner, mode, front };
        let limit = self.shard_limit();
        let too_many = || Denied::TooMany { limit: self.limit };
        let taken = self.shard(hash).take(request, row, hash, limit);
        if let Some(new) = taken.ok_or_else(too_many)? {
            return Ok(new);
        }
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        let deadline = Deadline::new(timeout);
        let locked = self.wait_for(request, row, hash, &deadline);
        self.counters
            .wait_ns
            .fetch_add(deadline.waited_ns(), Ordering::Relaxed);
        locked
    }

    /// Asks again for a row that was not free, and in the end waits in its queue.
    fn wait_for(
        &self,
        request: Request<'_>,
        row: RowRef<'_>,
        hash: u64,
        deadline: &Deadline,
    ) -> Result<bool, Denied> {
        let limit = self.shard_limit();
        let too_many = || Denied::TooMany { limit: self.limit };
        for round in 0..ASKED_SPINNING + ASKED_YIELDING {
            pause(round);
            let taken = self.shard(hash).take(request, row, hash, limit);
            if let Some(new) = taken.ok_or_else(too_many)? {
                return Ok(new);
            }
            // Other threads may have had the processor for long.
            if round >= ASKED_SPINNING && deadline.left().is_zero() {
                break;
            }
        }
        let asked = self.shard(hash).ask(request, row, hash, limit);
        match asked.ok_or_else(too_many)? {
            Asked::Held { new } => Ok(new),
            Asked::Queued { new } => self.wait(request.owner, row, hash, deadline).map(|()| new),
        }
    }

    /// Waits in the row's queue.
    fn wait(
        &self,
        owner: &Arc<Owner>,
        row: RowRef<'_>,
        hash: u64,
        deadline: &Deadline,
    ) -> Result<(), Denied> {
        let blockers = |owner: &Owner, row: RowRef<'_>| {
            let hash = row.hash();
            self.shard(hash).blockers(owner, row, hash)
        };
        let cycle = self.graph.wait(owner, row, blockers);
        let denied = match cycle {
            Some(cycle) => Some(Denied::Deadlock(cycle)),
            None if owner.wait(deadline.left()) => None,
            None => Some(Denied::Timeout {
                waited: deadline.timeout,
            }),
        };
        self.graph.done(owner);
        let mut shard = self.shard(hash);
        // Granted under the shard's mutex, perhaps after the wait ended: then the row is held.
        let granted = owner.take_grant();
        let Some(denied) = denied.filter(|_| !granted) else {
            return Ok(());
        };
        shard.cancel_wait(owner, row, hash);
        let counter = match denied {
            Denied::Deadlock(_) => &self.counters.deadlocks,
            _ => &self.counters.timeouts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Err(denied)
    }
}

/// A range in which no other owner writes. Where it is held exclusively, no other owner holds a row
/// in it.
#[derive(Debug)]
struct HeldRange {
    family: u32,
    bounds: Arc<Bounds>,
    mode: Mode,
}

/// The locks that an owner holds. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Held<T: Deref<Target = LockTable> = Arc<LockTable>> {
    table: T,
    owner: Arc<Owner>,
    rows: SmallVec<[(u32, Key); 1]>,
    ranges: Vec<HeldRange>,
    /// When the first was taken, by the monotonic clock.
    since: Option<u64>,
    /// Whether the time that they are held is counted, which reads the clock twice.
    is_timed: bool,
}

impl<T: Deref<Target = LockTable> + Clone> Held<T> {
    /// Moves all locks into the result, which releases them when it is dropped.
    pub(crate) fn take(&mut self) -> Self {
        let nothing = Self::new(self.table.clone(), Arc::clone(&self.owner));
        std::mem::replace(self, nothing)
    }
}

impl<T: Deref<Target = LockTable>> Held<T> {
    pub(crate) fn new(table: T, owner: Arc<Owner>) -> Self {
        Self {
            table,
            owner,
            rows: SmallVec::new(),
            ranges: Vec::new(),
            since: None,
            is_timed: true,
        }
    }

    /// Locks that do not count in [`LockCounters::held_ns`].
    pub(crate) fn untimed(table: T, owner: Arc<Owner>) -> Self {
        let mut held = Self::new(table, owner);
        held.is_timed = false;
        held
    }

    fn note_time(&mut self) {
        if self.is_timed {
            self.since.get_or_insert_with(|| RealClock.monotonic());
        }
    }

    /// Whether a row is held, itself or in a range.
    pub(crate) fn covers(&self, row: RowRef<'_>) -> bool {
        let is_row = |(family, key): &(u32, Key)| *family == row.family && **key == *row.key;
        let is_around = |range: &HeldRange| range.family == row.family && contains(&range.bounds, row.key);
        self.rows.iter().any(is_row) || self.ranges.iter().any(is_around)
    }

    pub(crate) fn is_of(&self, table: &LockTable) -> bool {
        std::ptr::eq(&raw const *self.table, table)
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Rows and ranges.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() + self.ranges.len()
    }

    /// Locks a row, waiting for `timeout` at most. What was held before is kept in any case.
    pub(crate) fn lock(&mut self, row: RowRef<'_>, mode: Mode, timeout: Duration) -> Result<(), Denied> {
        let covers = |range: &HeldRange| range.family == row.family && contains(&range.bounds, row.key);
        if mode == Mode::Exclusive || !self.ranges.iter().any(covers) {
            self.lock_at(row, mode, false, timeout)?;
        }
        Ok(())
    }

    fn lock_at(&mut self, row: RowRef<'_>, mode: Mode, front: bool, timeout: Duration) -> Result<(), Denied> {
        if self.table.lock(&self.owner, row, mode, front, timeout)? {
            self.rows.push((row.family, Key::from(row.key)));
            self.note_time();
        }
        Ok(())
    }

    /// Locks all keys between the bounds, existing or not, so that no other owner writes any of
    /// them. What was held before is kept in any case, and nothing is added where this fails.
    pub(crate) fn lock_range(
        &mut self,
        family: u32,
        bounds: Bounds,
        timeout: Duration,
    ) -> Result<(), Denied> {
        self.lock_range_at(family, bounds, Mode::Shared, timeout)
    }

    /// Locks a whole family, so that no other owner writes in it, or has locked a part of it to
    /// read.
    pub(crate) fn lock_family(&mut self, family: u32, timeout: Duration) -> Result<(), Denied> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.lock_range_at(family, all, Mode::Exclusive, timeout)
    }

    fn lock_range_at(
        &mut self,
        family: u32,
        bounds: Bounds,
        mode: Mode,
        timeout: Duration,
    ) -> Result<(), Denied> {
        let is_same =
            |range: &HeldRange| range.mode >= mode && range.family == family && *range.bounds == bounds;
        if self.ranges.iter().any(is_same) {
            return Ok(());
        }
        let mut request = RangeRequest::new(self, family, bounds, mode);
        // Ranges are not checked against each other: this row's lock excludes those that must not
        // be held together.
        request
            .held
            .lock_at(RowRef::whole(family), mode, false, timeout)?;
        for key in request.enter()? {
            let row = RowRef { family, key: &key };
            // Before those in the row's queue, which wait for the range.
            request.held.lock_at(row, mode, true, timeout)?;
        }
        request.complete();
        Ok(())
    }

    /// Releases the rows that were locked after the first `kept`.
    fn release_rows(&mut self, kept: usize) {
        for (family, key) in self.rows.drain(kept..) {
            let row = RowRef { family, key: &key };
            let hash = row.hash();
            self.table.shard(hash).release(&self.owner, row, hash);
        }
    }

    /// Releases everything.
    pub(crate) fn release(&mut self) {
        self.release_rows(0);
        if !self.ranges.is_empty() {
            self.ranges.clear();
            for Padded(shard) in &self.table.shards {
                shard.lock().release_ranges(|range| range.is_of(&self.owner));
            }
        }
        if let Some(since) = self.since.take() {
            let held_ns = RealClock.monotonic().saturating_sub(since);
            let counters = &self.table.counters;
            counters.held_ns.fetch_add(held_ns, Ordering::Relaxed);
            counters.held.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<T: Deref<Target = LockTable>> Drop for Held<T> {
    fn drop(&mut self) {
        self.release();
    }
}

/// A range that is being locked: it is in the table, and rows in it that others hold are waited
/// for. Dropping it undoes all of that, unless it is complete.
struct RangeRequest<'h, T: Deref<Target = LockTable>> {
    held: &'h mut Held<T>,
    /// How many rows were held before. Those after them were locked for the range.
    rows_before: usize,
    family: u32,
    bounds: Arc<Bounds>,
    mode: Mode,
    is_complete: bool,
}

impl<'h, T: Deref<Target = LockTable>> RangeRequest<'h, T> {
    fn new(held: &'h mut Held<T>, family: u32, bounds: Bounds, mode: Mode) -> Self {
        held.note_time();
        Self {
            rows_before: held.rows.len(),
            held,
            family,
            bounds: Arc::new(bounds),
            mode,
            is_complete: false,
        }
    }

    /// Adds the range to all shards, so that no other owner can take a free row of it from here on.
    /// Returns the rows that are taken.
    fn enter(&mut self) -> Result<Vec<Key>, Denied> {
        let mut taken = Vec::new();
        let Held { table, owner, .. } = &*self.held;
        let limit = table.shard_limit();
        let request = Request {
            owner,
            mode: self.mode,
            front: false,
        };
        for Padded(shard) in &table.shards {
            shard
                .lock()
                .add_range(request, self.family, &self.bounds, limit, &mut taken)
                .ok_or(Denied::TooMany { limit: table.limit })?;
        }
        Ok(taken)
    }

    /// No other owner has a row of the range in a conflicting mode any more.
    fn complete(mut self) {
        self.held.ranges.push(HeldRange {
            family: self.family,
            bounds: Arc::clone(&self.bounds),
            mode: self.mode,
        });
        self.is_complete = true;
    }
}

impl<T: Deref<Target = LockTable>> Drop for RangeRequest<'_, T> {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        self.held.release_rows(self.rows_before);
        for Padded(shard) in &self.held.table.shards {
            shard
                .lock()
                .release_ranges(|range| range.has_bounds(&self.bounds));
        }
        if self.held.len() == 0 {
            self.held.since = None;
        }
    }
}
