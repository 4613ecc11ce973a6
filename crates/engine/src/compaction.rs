//! Merging tables in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_io::IoClass;

use crate::Result;
use crate::core::{Core, FamilyState};
use crate::view::View;

/// A compaction thread's life.
pub(crate) fn run(core: &Core) {
    step_back();
    while let Some(family) = core.tasks.next_compaction() {
        family.compaction_queued.swap(false, Ordering::AcqRel);
        if family.is_dropped() {
            continue;
        }
        match compact_once(core, &family) {
            // There may be more to do; families take turns.
            Ok(true) => core.tasks.compact(&family),
            Ok(false) => {}
            Err(error) => {
                if core.is_closed() {
                    return; // It was told to give up.
                }
                // Its inputs are as they were; the next flush starts another one.
                family
                    .counters
                    .compaction_failures
                    .fetch_add(1, Ordering::Relaxed);
                tracing::warn!(family = %family.name, %error, "a compaction failed");
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
    let started = core.device.clock().monotonic();
    let changed = family.tables.compact()?;
    if changed {
        finish(core, family, started);
    }
    Ok(changed)
}

/// Merges everything, on the caller's thread.
pub(crate) fn compact_all(core: &Core, family: &FamilyState) -> Result<()> {
    let started = core.device.clock().monotonic();
    family.tables.compact_all()?;
    finish(core, family, started);
    Ok(())
}

fn finish(core: &Core, family: &FamilyState, started: u64) {
    {
        let _publish = family.publish.lock();
        let tables = Arc::new(family.tables.pin());
        let _edit = family.edit.lock();
        let view = family.view.load();
        family.view.store(Arc::new(View {
            active: Arc::clone(&view.active),
            sealed: view.sealed.clone(),
            tables,
        }));
    }
    family
        .level0
        .store(family.tables.level0_runs(), Ordering::Relaxed);
    let took = core.device.clock().monotonic().saturating_sub(started);
    family.counters.compactions.fetch_add(1, Ordering::Relaxed);
    family.counters.compaction_ns.fetch_add(took, Ordering::Relaxed);
    crate::stall::update(core, family);
}
