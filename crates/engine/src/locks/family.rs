//! The locks of one family: its rows and ranges in the order of keys, with one queue for both.
//!
//! All of it happens under one mutex (`table.rs`).
//!
//! *The rule.* A request gets its lock when no other owner holds a lock that overlaps and excludes
//! it, and none has asked for such a lock earlier and still waits. So neither do readers of ranges
//! overtake a writer, nor writers a reader of a range.
//!
//! *Who goes first.* Some requests wait for holders only: those of an owner that holds the row
//! already, or a range over it, for those in the queue may wait for this very owner; and those that
//! the search for deadlocks has found to be waited for by what they wait behind. And an owner that a
//! range waits for does not wait behind that range for a row.
//!
//! *What a range waits for* is counted by owner when it begins to wait, and the counts follow each
//! change of a row or a range. So a release looks at the ranges over its key, and at none of their
//! rows.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::Key;
use crate::key::Bounds;
use crate::locks::cover::{Cover, Over};
use crate::locks::entry::{LockCapacity, Mode, Place, Range, RangeState, Row, Waiter};
use crate::locks::owner::Owner;

/// A lock, held or asked for, within its family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lock {
    Row(Key),
    /// By its number.
    Range(u64),
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    Row(&'a Key),
    Range(&'a Arc<Bounds>),
}

/// Who asks for it, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) owner: &'a Arc<Owner>,
    pub(crate) mode: Mode,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted(Granted),
    /// It is not free: because of a range, or else because of a row, which most often is free soon.
    NotFree {
        is_range: bool,
    },
    /// There is no room for another lock.
    Full,
}

/// What a granted request adds to what its owner has to release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    New(Lock),
    /// The owner held the row before, or a range over all of it.
    Before,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) lock: Lock,
    /// Whether its owner does not hold the row yet.
    pub(crate) is_new: bool,
}

/// Whom a range waits for because of a row, before that is changed.
struct RowBefore {
    range: u64,
    /// The place of the range's owner in the row's queue.
    place: Place,
    owners: SmallVec<[Arc<Owner>; 2]>,
}

/// The rows and ranges of one family that are locked or waited for.
#[derive(Debug, Default)]
pub(crate) struct FamilyLocks {
    pub(super) rows: BTreeMap<Key, Row>,
    /// The rows that are waited for.
    pub(super) waited_for: BTreeSet<Key>,
    pub(super) ranges: HashMap<u64, Range>,
    /// Where the ranges are, those that are waited for too.
    pub(super) cover: Cover,
    /// The ranges that are waited for.
    pub(super) waiting: Vec<u64>,
    /// Whether one of them may have nothing in its way any more.
    pub(super) is_ready: bool,
    /// How many ranges are held or waited for exclusively.
    pub(super) exclusive: usize,
    pub(super) next_range: u64,
    pub(super) next_arrival: u64,
}

