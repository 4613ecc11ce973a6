//! One compaction of a family at a time: how it is done, and what is noted of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use crate::events::Event;
use crate::store::Store;
use crate::store::family::{FamilyState, Work};
use crate::tables::{Tables, Unwritten, Writing};
use crate::{Error, Result};

/// With so many runs in level 0 one is merged before another is added: the table library counts the
/// runs of a level in one byte.
const LEVEL0_COUNTABLE: usize = 200;

/// How a compaction ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compacted {
    Changed,
    Unchanged,
    /// There are tables that the manifest does not record.
    Refused,
}

/// Compacts, while `_one` keeps other compactions of the family out, and notes how that went.
pub(super) fn compact(
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
        let took = store.ns_since(started);
        family.counters().compactions.add(1);
        family.counters().compaction_ns.add(took);
        store.events().tell(|| Event::Compacted {
            family: Arc::clone(family.name()),
            took: Duration::from_nanos(took),
        });
    }
    // Closing the store, dropping the family and a full device make compactions end early.
    let is_early = matches!(&done, Err(Error::Table { source, .. }) if source.is_interruption());
    if let Err(error) = &done
        && !is_early
        && !store.is_closed()
        && !family.is_dropped()
    {
        family.counters().compaction_failures.add(1);
        store.events().tell(|| Event::CompactionFailed {
            family: Arc::clone(family.name()),
            error: error.clone(),
        });
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

/// Runs the most urgent compaction, when no other one of the family runs. Whether anything changed.
pub(crate) fn compact_once(store: &Store, family: &FamilyState) -> Result<bool> {
    let one = family.lock_compactions();
    let compacted = compact(store, family, &one, family.compactions(), Tables::compact);
    compacted.map(|compacted| compacted == Compacted::Changed)
}

/// Merges everything, on the caller's thread.
pub(super) fn merge_all(store: &Store, family: &FamilyState) -> Result<Compacted> {
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
pub(super) fn merge_hidden(store: &Store, family: &FamilyState, is_due: impl FnOnce() -> bool) -> Result<()> {
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

/// Merges until the library can count another run. Write stalls do not limit recovery, nor flushes
/// on callers' threads. `record` records what the caller, which flushes, has registered: that is not
/// merged before.
pub(super) fn keep_level0_countable(
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
