//! Active expiry in partitions: a thread that removes expired keys which are not accessed.
//!
//! Ten times a second it reads the expiry index of the slots in which a key may be due, and of a part of
//! the others; less often while no key is known to be due soon. An entry is only a hint: the key is
//! read again in an evaluation, which removes it with its entry. An entry whose key is gone, or has another expiry, is dropped.
//! It removes tombstones, too (`tombstones`).

use std::sync::Arc;
use std::time::Duration;

use collie_db::Value;

use crate::cluster::{Partition, Refused, SLOTS, StoredRow, Walked};
use crate::data::records::{self, KEPT_MS, Record, RecordCount, RecordName};
use crate::data::sweep::{INTERVAL, Stop};
use crate::data::value::{self, EXPIRY};
use crate::exec::PAUSED;
use crate::partitions::Partitions;
use crate::partitions::tombstones::{Come, Walks};
use crate::partitions::transaction::DATABASE;
use crate::partitions::walk::led_partitions;
use crate::session::Shared;

/// Slots that each sweep looks into without a hint that a key is due: all in about half a
/// minute.
const LOOKED_AT: u16 = 64;
/// So many intervals pass between two sweeps while no key will be due soon: one that is set meanwhile for a
/// shorter time is removed so much later. All slots are multiples of what is looked into then.
const RESTED: u16 = 8;
/// Index entries that one evaluation works on.
const BATCH: usize = 100;
/// Index entries that one sweep works on; the next one follows soon if there are more.
const SWEPT_MAX: usize = 10_000;
/// The pause where a sweep has not come to its end: what it removed may not be applied yet.
const MORE: Duration = Duration::from_millis(20);
/// How long the sweeper waits for a key that a command has locked.
const ROW_WAIT: Duration = Duration::from_millis(10);

/// Sweeps until stopped.
pub(crate) fn run(shared: &Shared, partitions: &Partitions, stop: &Stop) {
    let mut sweeper = Sweeper::default();
    let mut intervals = 1;
    let mut pause = INTERVAL;
    while !stop.wait(pause) {
        let next = match shared.client_pause.is_on() {
            true => NextSweep::Soon,
            false => sweeper.sweep(shared, partitions, intervals, stop),
        };
        intervals = if next == NextSweep::Later { RESTED } else { 1 };
        pause = match next {
            NextSweep::Now => MORE,
            NextSweep::Soon | NextSweep::Later => INTERVAL * u32::from(intervals),
        };
    }
}

/// When there is something to do again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextSweep {
    /// More keys are due already.
    Now,
    Soon,
    /// No key is due soon, as far as this node knows.
    Later,
}

const _: () = assert!(SLOTS.is_multiple_of(LOOKED_AT * RESTED));

#[derive(Default)]
struct Sweeper {
    /// The first slot of the part that is looked into next.
    next: u16,
    /// The groups that were led here at the latest sweep.
    groups: Vec<u64>,
    tombstones: Walks,
}

impl Sweeper {
    /// One sweep, so many intervals behind the one before.
    fn sweep(&mut self, shared: &Shared, partitions: &Partitions, intervals: u16, stop: &Stop) -> NextSweep {
        let now_ms = shared.now_ms();
        let soon_ms = now_ms.saturating_add(INTERVAL.as_millis() as u64 * u64::from(RESTED));
        let mut next = NextSweep::Later;
        let led = led_partitions(&*partitions.cluster);
        // Where the next part is not whole, it ends with the slots.
        let part = self.next..=self.next.saturating_add(LOOKED_AT * intervals - 1);
        self.next = part.end().saturating_add(1);
        if self.next >= SLOTS {
            self.next = 0;
        }
        let mut left = SWEPT_MAX;
        for partition in &led {
            // Another node may have written keys for which there are no hints here.
            let is_new = !self.groups.contains(&partition.group());
            for slot in partition.slots() {
                // A look into a slot with large values takes milliseconds, and there may be 16,384.
                if stop.wait(Duration::ZERO) {
                    return NextSweep::Later;
                }
                let looks = is_new || part.contains(&slot) || partitions.due.is_due(slot, now_ms);
                if looks
                    && let Err(error) = sweep_slot(shared, partitions, partition, slot, now_ms, &mut left)
                {
                    // Commands that read the keys find that they have expired, and the next sweep
                    // tries again.
                    tracing::debug!(slot, %error, "expired keys stay for now");
                    partitions.due.added(slot, now_ms);
                }
                if partitions.due.is_due(slot, soon_ms) {
                    next = NextSweep::Soon;
                }
            }
        }
        self.groups = led.iter().map(|partition| partition.group()).collect();
        match (left, self.tombstones.sweep(&led)) {
            (0, _) | (_, Come::FurtherRemoving) => NextSweep::Now,
            (_, Come::Further) => NextSweep::Soon,
            (_, Come::ToTheEnd) => next,
        }
    }
}

