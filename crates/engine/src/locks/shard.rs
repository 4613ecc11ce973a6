//! A shard of the lock table: its rows with their holders and queues, and the ranges that are
//! locked.
//!
//! All of it happens under the shard's mutex; `table.rs` has the rules.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::Key;
use crate::bounds::Bounds;
use crate::locks::owner::Owner;

/// What a holder may do with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Others may read it too.
    Shared,
    /// No other owner holds it.
    Exclusive,
}

/// A row's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRef<'a> {
    pub(crate) family: u32,
    pub(crate) key: &'a [u8],
}

impl RowRef<'_> {
    /// The row that stands for a family as a whole: no key is empty.
    pub(crate) fn whole(family: u32) -> Self {
        Self { family, key: &[] }
    }

    pub(crate) fn hash(self) -> u64 {
        xxh3_64_with_seed(self.key, u64::from(self.family))
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

/// A range that an owner holds.
#[derive(Debug)]
pub(crate) struct RangeHold {
    owner: Arc<Owner>,
    family: u32,
    bounds: Arc<Bounds>,
    mode: Mode,
}

impl RangeHold {
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.owner.id == owner.id
    }

    /// Whether it was added with these very bounds.
    pub(crate) fn has_bounds(&self, bounds: &Arc<Bounds>) -> bool {
        Arc::ptr_eq(&self.bounds, bounds)
    }

    fn covers(&self, family: u32, key: &[u8]) -> bool {
        self.family == family && contains(&self.bounds, key)
    }

    /// Whether other owners cannot hold a row of the range in this mode.
    fn excludes(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive || self.mode == Mode::Exclusive
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
pub(crate) struct Shard {
    rows: HashTable<Row>,
    ranges: Vec<RangeHold>,
}

/// The result of a request, under the shard's mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is held; `new` where it was not held at all before.
    Held { new: bool },
    /// It is in the queue.
    Queued { new: bool },
}

/// What an owner asks for, and whether it is queued before those that wait already.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) owner: &'a Arc<Owner>,
    pub(crate) mode: Mode,
    pub(crate) front: bool,
}

impl Shard {
    /// Rows that are held or waited for, and ranges.
    pub(crate) fn entries(&self) -> usize {
        self.rows.len() + self.ranges.len()
    }

    fn find(&mut self, row: RowRef<'_>, hash: u64) -> Option<&mut Row> {
        self.rows.find_mut(hash, |known| known.is(row))
    }

    /// Asks for a row without waiting. `None`: there is no room for another row. `Some(None)`: it
    /// is not free. Else whether the owner did not hold it before.
    pub(crate) fn take(
        &mut self,
        request: Request<'_>,
        row: RowRef<'_>,
        hash: u64,
        limit: usize,
    ) -> Option<Option<bool>> {
        let (found, ranges) = self.row(row, hash, limit)?;
        Some(found.take(request, ranges))
    }

    /// Asks for a row, and joins its queue where it is not free. `None`: there is no room for
    /// another row.
    pub(crate) fn ask(
        &mut self,
        request: Request<'_>,
        row: RowRef<'_>,
        hash: u64,
        limit: usize,
    ) -> Option<Asked> {
        let (found, ranges) = self.row(row, hash, limit)?;
        Some(found.ask(request, ranges))
    }

    /// Finds the row, or adds it where there is room. The caller goes on until it holds the row or
    /// is in its queue, so that no unused row is left.
    fn row(&mut self, row: RowRef<'_>, hash: u64, limit: usize) -> Option<(&mut Row, &[RangeHold])> {
        let Self { rows, ranges } = self;
        let is_full = rows.len() + ranges.len() >= limit;
        let entry = match rows.entry(hash, |known| known.is(row), |row| row.hash) {
            Entry::Occupied(found) => found,
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(vacant) => vacant.insert(Row {
                hash,
                family: row.family,
                key: Key::from(row.key),
                holders: SmallVec::new(),
                queue: VecDeque::new(),
            }),
        };
        Some((entry.into_mut(), ranges))
    }

    /// Removes an owner that was not granted the row from its queue.
    pub(crate) fn cancel_wait(&mut self, owner: &Owner, row: RowRef<'_>, hash: u64) {
        if let Some(found) = self.find(row, hash) {
            found.queue.retain(|waiter| waiter.owner.id != owner.id);
        }
        self.hand_over(row, hash);
    }

    pub(crate) fn release(&mut self, owner: &Owner, row: RowRef<'_>, hash: u64) {
        if let Some(found) = self.find(row, hash) {
            found.holders.retain(|holder| holder.owner.id != owner.id);
        }
        self.hand_over(row, hash);
    }

