//! Row locks: who may write a key, or read it so that nobody else writes it, until its transaction ends.
//!
//! The table is sharded by the hash of family and key; a row is there only while somebody holds or waits for it.
//!
//! *Fair.* Who must wait stands in the row's queue, and a later request does not overtake it. Locks are handed over:
//! whoever releases a row gives it to the first in its queue before anybody else can look. The exceptions: who holds the
//! row already and wants more, and who holds a range that it lies in, go to the front, for those in the queue may wait
//! for them. So nobody ever stands behind somebody who waits for it, and who stands before one need not be followed
//! when rings are looked for: they wait for the same holders.
//!
//! *Ranges.* A range is locked, shared, by an entry in every shard, so that whoever wants a row exclusively sees it
//! under the one mutex that it takes in any case. Rows in the range that are held exclusively at that moment are
//! waited for one by one; no others can become so.
//!
//! *Deadlocks* are looked for when somebody begins to wait (`deadlock.rs`).
//!
//! Lock order inside: the graph of waits, then a shard, then an owner's slot.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use collie_io::{Clock, RealClock};
use hashbrown::HashTable;
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::deadlock::{Graph, Link};
use crate::Key;
use crate::iter::Bounds;

/// Many more than there are threads at work at once.
const SHARDS: usize = 64;

/// What a holder may do with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Others may read it too.
    Shared,
    /// Nobody else holds it.
    Exclusive,
}

/// A row's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRef<'a> {
    pub(crate) family: u32,
    pub(crate) key: &'a [u8],
}

impl RowRef<'_> {
    fn hash(self) -> u64 {
        xxh3_64_with_seed(self.key, u64::from(self.family))
    }
}

/// Somebody who holds and waits for locks: a transaction, or a single write.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: u64,
    /// As its user named it; empty where nobody did.
    pub(crate) name: Box<str>,
    /// Whether the lock that it waits for was handed over. An owner waits for one lock at a time.
    granted: Mutex<bool>,
    wake: Condvar,
}

