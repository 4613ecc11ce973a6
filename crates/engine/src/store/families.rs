//! The families of an open store, by name, and the manifest that has them, behind its lock.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::manifest::file::{ManifestError, ManifestFile};
use crate::manifest::{Edit, FamilyRecord, Manifest};
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::AllViews;
use crate::tables::{Home, Tables};
use crate::{Error, FamilyOptions, Result, Stall};

/// The families of a store.
pub(super) struct Families {
    /// Those that reads and writes find. The synced manifest names each of them.
    named: RwLock<BTreeMap<Arc<str>, Arc<FamilyState>>>,
    /// Those that were dropped, as long as something refers to them.
    dropped: Mutex<Vec<Weak<FamilyState>>>,
    pub(super) views: Arc<AllViews>,
    manifest: Mutex<ManifestFile>,
    /// Snapshots that live.
    pub(super) snapshots: AtomicUsize,
}

impl Families {
    pub(super) fn new(manifest: ManifestFile) -> Self {
        Self {
            named: RwLock::default(),
            dropped: Mutex::default(),
            views: Arc::default(),
            manifest: Mutex::new(manifest),
            snapshots: AtomicUsize::new(0),
        }
    }

    /// The manifest has dropped it.
    fn drop_family(&self, family: &Arc<FamilyState>) {
        family.set_dropped();
        let mut dropped = self.dropped.lock();
        dropped.retain(|family| family.strong_count() > 0);
        dropped.push(Arc::downgrade(family));
    }
}

impl Store {
    /// The family of that name.
    pub(crate) fn family(&self, name: &str) -> Option<Arc<FamilyState>> {
        self.families.named.read().get(name).cloned()
    }

    /// All families, in the order of their names.
    pub(crate) fn families(&self) -> Vec<Arc<FamilyState>> {
        self.families.named.read().values().cloned().collect()
    }

    /// The most that a family does to writes.
    pub(crate) fn worst_family(&self) -> Stall {
        let families = self.families.named.read();
        let stalls = families.values().map(|family| family.stall());
        stalls.max().unwrap_or(Stall::None)
    }

    /// The name of the family with that id, or the id where it was dropped.
    pub(crate) fn family_name(&self, id: u32) -> String {
        let families = self.families.named.read();
        let found = families.values().find(|family| family.id() == id);
        found.map_or_else(|| format!("number {id}"), |family| family.name().to_string())
    }

    /// Opens the tables of a family, which must be there where they are `known`.
    pub(crate) fn open_tables(&self, record: &FamilyRecord, known: bool) -> Result<Tables> {
        let lock = self.storage.lock.lock().clone().ok_or(Error::Closed)?;
        let home = Home {
            lock: &lock,
            shared: &self.storage.trees,
            device: self.device(),
            reclaim: self.reclaim_sender(),
        };
        Tables::open(&home, record.id, known, &record.options)
    }

    /// A family with these tables, and an empty memtable that begins where they end. Reads and writes
    /// do not find the family before [`Store::publish_family`].
    pub(crate) fn load_family(&self, record: &FamilyRecord, tables: Tables) -> Result<Arc<FamilyState>> {
        let pinned = self.pin(&tables);
        let record = FamilyRecord {
            flushed: self.sequencer().resume_at(record.flushed, tables.highest())?,
            ..record.clone()
        };
        let mem = self.first_mem(record.flushed, &record.options, &Arc::default());
        Ok(Arc::new(FamilyState::new(
            self.id,
            &record,
            tables,
            pinned,
            mem,
            &self.families.views,
        )))
    }

    /// Lets reads and writes find a family. The synced manifest names it, so that no acknowledged
    /// write to it is lost.
    pub(crate) fn publish_family(&self, family: &Arc<FamilyState>) {
        let mut families = self.families.named.write();
        families.insert(Arc::clone(family.name()), Arc::clone(family));
        self.families.views.add(family.id(), Arc::clone(&family.view()));
        self.fit_budget(&family.options());
    }

    /// Lets all memtables together take what those of a family may.
    pub(crate) fn fit_budget(&self, options: &FamilyOptions) {
        self.throttle
            .budget
            .fit(options.write_buffer_bytes, options.max_write_buffers);
    }

    /// Replaces a family by another of its name, as the synced manifest has: calls through handles of
    /// the old one fail from now on. The caller holds the manifest, and nothing is applied meanwhile.
    pub(crate) fn replace_family(&self, old: &Arc<FamilyState>, new: &Arc<FamilyState>) {
        self.publish_family(new);
        self.families.drop_family(old);
        self.queue.forget(old);
        self.families.views.remove(old.id());
        // They wait for no flush. A read that has the old family already goes on with its view, and
        // so do snapshots and iterators.
        old.view().mems().for_each(|mem| mem.flushed());
        self.wake_stalled();
    }

    /// Withdraws a family that the synced manifest has dropped: calls fail from now on, stalled
    /// writes too, and the log is kept for it no longer. The caller holds the manifest, so that no
    /// flush retains the log for it afterwards.
    pub(crate) fn withdraw_family(&self, family: &Arc<FamilyState>) {
        self.families.drop_family(family);
        self.queue.forget(family);
        self.families.named.write().remove(&**family.name());
        self.families.views.remove(family.id());
        self.sequencer().release(family.name());
        self.release_parts();
        self.wake_stalled();
    }

    /// Releases what handles of families, and batches, would keep of a store that has closed: its
    /// directory's lock too. Files of dropped families that such a handle kept stay until the next
    /// opening, for without that lock they may be another store's by then.
    pub(super) fn empty_families(&self) {
        let dropped = std::mem::take(&mut *self.families.dropped.lock());
        let dropped: Vec<_> = dropped.iter().filter_map(Weak::upgrade).collect();
        for family in &dropped {
            family.tables().leave_to_next_opening();
        }
        for family in self.families().iter().chain(&dropped) {
            family.empty(|from| self.new_mem(from, family));
        }
    }
}

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
        self.file.commit(self.store.device(), &self.store.path, edit)
    }

    /// Makes a change durable for which there is no [`Edit`].
    pub(crate) fn try_change(&mut self, change: impl FnOnce(&mut Manifest)) -> Result<(), ManifestError> {
        self.file.change(self.store.device(), &self.store.path, change)
    }

    /// Makes a change durable. Where it stays in doubt, writes are refused from then on.
    pub(crate) fn commit(&mut self, edit: &Edit) -> Result<()> {
        self.try_commit(edit).map_err(|e| self.store.manifest_failed(e))
    }

    /// As [`ManifestGuard::commit`], once more with the reserve's room where the device is full.
    pub(crate) fn commit_with_reserve(&mut self, edit: &Edit) -> Result<()> {
        let store = self.store;
        store
            .room
            .reserve
            .relieve(Some(store.sequencer()), || self.try_commit(edit))
            .map_err(|e| store.manifest_failed(e))
    }

    /// Changes it in memory; the next change to be committed brings that to the device.
    pub(crate) fn amend(&mut self, change: impl FnOnce(&mut Manifest)) {
        self.file.amend(change);
    }

    /// Changes it, and replaces the whole of it on the device, durably. An opening cannot go on without
    /// that: where the device is full, it has the reserve's room.
    pub(crate) fn rewrite(&mut self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        self.file.amend(change);
        let store = self.store;
        let write = || self.file.write(store.device(), &store.path);
        let reserve = &store.room.reserve;
        Ok(reserve.relieve(Some(store.sequencer()), write)?)
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
            file: self.families.manifest.lock(),
        }
    }
}
