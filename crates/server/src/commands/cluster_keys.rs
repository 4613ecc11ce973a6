//! The commands over all keys, in a cluster: over those that this node leads, since clients send such
//! a command to every node. They read what is applied, and their replies wait until each partition that they
//! read has confirmed that this node led it.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use collie_protocol::ReplyBuffer;
use tokio::runtime::Handle;

use super::names::search_aside;
use super::page::{Page, ScanOptions};
use crate::cluster::{Partition, Refused, SLOTS, Settled, Settling, Walked};
use crate::cost::{Aside, PASSED_MAX};
use crate::data::value::{self, BEFORE_DATA};
use crate::exec::{Exec, Flow, Later, Outcome};
use crate::failure::{Failure, text};
use crate::glob;
use crate::partitions::Partitions;
use crate::partitions::evaluate::ROW_WAIT;
use crate::partitions::transaction::DATABASE;
use crate::partitions::walk::{LedEntry, LedKey, LedKeys, Reading, key_count, led_partitions};

/// The most keys that one commit of `FLUSHALL` removes, and the most bytes of their names.
const FLUSHED_KEYS_MAX: usize = 1_000;
const FLUSHED_BYTES_MAX: usize = 1024 * 1024;
/// Commits of one `FLUSHALL` that may be under way at a time.
const FLUSHES_MAX: usize = 8;
/// How long `FLUSHALL` waits for a partition that takes no commands at the moment.
const BUSY_WAIT: Duration = Duration::from_secs(10);
/// Expired keys that `RANDOMKEY` passes over at most.
const RANDOM_TRIES: usize = 100;
/// Keys of a search between two checks whether the connection is to close.
const CHECK_STEP: usize = 1024;

/// The partitions. The commands before this one of the same connection are settled first: it reads what
/// is applied, and has to find what they have written.
fn begin<'a>(exec: &Exec<'a>) -> Result<&'a Partitions, Outcome> {
    if exec.session.unsettled.has_earlier() {
        return Err(Ok(Flow::Later(Later::Settled)));
    }
    let shared = exec.shared;
    shared
        .partitions
        .as_ref()
        .ok_or(Err("ERR internal error: there is no cluster".into()))
}

/// Makes the reply wait until the partitions that it has read confirm it.
fn confirm(exec: &mut Exec<'_>, read: &[Reading]) {
    exec.session.unsettled.add(read.iter().map(Reading::confirm));
}

/// `DBSIZE`.
pub(super) fn dbsize(exec: &mut Exec<'_>) -> Outcome {
    let partitions = match begin(exec) {
        Ok(partitions) => partitions,
        Err(outcome) => return outcome,
    };
    if !exec.may_block {
        return Ok(Flow::Aside(Aside::Waits));
    }
    let (keys, read) = key_count(&*partitions.cluster)?;
    confirm(exec, &read);
    exec.reply.integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}

/// `KEYS`.
pub(super) fn keys(exec: &mut Exec<'_>, pattern: &[u8]) -> Outcome {
    let partitions = match begin(exec) {
        Ok(partitions) => partitions,
        Err(outcome) => return outcome,
    };
    if !exec.may_block {
        return Ok(Flow::Aside(Aside::Searches));
    }
    let limit = exec.shared.settings.reply_bytes_max();
    let (mut found, mut count) = (ReplyBuffer::new(), 0);
    let mut all = LedKeys::of(&*partitions.cluster, None);
    let mut looked_at: usize = 0;
    while let Some(led) = all.next() {
        if looked_at.is_multiple_of(CHECK_STEP) && exec.session.client.is_closing() {
            return Ok(Flow::Close);
        }
        looked_at += 1;
        let LedEntry::Key(key) = led? else { continue };
        let matches = pattern == b"*" || glob::matches(pattern, key.name(), false);
        if matches && !all.has_expired(&key)? {
            found.bulk(key.name());
            count += 1;
        }
        // The connection checks the limit too, and closes.
        if found.len() > limit {
            break;
        }
    }
    confirm(exec, all.read());
    exec.reply.array(count);
    exec.reply.append(&found);
    Ok(Flow::Next)
}

/// `SCAN`. The cursor remembers a slot and a row in it.
pub(super) fn scan(exec: &mut Exec<'_>, cursor: u64, options: &ScanOptions<'_>) -> Outcome {
    let partitions = match begin(exec) {
        Ok(partitions) => partitions,
        Err(outcome) => return outcome,
    };
    let after = {
        let cursors = exec.shared.store.cursors.lock();
        cursors.find(DATABASE, cursor).and_then(read_position)
    };
    let mut page = Page::new(exec, options);
    let mut last = None;
    if !options.only_other_types {
        let mut all = LedKeys::of(&*partitions.cluster, after);
        let more = loop {
            let Some(found) = all.next() else { break false };
            if page.is_full() {
                break true;
            }
            last = Some(match found? {
                LedEntry::Key(key) => {
                    exec.now_ms = all.now_ms();
                    if !page.take(exec, key.name(), &key.stored)? {
                        all.has_expired(&key)?;
                    }
                    (key.slot, key.row)
                }
                LedEntry::Removed { slot, row, entries } => {
                    page.pass(entries);
                    (slot, row)
                }
            });
        };
        last = last.filter(|_| more);
        confirm(exec, all.read());
    }
    let next = last.map_or(0, |(slot, row)| {
        let position = position(slot, &row);
        exec.shared.store.cursors.lock().remember(DATABASE, &position)
    });
    page.encode(exec.reply, next);
    Ok(Flow::Next)
}

