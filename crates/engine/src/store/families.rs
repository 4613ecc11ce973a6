//! The families of an open store, by name.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use crate::manifest::FamilyRecord;
use crate::store::Store;
use crate::store::family_state::FamilyState;
use crate::store::read_point::ReadPoint;
use crate::store::views::Views;
use crate::tables::{Home, Tables};
use crate::{Error, Result, Stall};

/// The families of a store.
#[derive(Default)]
pub(super) struct Families {
    /// Those that reads and writes find. The synced manifest names each of them.
    named: RwLock<BTreeMap<Arc<str>, Arc<FamilyState>>>,
    /// Those that were dropped, as long as something refers to them.
    dropped: Mutex<Vec<Weak<FamilyState>>>,
}

impl Families {
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
    pub(super) fn worst_family(&self) -> Stall {
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
        let lock = self.lock.lock().clone().ok_or(Error::Closed)?;
        let home = Home {
            lock: &lock,
            shared: &self.shared,
            device: &*self.device,
            reclaim: self.reclaim_sender(),
        };
        Tables::open(&home, record.id, known, &record.options)
    }

    /// A family with these tables, and an empty memtable that begins where they end. Reads and writes
    /// do not find the family before [`Store::publish_family`].
    pub(crate) fn load_family(&self, record: &FamilyRecord, tables: Tables) -> Result<Arc<FamilyState>> {
        let pinned = self.pin(&tables);
        let record = FamilyRecord {
            flushed: self.sequencer.resume_at(record.flushed, tables.highest())?,
            ..record.clone()
        };
        let mem = self.first_mem(record.flushed, &record.options, &Arc::default());
        Ok(Arc::new(FamilyState::new(
            self.id,
            &record,
            tables,
            pinned,
            mem,
            &self.views,
        )))
    }

    /// Lets reads and writes find a family. The synced manifest names it, so that no acknowledged
    /// write to it is lost.
    pub(crate) fn publish_family(&self, family: &Arc<FamilyState>) {
        let mut families = self.families.named.write();
        families.insert(Arc::clone(family.name()), Arc::clone(family));
        self.views.add(family.id(), Arc::clone(&family.view()));
        let options = family.options();
        self.budget
            .fit(options.write_buffer_bytes, options.max_write_buffers);
    }

    /// Replaces a family by another of its name, as the synced manifest has: calls through handles of
    /// the old one fail from now on. The caller holds the manifest, and nothing is applied meanwhile.
    pub(crate) fn replace_family(&self, old: &Arc<FamilyState>, new: &Arc<FamilyState>) {
        self.publish_family(new);
        self.families.drop_family(old);
        self.queue.forget(old);
        self.views.remove(old.id());
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
        self.views.remove(family.id());
        self.sequencer.release(family.name());
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

    /// A point, and the views of all families that fit it, for a snapshot; as [`Store::read_at`].
    /// Counts a snapshot until [`Store::end_snapshot`].
    pub(crate) fn begin_snapshot(&self) -> (ReadPoint, Arc<Views>) {
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        let mut views = self.views.load();
        loop {
            reach!("snapshot has its views");
            let point = self.read_point(false);
            // As for a single read (`view.rs`): no view may have been replaced before the boundary
            // was read.
            let again = self.views.load();
            if Arc::ptr_eq(&views, &again) {
                return (point, views);
            }
            views = again;
        }
    }

    /// A snapshot that [`Store::begin_snapshot`] counted is gone.
    pub(crate) fn end_snapshot(&self) {
        self.snapshots.fetch_sub(1, Ordering::Relaxed);
    }
}
