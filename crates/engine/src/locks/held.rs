//! The locks that an owner holds.
//!
//! # Very many rows become a range
//!
//! A transaction that locks rows one by one would fill the table: its rows of a family are replaced
//! by one range from the first to the last of them, where that is free: a shared one as long as it
//! has locked rows to read alone. The range is not waited for, since its owner would wait with all
//! that it holds; the rows stay then, and it is tried again when as many more have come.
//!
//! *No lock is given up.* The range is taken before the rows are released, and an owner that waits
//! for one of these waits on behind the range, for the same owner: a range is free only where all
//! that wait for its rows wait for this owner, so no wait has another cause than before.

use std::collections::BTreeMap;
use std::ops::{Bound, Deref};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_io::{Clock, RealClock};
use smallvec::SmallVec;

use crate::Key;
use crate::key::{Bounds, contains, key_to_key};
use crate::locks::entry::{Mode, RowRef};
use crate::locks::family::{Granted, Lock, Request, Target};
use crate::locks::owner::Owner;
use crate::locks::table::{Denied, LockTable};

/// So many rows are released at once: others wait for the family's mutex meanwhile.
const RELEASED_AT_ONCE: usize = 32;

/// A range in which no other owner writes. Where it is held exclusively, no other owner holds a row
/// in it.
#[derive(Debug)]
pub(super) struct HeldRange {
    pub(super) family: u32,
    pub(super) number: u64,
    pub(super) bounds: Arc<Bounds>,
    /// It took the place of rows.
    pub(super) of_rows: bool,
}