impl Owner {
    fn grant(&self) {
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

#[derive(Debug)]
struct Holder {
    owner: Arc<Owner>,
    mode: Mode,
}

#[derive(Debug)]
struct Waiter {
    owner: Arc<Owner>,
    mode: Mode,
}

#[derive(Debug)]
struct Row {
    hash: u64,
    family: u32,
    key: Key,
    holders: SmallVec<[Holder; 1]>,
    queue: VecDeque<Waiter>,
}

/// A range that somebody holds, shared.
#[derive(Debug)]
struct RangeHold {
    owner: Arc<Owner>,
    family: u32,
    bounds: Arc<Bounds>,
}

impl RangeHold {
    fn covers(&self, family: u32, key: &[u8]) -> bool {
        self.family == family && contains(&self.bounds, key)
    }
}

/// Whether a key lies between the bounds.
pub(crate) fn contains((low, high): &Bounds, key: &[u8]) -> bool {
    let above = match low {
        Bound::Included(low) => key >= &**low,
        Bound::Excluded(low) => key > &**low,
        Bound::Unbounded => true,
    };
    let below = match high {
        Bound::Included(high) => key <= &**high,
        Bound::Excluded(high) => key < &**high,
        Bound::Unbounded => true,
    };
    above && below
}

#[derive(Debug, Default)]
struct Shard {
    rows: HashTable<Row>,
    ranges: Vec<RangeHold>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// What a request came to, under the shard's mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// It is held; `new` where it was not held at all before.
    Held { new: bool },
    /// It is in the queue.
    Queued { new: bool },
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

/// What happened to requests.
#[derive(Debug, Default)]
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
    /// Set when the first transaction begins, and for good. Plain writes look at it while they hold a hand (see
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
        })
    }

    /// The row that an owner waits for.
    pub(crate) fn waits_for(&self, owner: u64) -> Option<(u32, Key)> {
        self.graph.waits_for(owner)
    }

    /// Rows that are held or waited for, and ranges; a range counts in each shard.
    pub(crate) fn entries(&self) -> usize {
        let of = |shard: &Padded| {
            let shard = shard.0.lock();
            shard.rows.len() + shard.ranges.len()
        };
        self.shards.iter().map(of).sum()
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
        let asked = self
            .shard(hash)
            .ask(owner, row, hash, mode, front, self.shard_limit());
        match asked {
            None => Err(Denied::TooMany { limit: self.limit }),
            Some(Asked::Held { new }) => Ok(new),
            Some(Asked::Queued { new }) => {
                self.counters.waits.fetch_add(1, Ordering::Relaxed);
                let began = RealClock.monotonic();
                let waited = self.wait(owner, row, hash, timeout);
                let ns = RealClock.monotonic().saturating_sub(began);
                self.counters.wait_ns.fetch_add(ns, Ordering::Relaxed);
                waited.map(|()| new)
            }
        }
    }

    /// Waits in the row's queue.
    fn wait(&self, owner: &Arc<Owner>, row: RowRef<'_>, hash: u64, timeout: Duration) -> Result<(), Denied> {
        let blockers = |owner: &Owner, row: RowRef<'_>| {
            let hash = row.hash();
            self.shard(hash).blockers(owner, row, hash)
        };
        let cycle = self.graph.wait(owner, row, blockers);
        let denied = match cycle {
            Some(cycle) => Some(Denied::Deadlock(cycle)),
            None if owner.wait(timeout) => None,
            None => Some(Denied::Timeout { waited: timeout }),
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

impl Shard {
    fn find(&mut self, row: RowRef<'_>, hash: u64) -> Option<&mut Row> {
        self.rows.find_mut(hash, |known| known.is(row))
    }

    /// `None`: there is no room for another row.
    fn ask(
        &mut self,
        owner: &Arc<Owner>,
        row: RowRef<'_>,
        hash: u64,
        mode: Mode,
        front: bool,
        limit: usize,
    ) -> Option<Asked> {
        let Self { rows, ranges } = self;
        let is_full = rows.len() + ranges.len() >= limit;
        let found = match rows.find_mut(hash, |known| known.is(row)) {
            Some(found) => found,
            None if is_full => return None,
            None => {
                let new = Row {
                    hash,
                    family: row.family,
                    key: Key::from(row.key),
                    holders: SmallVec::new(),
                    queue: VecDeque::new(),
                };
                rows.insert_unique(hash, new, |row| row.hash).into_mut()
            }
        };
        Some(found.ask(owner, mode, front, ranges))
    }

    /// Takes an owner that was not given the row out of its queue.
    fn give_up(&mut self, owner: &Owner, row: RowRef<'_>, hash: u64) {
        if let Some(found) = self.find(row, hash) {
            found.queue.retain(|waiter| waiter.owner.id != owner.id);
        }
        self.hand_over(row, hash);
    }

    fn release(&mut self, owner: &Owner, row: RowRef<'_>, hash: u64) {
        if let Some(found) = self.find(row, hash) {
            found.holders.retain(|holder| holder.owner.id != owner.id);
        }
        self.hand_over(row, hash);
    }

    /// Gives the row to those in its queue who can have it now, and forgets it where there is nobody.
    fn hand_over(&mut self, row: RowRef<'_>, hash: u64) {
        let Self { rows, ranges } = self;
        if let Ok(mut entry) = rows.find_entry(hash, |known| known.is(row)) {
            entry.get_mut().hand_over(ranges);
            if entry.get().is_free() {
                entry.remove();
            }
        }
    }

    /// Adds a range, and to `written` those of its rows that others hold exclusively. `None`: there is no room for it.
    fn add_range(
        &mut self,
        owner: &Arc<Owner>,
        family: u32,
        bounds: &Arc<Bounds>,
        limit: usize,
        written: &mut Vec<Key>,
    ) -> Option<()> {
        if self.rows.len() + self.ranges.len() >= limit {
            return None;
        }
        self.ranges.push(RangeHold {
            owner: Arc::clone(owner),
            family,
            bounds: Arc::clone(bounds),
        });
        let is_written = |row: &&Row| {
            let by_another = |holder: &Holder| holder.owner.id != owner.id && holder.mode == Mode::Exclusive;
            row.family == family && contains(bounds, &row.key) && row.holders.iter().any(by_another)
        };
        let found = self.rows.iter().filter(is_written);
        written.extend(found.map(|row| row.key.clone()));
        Some(())
    }

    fn release_ranges(&mut self, owner: &Owner) {
        let before = self.ranges.len();
        let Self { rows, ranges } = self;
        ranges.retain(|range| range.owner.id != owner.id);
        if ranges.len() < before {
            rows.iter_mut().for_each(|row| row.hand_over(ranges));
            rows.retain(|row| !row.is_free());
        }
    }

    fn blockers(&mut self, owner: &Owner, row: RowRef<'_>, hash: u64) -> Vec<Arc<Owner>> {
        let Self { rows, ranges } = self;
        let Some(found) = rows.find(hash, |known| known.is(row)) else {
            return Vec::new();
        };
        let Some(place) = found.queue.iter().position(|w| w.owner.id == owner.id) else {
            return Vec::new();
        };
        // Those before it in the queue wait for the same holders. It waits for a range's holder if it wants the row
        // exclusively or stands behind somebody who does.
        let exclusive = found
            .queue
            .iter()
            .take(place + 1)
            .any(|waiter| waiter.mode == Mode::Exclusive);
        let holders = found.holders.iter().map(|holder| &holder.owner);
        let in_ranges = ranges
            .iter()
            .filter(|range| exclusive && range.covers(row.family, row.key))
            .map(|range| &range.owner);
        holders
            .chain(in_ranges)
            .filter(|other| other.id != owner.id)
            .cloned()
            .collect()
    }
}

impl Row {
    fn is(&self, row: RowRef<'_>) -> bool {
        self.family == row.family && *self.key == *row.key
    }

    fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// Whether the owner can have it beside those who hold it and the ranges around it.
    fn admits(&self, owner: &Owner, mode: Mode, ranges: &[RangeHold]) -> bool {
        let others = |holder: &&Holder| holder.owner.id != owner.id;
        match mode {
            Mode::Shared => self
                .holders
                .iter()
                .filter(others)
                .all(|holder| holder.mode == Mode::Shared),
            Mode::Exclusive => {
                self.holders.iter().find(others).is_none()
                    && !ranges
                        .iter()
                        .any(|range| range.owner.id != owner.id && range.covers(self.family, &self.key))
            }
        }
    }

    fn ask(&mut self, owner: &Arc<Owner>, mode: Mode, front: bool, ranges: &[RangeHold]) -> Asked {
        let held = self
            .holders
            .iter()
            .find(|holder| holder.owner.id == owner.id)
            .map(|holder| holder.mode);
        let new = held.is_none();
        if held >= Some(mode) {
            return Asked::Held { new };
        }
        // Those in the queue may wait for this very owner, which must not wait behind them.
        let own_range =
            |range: &RangeHold| range.owner.id == owner.id && range.covers(self.family, &self.key);
        let front = front || !new || ranges.iter().any(own_range);
        if (front || self.queue.is_empty()) && self.admits(owner, mode, ranges) {
            self.hold(owner, mode);
            return Asked::Held { new };
        }
        let waiter = Waiter {
            owner: Arc::clone(owner),
            mode,
        };
        if front {
            self.queue.push_front(waiter);
        } else {
            self.queue.push_back(waiter);
        }
        Asked::Queued { new }
    }

    fn hold(&mut self, owner: &Arc<Owner>, mode: Mode) {
        match self.holders.iter_mut().find(|holder| holder.owner.id == owner.id) {
            Some(holder) => holder.mode = mode,
            None => self.holders.push(Holder {
                owner: Arc::clone(owner),
                mode,
            }),
        }
    }

    fn hand_over(&mut self, ranges: &[RangeHold]) {
        while let Some(first) = self.queue.front()
            && self.admits(&first.owner, first.mode, ranges)
            && let Some(first) = self.queue.pop_front()
        {
            self.hold(&first.owner, first.mode);
            first.owner.grant();
        }
    }
}

/// A range that was asked for.
#[derive(Debug)]
struct HeldRange {
    family: u32,
    bounds: Arc<Bounds>,
    /// Nobody writes in it any more. Before that somebody's lock was waited for, perhaps in vain.
    complete: bool,
}

/// The locks that an owner holds. Dropping it lets go of them.
#[derive(Debug)]
pub(crate) struct Held {
    table: Arc<LockTable>,
    owner: Arc<Owner>,
    rows: Vec<(u32, Key)>,
    ranges: Vec<HeldRange>,
    /// When the first was taken, by the monotonic clock.
    since: Option<u64>,
}

impl Held {
    pub(crate) fn new(table: Arc<LockTable>, owner: Arc<Owner>) -> Self {
        Self {
            table,
            owner,
            rows: Vec::new(),
            ranges: Vec::new(),
            since: None,
        }
    }

    /// All that is held, for somebody else to let go of.
    pub(crate) fn take(&mut self) -> Self {
        let nothing = Self::new(Arc::clone(&self.table), Arc::clone(&self.owner));
        std::mem::replace(self, nothing)
    }

    /// Rows and ranges.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() + self.ranges.len()
    }

    /// Locks a row, waiting for `timeout` at most. What was held before is kept whatever comes of this.
    pub(crate) fn lock(&mut self, row: RowRef<'_>, mode: Mode, timeout: Duration) -> Result<(), Denied> {
        let covers = |range: &HeldRange| {
            range.complete && range.family == row.family && contains(&range.bounds, row.key)
        };
        if mode == Mode::Exclusive || !self.ranges.iter().any(covers) {
            self.lock_at(row, mode, false, timeout)?;
        }
        Ok(())
    }

    fn lock_at(&mut self, row: RowRef<'_>, mode: Mode, front: bool, timeout: Duration) -> Result<(), Denied> {
        if self.table.lock(&self.owner, row, mode, front, timeout)? {
            self.rows.push((row.family, Key::from(row.key)));
            self.since.get_or_insert_with(|| RealClock.monotonic());
        }
        Ok(())
    }

    /// Locks all keys between the bounds, those that are not there too, so that nobody else writes any of them.
    pub(crate) fn lock_range(
        &mut self,
        family: u32,
        bounds: Bounds,
        timeout: Duration,
    ) -> Result<(), Denied> {
        let is_same = |range: &HeldRange| range.complete && range.family == family && *range.bounds == bounds;
        if self.ranges.iter().any(is_same) {
            return Ok(());
        }
        let bounds = Arc::new(bounds);
        self.ranges.push(HeldRange {
            family,
            bounds: Arc::clone(&bounds),
            complete: false,
        });
        self.since.get_or_insert_with(|| RealClock.monotonic());
        let table = Arc::clone(&self.table);
        // In all shards first: no row of the range that is free now can be written from here on.
        let mut written = Vec::new();
        for Padded(shard) in &table.shards {
            shard
                .lock()
                .add_range(&self.owner, family, &bounds, table.shard_limit(), &mut written)
                .ok_or(Denied::TooMany { limit: table.limit })?;
        }
        for key in written {
            let row = RowRef { family, key: &key };
            // Before those that wait to write it: they wait for the range.
            self.lock_at(row, Mode::Shared, true, timeout)?;
        }
        if let Some(range) = self.ranges.last_mut() {
            range.complete = true;
        }
        Ok(())
    }

    /// Lets go of everything.
    pub(crate) fn release(&mut self) {
        for (family, key) in self.rows.drain(..) {
            let row = RowRef { family, key: &key };
            let hash = row.hash();
            self.table.shard(hash).release(&self.owner, row, hash);
        }
        if !self.ranges.is_empty() {
            self.ranges.clear();
            for Padded(shard) in &self.table.shards {
                shard.lock().release_ranges(&self.owner);
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

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}
