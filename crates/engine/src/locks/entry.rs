//! What the lock table holds: rows and ranges that are locked or waited for, and how many there may
//! be.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use crate::key::Bounds;
use crate::locks::owner::Owner;

/// What a holder may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Others may read it too.
    Shared,
    /// No other owner holds it, or a part of it.
    Exclusive,
}

impl Mode {
    pub(super) fn excludes(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// A row's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRef<'a> {
    pub(crate) family: u32,
    pub(crate) key: &'a [u8],
}

#[derive(Debug)]
pub(super) struct Holder {
    pub(super) owner: Arc<Owner>,
    pub(super) mode: Mode,
}

/// A place in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Requests of a family are numbered as they begin to wait.
    pub(super) arrival: u64,
    /// It waits for holders only, and for nothing that waits.
    pub(super) is_first: bool,
}

impl Place {
    /// The place of a request that does not wait yet.
    pub(super) fn last(is_first: bool) -> Self {
        Self {
            arrival: u64::MAX,
            is_first,
        }
    }

    /// Whether it waits for what `other` waits for.
    pub(super) fn is_behind(self, other: Self) -> bool {
        !self.is_first && other.arrival < self.arrival
    }
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) owner: Arc<Owner>,
    pub(super) mode: Mode,
    pub(super) place: Place,
    /// Whether its owner holds the row, or a range over it. These stand before all others.
    pub(super) holds: bool,
}

#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) holders: SmallVec<[Holder; 1]>,
    pub(super) queue: VecDeque<Waiter>,
}

impl Row {
    pub(super) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    pub(super) fn held_by(&self, owner: &Owner) -> Option<Mode> {
        let own = self.holders.iter().find(|holder| holder.owner.id == owner.id);
        own.map(|holder| holder.mode)
    }

    pub(super) fn hold(&mut self, owner: &Arc<Owner>, mode: Mode) {
        match self.holders.iter_mut().find(|holder| holder.owner.id == owner.id) {
            Some(holder) => holder.mode = mode,
            None => self.holders.push(Holder {
                owner: Arc::clone(owner),
                mode,
            }),
        }
    }

    /// Other owners that hold it so that `owner` cannot hold it in this mode.
    pub(super) fn conflicting(&self, owner: &Owner, mode: Mode) -> impl Iterator<Item = &Arc<Owner>> {
        let id = owner.id;
        let others = self.holders.iter().filter(move |holder| holder.owner.id != id);
        others
            .filter(move |holder| holder.mode.excludes(mode))
            .map(|holder| &holder.owner)
    }

    /// Other owners that a range over it waits for: those that hold it, and those that wait for it
    /// before the range. Each once.
    pub(super) fn in_the_way(&self, owner: &Owner, mode: Mode, place: Place) -> SmallVec<[Arc<Owner>; 2]> {
        let mut found: SmallVec<[Arc<Owner>; 2]> = self.conflicting(owner, mode).cloned().collect();
        let waits_before = |waiter: &&Waiter| {
            waiter.owner.id != owner.id && waiter.mode.excludes(mode) && place.is_behind(waiter.place)
        };
        // An owner is in the queue once at most.
        let holders = found.len();
        for waiter in self.queue.iter().filter(waits_before) {
            if found[..holders].iter().all(|holder| holder.id != waiter.owner.id) {
                found.push(Arc::clone(&waiter.owner));
            }
        }
        found
    }
}

/// The owners that a range waits for, and for how many of their locks and requests.
#[derive(Debug, Default)]
pub(super) struct InTheWay(HashMap<u64, (Arc<Owner>, usize)>);

impl InTheWay {
    pub(super) fn add(&mut self, owner: &Arc<Owner>) {
        let of_owner = self.0.entry(owner.id);
        of_owner.or_insert_with(|| (Arc::clone(owner), 0)).1 += 1;
    }

    pub(super) fn remove(&mut self, owner: &Owner) {
        let of_owner = self.0.entry(owner.id);
        debug_assert!(
            matches!(of_owner, Entry::Occupied(_)),
            "{owner:?} was not in the way"
        );
        if let Entry::Occupied(mut of_owner) = of_owner {
            of_owner.get_mut().1 -= 1;
            if of_owner.get().1 == 0 {
                of_owner.remove();
            }
        }
    }

    pub(super) fn has(&self, owner: &Owner) -> bool {
        self.0.contains_key(&owner.id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn owners(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.0.values().map(|(owner, _)| owner)
    }
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) place: Place,
    pub(super) in_the_way: InTheWay,
}

#[derive(Debug)]
pub(super) enum RangeState {
    Held,
    Waiting(Waiting),
}

/// A range that is locked or waited for.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) owner: Arc<Owner>,
    pub(super) mode: Mode,
    pub(super) bounds: Arc<Bounds>,
    pub(super) state: RangeState,
}

impl Range {
    pub(super) fn is_of(&self, owner: &Owner) -> bool {
        self.owner.id == owner.id
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, RangeState::Held)
    }

    /// Whether an owner at `place` that asks for a part of it in this mode waits for it.
    pub(super) fn is_in_the_way(&self, owner: &Owner, mode: Mode, place: Place) -> bool {
        let is_before = match &self.state {
            RangeState::Held => true,
            RangeState::Waiting(waiting) => place.is_behind(waiting.place),
        };
        is_before && !self.is_of(owner) && self.mode.excludes(mode)
    }

    /// Whether it waits for this very owner, among others.
    pub(super) fn waits_for(&self, owner: &Owner) -> bool {
        match &self.state {
            RangeState::Held => false,
            RangeState::Waiting(waiting) => waiting.in_the_way.has(owner),
        }
    }
}

/// So many locks fit in the table: rows that are held or waited for, and ranges.
#[derive(Debug)]
pub(crate) struct LockCapacity {
    used: AtomicUsize,
    limit: usize,
}

impl LockCapacity {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            limit,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn used(&self) -> usize {
        // Relaxed, here and below: it is a count, and what is counted has a mutex of its own.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes room for one lock, if there is any.
    pub(super) fn take(&self) -> bool {
        let is_full = self.used.fetch_add(1, Ordering::Relaxed) >= self.limit;
        if is_full {
            self.give();
        }
        !is_full
    }

    pub(super) fn give(&self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}
