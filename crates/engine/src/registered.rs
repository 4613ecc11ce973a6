//! How far a flush has come, as types: only what a family's tree names may be called flushed.
//!
//! | type | what it is | made by |
//! |---|---|---|
//! | [`Sealed`] | a memtable that no later commit belongs to | a rotation |
//! | [`Written`] | its tables: durable, in no tree | [`Flush::write`], when the log is durable |
//! | [`Registered`] | tables that the tree names, durably | [`Flush::register`] |
//! | [`Flushed`] | what the manifest says, up to which the log was let go | [`record`] |
//!
//! Every step is taken in the family's turn, [`Flush`]. A [`Registered`] cannot be made but by the
//! tree's success, and nothing else can move a family's mark in the manifest, so that no order of
//! two flushes and no failure in between lets go of log that the tables lack. Where the manifest
//! has no room for it, it stays with the family and is recorded with the next flush.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::{Level, Lsn};
use lsm_tree::{InternalValue, ValueType};
use parking_lot::MutexGuard;

use crate::core::{Core, FamilyState};
use crate::manifest::Edit;
use crate::memtable::Entry;
use crate::tables::{self, Unrecorded, Writing};
use crate::view::{Sealed, View};
use crate::{Error, Result};

/// Commits of a family that start below an LSN are in tables that its tree names, durably.
pub(crate) struct Registered {
    family: u32,
    until: Lsn,
    _unrecorded: Option<Unrecorded>,
}

impl Registered {
    /// The family's id, and the LSN.
    pub(crate) fn mark(&self) -> (u32, Lsn) {
        (self.family, self.until)
    }
}

/// What a family's flushes have registered and the manifest does not say.
#[derive(Default)]
pub(crate) struct Kept(Option<Registered>);

impl Kept {
    /// The newer one stands for both: a family's memtables are flushed in order.
    fn keep(&mut self, family: u32, until: Lsn, unrecorded: Option<Unrecorded>) {
        let before = self.0.take().and_then(|before| before._unrecorded);
        self.0 = Some(Registered {
            family,
            until,
            _unrecorded: unrecorded.or(before),
        });
    }
}

/// The LSN below which the manifest calls a family's commits flushed; the log is held from there
/// on.
pub(crate) struct Flushed(AtomicU64);

impl Flushed {
    /// As the manifest has it.
    pub(crate) fn found(at: Lsn) -> Self {
        Self(AtomicU64::new(at))
    }

    pub(crate) fn get(&self) -> Lsn {
        // Relaxed: a number on its own, moved under the manifest's lock.
        self.0.load(Ordering::Relaxed)
    }

    fn raise(&self, until: Lsn) {
        self.0.fetch_max(until, Ordering::Relaxed);
    }
}

/// A memtable's tables: durable, and not yet part of the tree. None for an empty memtable.
pub(crate) struct Written<'a> {
    sealed: Sealed,
    tables: Option<tables::Written>,
    writing: Writing<'a>,
    started: u64,
}

/// A family's turn to flush. There is one at a time, from a sealed memtable to what the manifest
/// says of it.
pub(crate) struct Flush<'a> {
    core: &'a Core,
    family: &'a Arc<FamilyState>,
    kept: MutexGuard<'a, Kept>,
}

impl<'a> Flush<'a> {
    /// Waits for the family's turn. Who takes those of several families takes them by name.
    pub(crate) fn of(core: &'a Core, family: &'a Arc<FamilyState>) -> Self {
        Self {
            core,
            family,
            kept: family.flushing.lock(),
        }
    }

    pub(crate) fn family(&self) -> &'a Arc<FamilyState> {
        self.family
    }

    /// Writes the oldest sealed memtable to tables, when all that belongs there is applied and
    /// durable: no table is ever ahead of the log. What a failed attempt leaves is removed, so that
    /// a full device does not stay full because of it.
    pub(crate) fn write(&self, sealed: Sealed) -> Result<Written<'a>> {
        let (core, family) = (self.core, self.family);
        core.wait_visible(sealed.until)?;
        // Past the end of the rotation's frame, so that recovery finds a frame where it has to
        // resume.
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
                .map_err(|e| core.manifest_failed(e))?;
        }
        let writing = family.tables.writing(&*core.device);
        let tables = if sealed.mem.is_empty() {
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
        Ok(Written {
            sealed,
            tables,
            writing,
            started,
        })
    }

    /// Makes the tables part of the tree and replaces the memtable by them in the view.
    pub(crate) fn register(&mut self, written: Written<'_>) -> Result<()> {
        let (core, family) = (self.core, self.family);
        let Written {
            sealed,
            tables,
            writing,
            started,
        } = written;
        let publish = family.publish.lock();
        reach!("tables are to be registered");
        let unrecorded = match tables {
            Some(tables) => Some(
                family
                    .tables
                    .register(&tables)
                    .inspect_err(|error| give_up(core, family, error, &writing))?,
            ),
            None => None,
        };
        let tables = core.pin(&family.tables);
        // Counted under `publish`: a count from before a compaction must not replace the one from
        // after it.
        let level0 = family.tables.level0_runs();
        reach!("level 0 is counted");
        family.level0.store(level0, Ordering::Relaxed);
        let edit = family.edit.lock();
        let view = family.view.load();
        family.view.store(Arc::new(View {
            active: Arc::clone(&view.active),
            sealed: view.sealed.iter().skip(1).cloned().collect(),
            tables,
        }));
        drop((edit, publish));
        self.kept.keep(family.id, sealed.until, unrecorded);
        drop(writing);
        if !sealed.mem.is_empty() {
            let took = core.device.clock().monotonic().saturating_sub(started);
            family
                .counters
                .count_flush(sealed.cause, sealed.mem.bytes(), took);
        }
        Ok(())
    }
}

/// Registering failed: tells whether it may be tried again. The caller holds `publish`.
fn give_up(core: &Core, family: &FamilyState, error: &Error, writing: &Writing<'_>) {
    if family.tables.take_back_next_version(&*core.device) {
        // Nothing names them: they can go, and all of it can be tried again.
        writing.failed();
    } else {
        writing.failed_in_doubt();
        core.fail(Error::Background {
            cause: error.to_string(),
        });
    }
}

/// Says in the manifest, with one change for all, and then to the log, what these families have
/// registered. Where that fails, a restart replays once more what is in the tables already, which
/// is harmless.
pub(crate) fn record(core: &Core, turns: &mut [Flush<'_>]) -> Result<()> {
    let registered = turns.iter().filter(|turn| !turn.family.is_dropped());
    let Some(edit) = Edit::recording(registered.filter_map(|turn| turn.kept.0.as_ref())) else {
        return Ok(());
    };
    let mut manifest = core.manifest.lock();
    core.reserve
        .relieve(|| manifest.commit(&*core.device, &core.path, &edit))
        .map_err(|e| core.manifest_failed(e))?;
    for turn in turns {
        let Some(registered) = turn.kept.0.take() else {
            continue;
        };
        turn.family.flushed.raise(registered.until);
        // A family that was dropped meanwhile holds nothing any more; the manifest's lock orders
        // the two.
        if !turn.family.is_dropped() {
            core.journal.hold(&turn.family.name, registered.until);
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
