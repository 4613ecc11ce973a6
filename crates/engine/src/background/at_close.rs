//! What a clean close brings to tables: what no log holds, and what an opening would have to read.
//!
//! The next opening reads the log from where the first family is flushed. So the families that hold
//! it are flushed in the order in which they do, until an opening reads little, or until so much was
//! written ([`Options::close_flush_bytes`](crate::Options::close_flush_bytes)).

use std::sync::Arc;

use collie_log::Level;

use crate::Result;
use crate::background::flush;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::FlushCause;

/// So much of the log an opening reads faster than a close writes tables of it.
const READ_LEAST: u64 = 1 << 20;
/// What the files and syncs of a family's tables count for, at least, in bytes.
const TABLE_LEAST: u64 = 1 << 20;

/// Flushes at a close. Fails where something that is in no log stays in memory.
pub(crate) fn flush_at_close(store: &Store) -> Result<()> {
    let flushed = flush_unlogged(store);
    if store.options().close_flush_bytes > 0
        && store.sequencer().oldest().is_some()
        && let Err(error) = flush_what_an_opening_would_read(store)
    {
        tracing::warn!(path = %store.path().display(), %error, "the next opening reads more of the log");
    }
    flushed
}

/// Tries every family, and returns the first error.
fn flush_unlogged(store: &Store) -> Result<()> {
    let mut first = Ok(());
    for family in store.families() {
        let view = Arc::clone(&family.view());
        if view.mems().any(|mem| mem.has_unlogged() && !mem.is_empty()) {
            let flushed = flush::flush_all_of(store, &family, FlushCause::Close);
            first = first.and(flushed);
        }
    }
    first
}

fn flush_what_an_opening_would_read(store: &Store) -> Result<()> {
    let end = store.sequencer().flush(Level::Disk)?;
    store.wait_visible(end)?;
    let from = end.saturating_sub(READ_LEAST);
    let of_parts = store.families_of_parts_below(from);
    let mut holding = store.families();
    holding.retain(|family| family.flushed().get() < from || of_parts.contains(&family.id()));
    holding.sort_by_key(|family| family.flushed().get());
    let mut left = store.options().close_flush_bytes;
    let mut busy: Vec<Arc<FamilyState>> = Vec::new();
    for family in holding {
        let bytes: u64 = family.view().mems().map(|mem| mem.bytes()).sum();
        if family.view().mems().all(|mem| mem.is_empty()) {
            continue;
        }
        match left.checked_sub(bytes.max(TABLE_LEAST)) {
            Some(rest) => left = rest,
            // It holds what those after it would let go.
            None => break,
        }
        store.rotate(&family, FlushCause::Close, |view| !view.active.is_empty())?;
        busy.push(family);
    }
    busy.sort_by(|a, b| a.name().cmp(b.name()));
    flush::flush_together(store, &busy, Some(from))
}
