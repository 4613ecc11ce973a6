//! Merging tables in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_io::IoClass;

use crate::core::{Core, FamilyState};
use crate::tables::{Tables, Writing};
use crate::tasks::pause_after;
use crate::view::View;
use crate::{Error, Result};

/// With so many runs in level 0 one is merged before another is added: the table library counts the runs
/// of a level in one byte.
const LEVEL0_COUNTABLE: usize = 200;

/// A compaction thread's life.
pub(crate) fn run(core: &Core) {
    step_back();
    while let Some(family) = core.tasks.next_compaction() {
        family.compaction_queued.swap(false, Ordering::AcqRel);
        if family.is_dropped() {
            continue;
        }
        let compacted = core.reserve.relieve(|| compact_once(core, &family));
        core.fill_reserve();
        match compacted {
            // There may be more to do; families take turns.
            Ok(true) => core.tasks.compact(&family),
            Ok(false) => {}
            Err(_) if core.refusal().is_some() => {}
            Err(error) => {
                let failures = family.compaction_failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(family = %family.name, %error, "a compaction failed, it is tried again");
                core.tasks.compact_after(&family, pause_after(failures));
            }
        }
    }
}

/// Lets this thread's I/O wait for that of commits and reads.
pub(crate) fn step_back() {
    if let Err(error) = collie_io::set_io_class(IoClass::Background) {
        tracing::debug!(%error, "background threads keep the default I/O class");
    }
}

/// Runs the most urgent compaction; returns whether anything changed.
fn compact_once(core: &Core, family: &FamilyState) -> Result<bool> {
    // After a crash a table that the manifest does not know of is replayed over. While it has its
    // tombstones, a delete that was kept out of the log goes on hiding what was logged before.
    if family.tables.has_unrecorded() {
        return Ok(false);
    }
    compact(core, family, |tables| tables.compact())
}

/// Merges everything, on the caller's thread.
pub(crate) fn compact_all(core: &Core, family: &FamilyState) -> Result<()> {
    let compacted = core
        .reserve
        .relieve(|| compact(core, family, |tables| tables.compact_all()));
    core.fill_reserve();
    compacted.map(drop)
}

/// Merges until another run can be counted. Recovery and callers who flush pass no gate.
pub(crate) fn keep_level0_countable(core: &Core, family: &FamilyState) -> Result<()> {
    while family.level0.load(Ordering::Relaxed) >= LEVEL0_COUNTABLE {
        if !compact_once(core, family)? {
            compact_all(core, family)?;
        }
    }
    Ok(())
}

fn compact(core: &Core, family: &FamilyState, run: impl FnOnce(&Tables) -> Result<()>) -> Result<bool> {
    let one = family.compacting.lock();
    let writing = family.tables.writing(&*core.device);
    reach!("compaction begins");
    let started = core.device.clock().monotonic();
    let before = family.tables.version();
    let done = run(&family.tables);
    // It may have installed its version and failed after that.
    let changed = family.tables.version() != before;
    if changed {
        publish(core, family);
        let took = core.device.clock().monotonic().saturating_sub(started);
        family.counters.compactions.fetch_add(1, Ordering::Relaxed);
        family.counters.compaction_ns.fetch_add(took, Ordering::Relaxed);
    }
    if let Err(error) = &done {
        settle(core, family, error, &writing);
    }
    drop(writing);
    drop(one);
    *family.compaction_error.lock() = done.as_ref().err().cloned();
    if done.is_ok() {
        family.compaction_failures.store(0, Ordering::Relaxed);
    }
    crate::stall::update(core, family);
    core.open_gates();
    done.map(|()| changed)
}

/// A compaction failed: tells whether it may be tried again.
fn settle(core: &Core, family: &FamilyState, error: &Error, writing: &Writing<'_>) {
    let may_go_on = {
        // Not while a flush is between the tree's manifest and its version in memory.
        let _publish = family.publish.lock();
        family.tables.take_back_next_version(&*core.device)
    };
    if may_go_on {
        writing.failed();
    } else {
        writing.failed_in_doubt();
        core.fail(Error::Background {
            cause: error.to_string(),
        });
    }
    // Closing ends compactions.
    if !core.is_closed() {
        family
            .counters
            .compaction_failures
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// Replaces the tables in the view by their newest version.
fn publish(core: &Core, family: &FamilyState) {
    let _publish = family.publish.lock();
    let tables = core.pin(&family.tables);
    family
        .level0
        .store(family.tables.level0_runs(), Ordering::Relaxed);
    let _edit = family.edit.lock();
    let view = family.view.load();
    family.view.store(Arc::new(View {
        active: Arc::clone(&view.active),
        sealed: view.sealed.clone(),
        tables,
    }));
}
