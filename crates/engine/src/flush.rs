//! From memtables to tables.
//!
//! A family's sealed memtables are flushed in order. For each: wait until everything below its end
//! `R` is applied *and* durable (so that no table is ever ahead of the log), write its newest
//! versions to new tables, register them, replace the memtable by them in the view, say so in the
//! manifest, and let the log go up to `R`. [`registered`](crate::registered) has these steps as
//! types; here is who takes them, and when.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Result;
use crate::core::{Core, FamilyState};
use crate::registered::{Flush, record};
use crate::tasks::{FlushTask, pause_after};
use crate::view::FlushCause;

/// A flush thread's life.
pub(crate) fn run(core: &Core) {
    crate::compaction::step_back();
    while let Some(task) = core.tasks.next_flush() {
        match task {
            FlushTask::Family(family) => {
                // AcqRel: pairs with `Tasks::flush`; what is sealed from here on queues the family again.
                family.flush_queued.swap(false, Ordering::AcqRel);
                flush_or_queue_again(core, &family);
            }
            FlushTask::WalSize => crate::wal_size::flush_for_wal_size(core),
        }
    }
}

/// Flushes all that is sealed. What fails is tried again later; other families are not kept waiting.
pub(crate) fn flush_or_queue_again(core: &Core, family: &Arc<FamilyState>) {
    // The error was told to the program's log, and stays with the family.
    drop(flush_and_queue_again(core, family));
}

fn flush_and_queue_again(core: &Core, family: &Arc<FamilyState>) -> Result<()> {
    let flushed = flush_sealed(core, family);
    note(core, family, &flushed);
    flushed
}

/// What came of a flush decides when the next attempt is made.
fn note(core: &Core, family: &Arc<FamilyState>, flushed: &Result<()>) {
    let Err(error) = flushed else {
        family.flush_failures.store(0, Ordering::Relaxed);
        return;
    };
    if core.refusal().is_none() && core.journal.poisoned().is_none() {
        let failures = family.flush_failures.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(family = %family.name, %error, "a flush failed, it is tried again");
        core.tasks.flush_after(family, pause_after(failures));
    }
}

/// Flushes all memtables that are sealed, in order.
pub(crate) fn flush_sealed(core: &Core, family: &Arc<FamilyState>) -> Result<()> {
    let turn = &mut Flush::of(core, family);
    let record_own = |turn: &mut Flush<'_>| record(core, std::slice::from_mut(turn));
    // What is registered already may not be recorded, for want of room.
    let flushed = register_sealed(core, turn, record_own).and_then(|()| record_own(turn));
    settle(core, family, &flushed);
    flushed
}

/// Flushes families that have nothing or next to nothing in memory, with one change of the manifest for all.
/// They come in the order of their names.
pub(crate) fn flush_together(core: &Core, families: &[Arc<FamilyState>]) {
    let mut turns: Vec<_> = Vec::with_capacity(families.len());
    let mut registered = Vec::with_capacity(families.len());
    for family in families {
        let mut turn = Flush::of(core, family);
        registered.push(register_sealed(core, &mut turn, |_| Ok(())));
        turns.push(turn);
    }
    reach!("families are registered");
    // Also what a family had registered before it failed.
    let recorded = record(core, &mut turns);
    for (turn, registered) in turns.into_iter().zip(registered) {
        let flushed = registered.and_then(|()| recorded.clone());
        settle(core, turn.family(), &flushed);
        note(core, turn.family(), &flushed);
    }
}

/// Brings a family's sealed memtables to tables, with `after` each of them.
fn register_sealed(
    core: &Core,
    turn: &mut Flush<'_>,
    after: impl Fn(&mut Flush<'_>) -> Result<()>,
) -> Result<()> {
    let family = turn.family();
    while !family.is_dropped()
        && let Some(sealed) = family.view.load().sealed.first().cloned()
    {
        crate::compaction::keep_level0_countable(core, family)?;
        core.reserve.relieve(|| {
            let written = turn.write(sealed.clone())?;
            turn.register(written)
        })?;
        crate::stall::update(core, family);
        after(turn)?;
        seal_what_is_full(core, family);
    }
    Ok(())
}

/// Tells whoever waits for a flush what came of it.
fn settle(core: &Core, family: &Arc<FamilyState>, flushed: &Result<()>) {
    if flushed.is_err() {
        family.counters.flush_failures.fetch_add(1, Ordering::Relaxed);
    }
    *family.flush_error.lock() = flushed.as_ref().err().cloned();
    core.fill_reserve();
    crate::stall::update(core, family);
    core.open_gates();
    core.tasks.compact(family);
}

/// The flush made room for another memtable.
fn seal_what_is_full(core: &Core, family: &Arc<FamilyState>) {
    if let Err(error) = rotate_if_full(core, family) {
        tracing::warn!(family = %family.name, %error, "a full memtable could not be sealed");
    }
}

/// Seals the active memtable where it is full and there is room for another one.
pub(crate) fn rotate_if_full(core: &Core, family: &Arc<FamilyState>) -> Result<()> {
    // SeqCst: set before replay queues its first flush, cleared when the last frame is in.
    if core.replaying.load(Ordering::SeqCst) {
        return Ok(());
    }
    let limit = family.options.write_buffer_bytes;
    let room = family.options.max_write_buffers - 1;
    let rotated = core.rotate(family, FlushCause::Full, |view| {
        view.active.bytes() >= limit && view.sealed.len() < room
    })?;
    if rotated.is_some() {
        core.tasks.flush(family);
        crate::stall::update(core, family);
    }
    Ok(())
}

/// Brings everything committed before the call to tables. What fails is tried again later, whatever
/// the caller does: where memory has no room for another memtable, no write would ask for it.
pub(crate) fn flush_all_of(core: &Core, family: &Arc<FamilyState>, cause: FlushCause) -> Result<()> {
    core.rotate(family, cause, |view| !view.active.is_empty())?;
    flush_and_queue_again(core, family)
}
