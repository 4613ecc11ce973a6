//! What a store does on a full device so that writes go on.
//!
//! Space comes free in three ways. The log lets its oldest part go when the families that hold it are
//! flushed; a flush writes about as much as that is, unless rows were deleted since, which it leaves
//! out. A dropped family's tables are removed. And what tombstones hide in tables goes when these are
//! merged as a whole: that of a family of which little is left fits where there is little room.
//!
//! A write that is refused, and a removal after that, ask for an attempt; further ones follow until the
//! reserve is complete and the log can grow.

use crate::background::compaction::{self, FREED_LEAST};
use crate::background::flush;
use crate::background::wal_limit::flush_pinning;
use crate::events::FlushCause;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::tables::Content;

pub(crate) fn make_room(store: &Store) {
    if store.failure().is_some() {
        return;
    }
    if store.is_replaying() {
        return store.note_attempt(false);
    }
    if store.take_removed() {
        flush_removals(store);
    }
    if let (Some(oldest), Some(end)) = (store.sequencer().oldest(), store.sequencer().oldest_end()) {
        let (reserved, limit) = (store.sequencer().appended(), super::wal_limit::limit(store));
        // While the log ends in its oldest segment no flush releases that.
        if store.is_short_of_room() && reserved >= end && reserved > oldest {
            store.count_wal_size_flush();
            flush_pinning(store, end.max(reserved.saturating_sub(limit)));
        }
    }
    let mut is_merging = false;
    for family in store.families() {
        if store.is_short_of_room() {
            is_merging |= compaction::queue_whole_merge_if_it_makes_room(store, &family);
        } else {
            // Where only the reserve has room for it, more is looked for from here on.
            compaction::queue_whole_merge_if_due(store, &family);
        }
    }
    store.note_attempt(is_merging);
}

/// Brings removals to tables, where they let a merge remove what they hide. Not where level 0 is
/// crowded: a merge is to come first. While no write was refused yet, only where they are many.
fn flush_removals(store: &Store) {
    let (is_short, mut looked) = (store.is_short_of_room(), 0);
    for family in store.families() {
        let is_crowded = family.level0_runs() >= family.options().level0_slowdown;
        if is_crowded || family.view().mems().all(|mem| mem.is_empty()) {
            continue;
        }
        if !is_short {
            let began = store.now();
            let hide_much = hide_much(&family);
            looked += store.ns_since(began);
            if !hide_much {
                continue;
            }
        }
        let sealed = store.rotate(&family, FlushCause::Room, |view| !view.active.is_empty());
        match sealed {
            // A flush that failed a moment ago goes on with what was deleted since.
            Ok(_) => flush::flush_or_retry_later(store, &family),
            Err(error) => {
                tracing::warn!(family = %family.name(), %error, "what was deleted is not flushed yet");
            }
        }
    }
    store.note_looked(looked);
}

/// Whether the tombstones in memory may hide a sixteenth of the tables, if rows are alike.
fn hide_much(family: &FamilyState) -> bool {
    let view = family.view();
    let Content {
        entries,
        tombstones,
        bytes,
        ..
    } = family.tables().content();
    let of_each = bytes / entries.saturating_sub(tombstones).max(1);
    let wanted = (FREED_LEAST.max(bytes / 16) / of_each.max(1)).max(1);
    let newest = view.mems().flat_map(|mem| mem.newest());
    let tombstones = newest.filter(|entry| entry.found.value.is_none());
    // No further than to the last one that is wanted: there may be very many.
    let found = tombstones.take(usize::try_from(wanted).unwrap_or(usize::MAX));
    found.count() as u64 == wanted
}