/// Removes the due keys of a slot, and notes when the next one is due.
fn sweep_slot(
    shared: &Shared,
    partitions: &Partitions,
    partition: &Arc<dyn Partition>,
    slot: u16,
    now_ms: u64,
    left: &mut usize,
) -> Result<(), Refused> {
    partitions.due.take(slot);
    let mut batch: Vec<(u64, Vec<u8>)> = Vec::new();
    // Records come behind the index, so that its end shows whether there are any.
    let mut may_have_records = true;
    for found in rows_behind(partition, slot, &[EXPIRY])? {
        let found = found?;
        let entry = Some(&found).filter(|found| found.slot == slot);
        let Some((expiry_ms, key)) = entry.and_then(|entry| value::read_expiry_key(&entry.row)) else {
            may_have_records = entry.is_some();
            break;
        };
        // At its exact expiry a key still exists.
        if expiry_ms >= now_ms || *left == 0 {
            partitions.due.added(slot, expiry_ms);
            break;
        }
        *left -= 1;
        batch.push((expiry_ms, key.to_vec()));
        if batch.len() == BATCH {
            remove(shared, partition, slot, &std::mem::take(&mut batch))?;
        }
    }
    remove(shared, partition, slot, &batch)?;
    match may_have_records {
        true => sweep_records(partitions, partition, slot, now_ms, left),
        false => Ok(()),
    }
}

/// The rows behind one, of this slot and the next ones, without those that were removed: the sweeper's
/// thread serves no connections and may take its time.
fn rows_behind(
    partition: &Arc<dyn Partition>,
    slot: u16,
    row: &[u8],
) -> Result<impl Iterator<Item = Result<StoredRow, Refused>>, Refused> {
    let rows = partition.rows_after(Some((slot, row)))?;
    Ok(rows.filter_map(|found| match found {
        Ok(Walked::Row(row)) => Some(Ok(row)),
        Ok(Walked::Removed { .. }) => None,
        Err(refused) => Some(Err(refused)),
    }))
}

/// Removes the records of commands whose time is over.
fn sweep_records(
    partitions: &Partitions,
    partition: &Arc<dyn Partition>,
    slot: u16,
    now_ms: u64,
    left: &mut usize,
) -> Result<(), Refused> {
    let mut batch = Vec::new();
    for found in rows_behind(partition, slot, records::BEFORE_DUE)? {
        let found = found?;
        let entry = Some(&found).filter(|found| found.slot == slot);
        let Some((time_ms, name)) = entry.and_then(|entry| records::read_due_row(&entry.row)) else {
            break;
        };
        let due_ms = time_ms.saturating_add(KEPT_MS);
        if due_ms >= now_ms || *left == 0 {
            partitions.due.added(slot, due_ms);
            break;
        }
        *left -= 1;
        batch.push((time_ms, name));
        if batch.len() == BATCH {
            remove_records(partition, slot, &std::mem::take(&mut batch))?;
        }
    }
    remove_records(partition, slot, &batch)
}

