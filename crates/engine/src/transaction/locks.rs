//! Row locks: who may write a key, or read it so that nobody else writes it, until its transaction ends.
//!
//! The table is sharded by the hash of family and key; a row is there only while somebody holds or waits for it.
//!
//! *Fair.* Whoever does not get a row asks again a few times, then stands in its queue, and a later request does not
//! overtake it there. Locks are handed over: whoever releases a row gives it to the first in its queue before anybody
//! else can look. The exceptions: who holds the row already and wants more, and who holds a range that it lies in, go to
//! the front, for those in the queue may wait for them. So nobody ever stands behind somebody who waits for it, and who
//! stands before one need not be followed when rings are looked for: they wait for the same holders.
//!
//! *Ranges.* A range is locked by an entry in every shard, so that whoever wants a row sees it under the one mutex that it
//! takes in any case. Rows in the range that others hold at that moment, in a way that it excludes, are waited for one by
//! one; no others can become so. A range that is refused on the way is taken back from all shards. What is read is locked
//! shared, and only a whole family exclusively: who locks a range of it has a row that stands for the family, shared,
//! and who locks all of it has that row alone.
//!
//! *Deadlocks* are looked for when somebody begins to wait (`deadlock.rs`).
//!
//! Lock order inside: the graph of waits, then a shard, then an owner's slot.

use std::ops::{Bound, Deref};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use collie_io::{Clock, RealClock};
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use super::deadlock::{Graph, Link};
use super::shard::{Asked, Mode, Request, RowRef, Shard, contains};
use crate::Key;
use crate::iter::Bounds;

/// Many more than there are threads at work at once.
const SHARDS: usize = 64;

/// How often a row is asked for before its queue is joined: with pauses between, from [`SHORTEST_SPIN`] on, that double,
/// then with the processor left to others. Most locks are held for a few microseconds, and to be woken takes many times
/// as long: whoever joined at once would be handed the row asleep, and all behind it would wait for its waking, time and
/// again (docs/decisions/0006).
const ASKED_SPINNING: u32 = 4;
const ASKED_YIELDING: u32 = 14;
const SHORTEST_SPIN: u32 = 8;

/// Somebody who holds and waits for locks: a transaction, a single write, or a `RowOwner`.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: u64,
    /// As its user named it; empty where nobody did.
    pub(crate) name: Box<str>,
    /// Whether the lock that it waits for was handed over. An owner waits for one lock at a time.
    granted: Mutex<bool>,
    wake: Condvar,
    /// Whether [`RowLocks`](super::RowLocks) of it are about.
    pub(crate) has_row_locks: AtomicBool,
}

impl Owner {
    pub(crate) fn grant(&self) {
        *self.granted.lock() = true;
        self.wake.notify_one();
    }

    /// Returns whether the lock was handed over in that time.
    fn wait(&self, timeout: Duration) -> bool {
        let mut granted = self.granted.lock();
        self.wake
            .wait_while_for(&mut granted, |granted| !*granted, timeout);
        *granted
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// Waits a little before a row is asked for again.
fn pause(round: u32) {
    if round < ASKED_SPINNING {
        (0..SHORTEST_SPIN << round).for_each(|_| std::hint::spin_loop());
    } else {
        std::thread::yield_now();
    }
}

/// How long a lock is waited for.
struct Patience {
    timeout: Duration,
    began: u64,
}

impl Patience {
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

/// Why a lock was not given.
#[derive(Debug)]
pub(crate) enum Denied {
    /// It was not to be had in that time.
    Timeout { waited: Duration },
    /// Waiting would never end: each of these waits for the next, and the last for the first.
    Deadlock(Vec<Link>),
    /// The table is full.
    TooMany { limit: usize },
}

/// What happened to requests. On cache lines of its own: the rest of the table is read by whoever asks for a lock.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LockCounters {
    pub(crate) waits: AtomicU64,
    pub(crate) wait_ns: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) deadlocks: AtomicU64,
    /// How long owners held locks, from the first on, and how many owners.
    pub(crate) held_ns: AtomicU64,
    pub(crate) held: AtomicU64,
}

/// All locks of a store.
#[derive(Debug)]
pub(crate) struct LockTable {
    shards: Box<[Padded]>,
    graph: Graph,
    /// Set when the first transaction begins, or the first rows are locked without one, and for good. Plain writes look at it while they hold a hand (see
    /// `Core::turn`) and take row locks too from then on.
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

    /// Whether plain writes take locks. The caller holds a hand.
    pub(crate) fn in_use(&self) -> bool {
        // Relaxed: whoever sets it takes every hand once after that, so that later holders of a hand see it.
        self.in_use.load(Ordering::Relaxed)
    }

    /// Has plain writes take locks. `settle` returns when those that did not look after this are applied; so does this,
    /// for every caller.
    pub(crate) fn use_from_now_on(&self, settle: impl FnOnce()) {
        self.first_use.call_once(|| {
            self.in_use.store(true, Ordering::Relaxed);
            settle();
        });
    }

    pub(crate) fn owner(&self, name: &str) -> Arc<Owner> {
        // Relaxed: only uniqueness counts.
        let id = self.next_owner.fetch_add(1, Ordering::Relaxed);
        Arc::new(Owner {
            id,
            name: name.into(),
            granted: Mutex::new(false),
            wake: Condvar::new(),
            has_row_locks: AtomicBool::new(false),
        })
    }