impl FamilyLocks {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ranges.is_empty()
    }

    /// Asks without waiting.
    pub(crate) fn take(&mut self, request: Request<'_>, target: Target<'_>, room: &LockCapacity) -> Answer {
        match target {
            Target::Row(key) => self.take_row(request, key, room),
            Target::Range(bounds) => self.take_range(request, bounds, room),
        }
    }

    /// Joins the queue for what [`FamilyLocks::take`] has just answered that it is not free. `None`:
    /// there is no room for another lock.
    pub(crate) fn join(
        &mut self,
        request: Request<'_>,
        target: Target<'_>,
        room: &LockCapacity,
    ) -> Option<Queued> {
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        match target {
            Target::Row(key) => self.join_row(request, key, arrival, room),
            Target::Range(bounds) => self.join_range(request, bounds, arrival, room),
        }
    }

    /// Makes an owner that waits wait for holders only.
    pub(crate) fn go_first(&mut self, owner: &Owner, lock: &Lock, room: &LockCapacity) {
        match lock {
            Lock::Row(key) => {
                let is_own = |waiter: &Waiter| waiter.owner.id == owner.id;
                self.change_and_serve(key, room, |row| {
                    if let Some(at) = row.queue.iter().position(is_own)
                        && let Some(mut waiter) = row.queue.remove(at)
                    {
                        waiter.place.is_first = true;
                        // Behind those that hold the row, which it waits for in any case. It does
                        // not where it is shared: they hold the row shared, or need not wait.
                        let goes_behind = waiter.mode == Mode::Exclusive && !waiter.holds;
                        let is_before = |other: &&Waiter| goes_behind && other.holds;
                        let to = row.queue.iter().take_while(is_before).count();
                        row.queue.insert(to, waiter);
                    }
                });
            }
            Lock::Range(number) => {
                self.range_goes_first(*number);
                self.serve_ranges();
            }
        }
    }

    /// Removes an owner that was not granted its request from the queue.
    pub(crate) fn cancel(&mut self, owner: &Owner, lock: &Lock, room: &LockCapacity) {
        match lock {
            Lock::Row(key) => {
                self.change_and_serve(key, room, |row| row.queue.retain(|w| w.owner.id != owner.id));
            }
            Lock::Range(number) => self.remove_range(*number, room),
        }
    }

    pub(crate) fn release_row(&mut self, owner: &Owner, key: &Key, room: &LockCapacity) {
        self.change_and_serve(key, room, |row| row.holders.retain(|h| h.owner.id != owner.id));
    }

    /// Changes a row so that others may get it, or a range over it.
    fn change_and_serve(&mut self, key: &Key, room: &LockCapacity, change: impl FnOnce(&mut Row)) {
        if self.change_row(key, room, change) {
            self.serve_row(key, room);
        }
        self.serve_ranges();
    }

    /// The owners that an owner waits for. Not those that are before it in a row's queue, but what
    /// these wait for.
    pub(crate) fn blockers(&self, owner: &Owner, lock: &Lock) -> Vec<Arc<Owner>> {
        match lock {
            Lock::Row(key) => self.row_blockers(owner, key),
            Lock::Range(number) => match self.ranges.get(number).map(|range| &range.state) {
                Some(RangeState::Waiting(waiting)) => waiting.in_the_way.owners().cloned().collect(),
                _ => Vec::new(),
            },
        }
    }

    fn row_blockers(&self, owner: &Owner, key: &Key) -> Vec<Arc<Owner>> {
        let Some(row) = self.rows.get(key) else {
            return Vec::new();
        };
        let Some(at) = row.queue.iter().position(|w| w.owner.id == owner.id) else {
            return Vec::new();
        };
        let served_before = || row.queue.iter().take(at + 1);
        let mode = served_before().map(|waiter| waiter.mode).max();
        let holders = row.conflicting(owner, mode.unwrap_or(Mode::Shared));
        let over = self.over(key);
        let ranges = over
            .iter()
            .filter_map(|number| self.ranges.get(number))
            .filter(|range| {
                !range.is_of(owner)
                    && served_before().any(|w| is_row_behind(range, &w.owner, w.mode, w.place))
            })
            .map(|range| &range.owner);
        holders.chain(ranges).cloned().collect()
    }

    pub(super) fn over(&self, key: &Key) -> Over {
        Over::from_slice(self.cover.at(key))
    }

    /// The strongest mode in which an owner holds a range over a key.
    fn own_range(&self, owner: &Owner, over: &[u64]) -> Option<Mode> {
        let ranges = over.iter().filter_map(|number| self.ranges.get(number));
        let own = ranges.filter(|range| range.is_held() && range.is_of(owner));
        own.map(|range| range.mode).max()
    }

    /// The place of a range's owner in the queue of a row: it waits for no requests for a row that it
    /// holds, or that lies in a range that it holds.
    pub(super) fn place_over(&self, owner: &Owner, place: Place, key: &Key, over: &[u64]) -> Place {
        let holds = self.rows.get(key).is_some_and(|row| row.held_by(owner).is_some());
        Place {
            is_first: place.is_first || holds || self.own_range(owner, over).is_some(),
            ..place
        }
    }

    fn admits_row(&self, request: Request<'_>, row: &Row, over: &[u64], place: Place) -> bool {
        let Request { owner, mode } = request;
        row.conflicting(owner, mode).next().is_none() && !self.is_behind_range(request, over, place)
    }

    /// Whether a request for a row waits for a range over it.
    fn is_behind_range(&self, request: Request<'_>, over: &[u64], place: Place) -> bool {
        let Request { owner, mode } = request;
        let mut ranges = over.iter().filter_map(|number| self.ranges.get(number));
        ranges.any(|range| is_row_behind(range, owner, mode, place))
    }

    fn take_row(&mut self, request: Request<'_>, key: &Key, room: &LockCapacity) -> Answer {
        let Request { owner, mode } = request;
        let over = self.over(key);
        let row = self.rows.get(key);
        let held = row.and_then(|row| row.held_by(owner));
        let own_range = self.own_range(owner, &over);
        if held.max(own_range) >= Some(mode) {
            return Answer::Granted(Granted::Before);
        }
        let place = Place::last(held.is_some() || own_range.is_some());
        let is_next = place.is_first || row.is_none_or(|row| row.queue.is_empty());
        let is_held = row.is_some_and(|row| row.conflicting(owner, mode).next().is_some());
        let is_range = self.is_behind_range(request, &over, place);
        if !is_next || is_held || is_range {
            return Answer::NotFree { is_range };
        }
        if row.is_none() && !room.take() {
            return Answer::Full;
        }
        self.change_row(key, room, |row| row.hold(owner, mode));
        Answer::Granted(match held {
            Some(_) => Granted::Before,
            None => Granted::New(Lock::Row(key.clone())),
        })
    }

    fn join_row(
        &mut self,
        request: Request<'_>,
        key: &Key,
        arrival: u64,
        room: &LockCapacity,
    ) -> Option<Queued> {
        let Request { owner, mode } = request;
        let row = self.rows.get(key);
        if row.is_none() && !room.take() {
            return None;
        }
        let held = row.and_then(|row| row.held_by(owner));
        let is_first = held.is_some() || self.own_range(owner, &self.over(key)).is_some();
        let waiter = Waiter {
            owner: Arc::clone(owner),
            mode,
            place: Place { arrival, is_first },
            holds: is_first,
        };
        self.change_row(key, room, |row| match is_first {
            true => row.queue.push_front(waiter),
            false => row.queue.push_back(waiter),
        });
        Some(Queued {
            lock: Lock::Row(key.clone()),
            is_new: held.is_none(),
        })
    }

    /// Changes a row, which is added or removed as is needed, and what ranges over it wait for.
    /// Where it is added, room for it has been taken. Returns whether the row is waited for.
    fn change_row(&mut self, key: &Key, room: &LockCapacity, change: impl FnOnce(&mut Row)) -> bool {
        let before = self.in_the_way_of_ranges(key);
        let (ranges, is_ready) = (&mut self.ranges, &mut self.is_ready);
        let (was_waited_for, is_waited_for) = match self.rows.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                let changed = changed(entry.get_mut(), change, before, ranges, is_ready);
                if entry.get().is_free() {
                    entry.remove();
                    room.give();
                }
                changed
            }
            Entry::Vacant(entry) => {
                let mut row = Row::default();
                let changed = changed(&mut row, change, before, ranges, is_ready);
                if !row.is_free() {
                    entry.insert(row);
                }
                changed
            }
        };
        match (was_waited_for, is_waited_for) {
            (false, true) => self.waited_for.insert(key.clone()),
            (true, false) => self.waited_for.remove(key),
            _ => false,
        };
        is_waited_for
    }

    /// For each range over a row that is waited for: whom it waits for because of this row.
    fn in_the_way_of_ranges(&self, key: &Key) -> SmallVec<[RowBefore; 1]> {
        let mut found = SmallVec::new();
        if self.waiting.is_empty() {
            return found;
        }
        let (row, over) = (self.rows.get(key), self.cover.at(key));
        for &number in over {
            if let Some(range) = self.ranges.get(&number)
                && let RangeState::Waiting(waiting) = &range.state
            {
                // It matters only for those that wait before the range.
                let place = match row.is_some_and(|row| !row.queue.is_empty()) {
                    true => self.place_over(&range.owner, waiting.place, key, over),
                    false => waiting.place,
                };
                let owners = row.map(|row| row.in_the_way(&range.owner, range.mode, place));
                found.push(RowBefore {
                    range: number,
                    place,
                    owners: owners.unwrap_or_default(),
                });
            }
        }
        found
    }

    /// Grants a row to those in its queue that can have it now.
    pub(super) fn serve_row(&mut self, key: &Key, room: &LockCapacity) {
        let over = self.over(key);
        while let Some(row) = self.rows.get(key)
            && let Some(Waiter {
                owner, mode, place, ..
            }) = row.queue.front()
            && self.admits_row(Request { owner, mode: *mode }, row, &over, *place)
        {
            self.change_row(key, room, |row| {
                if let Some(first) = row.queue.pop_front() {
                    row.hold(&first.owner, first.mode);
                    first.owner.grant();
                }
            });
        }
    }
}

/// Whether an owner that asks for a row waits for a range over it. It does not where the range waits
/// for this very owner.
fn is_row_behind(range: &Range, owner: &Owner, mode: Mode, place: Place) -> bool {
    range.is_in_the_way(owner, mode, place) && !range.waits_for(owner)
}

/// Changes a row, and what the ranges of `before` wait for because of it. Returns whether the row
/// was waited for, and whether it is.
fn changed(
    row: &mut Row,
    change: impl FnOnce(&mut Row),
    before: SmallVec<[RowBefore; 1]>,
    ranges: &mut HashMap<u64, Range>,
    is_ready: &mut bool,
) -> (bool, bool) {
    let was_waited_for = !row.queue.is_empty();
    change(row);
    for RowBefore { range, place, owners } in before {
        if let Some(range) = ranges.get_mut(&range)
            && let RangeState::Waiting(waiting) = &mut range.state
        {
            let after = row.in_the_way(&range.owner, range.mode, place);
            after.iter().for_each(|owner| waiting.in_the_way.add(owner));
            owners.iter().for_each(|owner| waiting.in_the_way.remove(owner));
            *is_ready |= waiting.in_the_way.is_empty();
        }
    }
    (was_waited_for, !row.queue.is_empty())
}
