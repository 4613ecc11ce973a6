//! Deadlocks: cycles of owners that wait for each other.
//!
//! An owner that begins to wait joins its queue, adds itself to the graph and follows the waits from
//! its blockers on, all under the graph's mutex. The lock table computes the blockers of each waiting
//! owner anew: those that hold what it asks for, or what those before it in the queue ask for, and
//! the ranges that it is queued behind. A cycle is closed by the last of its members that begins to
//! wait. That one sees all others, which are in the graph already, so it finds the cycle. Where it
//! waits behind others only for fairness it goes first then (`table.rs`), which may end the cycle;
//! else it is the victim.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::Key;
use crate::locks::family::Lock;
use crate::locks::owner::Owner;

/// An owner, and what it waits for.
#[derive(Debug, Clone)]
pub(crate) struct WaitEdge {
    pub(crate) owner: Arc<Owner>,
    pub(crate) family: u32,
    pub(super) lock: Lock,
}

impl WaitEdge {
    /// The row that it waits for; empty where that is a range.
    pub(crate) fn key(&self) -> Key {
        match &self.lock {
            Lock::Row(key) => key.clone(),
            Lock::Range(_) => Key::from(&[][..]),
        }
    }
}

/// The owners that wait, by id.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    waits: Mutex<HashMap<u64, WaitEdge>>,
}

/// The graph, whose mutex is held.
pub(super) struct Waits<'a>(MutexGuard<'a, HashMap<u64, WaitEdge>>);

impl Graph {
    pub(super) fn lock(&self) -> Waits<'_> {
        Waits(self.waits.lock())
    }

    /// The family and the row that an owner waits for; the key is empty where that is a range.
    pub(super) fn waits_for(&self, owner: u64) -> Option<(u32, Key)> {
        let waits = self.waits.lock();
        waits.get(&owner).map(|link| (link.family, link.key()))
    }
}

impl Waits<'_> {
    /// Notes what an owner waits for, in whose queue it is already.
    pub(super) fn add(&mut self, link: WaitEdge) {
        self.0.insert(link.owner.id, link);
    }

    /// Removes an owner that does not wait any more.
    pub(super) fn remove(&mut self, owner: &Owner) {
        self.0.remove(&owner.id);
    }

    /// The cycle that an owner's wait closes, if it does, beginning with the owner. `blockers`
    /// returns the owners that block a waiting owner.
    pub(super) fn cycle(
        &self,
        owner: &Owner,
        blockers: impl Fn(&WaitEdge) -> Vec<Arc<Owner>>,
    ) -> Option<Vec<WaitEdge>> {
        let (waits, first) = (&self.0, owner.id);
        // The owner from which each was reached.
        let mut reached: HashMap<u64, u64> = HashMap::new();
        let mut left = vec![first];
        while let Some(id) = left.pop() {
            // An owner that does not wait will release its locks.
            let Some(waiting) = waits.get(&id) else { continue };
            for blocker in blockers(waiting) {
                if blocker.id == first {
                    return Some(ring(waits, &reached, id, first));
                }
                if let std::collections::hash_map::Entry::Vacant(entry) = reached.entry(blocker.id) {
                    entry.insert(id);
                    left.push(blocker.id);
                }
            }
        }
        None
    }
}

/// The path from `first` to `last`.
fn ring(waits: &HashMap<u64, WaitEdge>, reached: &HashMap<u64, u64>, last: u64, first: u64) -> Vec<WaitEdge> {
    let mut ids = vec![last];
    while let Some(&id) = ids.last()
        && id != first
        && let Some(&before) = reached.get(&id)
    {
        ids.push(before);
    }
    ids.iter().rev().filter_map(|id| waits.get(id).cloned()).collect()
}