/// A row as a cursor remembers it.
fn position(slot: u16, row: &[u8]) -> Vec<u8> {
    [&slot.to_be_bytes()[..], row].concat()
}

fn read_position(position: &[u8]) -> Option<(u16, Vec<u8>)> {
    let (slot, row) = position.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*slot), row.to_vec()))
}

/// `RANDOMKEY`: one of the keys behind a random slot. Keys behind many empty slots are drawn more often
/// than others.
pub(super) fn randomkey(exec: &mut Exec<'_>) -> Outcome {
    let partitions = match begin(exec) {
        Ok(partitions) => partitions,
        Err(outcome) => return outcome,
    };
    let random = &exec.shared.counters;
    let from = u16::try_from(random.random() % u64::from(SLOTS)).unwrap_or(0);
    let skip = random.random() % 16;
    // From the slot to the end, and if nothing is there, from the start.
    let starts = [Some((from, Vec::new())), None];
    let mut removed = 0;
    for start in starts {
        let mut all = LedKeys::of(&*partitions.cluster, start);
        let (mut found, mut passed, mut expired) = (None, 0, 0);
        while let Some(led) = all.next() {
            let key = match led? {
                LedEntry::Key(key) => key,
                LedEntry::Removed { entries, .. } => {
                    removed += entries;
                    if removed >= PASSED_MAX {
                        search_aside(exec)?;
                    }
                    continue;
                }
            };
            exec.weigh(key.row.len() + key.stored.len())?;
            if all.has_expired(&key)? {
                expired += 1;
            } else {
                found = Some(key);
                passed += 1;
            }
            if passed > skip || expired == RANDOM_TRIES {
                break;
            }
        }
        confirm(exec, all.read());
        if let Some(key) = found {
            exec.reply.bulk(key.name());
            return Ok(Flow::Next);
        }
    }
    exec.reply.null();
    Ok(Flow::Next)
}

/// `FLUSHALL` and `FLUSHDB`: removes the keys in parts, each of which is one commit of one slot. Keys
/// that other commands add meanwhile may stay.
pub(super) fn flush(exec: &mut Exec<'_>) -> Outcome {
    let partitions = match begin(exec) {
        Ok(partitions) => partitions,
        Err(outcome) => return outcome,
    };
    if !exec.may_block {
        return Ok(Flow::Aside(Aside::Searches));
    }
    let mut flush = Flush {
        submitted: VecDeque::new(),
        part: Vec::new(),
        bytes: 0,
        slot: 0,
    };
    let mut all = LedKeys::of(&*partitions.cluster, None);
    let mut ended = Settled::Holds;
    for key in all.by_ref() {
        let LedEntry::Key(key) = key? else { continue };
        if flush.is_complete(&key) {
            ended = flush.submit(exec, partitions)?;
            if exec.session.client.is_closing() {
                // Keys are left: no reply may report that they are gone.
                return Ok(Flow::Close);
            }
            if ended != Settled::Holds {
                break;
            }
        }
        flush.slot = key.slot;
        flush.bytes += key.row.len();
        flush.part.push(key.row);
    }
    if ended == Settled::Holds {
        ended = flush.submit(exec, partitions)?;
    }
    exec.session.unsettled.add(flush.submitted);
    exec.session.unsettled.add([Box::pin(ready(ended)) as Settling]);
    confirm(exec, all.read());
    exec.reply.ok();
    Ok(Flow::Next)
}

/// A `FLUSHALL` under way.
struct Flush {
    submitted: VecDeque<Settling>,
    /// Rows of users' keys in `slot` that are removed next, and their length.
    part: Vec<Vec<u8>>,
    bytes: usize,
    slot: u16,
}

impl Flush {
    /// Whether a key belongs to the next part.
    fn is_complete(&self, next: &LedKey) -> bool {
        !self.part.is_empty()
            && (next.slot != self.slot
                || self.part.len() >= FLUSHED_KEYS_MAX
                || self.bytes >= FLUSHED_BYTES_MAX)
    }

    /// Removes the part, and waits for the oldest commit if very many are under way. Returns what
    /// became of that.
    fn submit(&mut self, exec: &Exec<'_>, partitions: &Partitions) -> Result<Settled, Failure> {
        let part = std::mem::take(&mut self.part);
        self.bytes = 0;
        let settling = remove(exec, partitions, self.slot, &part)?;
        self.submitted.extend(settling);
        if self.submitted.len() < FLUSHES_MAX {
            return Ok(Settled::Holds);
        }
        let oldest = self.submitted.pop_front();
        Ok(oldest.map_or(Settled::Holds, |oldest| Handle::current().block_on(oldest)))
    }
}

