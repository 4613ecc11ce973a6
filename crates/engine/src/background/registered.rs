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

use collie_log::Lsn;
use lsm_tree::{InternalValue, ValueType};
use parking_lot::MutexGuard;

use crate::Result;
use crate::background::idle;
use crate::manifest::Edit;
use crate::manifest::flushed::PendingRecord;
use crate::memtable::Entry;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::Sealed;
use crate::tables::{self, Sampled, Writing};

/// The tables of memtables that follow one another: durable, and not yet part of the tree. None for
/// an empty memtable.
pub(crate) struct Written<'a> {
    sealed: Vec<Sealed>,
    until: Lsn,
    tables: tables::WrittenTables,
    writing: Writing<'a>,
    started: u64,
}

/// The one flush of a family that runs, from a sealed memtable to its record in the manifest.
pub(crate) struct Flush<'a> {
    store: &'a Store,
    family: &'a Arc<FamilyState>,
    kept: MutexGuard<'a, PendingRecord>,
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

    /// `None` while another flush of the family runs.
    pub(super) fn try_of(store: &'a Store, family: &'a Arc<FamilyState>) -> Option<Self> {
        let kept = family.try_lock_flushes()?;
        Some(Self { store, family, kept })
    }

    pub(crate) fn family(&self) -> &'a Arc<FamilyState> {
        self.family
    }

    /// The LSN below which the manifest calls the family flushed when this is recorded.
    pub(super) fn mark(&self) -> Lsn {
        let registered = self.kept.registered();
        registered.map_or_else(|| self.family.flushed().get(), |registered| registered.mark().1)
    }

    /// Whether the family has nothing in memory.
    pub(super) fn is_idle(&self) -> bool {
        !self.family.is_dropped() && self.family.view().mems().all(|mem| mem.is_empty())
    }

    /// The family was idle after everything below `settled` was [settled](Store::settled): all its
    /// commits below are in registered tables.
    pub(super) fn keep_idle(&mut self, settled: Lsn) {
        let unrecorded = self.family.tables().nothing_registered();
        self.kept.keep(self.family.id(), settled, unrecorded);
    }

    /// The manifest records what was registered: the log is not retained for it any more.
    fn recorded(&mut self) {
        let Some(registered) = self.kept.recorded() else {
            return;
        };
        self.family.flushed().raise(&registered);
        // Nothing is retained for a family that was dropped meanwhile; the manifest's lock orders
        // the two.
        if !self.family.is_dropped() {
            let sequencer = self.store.sequencer();
            sequencer.retain(self.family.name(), registered.mark().1);
        }
    }

    /// Writes the oldest sealed memtables to tables, of each key the newest version, once all of their
    /// commits are applied and durable: no table is ever ahead of the log. The files of a failed
    /// attempt are removed, so that they do not keep a full device full.
    pub(crate) fn write(&self, sealed: &[Sealed]) -> Result<Written<'a>> {
        let (store, family) = (self.store, self.family);
        let (until, until_end) = sealed.last().map_or((0, 0), |last| (last.until, last.until_end));
        store.wait_visible(until)?;
        // Past the end of the rotation's frame, so that recovery finds a frame where it has to
        // resume.
        store.wait_for_log(until_end)?;
        let started = store.now();
        if store.sequencer().durable().is_none() {
            // Without a log only the floor keeps the LSNs of later commits above those in the
            // tables.
            let edit = Edit {
                floor: until,
                ..Edit::default()
            };
            store.manifest().commit(&edit)?;
        }
        let writing = family.tables().writing(store.device());
        let tables = if sealed.iter().all(|sealed| sealed.mem.is_empty()) {
            tables::WrittenTables::default()
        } else {
            let mut removals = store.transactions().note_removals(family.id(), until);
            let (mut sampled, below) = (Sampled::default(), Arc::clone(&family.view().tables));
            let entries = newest_of(sealed).inspect(|entry| {
                removals.note(entry);
                sampled.note(entry, &below, until);
            });
            let written = family.tables().write(entries.map(for_table));
            let written = written.inspect_err(|_| writing.failed())?;
            removals.keep();
            family.tables().note_sampled(&sampled, &written);
            written
        };
        reach!("tables are written");
        Ok(Written {
            sealed: sealed.to_vec(),
            until,
            tables,
            writing,
            started,
        })
    }

    /// Makes the tables part of the tree and replaces the memtables by them in the view.
    pub(crate) fn register(&mut self, written: Written<'_>) -> Result<()> {
        let (store, family) = (self.store, self.family);
        let Written {
            sealed,
            until,
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
        publication.publish(|tables| store.pin(tables), sealed.len());
        self.kept.keep(family.id(), until, unrecorded);
        drop(writing);
        let full: Vec<_> = sealed.iter().filter(|sealed| !sealed.mem.is_empty()).collect();
        if let Some(oldest) = full.first() {
            let bytes = full.iter().map(|sealed| sealed.mem.bytes()).sum();
            family
                .counters()
                .count_flush(oldest.cause, bytes, store.ns_since(started));
        }
        Ok(())
    }
}

/// Records in the manifest, with one change for all, what these families have registered, and
/// releases the log up to there; so for idle families that alone hold its oldest segment. Where that
/// fails, a restart replays commits that are in the tables already, which is harmless.
pub(crate) fn record(store: &Store, flushes: &mut [Flush<'_>]) -> Result<()> {
    let oldest_end = store.sequencer().oldest_end();
    record_with_idle(store, flushes, oldest_end)
}

/// As [`record`], with idle families that alone hold the log below `end`.
pub(crate) fn record_with_idle(store: &Store, flushes: &mut [Flush<'_>], end: Option<Lsn>) -> Result<()> {
    let families = store.families();
    let mut idle = match end {
        Some(end) => idle::join(store, &families, flushes, end),
        None => Vec::new(),
    };
    reach!("families are registered");
    let live = flushes.iter().filter(|flush| !flush.family.is_dropped());
    let registered = live.chain(&idle).filter_map(|flush| flush.kept.registered());
    let Some(edit) = Edit::recording(registered) else {
        return Ok(());
    };
    let mut manifest = store.manifest();
    manifest.commit_with_reserve(&edit)?;
    flushes.iter_mut().for_each(Flush::recorded);
    idle.iter_mut().for_each(Flush::recorded);
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

/// The newest version of each key in memtables that follow one another, in the order of the keys.
pub(super) fn newest_of(sealed: &[Sealed]) -> Box<dyn Iterator<Item = Entry> + '_> {
    if let [only] = sealed {
        return Box::new(only.mem.newest());
    }
    let newest = sealed.iter().map(|sealed| sealed.mem.newest().peekable());
    let mut mems: Vec<_> = newest.collect();
    Box::new(std::iter::from_fn(move || {
        let heads = mems.iter_mut().filter_map(|mem| mem.peek());
        let least = heads.map(|entry| &entry.key).min()?.clone();
        // All are taken, and a later memtable's hides those of earlier ones.
        let same = mems
            .iter_mut()
            .filter_map(|mem| mem.next_if(|entry| entry.key == least));
        same.fold(None, |_, later| Some(later))
    }))
}

/// A memtable's entry as a table takes it.
fn for_table(Entry { key, found }: Entry) -> InternalValue {
    let (value, kind) = match found.value {
        Some(value) => (value.0, ValueType::Value),
        None => (lsm_tree::Slice::from(&[][..]), ValueType::Tombstone),
    };
    InternalValue::from_components(key.0, value, found.at.start, kind)
}
