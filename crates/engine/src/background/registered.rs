//! The steps of a flush, as types.
//!
//! | type | what it is | made by |
//! |---|---|---|
//! | [`Sealed`] | a memtable that no later commit belongs to | a rotation |
//! | [`Written`] | its tables: durable, in no tree | [`Flush::write`], when the log is durable |
//! | [`Registered`](crate::manifest::flushed::Registered) | tables that the tree names, durably | [`Flush::register`] |
//! | [`Flushed`](crate::manifest::flushed::Flushed) | what the manifest records, up to which the log is released | [`record`] |
//!
//! All steps are taken with the family's flush lock, which [`Flush`] holds.

use std::sync::Arc;

use lsm_tree::{InternalValue, ValueType};
use parking_lot::MutexGuard;

use crate::Result;
use crate::manifest::Edit;
use crate::manifest::flushed::Kept;
use crate::memtable::Entry;
use crate::store::Store;
use crate::store::family_state::FamilyState;
use crate::store::view::Sealed;
use crate::tables::{self, Sampled, Writing};

/// A memtable's tables: durable, and not yet part of the tree. None for an empty memtable.
pub(crate) struct Written<'a> {
    sealed: Sealed,
    tables: tables::Written,
    writing: Writing<'a>,
    started: u64,
}

/// The one flush of a family that runs, from a sealed memtable to its record in the manifest.
pub(crate) struct Flush<'a> {
    store: &'a Store,
    family: &'a Arc<FamilyState>,
    kept: MutexGuard<'a, Kept>,
}

impl<'a> Flush<'a> {
    /// Waits until no other flush of the family runs. A thread that locks several families locks
    /// them in the order of their names.
    pub(crate) fn of(store: &'a Store, family: &'a Arc<FamilyState>) -> Self {
        Self {
            store,
            family,
            kept: family.lock_flushes(),
        }
    }

    pub(crate) fn family(&self) -> &'a Arc<FamilyState> {
        self.family
    }

    /// Writes the oldest sealed memtable to tables, once all of its commits are applied and
    /// durable: no table is ever ahead of the log. The files of a failed attempt are removed, so
    /// that they do not keep a full device full.
    pub(crate) fn write(&self, sealed: Sealed) -> Result<Written<'a>> {
        let (store, family) = (self.store, self.family);
        store.wait_visible(sealed.until)?;
        // Past the end of the rotation's frame, so that recovery finds a frame where it has to
        // resume.
        store.wait_for_log(sealed.until_end)?;
        let started = store.now();
        if store.sequencer().durable().is_none() {
            // Without a log only the floor keeps the LSNs of later commits above those in the
            // tables.
            let edit = Edit {
                floor: sealed.until,
                ..Edit::default()
            };
            store.manifest().commit(&edit)?;
        }
        let writing = family.tables().writing(store.device());
        let tables = if sealed.mem.is_empty() {
            tables::Written::default()
        } else {
            let mut removals = store.transactions().note_removals(family.id(), sealed.until);
            let (mut sampled, below) = (Sampled::default(), Arc::clone(&family.view().tables));
            let entries = sealed.mem.newest().inspect(|entry| {
                removals.note(entry);
                sampled.note(entry, &below, sealed.until);
            });
            let written = family.tables().write(entries.map(for_table));
            let written = written.inspect_err(|_| writing.failed())?;
            removals.keep();
            family.tables().note_sampled(&sampled, &written);
            written
        };
        reach!("tables are written");
        Ok(Written {
            sealed,
            tables,
            writing,
            started,
        })
    }

    /// Makes the tables part of the tree and replaces the memtable by them in the view.
    pub(crate) fn register(&mut self, written: Written<'_>) -> Result<()> {
        let (store, family) = (self.store, self.family);
        let Written {
            sealed,
            tables,
            writing,
            started,
        } = written;
        let publication = family.publication();
        reach!("tables are to be registered");
        let unrecorded = family
            .tables()
            .register(&tables, &writing)
            .map_err(|unwritten| store.unwritten(unwritten))?;
        publication.publish(store, true);
        self.kept.keep(family.id(), sealed.until, unrecorded);
        drop(writing);
        if !sealed.mem.is_empty() {
            let took = store.ns_since(started);
            family
                .counters()
                .count_flush(sealed.cause, sealed.mem.bytes(), took);
        }
        Ok(())
    }
}

/// Records in the manifest, with one change for all, what these families have registered, and
/// releases the log up to there. Where that fails, a restart replays commits that are in the tables
/// already, which is harmless.
pub(crate) fn record(store: &Store, flushes: &mut [Flush<'_>]) -> Result<()> {
    let registered = flushes.iter().filter(|flush| !flush.family.is_dropped());
    let Some(edit) = Edit::recording(registered.filter_map(|flush| flush.kept.registered())) else {
        return Ok(());
    };
    let mut manifest = store.manifest();
    manifest.commit_with_reserve(&edit)?;
    for flush in flushes.iter_mut() {
        let Some(registered) = flush.kept.recorded() else {
            continue;
        };
        flush.family.flushed().raise(&registered);
        // Nothing is retained for a family that was dropped meanwhile; the manifest's lock orders
        // the two.
        if !flush.family.is_dropped() {
            store.sequencer().retain(flush.family.name(), registered.mark().1);
        }
    }
    drop(manifest);
    store.release_parts();
    if let Some(external) = store.sequencer().external() {
        let recorded = flushes.iter().filter(|flush| !flush.family.is_dropped());
        for flush in recorded {
            external.tell_flushed(flush.family.flushed().get());
        }
    }
    Ok(())
}

/// A memtable's entry as a table takes it.
fn for_table(Entry { key, found }: Entry) -> InternalValue {
    let (value, kind) = match found.value {
        Some(value) => (value.0, ValueType::Value),
        None => (lsm_tree::Slice::from(&[][..]), ValueType::Tombstone),
    };
    InternalValue::from_components(key.0, value, found.at.start, kind)
}
