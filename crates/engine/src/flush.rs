//! From memtables to tables.
//!
//! A family's sealed memtables are flushed in order. For each: wait until everything below its end `R` is
//! applied *and* durable (so that no table is ever ahead of the log), write its newest versions to new
//! tables, register them, replace the memtable by them in the view, say so in the manifest, and let the log
//! go up to `R`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::Level;
use lsm_tree::{InternalValue, ValueType};

use crate::core::{Core, FamilyState};
use crate::manifest::{Edit, LogState};
use crate::memtable::Entry;
use crate::tables::{Writing, Written};
use crate::tasks::{FlushTask, pause_after};
use crate::view::{FlushCause, Sealed, View};
use crate::{Error, Result};

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
    if let Err(error) = flush_sealed(core, family) {
        queue_again(core, family, &error);
    } else {
        family.flush_failures.store(0, Ordering::Relaxed);
    }
}

fn queue_again(core: &Core, family: &Arc<FamilyState>, error: &Error) {
    if core.refusal().is_none() && core.journal.poisoned().is_none() {
        let failures = family.flush_failures.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(family = %family.name, %error, "a flush failed, it is tried again");
        core.tasks.flush_after(family, pause_after(failures));
    }
}

/// Flushes all memtables that are sealed, in order.
pub(crate) fn flush_sealed(core: &Core, family: &Arc<FamilyState>) -> Result<()> {
    let _one = family.flushing.lock();
    // A memtable may have gone to tables without the manifest having had room for it: recorded once more.
    let flushed = write_sealed(core, family, || record(core, [family])).and_then(|()| record(core, [family]));
    settle(core, family, flushed)
}

/// Flushes families that have nothing or next to nothing in memory, with one change of the manifest for all.
pub(crate) fn flush_together(core: &Core, families: &[Arc<FamilyState>]) {
    let written = families.iter().map(|family| {
        let _one = family.flushing.lock();
        (family, write_sealed(core, family, || Ok(())))
    });
    let written: Vec<_> = written.collect();
    let good = written.iter().filter(|(_, written)| written.is_ok());
    let recorded = record(core, good.map(|(family, _)| *family));
    for (family, written) in written {
        let _one = family.flushing.lock();
        match settle(core, family, written.and_then(|()| recorded.clone())) {
            Ok(()) => family.flush_failures.store(0, Ordering::Relaxed),
            Err(error) => queue_again(core, family, &error),
        }
    }
}

/// Writes a family's sealed memtables to tables, with `after` each of them.
fn write_sealed(core: &Core, family: &Arc<FamilyState>, after: impl Fn() -> Result<()>) -> Result<()> {
    while !family.is_dropped()
        && let Some(sealed) = family.view.load().sealed.first().cloned()
    {
        crate::compaction::keep_level0_countable(core, family)?;
        flush_one(core, family, &sealed)?;
        after()?;
        seal_what_is_full(core, family);
    }
    Ok(())
}

/// Tells whoever waits for a flush what came of it.
fn settle(core: &Core, family: &Arc<FamilyState>, flushed: Result<()>) -> Result<()> {
    if flushed.is_err() {
        family.counters.flush_failures.fetch_add(1, Ordering::Relaxed);
    }
    *family.flush_error.lock() = flushed.as_ref().err().cloned();
    crate::stall::update(core, family);
    core.open_gates();
    core.tasks.compact(family);
    flushed
}

fn flush_one(core: &Core, family: &FamilyState, sealed: &Sealed) -> Result<()> {
    core.wait_visible(sealed.until)?;
    // Past the end of the rotation's frame, so that recovery finds a frame where it has to resume.
    core.journal.wait(sealed.until_end, Level::Disk)?;
    let started = core.device.clock().monotonic();
    if core.journal.durable().is_none() {
        // Without a log nothing else keeps new commits above what the tables will hold.
        let edit = Edit {
            floor: sealed.until,
            ..Edit::default()
        };
        core.manifest
            .lock()
            .commit(&*core.device, &core.path, &edit)
            .inspect_err(|e| core.fail_for_good(e))?;
    }
    // What a failed attempt leaves is removed, so that a full device does not stay full because of it.
    let writing = family.tables.writing(&*core.device);
    let written = if sealed.mem.is_empty() {
        None
    } else {
        let mut removals = core.transactions.note_removals(family.id, sealed.until);
        let entries = sealed.mem.newest().inspect(|entry| removals.note(entry));
        let written = family.tables.write(entries.map(for_table));
        let written = written.inspect_err(|_| writing.failed())?;
        removals.keep();
        Some(written)
    };
    reach!("tables are written");
    install(core, family, sealed, written, &writing)?;
    drop(writing);
    if !sealed.mem.is_empty() {
        let took = core.device.clock().monotonic().saturating_sub(started);
        let counters = &family.counters;
        counters.count_flush(sealed.cause, sealed.mem.bytes(), took);
    }
    crate::stall::update(core, family);
    Ok(())
}