/// Removes keys of a slot, and waits where the partition takes no commands at the moment.
fn remove(
    exec: &Exec<'_>,
    partitions: &Partitions,
    slot: u16,
    rows: &[Vec<u8>],
) -> Result<Option<Settling>, Failure> {
    if rows.is_empty() {
        return Ok(None);
    }
    let cluster = &*partitions.cluster;
    let mut changes = cluster.changes();
    let give_up = tokio::time::Instant::now() + BUSY_WAIT;
    loop {
        changes.borrow_and_update();
        let led = led_partitions(cluster);
        let partition = led.iter().find(|partition| partition.slots().contains(&slot));
        // Not led here any more: its keys are left, and are those of another node.
        let Some(partition) = partition else {
            return Ok(Some(Box::pin(ready(Settled::TryAgain))));
        };
        match remove_once(exec, partition, slot, rows) {
            Ok(settling) => return Ok(settling),
            Err(Failure::Refused(Refused::Stale)) => {}
            Err(Failure::Refused(Refused::NotNow | Refused::NotHere | Refused::Locked)) => {
                let changed = tokio::time::timeout_at(give_up, changes.changed());
                drop(Handle::current().block_on(changed));
            }
            Err(failure) => return Err(failure),
        }
        if tokio::time::Instant::now() >= give_up {
            return Err(text::BUSY.into());
        }
    }
}

fn remove_once(
    exec: &Exec<'_>,
    partition: &Arc<dyn Partition>,
    slot: u16,
    rows: &[Vec<u8>],
) -> Result<Option<Settling>, Failure> {
    let locked: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    let mut evaluation = partition.begin(slot, &locked, ROW_WAIT)?;
    let (mut changes, mut keys) = (Vec::with_capacity(rows.len()), 0);
    for row in rows {
        let Some(stored) = evaluation.get(row)? else {
            continue;
        };
        let header = value::read_header(&stored)?;
        let name = row.get(1..).unwrap_or_default();
        if let Some(expiry_ms) = header.expiry_ms {
            let mut entry = Vec::with_capacity(name.len() + 9);
            value::expiry_key(&mut entry, expiry_ms, name);
            changes.push((entry, None));
        }
        changes.push((row.clone(), None));
        keys -= 1;
        let watches = &exec.shared.watches;
        if header.is_expired(evaluation.now_ms()) {
            watches.expired(DATABASE, name);
        } else {
            watches.changed(DATABASE, name);
        }
    }
    if changes.is_empty() {
        return Ok(None);
    }
    Ok(Some(evaluation.finish(changes, keys)?))
}

/// `CLUSTER COUNTKEYSINSLOT`.
pub(super) fn count_in_slot(exec: &mut Exec<'_>, slot: u16) -> Outcome {
    let partitions = match begin(exec) {
        Ok(partitions) => partitions,
        Err(outcome) => return outcome,
    };
    let partition = in_slot(partitions, slot);
    let keys = match &partition {
        Some((read, _)) => read.partition.key_count(slot..=slot)?,
        None => 0,
    };
    confirm_if_led(exec, partition);
    exec.reply.integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}

/// `CLUSTER GETKEYSINSLOT`.
pub(super) fn keys_in_slot(exec: &mut Exec<'_>, slot: u16, count: usize) -> Outcome {
    let partitions = match begin(exec) {
        Ok(partitions) => partitions,
        Err(outcome) => return outcome,
    };
    if !exec.may_block {
        return Ok(Flow::Aside(Aside::Searches));
    }
    let limit = exec.shared.settings.reply_bytes_max();
    let (mut found, mut names) = (0, ReplyBuffer::new());
    let partition = in_slot(partitions, slot);
    if let Some((read, _)) = &partition {
        for row in read.partition.rows_after(Some((slot, BEFORE_DATA)))? {
            let Walked::Row(row) = row? else { continue };
            let name = row.row.strip_prefix(&[value::DATA]);
            let Some(name) = name.filter(|_| row.slot == slot && found < count && names.len() <= limit)
            else {
                break;
            };
            names.bulk(name);
            found += 1;
        }
    }
    confirm_if_led(exec, partition);
    exec.reply.array(found);
    exec.reply.append(&names);
    Ok(Flow::Next)
}

/// The partition of a slot, if this node has a replica of it, and whether that leads.
fn in_slot(partitions: &Partitions, slot: u16) -> Option<(Reading, bool)> {
    let led = led_partitions(&*partitions.cluster);
    let own = led
        .into_iter()
        .find(|partition| partition.slots().contains(&slot));
    match own {
        Some(partition) => Some((Reading::begin(partition), true)),
        None => partitions
            .cluster
            .replica(slot)
            .map(|partition| (Reading::begin(partition), false)),
    }
}

fn confirm_if_led(exec: &mut Exec<'_>, read: Option<(Reading, bool)>) {
    if let Some((read, true)) = read {
        confirm(exec, &[read]);
    }
}
