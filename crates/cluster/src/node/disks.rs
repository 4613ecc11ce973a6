//! Looks how much is left on the disks of a node that are drained, and keeps room back for its next start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use collie_server::cluster::LeftOnDisk;
use tokio::time::sleep;

use crate::blocking::blocking;
use crate::identity::IdentityStore;
use crate::ids::ReplicaId;
use crate::map::{self, LEVEL_OF_DISKS, Map};
use crate::node::shared::ClusterInner;

/// From one look at what is left to the next.
const LOOK: Duration = Duration::from_millis(500);
/// From one look for room to the next.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(5);

/// Why no disk is drained yet: an older version ends the connection when it is asked this.
pub(super) fn refused(inner: &ClusterInner) -> Option<String> {
    let level = inner.map().map(|map| map.cluster.level)?;
    (level < LEVEL_OF_DISKS).then(|| map::disks_from(level))
}

/// Keeps room back for the next opening of the node's own store. Ends once all of it is there: only an opening takes it.
pub(super) async fn keep_room(store: IdentityStore) {
    loop {
        let own = store.clone();
        if blocking(move || own.keep_room()).await {
            return;
        }
        sleep(LOOK_FOR_ROOM).await;
    }
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
        let waits = inner.disks.are_any();
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
    if node.drained.is_empty() && absent.is_empty() && !inner.disks.are_any() {
        return Ok(());
    }
    let _alone = inner.disks.alone().await;
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
    inner.disks.set_emptied(&inner.store, emptied).await?;
    inner.disks.show(shown);
    Ok(())
}