/// The locks that an owner holds. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Held<T: Deref<Target = LockTable> = Arc<LockTable>> {
    pub(super) table: T,
    pub(super) owner: Arc<Owner>,
    pub(super) rows: SmallVec<[(u32, Key); 1]>,
    pub(super) ranges: Vec<HeldRange>,
    /// How many of the rows are of which family; empty while these are not very many.
    pub(super) counts: BTreeMap<u32, usize>,
    /// The strongest mode of the rows that may become a range.
    pub(super) strongest: Mode,
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
            counts: BTreeMap::new(),
            strongest: Mode::Shared,
            since: None,
            is_timed: true,
        }
    }

    /// Locks that do not count in [`LockCounters::held_ns`](crate::locks::table::LockCounters::held_ns).
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
        let key = Key::from(row.key);
        let request = Request {
            owner: &self.owner,
            mode,
        };
        if let Granted::New(_) = self.table.lock(request, row.family, Target::Row(&key), timeout)? {
            self.rows.push((row.family, key));
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

    /// Locks all keys between the bounds, existing or not, so that no other owner writes any of
    /// them, or has locked a part of them to read. As one lock, whatever is between.
    pub(crate) fn lock_all_between(
        &mut self,
        family: u32,
        bounds: Bounds,
        timeout: Duration,
    ) -> Result<(), Denied> {
        self.lock_range_at(family, bounds, Mode::Exclusive, timeout)
    }

    /// Locks a whole family, so that no other owner writes in it, or has locked a part of it to
    /// read.
    pub(crate) fn lock_family(&mut self, family: u32, timeout: Duration) -> Result<(), Denied> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.lock_all_between(family, all, timeout)
    }

    fn lock_range_at(
        &mut self,
        family: u32,
        bounds: Bounds,
        mode: Mode,
        timeout: Duration,
    ) -> Result<(), Denied> {
        let bounds = Arc::new(bounds);
        let request = Request {
            owner: &self.owner,
            mode,
        };
        if let Granted::New(Lock::Range(number)) =
            self.table
                .lock(request, family, Target::Range(&bounds), timeout)?
        {
            let range = HeldRange {
                family,
                number,
                bounds,
                of_rows: false,
            };
            self.ranges.push(range);
            self.note_time();
        }
        Ok(())
    }

    pub(super) fn release_rows(&self, rows: &[(u32, Key)]) {
        for of_family in rows.chunk_by(|one, next| one.0 == next.0) {
            for rows in of_family.chunks(RELEASED_AT_ONCE) {
                self.table.with(rows[0].0, |locks, room| {
                    rows.iter()
                        .for_each(|(_, key)| locks.release_row(&self.owner, key, room));
                });
            }
        }
    }

    pub(super) fn release_range(&self, range: &HeldRange) {
        self.table
            .with(range.family, |locks, room| locks.remove_range(range.number, room));
    }

    /// Releases everything, unless this is a forked child: it has a copy of its parent's locks, whose
    /// mutexes may be held for good.
    pub(crate) fn release(&mut self) {
        if !self.table.is_here() {
            return;
        }
        self.release_rows(&self.rows);
        self.rows.clear();
        self.counts.clear();
        self.strongest = Mode::Shared;
        for range in std::mem::take(&mut self.ranges) {
            self.release_range(&range);
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

impl<T: Deref<Target = LockTable>> Held<T> {
    /// As [`Held::lock`], and where the rows of the family have become very many, tries to replace
    /// them by a range.
    pub(crate) fn lock_or_merge(
        &mut self,
        row: RowRef<'_>,
        mode: Mode,
        timeout: Duration,
    ) -> Result<(), Denied> {
        let before = self.rows.len();
        self.lock(row, mode, timeout)?;
        self.strongest = self.strongest.max(mode);
        let most = self.table.most_rows();
        if self.rows.len() == before || self.rows.len() <= most {
            return Ok(());
        }
        if self.counts.is_empty() {
            for (family, _) in &self.rows {
                *self.counts.entry(*family).or_default() += 1;
            }
        } else {
            *self.counts.entry(row.family).or_default() += 1;
        }
        let of_family = self.counts.get(&row.family).copied().unwrap_or(0);
        if of_family > most && (of_family - 1) % most == 0 {
            self.merge(row.family);
        }
        Ok(())
    }

    /// Replaces the rows of a family, and the ranges that others of them became before, by one range,
    /// if it is free. Where it is not, the newest rows and the last range, or these rows alone, which
    /// may lie to one side of what is in the way: keys that come in order lie behind one another.
    fn merge(&mut self, family: u32) {
        let rows = || self.rows.iter().rev().filter(|(of, _)| *of == family);
        let rows = || rows().map(|(_, key)| (key, key));
        let is_before = |range: &&HeldRange| range.of_rows && range.family == family;
        let before = || self.ranges.iter().rev().filter(is_before).filter_map(ends);
        let newest = self.table.most_rows();
        let tried = [
            cover(rows().chain(before())),
            cover(rows().take(newest).chain(before().take(1))),
            cover(rows().take(newest)),
        ];
        let taken = tried
            .into_iter()
            .flatten()
            .find_map(|bounds| self.range_if_free(family, bounds));
        let (bounds, range) = match taken {
            None => return,
            Some(Free::Taken(range)) => (Arc::clone(&range.bounds), Some(range)),
            Some(Free::HeldBefore(bounds)) => (bounds, None),
        };
        if range.is_some() {
            let is_joined =
                |one: &mut HeldRange| one.of_rows && one.family == family && is_within(one, &bounds);
            for joined in self.ranges.extract_if(.., is_joined).collect::<Vec<_>>() {
                self.release_range(&joined);
            }
        }
        self.ranges.extend(range);
        let rows = std::mem::take(&mut self.rows);
        let is_merged = |(of, key): &(u32, Key)| *of == family && contains(&bounds, key);
        let (merged, others) = rows.into_iter().partition(is_merged);
        self.rows = others;
        self.release_rows(&merged);
        // They are counted anew when the rest are very many.
        self.counts.clear();
    }

    /// Takes a range if it is free and there is room for it.
    fn range_if_free(&self, family: u32, bounds: Bounds) -> Option<Free> {
        let bounds = Arc::new(bounds);
        let request = Request {
            owner: &self.owner,
            mode: self.strongest,
        };
        match self.table.lock_if_free(request, family, Target::Range(&bounds))? {
            Granted::New(Lock::Range(number)) => Some(Free::Taken(HeldRange {
                family,
                number,
                bounds,
                of_rows: true,
            })),
            _ => Some(Free::HeldBefore(bounds)),
        }
    }
}

/// A range that was free.
enum Free {
    Taken(HeldRange),
    /// The owner has it already.
    HeldBefore(Arc<Bounds>),
}

/// The first and the last key of a range that rows became.
fn ends(range: &HeldRange) -> Option<(&Key, &Key)> {
    match &*range.bounds {
        (Bound::Included(first), Bound::Included(last)) => Some((first, last)),
        _ => None,
    }
}

/// From the first of all to the last of all.
fn cover<'a>(all: impl Iterator<Item = (&'a Key, &'a Key)>) -> Option<Bounds> {
    let (first, last) = all.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    Some(key_to_key(first, last))
}

fn is_within(range: &HeldRange, bounds: &Bounds) -> bool {
    let inside = |key: &Key| contains(bounds, key);
    ends(range).is_some_and(|(first, last)| inside(first) && inside(last))
}
