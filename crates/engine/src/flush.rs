//! From memtables to tables.
//!
//! A family's sealed memtables are flushed in order. For each: wait until everything below its end `R` is
//! applied *and* durable (so that no table is ever ahead of the log), write its newest versions to new
//! tables, register them, replace the memtable by them in the view, say so in the manifest, and let the log
//! go up to `R`.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::{Level, Lsn};
use lsm_tree::{InternalValue, ValueType};

use crate::core::{Core, FamilyState};
use crate::manifest::LogState;
use crate::memtable::{Direction, Entry, Mem, Scan};
use crate::tables::{Writing, Written};
use crate::tasks::{FlushTask, pause_after};
use crate::view::{FlushCause, Sealed, View};
use crate::{Error, Result};

/// Keys that a flush takes from the memtable at a time.
const CHUNK: usize = 1024;
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
            FlushTask::WalSize => flush_for_wal_size(core),
        }
    }
}

/// Flushes all that is sealed. What fails is tried again later; other families are not kept waiting.
fn flush_or_queue_again(core: &Core, family: &Arc<FamilyState>) {
    let Err(error) = flush_sealed(core, family) else {
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
    let _one = family.flushing.lock();
    let mut flushed = Ok(());
    while flushed.is_ok()
        && !family.is_dropped()
        && let Some(sealed) = family.view.load().sealed.first().cloned()
    {
        flushed = crate::compaction::keep_level0_countable(core, family)
            .and_then(|()| flush_one(core, family, &sealed));
        if flushed.is_ok() {
            seal_what_is_full(core, family);
        }
    }
    // A memtable may have gone to tables without the manifest having had room for it.
    let flushed = flushed.and_then(|()| record(core, family));
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
        let mut manifest = core.manifest.lock();
        manifest.floor = manifest.floor.max(sealed.until);
        manifest
            .write(&*core.device, &core.path)
            .inspect_err(|e| core.fail_for_good(e))?;
    }
    // What a failed attempt leaves is removed, so that a full device does not stay full because of it.
    let writing = family.tables.writing(&*core.device);
    let written = if sealed.mem.is_empty() {
        None
    } else {
        let written = family.tables.write(Newest::of(&sealed.mem));
        Some(written.inspect_err(|_| writing.failed())?)
    };
    reach!("tables are written");
    install(core, family, sealed, written, &writing)?;
    drop(writing);
    let took = core.device.clock().monotonic().saturating_sub(started);
    family
        .counters
        .count_flush(sealed.cause, sealed.mem.bytes(), took);
    crate::stall::update(core, family);
    record(core, family)
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

/// Says in the manifest, and then to the log, up to where the family is in its tables. Where that fails,
/// a restart replays once more what is in the tables already, which is harmless.
fn record(core: &Core, family: &FamilyState) -> Result<()> {
    let until = family.in_tables.load(Ordering::Relaxed);
    if until <= family.flushed.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut manifest = core.manifest.lock();
    let Some(record) = manifest.family(family.id) else {
        return Ok(()); // It was dropped meanwhile.
    };
    record.flushed = record.flushed.max(until);
    manifest.floor = manifest.floor.max(until);
    manifest
        .write(&*core.device, &core.path)
        .inspect_err(|e| core.fail_for_good(e))?;
    family.flushed.fetch_max(until, Ordering::Relaxed);
    if manifest.log == LogState::On {
        core.journal.hold(&family.name, until);
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

/// Where the log has grown past its limit, or its device is full, flushes the families that pin the oldest
/// segment.
fn flush_for_wal_size(core: &Core) {
    // AcqRel pairs with `make_room_in_log`: a commit that is refused from here on asks again.
    let full = core.log_full.swap(false, Ordering::AcqRel);
    let families = core.families.read().all();
    if let (Some(oldest), Some(end)) = (core.journal.oldest(), core.journal.oldest_end()) {
        let reserved = core.journal.reserved();
        // While the log ends in its oldest segment no flush lets that go.
        let too_long = reserved - oldest > wal_limit(core);
        if too_long || (full && reserved >= end) {
            core.counters.wal_size_flushes.fetch_add(1, Ordering::Relaxed);
            for family in &families {
                if family.flushed.load(Ordering::Relaxed) < end {
                    flush_what_pins(core, family);
                }
            }
        }
    }
    arm_wal_check(core);
}

fn flush_what_pins(core: &Core, family: &Arc<FamilyState>) {
    match core.rotate(family, FlushCause::WalSize, |view| view.sealed.is_empty()) {
        // A flush that failed a moment ago waits for its time.
        Ok(_) if family.flush_queued.load(Ordering::Acquire) => {}
        Ok(_) => flush_or_queue_again(core, family),
        Err(error) => {
            tracing::warn!(family = %family.name, %error, "the family still pins the oldest part of the log");
        }
    }
}

/// A commit was refused because the log's device is full: lets go of the oldest part, so that writes go on.
pub(crate) fn make_room_in_log(core: &Core) {
    // AcqRel pairs with `flush_for_wal_size`. Whoever sets the flag queues the task, so it is queued once.
    if !core.log_full.swap(true, Ordering::AcqRel) {
        core.tasks.look_at_wal_size();
    }
}

/// The limit on live log, in bytes.
fn wal_limit(core: &Core) -> u64 {
    core.options.max_total_wal_size.unwrap_or_else(|| {
        let families = core.families.read().all();
        let buffers = families
            .iter()
            .map(|family| &family.options)
            .map(|o| o.write_buffer_bytes.saturating_mul(o.max_write_buffers as u64));
        buffers
            .fold(0, u64::saturating_add)
            .saturating_mul(4)
            .max(4 * core.options.segment_bytes)
    })
}

/// Sets the LSN at which a commit asks for the next look at the log's size.
pub(crate) fn arm_wal_check(core: &Core) {
    if let Some(oldest) = core.journal.oldest() {
        let limit = oldest.saturating_add(wal_limit(core));
        // If nothing was released, not before another quarter of a segment.
        let soonest = core.journal.reserved() + core.options.segment_bytes / 4;
        core.wal_check_at.store(limit.max(soonest), Ordering::Relaxed);
    }
}

/// A commit ended at `end`: has the log grown past its limit?
pub(crate) fn check_wal_size(core: &Core, end: Lsn) {
    // Relaxed: a hint; whoever swaps the value queues the look, so it is queued once.
    if end >= core.wal_check_at.load(Ordering::Relaxed)
        && core.wal_check_at.swap(Lsn::MAX, Ordering::Relaxed) != Lsn::MAX
    {
        core.tasks.look_at_wal_size();
    }
}

/// The newest version of each key of a memtable that is no longer written, in order.
struct Newest<'a> {
    mem: &'a Mem,
    chunk: VecDeque<Entry>,
    exhausted: bool,
}

impl<'a> Newest<'a> {
    fn of(mem: &'a Mem) -> Self {
        let mut chunk = VecDeque::new();
        let scan = Scan {
            low: Bound::Unbounded,
            high: Bound::Unbounded,
            below: Lsn::MAX,
        };
        let exhausted = mem.scan(scan, Direction::Forward, CHUNK, &mut chunk);
        Self {
            mem,
            chunk,
            exhausted,
        }
    }
}

impl Iterator for Newest<'_> {
    type Item = InternalValue;

    fn next(&mut self) -> Option<InternalValue> {
        let Entry { key, found } = self.chunk.pop_front()?;
        if self.chunk.is_empty() && !self.exhausted {
            let scan = Scan {
                low: Bound::Excluded(&key),
                high: Bound::Unbounded,
                below: Lsn::MAX,
            };
            self.exhausted = self.mem.scan(scan, Direction::Forward, CHUNK, &mut self.chunk);
        }
        let (value, kind) = match found.value {
            Some(value) => (value.0, ValueType::Value),
            None => (lsm_tree::Slice::from(&[][..]), ValueType::Tombstone),
        };
        Some(InternalValue::from_components(key.0, value, found.at.start, kind))
    }
}