    /// Grants the row to the waiters that can have it now, and removes it where it has no holder
    /// and no waiter.
    fn hand_over(&mut self, row: RowRef<'_>, hash: u64) {
        let Self { rows, ranges } = self;
        if let Ok(mut entry) = rows.find_entry(hash, |known| known.is(row)) {
            entry.get_mut().hand_over(ranges);
            if entry.get().is_free() {
                entry.remove();
            }
        }
    }

    /// Adds a range, and to `taken` those of its rows that others hold in a conflicting mode.
    /// `None`: there is no room for it.
    pub(crate) fn add_range(
        &mut self,
        request: Request<'_>,
        family: u32,
        bounds: &Arc<Bounds>,
        limit: usize,
        taken: &mut Vec<Key>,
    ) -> Option<()> {
        if self.entries() >= limit {
            return None;
        }
        let range = RangeHold {
            owner: Arc::clone(request.owner),
            family,
            bounds: Arc::clone(bounds),
            mode: request.mode,
        };
        let is_taken = |row: &&Row| {
            let by_another = |holder: &Holder| !range.is_of(&holder.owner) && range.excludes(holder.mode);
            range.covers(row.family, &row.key) && row.holders.iter().any(by_another)
        };
        let found = self.rows.iter().filter(is_taken);
        taken.extend(found.map(|row| row.key.clone()));
        self.ranges.push(range);
        Some(())
    }

    pub(crate) fn release_ranges(&mut self, is_released: impl Fn(&RangeHold) -> bool) {
        let before = self.ranges.len();
        let Self { rows, ranges } = self;
        ranges.retain(|range| !is_released(range));
        if ranges.len() < before {
            rows.iter_mut().for_each(|row| row.hand_over(ranges));
            rows.retain(|row| !row.is_free());
        }
    }

    pub(crate) fn blockers(&mut self, owner: &Owner, row: RowRef<'_>, hash: u64) -> Vec<Arc<Owner>> {
        let Self { rows, ranges } = self;
        let Some(found) = rows.find(hash, |known| known.is(row)) else {
            return Vec::new();
        };
        let Some(place) = found.queue.iter().position(|w| w.owner.id == owner.id) else {
            return Vec::new();
        };
        // Those before it in the queue wait for the same holders. It waits for the holder of a
        // range that conflicts with it, or with a waiter before it.
        let waiters = found.queue.iter().take(place + 1);
        let mode = waiters.map(|waiter| waiter.mode).max().unwrap_or(Mode::Shared);
        let holders = found.holders.iter().map(|holder| &holder.owner);
        let in_ranges = ranges
            .iter()
            .filter(|range| range.excludes(mode) && range.covers(row.family, row.key))
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

    /// Whether the owner can hold it together with its holders and the ranges around it.
    fn admits(&self, owner: &Owner, mode: Mode, ranges: &[RangeHold]) -> bool {
        let is_held = self.holders.iter().any(|holder| {
            holder.owner.id != owner.id && (mode == Mode::Exclusive || holder.mode == Mode::Exclusive)
        });
        let is_in_range = |range: &RangeHold| {
            !range.is_of(owner) && range.excludes(mode) && range.covers(self.family, &self.key)
        };
        !is_held && !ranges.iter().any(is_in_range)
    }

    fn held_by(&self, owner: &Owner) -> Option<Mode> {
        let own = self.holders.iter().find(|holder| holder.owner.id == owner.id);
        own.map(|holder| holder.mode)
    }

    /// Whether the owner is served before those in the queue, which may wait for this very owner.
    fn goes_first(&self, request: Request<'_>, ranges: &[RangeHold]) -> bool {
        let own_range =
            |range: &RangeHold| range.owner.id == request.owner.id && range.covers(self.family, &self.key);
        request.front || self.held_by(request.owner).is_some() || ranges.iter().any(own_range)
    }

    fn take(&mut self, request: Request<'_>, ranges: &[RangeHold]) -> Option<bool> {
        let Request { owner, mode, .. } = request;
        let held = self.held_by(owner);
        if held >= Some(mode) {
            return Some(false);
        }
        if !(self.queue.is_empty() || self.goes_first(request, ranges)) || !self.admits(owner, mode, ranges) {
            return None;
        }
        self.hold(owner, mode);
        Some(held.is_none())
    }

    fn ask(&mut self, request: Request<'_>, ranges: &[RangeHold]) -> Asked {
        if let Some(new) = self.take(request, ranges) {
            return Asked::Held { new };
        }
        let new = self.held_by(request.owner).is_none();
        let waiter = Waiter {
            owner: Arc::clone(request.owner),
            mode: request.mode,
        };
        if self.goes_first(request, ranges) {
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
