//! Merging tables in the background.
//!
//! # Merging a family as a whole
//!
//! The table library compacts by sizes. Where keys rise and old ones are deleted, tables of new rows
//! move down a level unmerged, and tombstones stay above the rows that they hide: of a queue, all that
//! went through it would stay. So a family is merged as a whole when tombstones hide half of its
//! tables, by [estimate](crate::tables::Content). A byte that is deleted is then the cause of about
//! one more byte written.
//!
//! Scans walk over tombstones, whatever they hide. So a family is also merged when it has half as many
//! of them as rows, and not more than [`REWRITTEN`] for each of them is written again.
//!
//! That may take long, so one thread does nothing else: families are merged as a whole one at a time,
//! while other threads compact the other families.

use std::sync::Arc;
use std::time::Duration;

use collie_log::threads::Next;

use crate::background::flush;
use crate::background::merging::{Compacted, compact, merge_all, merge_hidden};
use crate::background::threads::queue::pause_after;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::tables::{Content, Tables};
use crate::{Error, FamilyOptions, Result};

/// A thread that finds a family being merged looks again after so long, and does others meanwhile.
const BUSY: Duration = Duration::from_millis(10);
/// While the reserve is missing no compaction begins that does not make room. One that would looks
/// again after so long.
const SHORT: Duration = Duration::from_secs(1);

/// Compacts one family that is due.
pub(crate) fn run(store: &Store) -> Next {
    match store.queue().next_compaction() {
        Ok(family) => {
            compact_in_turn(store, &family);
            Next::Again
        }
        Err(pause) => Next::Sleep(pause),
    }
}

fn compact_in_turn(store: &Store, family: &Arc<FamilyState>) {
    let _running = family.compactions().dequeue();
    if family.is_dropped() {
        return;
    }
    if !store.reserve_status().1 {
        store.queue().compact_after(family, SHORT);
        return;
    }
    let Some(one) = family.try_lock_compactions() else {
        store.queue().compact_after(family, BUSY);
        return;
    };
    // Before the compaction, which may take long, and on a full device the room.
    queue_whole_merge_if_due(store, family);
    // The reserve is not for this.
    let compacted = compact(store, family, &one, family.compactions(), Tables::compact);
    drop(one);
    match compacted.map(|compacted| compacted == Compacted::Changed) {
        // There may be more to do, after the other families in the queue.
        Ok(true) => store.queue().compact(family),
        // Where there are tables that the manifest does not record, the flush that records them
        // queues another attempt.
        Ok(false) => {}
        Err(_) if store.refusal().is_some() || family.is_dropped() => {}
        Err(Error::Table { source, .. }) if source.is_interruption() => {
            store.queue().compact_after(family, SHORT);
        }
        Err(error) => {
            let failures = family.compactions().failed_again();
            tracing::warn!(family = %family.name(), %error, "a compaction failed, it is tried again");
            store.queue().compact_after(family, pause_after(failures));
        }
    }
}

