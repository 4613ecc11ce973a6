//! Deadlocks: cycles of owners that wait for each other.
//!
//! An owner that begins to wait adds itself to the graph, under one mutex, and follows the waits
//! from its blockers on; the lock table computes the blockers of each waiting owner anew. A cycle
//! is closed by the last of its members that begins to wait. That one sees all others, which are in
//! the graph already, so it finds the cycle, and it is the victim.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::shard::RowRef;
use crate::Key;
use crate::locks::owner::Owner;

/// One member of a cycle: an owner, and the row that it waits for.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) owner: Arc<Owner>,
    pub(crate) family: u32,
    pub(crate) key: Key,
}

impl Link {
    fn row(&self) -> RowRef<'_> {
        RowRef {
            family: self.family,
            key: &self.key,
        }
    }
}

/// The owners that wait, by id.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    waits: Mutex<HashMap<u64, Link>>,
}

impl Graph {
    /// Notes that the owner waits for a row, in whose queue it is already. Returns the cycle that
    /// this closes, if it does, beginning with the owner. `blockers` returns the owners that block
    /// a waiting owner.
    pub(crate) fn wait(
        &self,
        owner: &Arc<Owner>,
        row: RowRef<'_>,
        blockers: impl Fn(&Owner, RowRef<'_>) -> Vec<Arc<Owner>>,
    ) -> Option<Vec<Link>> {
        let mut waits = self.waits.lock();
        let link = Link {
            owner: Arc::clone(owner),
            family: row.family,
            key: Key::from(row.key),
        };
        waits.insert(owner.id, link);
        // The owner from which each was reached.
        let mut reached: HashMap<u64, u64> = HashMap::new();
        let mut left = vec![owner.id];
        while let Some(id) = left.pop() {
            // An owner that does not wait will release its locks.
            let Some(waiting) = waits.get(&id) else { continue };
            for blocker in blockers(&waiting.owner, waiting.row()) {
                if blocker.id == owner.id {
                    return Some(ring(&waits, &reached, id, owner.id));
                }
                if let std::collections::hash_map::Entry::Vacant(entry) = reached.entry(blocker.id) {
                    entry.insert(id);
                    left.push(blocker.id);
                }
            }
        }
        None
    }

    /// Removes an owner that does not wait any more.
    pub(crate) fn done(&self, owner: &Owner) {
        self.waits.lock().remove(&owner.id);
    }

    /// The row that an owner waits for.
    pub(crate) fn waits_for(&self, owner: u64) -> Option<(u32, Key)> {
        let waits = self.waits.lock();
        waits.get(&owner).map(|link| (link.family, link.key.clone()))
    }
}

/// The path from `first` to `last`.
fn ring(waits: &HashMap<u64, Link>, reached: &HashMap<u64, u64>, last: u64, first: u64) -> Vec<Link> {
    let mut ids = vec![last];
    while let Some(&id) = ids.last()
        && id != first
        && let Some(&before) = reached.get(&id)
    {
        ids.push(before);
    }
    ids.iter().rev().filter_map(|id| waits.get(id).cloned()).collect()
}
