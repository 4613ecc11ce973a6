//! The disks of a node that are drained: how much is left on each, and that it is empty, which is stored. The node may
//! be started without an empty one.
//!
//! Nothing is on a disk that is stored as empty: what is put there takes it back before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use collie_server::cluster::{DrainedDisk, LeftOnDisk};
use parking_lot::Mutex;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::time::sleep;

use crate::blocking::blocking;
use crate::ids::ReplicaId;
use crate::map::{self, LEVEL_OF_DISKS, Map};
use crate::node::shared::ClusterInner;

/// From one look at what is left to the next.
const LOOK: Duration = Duration::from_millis(500);

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
        inner: &ClusterInner,
        disk: u32,
    ) -> Result<RwLockReadGuard<'_, ()>, String> {
        if inner.node.layouts().absent().contains(&disk) {
            return Err(format!(
                "disk {disk} is to have it, and the node was started without that: start it with the disk, or run `collie \
                 cluster drain {} --disk {disk}`",
                inner.number()
            ));
        }
        let making = self.making.read().await;
        let mut emptied = self.emptied.lock().clone();
        if emptied.remove(&disk) {
            self.store(inner, emptied).await?;
        }
        Ok(making)
    }

    async fn store(&self, inner: &ClusterInner, emptied: BTreeSet<u32>) -> Result<(), String> {
        let (store, stored) = (inner.store.clone(), emptied.clone());
        let done = blocking(move || store.set_emptied(&stored)).await;
        done.map_err(|error| error.to_string())?;
        *self.emptied.lock() = emptied;
        Ok(())
    }
}

/// Why no disk is drained yet: an older version ends the connection when it is asked this.
pub(super) fn refused(inner: &ClusterInner) -> Option<String> {
    let level = inner.map().map(|map| map.cluster.level)?;
    (level < LEVEL_OF_DISKS).then(|| map::disks_from(level))
}

/// Follows what is left on drained disks, until the node ends.
pub(super) async fn watch_disks(inner: Arc<ClusterInner>) {
    let mut maps = inner.map.subscribe();
    loop {
        let map = maps.borrow_and_update().clone();
        let problem = match &map {
            Some(map) => look(&inner, map).await.err(),
            None => None,
        };
        inner.report("drained disks", problem);
        let waits = !inner.disks.shown.lock().is_empty();
        let changed = tokio::select! {
            changed = maps.changed() => changed,
            () = sleep(LOOK), if waits => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn look(inner: &ClusterInner, map: &Map) -> Result<(), String> {
    let own = inner.number();
    let Some(node) = map.nodes.get(&own) else {
        return Ok(());
    };
    let absent = inner.node.layouts().absent().clone();
    if node.drained.is_empty() && absent.is_empty() && inner.disks.emptied.lock().is_empty() {
        inner.disks.shown.lock().clear();
        return Ok(());
    }
    let _alone = inner.disks.making.write().await;
    let found = inner.node.found_on_disks().await;
    let is_named = map.named();
    let counts = |disk: u32| {
        let here = found.get(disk as usize).into_iter().flatten();
        // Quarantined ones that others have replaced stay, and count no more.
        let needed = |id: &&ReplicaId| is_named(**id) || inner.node.replica(**id).is_some();
        here.filter(needed)
            .filter(|id| **id != inner.identity.replica)
            .count()
    };
    let shown = node.drained.iter().map(|disk| {
        let left = match (absent.contains(disk), counts(*disk).max(map.count_on(own, *disk))) {
            (true, _) => LeftOnDisk::Absent,
            // The map's replica is there, and what is remembered of replicas that were removed.
            (false, 0) if *disk == 0 => LeftOnDisk::Map,
            (false, left) => LeftOnDisk::Replicas(left),
        };
        (*disk, left)
    });
    let shown: BTreeMap<_, _> = shown.collect();
    let is_empty = |(_, left): &(&u32, &LeftOnDisk)| **left == LeftOnDisk::Replicas(0);
    let emptied = shown.iter().filter(is_empty).map(|(disk, _)| *disk);
    // What is not here has nothing: where it is to have replicas again, a new disk may take its place.
    let emptied: BTreeSet<_> = emptied.chain(absent).collect();
    if *inner.disks.emptied.lock() != emptied {
        inner.disks.store(inner, emptied).await?;
    }
    *inner.disks.shown.lock() = shown;
    Ok(())
}
