//! From memtables to tables.
//!
//! A family's sealed memtables are flushed in order. For each: wait until everything below its end
//! `R` is applied *and* durable (so that no table is ever ahead of the log), write its newest
//! versions to new tables, register them, replace the memtable by them in the view, record `R` in
//! the manifest, and release the log up to `R`.
//!
//! # The steps of a flush, as types
//!
//! | type | what it is | made by |
//! |---|---|---|
//! | [`Sealed`] | a memtable that no later commit belongs to | a rotation |
//! | [`Written`] | its tables: durable, in no tree | [`Flush::write`], when the log is durable |
//! | [`Registered`](crate::manifest::Registered) | tables that the tree names, durably | [`Flush::register`] |
//! | [`Flushed`](crate::manifest::Flushed) | what the manifest records, up to which the log is released | [`record`] |
//!
//! All steps are taken with the family's flush lock, which [`Flush`] holds.
//!
//! # Families with nothing in memory hold no log
//!
//! All families share the log, and one without writes would hold all of it. So when a flush is
//! recorded and such families alone hold the oldest part, the same change of the manifest calls them
//! flushed. It does not grow for less than a segment of log, however many families there are.
//!
//! ## Why no commit is lost
//!
//! They are called flushed up to a boundary that is read first: below it every commit is in its
//! memtable, and durable. A memtable leaves the view when its tables are registered. So a family whose
//! memtables are empty when they are looked at, which is afterwards, has all of its commits below the
//! boundary in registered tables. One that is being committed starts at the boundary or above, and
//! recovery reads it again.
//!
//! # At a close
//!
//! What a clean close brings to tables: what no log holds, and what an opening would have to read.
//!
//! The next opening reads the log from where the first family is flushed. So the families that hold
//! it are flushed in the order in which they do, until an opening reads little, or until so much was
//! written ([`Options::close_flush_bytes`](crate::Options::close_flush_bytes)).

use std::sync::Arc;
use std::time::Duration;

use collie_log::{Level, Lsn};
use lsm_tree::{InternalValue, ValueType};
use parking_lot::MutexGuard;

use crate::Result;
use crate::background::merging::keep_level0_countable;
use crate::background::threads::queue::pause_after;
use crate::events::{Event, FlushCause};
use crate::manifest::{Edit, PendingRecord};
use crate::memtable::Entry;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::Sealed;
use crate::tables::{self, Sampled, Writing};
use crate::write::stall::Stall;

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
        keep_level0_countable(store, family, record_own)?;
        store.relieve_flush(
            || {
                let written = flush.write(&taken_together(store, family, sealed.clone()))?;
                flush.register(written)
            },
            || flush_makes_room(store, family, &sealed),
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
    if let Err(error) = flushed {
        family.counters().flush_failures.add(1);
        store.events().tell(|| Event::FlushFailed {
            family: Arc::clone(family.name()),
            error: error.clone(),
        });
    }
    family.flushes().note(flushed);
    store.fill_reserve();
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
        view.active.bytes() >= options.write_buffer_bytes
            && view.buffers(&options) < options.max_write_buffers
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
    fn try_of(store: &'a Store, family: &'a Arc<FamilyState>) -> Option<Self> {
        let kept = family.try_lock_flushes()?;
        Some(Self { store, family, kept })
    }

    pub(crate) fn family(&self) -> &'a Arc<FamilyState> {
        self.family
    }

    /// The LSN below which the manifest calls the family flushed when this is recorded.
    fn mark(&self) -> Lsn {
        let registered = self.kept.registered();
        registered.map_or_else(|| self.family.flushed().get(), |registered| registered.mark().1)
    }

    /// Whether the family has nothing in memory.
    fn is_idle(&self) -> bool {
        !self.family.is_dropped() && self.family.view().mems().all(|mem| mem.is_empty())
    }

    /// The family was idle after everything below `settled` was [settled](Store::settled): all its
    /// commits below are in registered tables.
    fn keep_idle(&mut self, settled: Lsn) {
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
            let bytes = full.iter().map(|sealed| sealed.mem.all_bytes()).sum();
            let took = store.ns_since(started);
            family.counters().count_flush(oldest.cause, bytes, took);
            store.events().tell(|| Event::Flushed {
                family: Arc::clone(family.name()),
                cause: oldest.cause,
                bytes,
                took: Duration::from_nanos(took),
            });
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
        Some(end) => join_idle(store, &families, flushes, end),
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

/// The sealed memtables that a flush writes together, `oldest` first. Usually that one alone; while
/// the device is full all of them, where that writes no more: of rows that later ones delete or
/// replace nothing is written.
fn taken_together(store: &Store, family: &Arc<FamilyState>, oldest: Sealed) -> Vec<Sealed> {
    let alone = vec![oldest];
    if !store.is_short_of_room() || store.is_replaying() {
        return alone;
    }
    let together = family.view().sealed.clone();
    match together.len() > 1 && bytes_of(&together) <= bytes_of(&alone) {
        true => together,
        false => alone,
    }
}

/// Whether what a flush brings to tables makes room later, or is waited for. A flush of data alone lets
/// an external log go that others may hold, and takes about as much.
fn flush_makes_room(store: &Store, family: &Arc<FamilyState>, oldest: &Sealed) -> bool {
    let taken = taken_together(store, family, oldest.clone());
    let removes = newest_of(&taken).any(|entry| entry.found.value.is_none());
    removes || store.stall() == Stall::Stopped
}

/// What a flush of these would write, about.
fn bytes_of(sealed: &[Sealed]) -> usize {
    let bytes = |entry: &Entry| entry.key.len() + entry.found.value.as_ref().map_or(0, |value| value.len());
    newest_of(sealed).map(|entry| bytes(&entry)).sum()
}

/// The newest version of each key in memtables that follow one another, in the order of the keys.
fn newest_of(sealed: &[Sealed]) -> Box<dyn Iterator<Item = Entry> + '_> {
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

/// Where idle families alone hold the log below `end`, or will when `flushes` are recorded: has
/// them recorded as well. Those of `families` that are not among `flushes` are returned.
fn join_idle<'a>(
    store: &'a Store,
    families: &'a [Arc<FamilyState>],
    flushes: &mut [Flush<'_>],
    end: Lsn,
) -> Vec<Flush<'a>> {
    let settled = store.settled();
    reach!("what is settled is known");
    // While the log is replayed, what is settled is in no memtable yet.
    if settled < end || store.is_replaying() || !store.families_of_parts_below(end).is_empty() {
        return Vec::new();
    }
    let mut idle = Vec::new();
    let mut is_held = false;
    for family in families.iter().filter(|family| family.flushed().get() < settled) {
        let own = flushes.iter().find(|flush| flush.family().id() == family.id());
        let (mark, is_idle) = match own {
            Some(own) => (own.mark(), own.is_idle()),
            // One that another thread flushes has something in memory.
            None => match Flush::try_of(store, family).filter(Flush::is_idle) {
                Some(flush) => {
                    idle.push(flush);
                    (family.flushed().get(), true)
                }
                None => (family.flushed().get(), false),
            },
        };
        is_held |= mark < end;
        if mark < end && !is_idle {
            return Vec::new();
        }
    }
    if !is_held {
        return Vec::new();
    }
    let own = flushes.iter_mut().filter(|flush| flush.is_idle());
    own.for_each(|flush| flush.keep_idle(settled));
    idle.iter_mut().for_each(|flush| flush.keep_idle(settled));
    idle
}