    /// The row that an owner waits for.
    pub(crate) fn waits_for(&self, owner: u64) -> Option<(u32, Key)> {
        self.graph.waits_for(owner)
    }

    /// Rows that are held or waited for, and ranges; a range counts in each shard.
    pub(crate) fn entries(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().entries()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // The upper bits: the table inside the shard takes the lower ones.
        self.shards[(hash >> 32) as usize % SHARDS].0.lock()
    }

    fn shard_limit(&self) -> usize {
        self.limit.div_ceil(SHARDS)
    }

    /// Takes a row lock, or waits for it until `timeout` has passed. Returns whether it was not held before.
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
        let patience = Patience::new(timeout);
        let locked = self.wait_for(request, row, hash, &patience);
        self.counters
            .wait_ns
            .fetch_add(patience.waited_ns(), Ordering::Relaxed);
        locked
    }

    /// Asks again for a row that was not to be had, and in the end waits in its queue.
    fn wait_for(
        &self,
        request: Request<'_>,
        row: RowRef<'_>,
        hash: u64,
        patience: &Patience,
    ) -> Result<bool, Denied> {
        let limit = self.shard_limit();
        let too_many = || Denied::TooMany { limit: self.limit };
        for round in 0..ASKED_SPINNING + ASKED_YIELDING {
            pause(round);
            let taken = self.shard(hash).take(request, row, hash, limit);
            if let Some(new) = taken.ok_or_else(too_many)? {
                return Ok(new);
            }
            // Others may have kept the processor for long.
            if round >= ASKED_SPINNING && patience.left().is_zero() {
                break;
            }
        }
        let asked = self.shard(hash).ask(request, row, hash, limit);
        match asked.ok_or_else(too_many)? {
            Asked::Held { new } => Ok(new),
            Asked::Queued { new } => self.wait(request.owner, row, hash, patience).map(|()| new),
        }
    }

    /// Waits in the row's queue.
    fn wait(
        &self,
        owner: &Arc<Owner>,
        row: RowRef<'_>,
        hash: u64,
        patience: &Patience,
    ) -> Result<(), Denied> {
        let blockers = |owner: &Owner, row: RowRef<'_>| {
            let hash = row.hash();
            self.shard(hash).blockers(owner, row, hash)
        };
        let cycle = self.graph.wait(owner, row, blockers);
        let denied = match cycle {
            Some(cycle) => Some(Denied::Deadlock(cycle)),
            None if owner.wait(patience.left()) => None,
            None => Some(Denied::Timeout {
                waited: patience.timeout,
            }),
        };
        self.graph.done(owner);
        let mut shard = self.shard(hash);
        // Handed over under the shard's mutex, perhaps only now: then it is held.
        let granted = std::mem::take(&mut *owner.granted.lock());
        let Some(denied) = denied.filter(|_| !granted) else {
            return Ok(());
        };
        shard.give_up(owner, row, hash);
        let counter = match denied {
            Denied::Deadlock(_) => &self.counters.deadlocks,
            _ => &self.counters.timeouts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Err(denied)
    }
}

/// A range in which nobody else writes; where it is held exclusively nobody else holds a row either.
#[derive(Debug)]
struct HeldRange {
    family: u32,
    bounds: Arc<Bounds>,
    mode: Mode,
}

/// The locks that an owner holds. Dropping it lets go of them.
#[derive(Debug)]
pub(crate) struct Held<T: Deref<Target = LockTable> = Arc<LockTable>> {
    table: T,
    owner: Arc<Owner>,
    rows: SmallVec<[(u32, Key); 1]>,
    ranges: Vec<HeldRange>,
    /// When the first was taken, by the monotonic clock.
    since: Option<u64>,
    /// Whether the time that they are held is taken: two looks at the clock.
    is_timed: bool,
}

impl<T: Deref<Target = LockTable> + Clone> Held<T> {
    /// All that is held, for somebody else to let go of.
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

    /// Locks a row, waiting for `timeout` at most. What was held before is kept whatever comes of this.
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

    /// Locks all keys between the bounds, those that are not there too, so that nobody else writes any of them. What was
    /// held before is kept whatever comes of this, and nothing more where it fails.
    pub(crate) fn lock_range(
        &mut self,
        family: u32,
        bounds: Bounds,
        timeout: Duration,
    ) -> Result<(), Denied> {
        self.lock_range_at(family, bounds, Mode::Shared, timeout)
    }

    /// Locks a whole family, so that nobody else writes in it, nor has locked any of it to read.
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
        // Ranges do not see each other: this keeps apart those that must not be held together.
        request
            .held
            .lock_at(RowRef::whole(family), mode, false, timeout)?;
        for key in request.enter()? {
            let row = RowRef { family, key: &key };
            // Before those that wait for it: they wait for the range.
            request.held.lock_at(row, mode, true, timeout)?;
        }
        request.complete();
        Ok(())
    }

    /// Lets go of the rows that were locked after the first `kept`.
    fn release_rows(&mut self, kept: usize) {
        for (family, key) in self.rows.drain(kept..) {
            let row = RowRef { family, key: &key };
            let hash = row.hash();
            self.table.shard(hash).release(&self.owner, row, hash);
        }
    }

    /// Lets go of everything.
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

/// A range that is being locked: it is in the table, and rows in it that others hold are waited for. Dropping it takes all
/// of that back, unless it is complete.
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

    /// Puts the range into all shards, so that no row of it that is free now can be taken from here on. Returns those that
    /// are taken.
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

    /// Nobody else has a row of the range any more, in a way that it excludes.
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
