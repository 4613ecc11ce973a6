//! A range that is locked or waited for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::bounds::Bounds;
use crate::locks::owner::Owner;
use crate::locks::row::{Mode, Place};

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

/// See the module.
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
