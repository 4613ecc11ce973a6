//! The effects that are submitted and not applied yet.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::RangeInclusive;

/// What a command changes: rows and their new values, `None` for a row that goes.
pub type Effects<R, V> = BTreeMap<R, Option<V>>;

/// The newest pending value of each row, and which entry of the run wrote it.
#[derive(Debug)]
pub(super) struct Overlay<R, V> {
    rows: HashMap<R, (Option<V>, u32)>,
}

impl<R: Hash + Eq + Clone, V: Clone> Overlay<R, V> {
    pub(super) fn new() -> Self {
        Self { rows: HashMap::new() }
    }

    pub(super) fn get(&self, row: &R) -> Option<(Option<V>, u32)> {
        self.rows.get(row).cloned()
    }

    pub(super) fn put(&mut self, n: u32, effects: Effects<R, V>) {
        let written = effects.into_iter().map(|(row, value)| (row, (value, n)));
        self.rows.extend(written);
    }

    /// The table shows what these proposals wrote: their rows go, but for those that a later one has
    /// written since.
    pub(super) fn applied<'a>(&mut self, which: RangeInclusive<u32>, rows: impl Iterator<Item = &'a R>)
    where
        R: 'a,
    {
        for row in rows {
            if self
                .rows
                .get(row)
                .is_some_and(|(_, writer)| which.contains(writer))
            {
                self.rows.remove(row);
            }
        }
    }
}