/// So much of the log an opening reads faster than a close writes tables of it.
const READ_LEAST: u64 = 1 << 20;
/// What the files and syncs of a family's tables count for, at least, in bytes.
const TABLE_LEAST: u64 = 1 << 20;

/// Flushes at a close. Fails where something that is in no log stays in memory.
pub(crate) fn flush_at_close(store: &Store) -> Result<()> {
    let flushed = flush_unlogged(store);
    if store.options().close_flush_bytes > 0
        && store.sequencer().oldest().is_some()
        && let Err(error) = flush_what_an_opening_would_read(store)
    {
        tracing::warn!(path = %store.path().display(), %error, "the next opening reads more of the log");
    }
    flushed
}

/// Tries every family, and returns the first error.
fn flush_unlogged(store: &Store) -> Result<()> {
    let mut first = Ok(());
    for family in store.families() {
        let view = Arc::clone(&family.view());
        if view.mems().any(|mem| mem.has_unlogged() && !mem.is_empty()) {
            let flushed = flush_all_of(store, &family, FlushCause::Close);
            first = first.and(flushed);
        }
    }
    first
}

fn flush_what_an_opening_would_read(store: &Store) -> Result<()> {
    let end = store.sequencer().flush(Level::Disk)?;
    store.wait_visible(end)?;
    let from = end.saturating_sub(READ_LEAST);
    let of_parts = store.families_of_parts_below(from);
    let mut holding = store.families();
    holding.retain(|family| family.flushed().get() < from || of_parts.contains(&family.id()));
    holding.sort_by_key(|family| family.flushed().get());
    let mut left = store.options().close_flush_bytes;
    let mut busy: Vec<Arc<FamilyState>> = Vec::new();
    for family in holding {
        let bytes: u64 = family.view().mems().map(|mem| mem.bytes()).sum();
        if family.view().mems().all(|mem| mem.is_empty()) {
            continue;
        }
        match left.checked_sub(bytes.max(TABLE_LEAST)) {
            Some(rest) => left = rest,
            // It holds what those after it would let go.
            None => break,
        }
        store.rotate(&family, FlushCause::Close, |view| !view.active.is_empty())?;
        busy.push(family);
    }
    busy.sort_by(|a, b| a.name().cmp(b.name()));
    flush_together(store, &busy, Some(from))
}
