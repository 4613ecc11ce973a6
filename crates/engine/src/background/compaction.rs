//! Merging tables in the background.

use std::sync::Arc;
use std::time::Duration;

use collie_io::IoClass;
use parking_lot::MutexGuard;

use crate::background::{flush, whole_merge};
use crate::store::Store;
use crate::store::family::{FamilyState, Work};
use crate::store::queue::pause_after;
use crate::tables::{Tables, Unwritten, Writing};
use crate::{Error, Result};

/// With so many runs in level 0 one is merged before another is added: the table library counts the
/// runs of a level in one byte.
const LEVEL0_COUNTABLE: usize = 200;

/// A thread that finds a family being merged looks again after so long, and does others meanwhile.
const BUSY: Duration = Duration::from_millis(10);
/// While the reserve is missing no compaction begins that does not make room. One that would looks
/// again after so long.
const SHORT: Duration = Duration::from_secs(1);

/// What a compaction thread runs.
pub(crate) fn run(store: &Store) {
    use_background_io();
    while let Some(family) = store.queue().next_compaction() {
        run_task(store, &family);
    }
}

pub(crate) fn run_task(store: &Store, family: &Arc<FamilyState>) {
    family.compactions().dequeue();
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
    whole_merge::queue_if_due(store, family);
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

/// Gives this thread's I/O a lower priority than that of commits and reads.
pub(crate) fn use_background_io() {
    if let Err(error) = collie_io::set_io_class(IoClass::Background) {
        tracing::debug!(%error, "background threads keep the default I/O class");
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

fn merge_all(store: &Store, family: &FamilyState) -> Result<Compacted> {
    let merge =
        |tables: &Tables, writing: &Writing<'_>| tables.compact_all(writing, || store.raise_level0(family));
    let compacted = store.relieve(|| {
        let one = family.lock_compactions();
        compact(store, family, &one, family.compactions(), merge)
    });
    store.fill_reserve();
    compacted
}

/// Merges everything if that `is_due` when no other compaction of the family runs. Where there are
/// tables that the manifest does not record, the flush that records them asks for it again.
pub(crate) fn merge_hidden(store: &Store, family: &FamilyState, is_due: impl FnOnce() -> bool) -> Result<()> {
    let one = family.lock_compactions();
    if !is_due() {
        return Ok(());
    }
    let merge =
        |tables: &Tables, writing: &Writing<'_>| tables.compact_all(writing, || store.raise_level0(family));
    let compacted = compact(store, family, &one, family.whole_merges(), merge)?;
    if compacted == Compacted::Changed {
        family.counters().whole_merges.add(1);
    }
    Ok(())
}

/// How a compaction ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compacted {
    Changed,
    Unchanged,
    /// There are tables that the manifest does not record.
    Refused,
}

/// Merges until the library can count another run. Write stalls do not limit recovery, nor flushes
/// on callers' threads. `record` records what the caller, which flushes, has registered: that is not
/// merged before.
pub(crate) fn keep_level0_countable(
    store: &Store,
    family: &FamilyState,
    mut record: impl FnMut() -> Result<()>,
) -> Result<()> {
    while family.level0_runs() >= LEVEL0_COUNTABLE && !family.is_dropped() {
        record()?;
        if !compact_once(store, family)? {
            merge_all(store, family)?;
        }
    }
    Ok(())
}

/// Runs the most urgent compaction, when no other one of the family runs. Whether anything changed.
pub(crate) fn compact_once(store: &Store, family: &FamilyState) -> Result<bool> {
    let one = family.lock_compactions();
    let compacted = compact(store, family, &one, family.compactions(), Tables::compact);
    compacted.map(|compacted| compacted == Compacted::Changed)
}

/// Compacts, while `_one` keeps other compactions of the family out, and notes how that went.
fn compact(
    store: &Store,
    family: &FamilyState,
    _one: &MutexGuard<'_, ()>,
    work: &Work,
    run: impl FnOnce(&Tables, &Writing<'_>) -> Result<bool, Unwritten>,
) -> Result<Compacted> {
    let writing = family.tables().writing(store.device());
    reach!("compaction begins");
    let started = store.now();
    let before = family.tables().version();
    let done = run(family.tables(), &writing).map_err(|unwritten| store.unwritten(unwritten));
    // It may have failed after it had installed its version.
    let changed = family.tables().version() != before;
    if changed {
        let publication = family.publication();
        publication.publish(|tables| store.pin(tables), 0);
        family.counters().compactions.add(1);
        family.counters().compaction_ns.add(store.ns_since(started));
    }
    // Closing the store, dropping the family and a full device make compactions end early.
    let is_early = matches!(&done, Err(Error::Table { source, .. }) if source.is_interruption());
    if done.is_err() && !is_early && !store.is_closed() && !family.is_dropped() {
        family.counters().compaction_failures.add(1);
    }
    drop(writing);
    if !is_early {
        // Who waits for compactions fails with what they fail for, and that is none.
        work.note(&done.as_ref().map(drop).map_err(Clone::clone));
    }
    store.update_stall(family);
    store.wake_stalled();
    Ok(match (done?, changed) {
        (false, _) => Compacted::Refused,
        (true, true) => Compacted::Changed,
        (true, false) => Compacted::Unchanged,
    })
}