/// Makes the tables part of the tree and replaces the memtable by them in the view.
fn install(
    core: &Core,
    family: &FamilyState,
    sealed: &Sealed,
    written: Option<Written>,
    writing: &Writing<'_>,
) -> Result<()> {
    let _publish = family.publish.lock();
    // Before the tables are known to the tree: compactions wait until the manifest knows them, too.
    let before = family.in_tables.fetch_max(sealed.until, Ordering::SeqCst);
    if let Some(written) = written
        && let Err(error) = family.tables.register(&written)
    {
        if family.tables.is_unchanged_on_disk(&*core.device) {
            // Nothing names them: they can go, and all of it can be tried again.
            writing.failed();
            core.fail_for_good(&error);
        } else {
            writing.failed_in_doubt();
            core.fail(Error::Background {
                cause: error.to_string(),
            });
        }
        family.in_tables.store(before, Ordering::SeqCst);
        return Err(error);
    }
    let tables = core.pin(&family.tables);
    // Counted under `publish`: a count from before a compaction must not replace the one from after it.
    let level0 = family.tables.level0_runs();
    reach!("level 0 is counted");
    family.level0.store(level0, Ordering::Relaxed);
    let _edit = family.edit.lock();
    let view = family.view.load();
    family.view.store(Arc::new(View {
        active: Arc::clone(&view.active),
        sealed: view.sealed.iter().skip(1).cloned().collect(),
        tables,
    }));
    Ok(())
}

/// Says in the manifest, and then to the log, up to where the families are in their tables. Where that fails,
/// a restart replays once more what is in the tables already, which is harmless.
fn record<'a>(core: &Core, families: impl IntoIterator<Item = &'a Arc<FamilyState>>) -> Result<()> {
    let mut moved = Vec::new();
    for family in families {
        let until = family.in_tables.load(Ordering::Relaxed);
        if until > family.flushed.load(Ordering::Relaxed) && !family.is_dropped() {
            moved.push((family, until));
        }
    }
    let Some(highest) = moved.iter().map(|(_, until)| *until).max() else {
        return Ok(());
    };
    let edit = Edit {
        floor: highest,
        flushed: moved.iter().map(|(family, until)| (family.id, *until)).collect(),
        ..Edit::default()
    };
    let mut manifest = core.manifest.lock();
    manifest
        .commit(&*core.device, &core.path, &edit)
        .inspect_err(|e| core.fail_for_good(e))?;
    for (family, until) in moved {
        family.flushed.fetch_max(until, Ordering::Relaxed);
        // A family that was dropped meanwhile holds nothing any more; the manifest's lock orders the two.
        if manifest.log == LogState::On && !family.is_dropped() {
            core.journal.hold(&family.name, until);
        }
    }
    Ok(())
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

/// Brings everything committed before the call to tables.
pub(crate) fn flush_all_of(core: &Core, family: &Arc<FamilyState>, cause: FlushCause) -> Result<()> {
    core.rotate(family, cause, |view| !view.active.is_empty())?;
    flush_sealed(core, family)
}

/// A memtable's entry as a table takes it.
fn for_table(Entry { key, found }: Entry) -> InternalValue {
    let (value, kind) = match found.value {
        Some(value) => (value.0, ValueType::Value),
        None => (lsm_tree::Slice::from(&[][..]), ValueType::Tombstone),
    };
    InternalValue::from_components(key.0, value, found.at.start, kind)
}
