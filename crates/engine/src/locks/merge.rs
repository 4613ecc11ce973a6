//! Very many rows of one owner, which become a range.
//!
//! A transaction that locks rows one by one would fill the table: its rows of a family are replaced
//! by one range from the first to the last of them, where that is free: a shared one as long as it
//! has locked rows to read alone. The range is not waited for, since its owner would wait with all
//! that it holds; the rows stay then, and it is tried again when as many more have come.
//!
//! *No lock is given up.* The range is taken before the rows are released, and an owner that waits
//! for one of these waits on behind the range, for the same owner: a range is free only where all
//! that wait for its rows wait for this owner, so nobody's wait has another cause than before.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::family::{Granted, Lock, Request, Target};
use super::held::{Held, HeldRange};
use super::row::{Mode, RowRef};
use super::table::{Denied, LockTable};
use crate::bounds::key_to_key;

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

    /// Replaces the rows of a family by a range over them, if that is free.
    fn merge(&mut self, family: u32) {
        let keys = || {
            self.rows
                .iter()
                .filter(|(of, _)| *of == family)
                .map(|(_, key)| key)
        };
        let (Some(first), Some(last)) = (keys().min(), keys().max()) else {
            return;
        };
        let bounds = Arc::new(key_to_key(first, last));
        let request = Request {
            owner: &self.owner,
            mode: self.strongest,
        };
        match self.table.lock_if_free(request, family, Target::Range(&bounds)) {
            Some(Granted::New(Lock::Range(number))) => self.ranges.push(HeldRange {
                family,
                number,
                bounds,
            }),
            // It has this range already.
            Some(_) => {}
            None => return,
        }
        let rows = std::mem::take(&mut self.rows);
        let (merged, others) = rows.into_iter().partition(|(of, _)| *of == family);
        self.rows = others;
        self.release_rows(&merged);
        // They are counted anew when the rest are very many.
        self.counts.clear();
    }
}