/// Merges everything, on the caller's thread. No other compaction of the family runs meanwhile;
/// writes to it go on.
pub(crate) fn compact_all(store: &Store, family: &Arc<FamilyState>) -> Result<()> {
    loop {
        match merge_all(store, family) {
            // What it has registered is never recorded.
            Ok(Compacted::Refused) if family.is_dropped() => return Ok(()),
            // A flush is about to record what it has registered, or failed to.
            Ok(Compacted::Refused) => flush::flush_sealed(store, family)?,
            Ok(Compacted::Changed | Compacted::Unchanged) => return Ok(()),
            Err(Error::Table { source, .. }) if source.is_interruption() && family.is_dropped() => {
                return Ok(());
            }
            Err(Error::Table { source, .. }) if source.is_interruption() && store.is_closed() => {
                return Err(Error::Closed);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Where there is no room, it is looked for again after so long.
const ROOM_AGAIN: Duration = Duration::from_secs(60);
/// On a full device it is worth so much, at least, in bytes.
pub(super) const FREED_LEAST: u64 = 1 << 20;

/// A merge is worth so many hidden bytes, or so many tombstones: it changes the tree's manifest and
/// syncs a table.
const HIDDEN_LEAST: u64 = 1 << 20;
const TOMBSTONES_LEAST: u64 = 1_000;
/// Bytes that are written again for each tombstone, at most.
const REWRITTEN: u64 = 1 << 10;

/// Merges one family that is due as a whole.
pub(crate) fn run_whole_merges(store: &Store) -> Next {
    match store.queue().next_whole_merge() {
        Ok(family) => {
            run_whole_merge(store, &family);
            Next::Again
        }
        Err(pause) => Next::Sleep(pause),
    }
}

fn run_whole_merge(store: &Store, family: &Arc<FamilyState>) {
    let _running = family.whole_merges().dequeue();
    if family.is_dropped() {
        return;
    }
    let for_room = makes_room(store, family);
    let merged = if for_room {
        // Writes that go on would leave ever more that has to fit.
        let merged = store.in_reserve(|| merge_hidden(store, family, || makes_room(store, family)));
        if merged.is_err() {
            family.tables().forget_replaced();
        }
        store.note_merge_for_room();
        merged
    } else {
        // The reserve is not for this.
        merge_hidden(store, family, || match due(store, family) {
            Due::Yes => true,
            Due::No => false,
            Due::NoRoom => {
                store.queue().merge_whole_after(family, ROOM_AGAIN);
                false
            }
        })
    };
    let pause = match &merged {
        Ok(()) => return,
        Err(_) if store.refusal().is_some() || family.is_dropped() => return,
        // Others need what there is left.
        Err(Error::StorageFull { .. }) if !for_room => ROOM_AGAIN,
        Err(_) => pause_after(family.whole_merges().failed_again()),
    };
    if let Err(error) = merged {
        tracing::warn!(family = %family.name(), %error, "merging all tables failed, it is tried again");
    }
    store.queue().merge_whole_after(family, pause);
}

/// Queues it where it is due.
pub(crate) fn queue_whole_merge_if_due(store: &Store, family: &Arc<FamilyState>) {
    match due(store, family) {
        Due::Yes => store.queue().merge_whole(family),
        Due::No => {}
        Due::NoRoom => store.queue().merge_whole_after(family, ROOM_AGAIN),
    }
}

/// Queues it at once where the device is full and it makes room; one that failed, once its pause is
/// over. Returns whether it makes room.
pub(crate) fn queue_whole_merge_if_it_makes_room(store: &Store, family: &Arc<FamilyState>) -> bool {
    let makes_room = makes_room(store, family);
    if makes_room && family.whole_merges().error().is_some() {
        store.queue().merge_whole(family);
    } else if makes_room {
        store.queue().merge_whole_now(family);
    }
    makes_room
}

/// Whether room is looked for, and a merge of all tables makes some.
fn makes_room(store: &Store, family: &FamilyState) -> bool {
    if !store.is_short_of_room() {
        return false;
    }
    let tables = family.tables();
    let Content {
        hidden,
        replaced,
        bytes: all,
        ..
    } = tables.content();
    let hidden = match hidden {
        0 => tables.may_be_hidden(),
        hidden => hidden,
    };
    let gone = hidden.saturating_add(replaced);
    fits_in_reserve(store, gone, all) || is_mostly_gone(gone, all)
}

/// Whether a merge is tried although the rest does not fit by the estimate, which may be too low: what was removed would
/// stay for ever. One that finds no room has a pause behind it.
fn is_mostly_gone(gone: u64, all: u64) -> bool {
    gone >= FREED_LEAST && gone >= all / 4 * 3
}

/// As [`rule_when_full`], of the reserve too. The device may have no more than a part of it, and that
/// has it.
fn fits_in_reserve(store: &Store, hidden: u64, all: u64) -> bool {
    let room = store.available().saturating_add(store.reserve_held());
    rule_when_full(hidden, all, room)
}

/// Whether that much less is worth writing the rest, which has to fit. The estimate may be too high.
fn rule_when_full(hidden: u64, all: u64, room: u64) -> bool {
    let left = (all - hidden.min(all)).max(all / 16);
    hidden >= FREED_LEAST && hidden >= all / 4 && left + FREED_LEAST <= room
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Yes,
    No,
    NoRoom,
}

fn due(store: &Store, family: &FamilyState) -> Due {
    let tables = family.tables();
    let content = tables.content();
    let due = rule(&content, &family.options(), || store.available());
    if due != Due::NoRoom {
        return due;
    }
    // Writes would take what room there is, and replace tombstones, by which the estimate goes.
    if rule_when_full(content.hidden, content.bytes, store.available()) {
        return Due::Yes;
    }
    tracing::debug!(family = %family.name(), ?content, "no room to merge all tables");
    if fits_in_reserve(store, content.hidden, content.bytes) {
        store.request_room();
    }
    Due::NoRoom
}

/// Whether tombstones hide half of the tables, or are in the way of scans, and there is room for what
/// is left beside what is there. The estimate may be too high, and flushes go on meanwhile.
fn rule(content: &Content, options: &FamilyOptions, room: impl FnOnce() -> u64) -> Due {
    let Content {
        entries,
        tombstones,
        bytes: all,
        hidden,
        ..
    } = *content;
    let hide_half = hidden >= options.table_bytes.min(HIDDEN_LEAST) && hidden >= all / 2;
    let are_in_the_way = tombstones >= TOMBSTONES_LEAST
        && tombstones >= entries.saturating_sub(tombstones) / 2
        && all <= tombstones.saturating_mul(REWRITTEN);
    if !hide_half && !are_in_the_way {
        return Due::No;
    }
    let left = (all - hidden).max(all / 4);
    match room() < left.saturating_add(options.write_buffer_bytes.saturating_mul(2)) {
        true => Due::NoRoom,
        false => Due::Yes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_is_due_when_half_is_hidden_and_the_rest_has_room() {
        let options = FamilyOptions {
            table_bytes: 10,
            write_buffer_bytes: 5,
            ..FamilyOptions::default()
        };
        let due = |hidden, bytes, room| {
            let content = Content {
                bytes,
                hidden,
                ..Content::default()
            };
            rule(&content, &options, || room)
        };
        assert_eq!(due(9, 9, u64::MAX), Due::No, "less than is worth it");
        assert_eq!(due(49, 100, u64::MAX), Due::No);
        assert_eq!((due(50, 100, 60), due(50, 100, 59)), (Due::Yes, Due::NoRoom));
        // However little is left by the estimate.
        assert_eq!((due(100, 100, 35), due(100, 100, 34)), (Due::Yes, Due::NoRoom));
    }

    #[test]
    fn on_a_full_device_a_quarter_is_enough_if_what_is_left_fits() {
        let (all, least) = (256 * FREED_LEAST, FREED_LEAST);
        assert!(rule_when_full(all, all, all / 16 + least));
        assert!(
            !rule_when_full(all, all, all / 16 + least - 1),
            "the estimate may be too high"
        );
        assert!(rule_when_full(all / 4, all, all / 4 * 3 + least));
        assert!(!rule_when_full(all / 4, all, all / 4 * 3 + least - 1));
        assert!(!rule_when_full(all / 4 - 1, all, u64::MAX), "less than a quarter");
        assert!(!rule_when_full(least - 1, least, u64::MAX), "next to nothing");
        // As it was on a disk of 800 MiB of which everything was deleted: it did not fit by the estimate.
        assert!(!rule_when_full(621_846_793, 762_156_324, 60_000_000));
        assert!(is_mostly_gone(621_846_793, 762_156_324));
        assert!(!is_mostly_gone(all / 4 * 3 - 1, all) && !is_mostly_gone(least - 1, least));
    }

    #[test]
    fn a_merge_is_due_when_many_tombstones_hide_nothing() {
        let due = |tombstones, rows, bytes| {
            let content = Content {
                entries: tombstones + rows,
                tombstones,
                bytes,
                hidden: 0,
                replaced: 0,
            };
            rule(&content, &FamilyOptions::default(), || u64::MAX)
        };
        assert_eq!((due(999, 0, 0), due(1_000, 0, 0)), (Due::No, Due::Yes));
        assert_eq!((due(1_000, 2_002, 0), due(1_000, 2_000, 0)), (Due::No, Due::Yes));
        // Large rows are not written again for few tombstones.
        assert_eq!(
            (due(1_000, 9, 1_024_001), due(1_000, 9, 1_024_000)),
            (Due::No, Due::Yes)
        );
    }
}
