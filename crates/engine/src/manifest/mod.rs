//! The manifest: which families exist, and up to which LSN each is in its tables.
//!
//! [`ManifestFile`](crate::manifest::file::ManifestFile) keeps it on the device.
//!
//! # How far a family is flushed
//!
//! Only what a family's tree names counts as flushed. A [`Registered`] is made of an
//! [`Unrecorded`], which only the successful registration in the family's tree returns, or a family
//! that has nothing to register (`background/flush.rs`), and nothing else moves a family's mark in
//! the manifest. So no order of two flushes, and no failure in between, releases log that the
//! tables lack.

pub(crate) mod encoding;
pub(crate) mod file;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::Lsn;
use serde::{Deserialize, Serialize};

use crate::FamilyOptions;
use crate::tables::Unrecorded;

/// Whether the store runs with a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogState {
    /// There is no log, or none that matters.
    Off,
    /// The commits that the tables lack are in the log.
    On,
    /// They are in a log that the store's owner keeps.
    External,
}

/// An option of a family as version 5 has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedOption {
    pub(crate) name: String,
    /// A program that does not know it must not use the store.
    pub(crate) needed: bool,
    /// A number: 8 bytes, little-endian. A choice: its name.
    pub(crate) value: Vec<u8>,
}

/// A family as the manifest knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FamilyRecord {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// Commits below this LSN are in the tables.
    pub(crate) flushed: Lsn,
    pub(crate) options: FamilyOptions,
    /// Options of a later version, kept as they were found.
    pub(crate) later: Vec<NamedOption>,
}

/// The manifest's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Ids are never used again, so that an old frame is never taken for another family's.
    pub(crate) next_family: u32,
    /// Chosen at random when the store is created, before it has a log. It identifies the store's
    /// own log, also after an interrupted first open or a time without a log.
    pub(crate) log_id: [u8; 16],
    pub(crate) log: LogState,
    /// No family's `flushed` is above this LSN. Without a log, no table has an entry at or above it
    /// either; with one, tables may be ahead of it, and the log is ahead of the tables.
    pub(crate) floor: Lsn,
    pub(crate) families: Vec<FamilyRecord>,
}

impl Manifest {
    /// The manifest of a new store.
    pub(crate) fn new(log_id: [u8; 16]) -> Self {
        Self {
            next_family: 0,
            log_id,
            log: LogState::Off,
            floor: collie_log::FIRST_LSN,
            families: Vec::new(),
        }
    }

    /// What no store ever wrote, if the manifest has such: families with the same id or name, or
    /// with an id that is not given yet.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());

        for family in &self.families {
            let is_new = ids.insert(family.id) && names.insert(&family.name);
            if !is_new || family.id >= self.next_family {
                return Some(name_of(family));
            }
        }
        None
    }

    /// The same for a change that is applied next: ids are never used again, and names only when
    /// they are free.
    pub(crate) fn contradiction_with(&self, edit: &Edit) -> Option<String> {
        let created = edit.created.as_ref()?;
        let is_new = (self.next_family..edit.next_family).contains(&created.id);
        // A change may replace a family by another of its name.
        let goes = |family: &FamilyRecord| edit.dropped == Some(family.id);
        let is_free = self
            .families
            .iter()
            .all(|family| family.name != created.name || goes(family));
        (!is_new || !is_free).then(|| name_of(created))
    }

    pub(crate) fn family(&mut self, id: u32) -> Option<&mut FamilyRecord> {
        self.families.iter_mut().find(|family| family.id == id)
    }

    /// Applies a change. Numbers only grow, so no guarantee is revoked.
    pub(crate) fn apply(&mut self, edit: &Edit) {
        self.next_family = self.next_family.max(edit.next_family);
        self.floor = self.floor.max(edit.floor);
        if let Some(created) = &edit.created {
            self.families.push(created.clone());
        }
        if let Some(dropped) = edit.dropped {
            self.families.retain(|family| family.id != dropped);
        }
        for (id, until) in &edit.flushed.0 {
            // It may have been dropped meanwhile.
            if let Some(family) = self.family(*id) {
                family.flushed = family.flushed.max(*until);
            }
        }
    }
}

fn name_of(family: &FamilyRecord) -> String {
    format!("the family {} named {:?}", family.id, family.name)
}

/// A change of the manifest, which is applied wholly or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The least that the next family's id may be.
    pub(crate) next_family: u32,
    /// The least that the floor may be.
    pub(crate) floor: Lsn,
    pub(crate) created: Option<FamilyRecord>,
    pub(crate) dropped: Option<u32>,
    pub(crate) flushed: Marks,
}

/// Families by id, with the LSN below which their commits are in tables. Made only from what is
/// registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks(Vec<(u32, Lsn)>);

impl Marks {
    #[cfg(test)]
    pub(crate) fn made_up(marks: Vec<(u32, Lsn)>) -> Self {
        Self(marks)
    }
}

impl Edit {
    /// A change that records what flushes have registered; `None` where that is nothing.
    pub(crate) fn recording<'a>(registered: impl Iterator<Item = &'a Registered>) -> Option<Self> {
        let marks: Vec<_> = registered.map(Registered::mark).collect();
        let floor = marks.iter().map(|(_, until)| *until).max()?;
        Some(Self {
            floor,
            flushed: Marks(marks),
            ..Self::default()
        })
    }
}

/// Commits of a family that start below an LSN are in tables that its tree names, durably.
pub(crate) struct Registered {
    family: u32,
    until: Lsn,
    _unrecorded: Unrecorded,
}

impl Registered {
    /// The family's id, and the LSN.
    pub(crate) fn mark(&self) -> (u32, Lsn) {
        (self.family, self.until)
    }
}

/// What a family's flushes have registered and the manifest does not record yet. Where the device
/// has no room for the manifest, it stays with the family and is recorded with the next flush.
#[derive(Default)]
pub(crate) struct PendingRecord(Option<Registered>);

impl PendingRecord {
    /// Replaces an older one, which it includes: a family's memtables are flushed in order.
    pub(crate) fn keep(&mut self, family: u32, until: Lsn, unrecorded: Unrecorded) {
        self.0 = Some(Registered {
            family,
            until,
            _unrecorded: unrecorded,
        });
    }

    pub(crate) fn registered(&self) -> Option<&Registered> {
        self.0.as_ref()
    }

    /// The manifest records it now.
    pub(crate) fn recorded(&mut self) -> Option<Registered> {
        self.0.take()
    }
}

/// The LSN below which the manifest calls a family's commits flushed. The log is retained from
/// there on.
pub(crate) struct Flushed(AtomicU64);

impl Flushed {
    /// As recovered from the manifest.
    pub(crate) fn found(at: Lsn) -> Self {
        Self(AtomicU64::new(at))
    }

    pub(crate) fn get(&self) -> Lsn {
        // Relaxed: a number on its own, raised under the manifest's lock.
        self.0.load(Ordering::Relaxed)
    }

    /// The manifest records `registered`.
    pub(crate) fn raise(&self, registered: &Registered) {
        self.0.fetch_max(registered.until, Ordering::Relaxed);
    }
}
