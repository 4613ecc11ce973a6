//! From memtables to tables.
//!
//! A family's sealed memtables are flushed in order. For each: wait until everything below its end
//! `R` is applied *and* durable (so that no table is ever ahead of the log), write its newest
//! versions to new tables, register them, replace the memtable by them in the view, record `R` in
//! the manifest, and release the log up to `R`. [`registered`](crate::background::registered) has
//! these steps as types; this file decides when they run.

use std::sync::Arc;

use collie_log::Lsn;

use crate::Result;
use crate::background::make_room;
use crate::background::registered::{Flush, record, record_with_idle};
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::queue::{FlushTask, pause_after};
use crate::store::stall::Stall;
use crate::store::view::FlushCause;

/// What a flush thread runs.
pub(crate) fn run(store: &Store) {
    crate::background::compaction::use_background_io();
    while let Some(task) = store.queue().next_flush() {
        run_task(store, task);
    }
}

pub(crate) fn run_task(store: &Store, task: FlushTask) {
    match task {
        FlushTask::Family(family) => {
            family.flushes().dequeue();
            flush_in_turn(store, &family);
        }
        FlushTask::WalSize => crate::background::wal_limit::flush_for_wal_size(store),
        FlushTask::Room => crate::background::make_room::make_room(store),
    }
}

/// How many of a family's sealed memtables a flush takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    All,
    /// Up to the first that is a large commit's, unless writes are stalled then.
    OneLarge,
}

/// Flushes a family's sealed memtables up to that of a large commit. What follows waits until the
/// other families in the queue had their turn: the next large commit may write thousands of them, and
/// waits until none is full, so for one memtable of each and not for all.
pub(crate) fn flush_in_turn(store: &Store, family: &Arc<FamilyState>) {
    let flushed = flush_up_to(store, family, Extent::OneLarge);
    retry_later(store, family, &flushed);
    if flushed.is_ok() && !family.is_dropped() && !family.view().sealed.is_empty() {
        store.queue().flush(family);
    }
}

/// Flushes all sealed memtables. After a failure another attempt is queued; other families do not
/// wait for it.
pub(crate) fn flush_or_retry_later(store: &Store, family: &Arc<FamilyState>) {
    // The error was logged, and stays with the family.
    drop(flush_and_retry(store, family));
}

fn flush_and_retry(store: &Store, family: &Arc<FamilyState>) -> Result<()> {
    let flushed = flush_sealed(store, family);
    retry_later(store, family, &flushed);
    flushed
}

/// Queues another attempt of a flush that failed, unless the store has failed.
fn retry_later(store: &Store, family: &Arc<FamilyState>, flushed: &Result<()>) {
    let Err(error) = flushed else { return };
    if store.failure().is_none() {
        let failures = family.flushes().failed_again();
        tracing::warn!(family = %family.name(), %error, "a flush failed, it is tried again");
        store.queue().flush_after(family, pause_after(failures));
    }
}

/// Flushes all memtables that are sealed, in order.
pub(crate) fn flush_sealed(store: &Store, family: &Arc<FamilyState>) -> Result<()> {
    flush_up_to(store, family, Extent::All)
}

fn flush_up_to(store: &Store, family: &Arc<FamilyState>, extent: Extent) -> Result<()> {
    let flush = &mut Flush::of(store, family);
    let record_own = |flush: &mut Flush<'_>| record(store, std::slice::from_mut(flush));
    // Also where no memtable is sealed: an earlier flush may have registered tables that the
    // manifest had no room to record.
    let flushed = register_sealed(store, flush, extent, record_own).and_then(|()| record_own(flush));
    note_outcome(store, family, &flushed);
    flushed
}

/// Flushes what families have sealed, with one change of the manifest for all; idle ones that alone
/// hold the log below `end` are in it. They are in the order of their names. Returns the first error.
pub(crate) fn flush_together(store: &Store, families: &[Arc<FamilyState>], end: Option<Lsn>) -> Result<()> {
    let mut flushes: Vec<_> = Vec::with_capacity(families.len());
    let mut registered = Vec::with_capacity(families.len());
    for family in families {
        let mut flush = Flush::of(store, family);
        registered.push(register_sealed(store, &mut flush, Extent::All, |_| Ok(())));
        flushes.push(flush);
    }
    // Includes what a family had registered before its flush failed.
    let recorded = record_with_idle(store, &mut flushes, end);
    let mut first = recorded.clone();
    for (flush, registered) in flushes.into_iter().zip(registered) {
        let flushed = registered.and_then(|()| recorded.clone());
        note_outcome(store, flush.family(), &flushed);
        retry_later(store, flush.family(), &flushed);
        first = first.and(flushed);
    }
    first
}

/// Writes a family's sealed memtables to tables and registers these; calls `after` after each.
fn register_sealed(
    store: &Store,
    flush: &mut Flush<'_>,
    extent: Extent,
    after: impl Fn(&mut Flush<'_>) -> Result<()>,
) -> Result<()> {
    let family = flush.family();
    while !family.is_dropped()
        && let Some(sealed) = family.view().sealed.first().cloned()
    {
        let record_own = || record(store, std::slice::from_mut(flush));
        crate::background::compaction::keep_level0_countable(store, family, record_own)?;
        store.relieve_flush(
            || {
                let written = flush.write(&make_room::taken_together(store, family, sealed.clone()))?;
                flush.register(written)
            },
            || make_room::flush_makes_room(store, family, &sealed),
        )?;
        store.update_stall(family);
        // One that was empty is recorded with the next one, which is its large commit's.
        if !sealed.mem.is_empty() {
            after(flush)?;
        }
        seal_what_is_full(store, family);
        if extent == Extent::OneLarge && sealed.mem.is_of_commit() && family.stall() == Stall::None {
            break;
        }
    }
    Ok(())
}

/// Notes how a flush ended, and wakes the writers that wait for it.
fn note_outcome(store: &Store, family: &Arc<FamilyState>, flushed: &Result<()>) {
    if flushed.is_err() {
        family.counters().flush_failures.add(1);
    }
    family.flushes().note(flushed);
    store.fill_reserve();
    store.memory_has_eased();
    store.update_stall(family);
    store.wake_stalled();
    store.queue().compact(family);
}

/// The flush made room for another memtable.
fn seal_what_is_full(store: &Store, family: &Arc<FamilyState>) {
    if let Err(error) = rotate_if_full(store, family) {
        tracing::warn!(family = %family.name(), %error, "a full memtable could not be sealed");
    }
}

/// Seals the active memtable where it is full and there is room for another one.
pub(crate) fn rotate_if_full(store: &Store, family: &Arc<FamilyState>) -> Result<()> {
    if store.is_replaying() {
        return Ok(());
    }
    let options = family.options();
    let rotated = store.rotate(family, FlushCause::Full, |view| {
        view.active.bytes() >= options.write_buffer_bytes && view.buffers(options) < options.max_write_buffers
    })?;
    if rotated.is_some() {
        store.queue().flush(family);
        store.update_stall(family);
    }
    Ok(())
}

/// Flushes everything that was committed before the call. After a failure another attempt is
/// queued: with all memtables full, no write would queue one.
pub(crate) fn flush_all_of(store: &Store, family: &Arc<FamilyState>, cause: FlushCause) -> Result<()> {
    store.rotate(family, cause, |view| !view.active.is_empty())?;
    flush_and_retry(store, family)
}
