//! How far a family is flushed, as types: only what its tree names counts as flushed.
//!
//! A [`Registered`] is made of an [`Unrecorded`], which only the successful registration in the
//! family's tree returns, or a family that has nothing to register (`background/idle.rs`), and
//! nothing else moves a family's mark in the manifest. So no order of
//! two flushes, and no failure in between, releases log that the tables lack.

use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::Lsn;

use crate::tables::Unrecorded;

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