fn remove_records(
    partition: &Arc<dyn Partition>,
    slot: u16,
    due: &[(u64, RecordName)],
) -> Result<(), Refused> {
    if due.is_empty() {
        return Ok(());
    }
    let wrong = |error| Refused::Text(format!("ERR {error}"));
    let rows: Vec<Vec<u8>> = due.iter().map(|(_, name)| name.row()).collect();
    let mut locked: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    locked.push(RecordCount::ROW);
    locked.sort_unstable();
    locked.dedup();
    let mut evaluation = partition.begin(slot, &locked, ROW_WAIT)?;
    let mut count = RecordCount::decode(evaluation.get(RecordCount::ROW)?.as_ref()).map_err(wrong)?;
    let mut changes = Vec::new();
    for ((time_ms, name), row) in due.iter().zip(&rows) {
        let stored = evaluation.get(row)?;
        let record = stored.as_deref().map(Record::decode).transpose().map_err(wrong)?;
        // Its removal may be on the way already: then the due row is still found among what is applied.
        let Some(len) = record
            .filter(|record| record.time_ms == *time_ms)
            .and(stored.as_ref())
        else {
            continue;
        };
        count.remove(name, len.len());
        changes.push((row.clone(), None));
        changes.push((name.due_row(*time_ms), None));
    }
    if !changes.is_empty() {
        changes.push((RecordCount::ROW.to_vec(), Some(Value::from(&count.encode()[..]))));
        // Whether the removal holds is not waited for: if it does not, they are found again.
        drop(evaluation.finish(changes, 0)?);
    }
    Ok(())
}

/// Removes keys that are due, and their index entries.
fn remove(
    shared: &Shared,
    partition: &Arc<dyn Partition>,
    slot: u16,
    due: &[(u64, Vec<u8>)],
) -> Result<(), Refused> {
    if due.is_empty() {
        return Ok(());
    }
    let row = |key: &Vec<u8>| {
        let mut row = Vec::with_capacity(key.len() + 1);
        value::data_key(&mut row, key);
        row
    };
    let entry = |(expiry_ms, key): &(u64, Vec<u8>)| {
        let mut entry = Vec::with_capacity(key.len() + 9);
        value::expiry_key(&mut entry, *expiry_ms, key);
        entry
    };
    let rows: Vec<Vec<u8>> = due.iter().map(|(_, key)| row(key)).collect();
    let entries: Vec<Vec<u8>> = due.iter().map(entry).collect();
    let mut locked: Vec<&[u8]> = rows.iter().chain(&entries).map(Vec::as_slice).collect();
    locked.sort_unstable();
    locked.dedup();
    let mut evaluation = partition.begin(slot, &locked, ROW_WAIT)?;
    if shared.client_pause.is_on() {
        return Err(Refused::Text(PAUSED.to_owned()));
    }
    let (mut changes, mut keys, mut expired) = (Vec::new(), 0, 0);
    for (((expiry_ms, key), row), entry) in due.iter().zip(&rows).zip(&entries) {
        let stored = evaluation.get(row)?;
        let header = stored.as_deref().map(value::read_header).transpose();
        let header = header.map_err(|error| Refused::Text(format!("ERR {error}")))?;
        let is_same = header.is_some_and(|header| header.expiry_ms == Some(*expiry_ms));
        if is_same && !header.is_some_and(|header| header.is_expired(evaluation.now_ms())) {
            continue;
        }
        // Its removal may be on the way already: then it is still found among what is applied.
        if evaluation.get(entry)?.is_none() {
            continue;
        }
        if is_same {
            shared.watches.expired(DATABASE, key);
            changes.push((row.clone(), None));
            keys -= 1;
            expired += 1;
        }
        changes.push((entry.clone(), None));
    }
    if !changes.is_empty() {
        // Whether the removal holds is not waited for: if it does not, it is found again.
        drop(evaluation.finish(changes, keys)?);
        shared.counters.expired.add(expired);
    }
    Ok(())
}
