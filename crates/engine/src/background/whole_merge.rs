//! Merging all tables of a family where tombstones hide half of what they take.
//!
//! The table library compacts by sizes. Where keys rise and old ones are deleted, tables of new rows
//! move down a level unmerged, and tombstones stay above the rows that they hide: of a queue, all that
//! went through it would stay. So a family is merged as a whole when tombstones hide half of its
//! tables, by [estimate](crate::tables::Tables::hidden_of_all). A byte that is deleted is then the
//! cause of about one more byte written, and deletes of what is not there are the cause of none.
//!
//! That may take long, so one thread does nothing else: families are merged as a whole one at a time,
//! while other threads compact the other families.

use std::sync::Arc;
use std::time::Duration;

use crate::background::compaction;
use crate::store::Store;
use crate::store::family_state::FamilyState;
use crate::store::queue::pause_after;
use crate::{Error, FamilyOptions};

/// Where there is no room, it is looked for again after so long.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

/// What the thread runs.
pub(crate) fn run(store: &Store) {
    compaction::use_background_io();
    while let Some(family) = store.queue().next_whole_merge() {
        run_task(store, &family);
    }
}

pub(crate) fn run_task(store: &Store, family: &Arc<FamilyState>) {
    family.whole_merges().dequeue();
    if family.is_dropped() {
        return;
    }
    let merged = compaction::merge_hidden(store, family, || match due(store, family) {
        Due::Yes => true,
        Due::No => false,
        Due::NoRoom => {
            store.queue().merge_whole_after(family, ROOM_AGAIN);
            false
        }
    });
    let pause = match &merged {
        Ok(()) => return,
        Err(_) if store.refusal().is_some() || family.is_dropped() => return,
        // Others need what there is left.
        Err(Error::StorageFull { .. }) => ROOM_AGAIN,
        Err(_) => pause_after(family.whole_merges().failed_again()),
    };
    if let Err(error) = merged {
        tracing::warn!(family = %family.name(), %error, "merging all tables failed, it is tried again");
    }
    store.queue().merge_whole_after(family, pause);
}

/// Queues it where it is due.
pub(crate) fn queue_if_due(store: &Store, family: &Arc<FamilyState>) {
    match due(store, family) {
        Due::Yes => store.queue().merge_whole(family),
        Due::No => {}
        Due::NoRoom => store.queue().merge_whole_after(family, ROOM_AGAIN),
    }
}

enum Due {
    Yes,
    No,
    NoRoom,
}

/// Whether tombstones hide half of the tables, and more than one table, and there is room for what is
/// left beside what is there.
fn due(store: &Store, family: &FamilyState) -> Due {
    let (hidden, all) = family.tables().hidden_of_all();
    let FamilyOptions {
        table_bytes,
        write_buffer_bytes,
        ..
    } = *family.options();
    if hidden < table_bytes || hidden < all / 2 {
        return Due::No;
    }
    // The estimate may be too high. And flushes go on meanwhile.
    let left = (all - hidden).max(all / 4) + 2 * write_buffer_bytes;
    // A device that does not say is taken to have room.
    match store.device().statfs(family.tables().path()) {
        Ok(room) if room.available.saturating_mul(room.block_size) < left => {
            tracing::debug!(family = %family.name(), hidden, "no room to merge all tables");
            Due::NoRoom
        }
        _ => Due::Yes,
    }
}
