//! The manifest of an open store, behind its lock.

use std::ops::Deref;

use parking_lot::MutexGuard;

use crate::Result;
use crate::manifest::file::{ManifestError, ManifestFile};
use crate::manifest::{Edit, Manifest};
use crate::store::Store;

/// The manifest, locked. Families are created, dropped and called flushed one after the other: each
/// of these holds the guard from reading the manifest until memory agrees with it again.
pub(crate) struct ManifestGuard<'a> {
    store: &'a Store,
    file: MutexGuard<'a, ManifestFile>,
}

impl Deref for ManifestGuard<'_> {
    type Target = Manifest;

    fn deref(&self) -> &Manifest {
        &self.file
    }
}

impl ManifestGuard<'_> {
    /// Makes a change durable. The caller decides what follows from an error: see
    /// [`Store::manifest_failed`].
    pub(crate) fn try_commit(&mut self, edit: &Edit) -> Result<(), ManifestError> {
        self.file.commit(&*self.store.device, &self.store.path, edit)
    }

    /// Makes a change durable. Where it stays in doubt, writes are refused from then on.
    pub(crate) fn commit(&mut self, edit: &Edit) -> Result<()> {
        self.try_commit(edit).map_err(|e| self.store.manifest_failed(e))
    }

    /// As [`ManifestGuard::commit`], once more with the reserve's room where the device is full.
    pub(crate) fn commit_with_reserve(&mut self, edit: &Edit) -> Result<()> {
        let store = self.store;
        store
            .reserve
            .relieve(Some(&store.sequencer), || self.try_commit(edit))
            .map_err(|e| store.manifest_failed(e))
    }

    /// Changes it in memory; the next change to be committed brings that to the device.
    pub(crate) fn amend(&mut self, change: impl FnOnce(&mut Manifest)) {
        self.file.amend(change);
    }

    /// Changes it, and replaces the whole of it on the device, durably.
    pub(crate) fn rewrite(&mut self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        self.file.amend(change);
        Ok(self.file.write(&*self.store.device, &self.store.path)?)
    }

    /// The same manifest for another opening of the store.
    pub(crate) fn detached(&self) -> ManifestFile {
        self.file.detached()
    }
}

impl Store {
    /// Locks the manifest. A flush may hold it for as long as a sync takes.
    pub(crate) fn manifest(&self) -> ManifestGuard<'_> {
        ManifestGuard {
            store: self,
            file: self.manifest.lock(),
        }
    }
}
