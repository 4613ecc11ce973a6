//! What a node knows of its disks that are drained: how much is left on each, and that it is empty, which is stored. The
//! node may be started without an empty one.
//!
//! Nothing is on a disk that is stored as empty: what is put there takes it back before.

use std::collections::{BTreeMap, BTreeSet};

use collie_server::cluster::{DrainedDisk, LeftOnDisk};
use parking_lot::Mutex;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::blocking::blocking;
use crate::identity::IdentityStore;

/// What this node knows of its disks that are drained.
#[derive(Debug, Default)]
pub(super) struct DrainedDisks {
    shown: Mutex<BTreeMap<u32, LeftOnDisk>>,
    /// As it is stored.
    emptied: Mutex<BTreeSet<u32>>,
    /// Shared by those who make replicas; one alone says that a disk is empty.
    making: RwLock<()>,
}

impl DrainedDisks {
    /// What is stored.
    pub(super) fn begin_with(&self, emptied: BTreeSet<u32>) {
        *self.emptied.lock() = emptied;
    }

    /// The disks that are drained, and what is left on each.
    pub(super) fn shown(&self) -> Vec<DrainedDisk> {
        let shown = self.shown.lock();
        let shown = shown.iter();
        shown
            .map(|(disk, left)| DrainedDisk {
                disk: *disk,
                left: *left,
            })
            .collect()
    }

    /// The right to put a replica on a disk, which is not empty from then on.
    ///
    /// # Errors
    /// The node was started without it.
    pub(super) async fn make_on(
        &self,
        store: &IdentityStore,
        (absent, disk): (&BTreeSet<u32>, u32),
    ) -> Result<RwLockReadGuard<'_, ()>, String> {
        if absent.contains(&disk) {
            return Err(format!(
                "disk {disk} is to have it, and the node was started without that: start it with the disk, or have that \
                 drained"
            ));
        }
        let making = self.making.read().await;
        let mut emptied = self.emptied.lock().clone();
        if emptied.remove(&disk) {
            self.set_emptied(store, emptied).await?;
        }
        Ok(making)
    }

    /// Waits until no replica is being made, and lets none be made as long as what is returned is held.
    pub(super) async fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.making.write().await
    }

    /// Stores which disks are empty, while none is made that could be on them.
    pub(super) async fn set_emptied(
        &self,
        store: &IdentityStore,
        emptied: BTreeSet<u32>,
    ) -> Result<(), String> {
        if *self.emptied.lock() == emptied {
            return Ok(());
        }
        let (store, stored) = (store.clone(), emptied.clone());
        let done = blocking(move || store.set_emptied(&stored)).await;
        done.map_err(|error| error.to_string())?;
        *self.emptied.lock() = emptied;
        Ok(())
    }

    pub(super) fn show(&self, shown: BTreeMap<u32, LeftOnDisk>) {
        *self.shown.lock() = shown;
    }

    /// Whether any is drained, or stored as empty.
    pub(super) fn are_any(&self) -> bool {
        !self.shown.lock().is_empty() || !self.emptied.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use collie_db::{Options, RingMode};

    use super::*;

    #[tokio::test]
    async fn a_disk_is_stored_as_empty_no_more_before_it_has_a_replica() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            ring: RingMode::Private,
            reserve_bytes: Some(0),
            ..Options::default()
        };
        let store = IdentityStore::open(dir.path(), options).unwrap();
        let disks = DrainedDisks::default();
        disks.set_emptied(&store, [1, 2].into()).await.unwrap();
        let here = BTreeSet::new();
        let making = disks.make_on(&store, (&here, 1)).await.unwrap();
        assert_eq!(store.emptied().unwrap(), [2].into());
        // Whether a disk is empty is not looked at before the replica is there.
        assert!(disks.making.try_write().is_err());
        drop(making);
        assert!(disks.making.try_write().is_ok());
        let absent = BTreeSet::from([2]);
        let refused = disks.make_on(&store, (&absent, 2)).await.map(drop);
        assert!(refused.unwrap_err().contains("started without that"));
        assert_eq!(store.emptied().unwrap(), [2].into());
        let other = DrainedDisks::default();
        other.begin_with(store.emptied().unwrap());
        assert!(other.are_any());
        store.close().unwrap();
    }
}
