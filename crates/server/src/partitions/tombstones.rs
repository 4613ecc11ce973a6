//! Removes the tombstones of keys that have been of no use for long enough, in partitions that have
//! some.
//!
//! The tombstones of a slot stand before its keys, so that a walk over a partition reads them, and little
//! else. It goes on from sweep to sweep. When it has come to its end it is known when the earliest
//! tombstone that is left was written: the next walk begins when that is to be removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{Partition, Refused, Walked};
use crate::data::stamp::{TOMBSTONE, Tombstone};
use crate::duplication::{key_of, rows_of};

/// Rows that one sweep reads at most.
const READ_MAX: u64 = 1_000;
/// What it costs to begin to read somewhere, in rows.
const SEEK: u64 = 16;
/// A walk begins when tombstones that were written in so many milliseconds may go, and not for each.
const SPAN_MS: u64 = 10 * 60 * 1000;

/// Tombstones that one evaluation removes.
const BATCH: usize = 100;
/// How long is waited for a key that a command has locked.
const ROW_WAIT: Duration = Duration::from_millis(10);

/// The walks over the partitions that are led here, by their groups.
#[derive(Debug, Default)]
pub(super) struct Walks {
    of: HashMap<u64, Walk>,
}

/// How far the walks have come in one sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Come {
    /// None is under way.
    ToTheEnd,
    /// There are rows left to read.
    Further,
    /// There are, and tombstones were removed.
    FurtherRemoving,
}

#[derive(Debug, Default)]
struct Walk {
    /// The row that was read last, by a walk that is under way.
    after: Option<(u16, Vec<u8>)>,
    is_under_way: bool,
    /// What the walk leaves, and what comes behind it, was written then or later.
    left_ms: u64,
    /// The same of the walk before.
    least_ms: u64,
}

impl Walks {
    /// One sweep over the partitions that are led here.
    pub(super) fn sweep(&mut self, led: &[Arc<dyn Partition>]) -> Come {
        self.of
            .retain(|group, _| led.iter().any(|partition| partition.group() == *group));
        let mut come = Come::ToTheEnd;
        let mut left = READ_MAX;
        for partition in led {
            let now_ms = partition.now_ms();
            let before_ms = partition.forgets_before_ms().min(now_ms);
            if before_ms == 0 {
                continue;
            }
            let walk = self.of.entry(partition.group()).or_default();
            if !walk.is_under_way {
                if before_ms < walk.least_ms.saturating_add(SPAN_MS) {
                    continue;
                }
                walk.begin(now_ms);
            }
            if left == 0 {
                come = come.max(Come::Further);
                continue;
            }
            match walk.go_on(partition, before_ms, &mut left) {
                Ok(at) => come = come.max(at),
                Err(error) => {
                    // The next sweep goes on at the same row, and the next walk finds what was to be removed.
                    walk.left_ms = walk.left_ms.min(before_ms);
                    tracing::debug!(group = partition.group(), %error, "tombstones stay for now");
                    come = come.max(Come::Further);
                }
            }
        }
        come
    }
}

/// Tombstones of one slot that are to be removed, by their users' keys.
#[derive(Default)]
struct SlotTombstones {
    slot: u16,
    keys: Vec<Vec<u8>>,
}

impl Walk {
    fn begin(&mut self, now_ms: u64) {
        self.is_under_way = true;
        self.after = None;
        // One that is not applied yet was written before, and is found by the next walk.
        self.left_ms = now_ms;
    }

    /// Reads rows until so many are, or to the end.
    fn go_on(
        &mut self,
        partition: &Arc<dyn Partition>,
        before_ms: u64,
        left: &mut u64,
    ) -> Result<Come, Refused> {
        let mut part = SlotTombstones::default();
        let mut has_removed = false;
        let mut rows = None;
        loop {
            if *left == 0 {
                has_removed |= self.remove(partition, before_ms, &mut part);
                return Ok(match has_removed {
                    true => Come::FurtherRemoving,
                    false => Come::Further,
                });
            }
            let Some(open) = &mut rows else {
                *left = left.saturating_sub(SEEK);
                let after = self.after.as_ref().map(|(slot, row)| (*slot, &**row));
                rows = Some(partition.rows_after(after)?);
                continue;
            };
            let found = match open.next().transpose()? {
                None => {
                    self.remove(partition, before_ms, &mut part);
                    self.is_under_way = false;
                    self.least_ms = self.left_ms;
                    return Ok(Come::ToTheEnd);
                }
                Some(Walked::Removed { slot, row, entries }) => {
                    *left = left.saturating_sub(entries);
                    self.after = Some((slot, row));
                    continue;
                }
                Some(Walked::Row(found)) => found,
            };
            *left -= 1;
            let is_tombstone = found.row.first() == Some(&TOMBSTONE);
            let Some(key) = key_of(&found.row).filter(|_| is_tombstone) else {
                // The slot has no more: continue behind its rows.
                self.after = Some((found.slot, vec![u8::MAX]));
                rows = None;
                continue;
            };
            match Tombstone::decode(&found.value) {
                Ok(tombstone) if tombstone.written_ms < before_ms => {
                    if part.slot != found.slot || part.keys.len() == BATCH {
                        has_removed |= self.remove(partition, before_ms, &mut part);
                    }
                    part.slot = found.slot;
                    part.keys.push(key.to_vec());
                }
                Ok(tombstone) => self.left_ms = self.left_ms.min(tombstone.written_ms),
                Err(error) => tracing::debug!(slot = found.slot, %error, "a tombstone stays"),
            }
            self.after = Some((found.slot, found.row));
        }
    }

    /// Removes tombstones, and returns whether any is. Those that cannot be removed now stay for the next
    /// walk.
    fn remove(&mut self, partition: &Arc<dyn Partition>, before_ms: u64, part: &mut SlotTombstones) -> bool {
        let SlotTombstones { slot, keys } = std::mem::take(part);
        if keys.is_empty() {
            return false;
        }
        match remove(partition, slot, &keys, before_ms) {
            Ok(has_removed) => has_removed,
            Err(error) => {
                tracing::debug!(slot, %error, "tombstones stay for now");
                self.left_ms = self.left_ms.min(before_ms);
                false
            }
        }
    }
}

/// Removes tombstones of a slot. A key may have been written since they were read.
fn remove(
    partition: &Arc<dyn Partition>,
    slot: u16,
    keys: &[Vec<u8>],
    before_ms: u64,
) -> Result<bool, Refused> {
    let rows: Vec<_> = keys.iter().map(|key| rows_of(key)).collect();
    let locked: Vec<&[u8]> = rows.iter().map(|[row, _]| row.as_slice()).collect();
    let mut evaluation = partition.begin(slot, &locked, ROW_WAIT)?;
    let mut changes = Vec::new();
    for [_, tombstone] in rows.iter() {
        let stored = evaluation.get(tombstone)?;
        let stored = stored.as_deref().map(Tombstone::decode).transpose();
        let stored = stored.map_err(|error| Refused::Text(format!("ERR {error}")))?;
        if stored.is_some_and(|stored| stored.written_ms < before_ms) {
            changes.push((tombstone.clone(), None));
        }
    }
    let has_removed = !changes.is_empty();
    if has_removed {
        // Whether the removal holds is not waited for: if it does not, the next walk finds them again.
        drop(evaluation.finish(changes, 0)?);
    }
    Ok(has_removed)
}
