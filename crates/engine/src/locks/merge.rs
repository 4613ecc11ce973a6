//! Very many rows of one owner, which become a range.
//!
//! A transaction that locks rows one by one would fill the table: its rows of a family are replaced
//! by one range from the first to the last of them, where that is free: a shared one as long as it
//! has locked rows to read alone. The range is not waited for, since its owner would wait with all
//! that it holds; the rows stay then, and it is tried again when as many more have come.
//!
//! *No lock is given up.* The range is taken before the rows are released, and an owner that waits
//! for one of these waits on behind the range, for the same owner: a range is free only where all
//! that wait for its rows wait for this owner, so no wait has another cause than before.

use std::ops::{Bound, Deref};
use std::sync::Arc;
use std::time::Duration;

use crate::Key;
use crate::bounds::{Bounds, contains, key_to_key};
use crate::locks::family::{Granted, Lock, Request, Target};
use crate::locks::held::{Held, HeldRange};
use crate::locks::row::{Mode, RowRef};
use crate::locks::table::{Denied, LockTable};

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
