//! What the logs of a node take of its disks.
//!
//! On a full disk a private log may have no room to be opened. The node begins without it, and opens it when there
//! is room; its replica is nowhere else meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::ids::ReplicaId;
use crate::raftlog::error::StoreError;
use crate::raftlog::layout::{LogPlace, NodeStore, forget_removed};
use crate::raftlog::limit::{SHARE_LEAST, disk, share};
use crate::raftlog::node_log::NodeLog;
use crate::raftlog::replica_log::ReplicaLog;

impl NodeStore {
    /// The private logs of a disk have its limit together.
    pub(super) fn share_limits(&self) {
        let logs = self.logs.lock();
        let mut on_disk = BTreeMap::<usize, Vec<&NodeLog>>::new();
        for (place, log) in logs.iter().filter(|(place, _)| place.replica.is_some()) {
            on_disk.entry(place.disk).or_default().push(log);
        }
        for (disk, logs) in on_disk {
            let limit = self.options.private.limit_in(&self.logs_dir(disk));
            logs.iter()
                .for_each(|log| log.shared.limit.set(share(limit, logs.len())));
        }
    }

    /// Whether the logs on a disk are to leave all its room to what makes room.
    pub(crate) fn withhold_room(&self, disk: usize, withheld: bool) {
        let logs = self.logs.lock();
        let changed = {
            let mut all = self.withheld.lock();
            match withheld {
                true => all.insert(disk),
                false => all.remove(&disk),
            }
        };
        if changed {
            let here = logs.iter().filter(|(place, _)| place.disk == disk);
            here.for_each(|(_, log)| log.withhold_room(withheld));
        }
    }

    /// Removes the spare segments of the logs on a disk; `false` where there are none.
    pub(crate) fn give_up_spares(&self, disk: usize) -> bool {
        let logs = self.logs_on(disk).into_iter();
        // Of each: it is all needed.
        logs.fold(false, |any, log| log.log().give_up_spares() | any)
    }

    /// Whether a log on this disk finds no room there, or is to take none.
    pub(crate) fn is_short_of_room(&self, disk: usize) -> bool {
        self.logs_on(disk).iter().any(|log| log.shortage().is_some())
    }

    fn logs_on(&self, disk: usize) -> Vec<NodeLog> {
        let logs = self.logs.lock();
        let here = logs.iter().filter(|(place, _)| place.disk == disk);
        here.map(|(_, log)| log.clone()).collect()
    }

    /// Waits until a log is to be made shorter at once.
    pub(crate) async fn pressed(&self) {
        self.alarms.pressed.notified().await;
    }

    /// Whether a log has refused a write since this was last asked, also one that is gone by now.
    pub(crate) fn has_refused(&self) -> bool {
        // Relaxed: a flag by itself.
        self.alarms.refused.swap(false, Ordering::Relaxed)
    }

    /// Refuses to make a private log where the disk does not have what each of those there may take.
    pub(super) fn check_room_for(&self, place: LogPlace) -> Result<(), StoreError> {
        let logs = self.logs.lock();
        if place.replica.is_none() || logs.contains_key(&place) {
            return Ok(());
        }
        let least = SHARE_LEAST.min(self.options.private.limit_in(&self.logs_dir(place.disk)));
        let private = logs
            .iter()
            .filter(|(at, _)| at.replica.is_some() && at.disk == place.disk);
        let promised: u64 = private
            .map(|(_, log)| least.saturating_sub(log.shared.used()))
            .sum();
        let needed = promised.saturating_add(2 * least);
        let dir = self.logs_dir(place.disk);
        match disk(&**self.device(), &dir) {
            Some((_, free)) if free < needed => Err(StoreError::NoRoomForLog {
                path: dir,
                free,
                needed,
            }),
            _ => Ok(()),
        }
    }

    /// The replicas whose logs have had no room to be opened, and why.
    pub(crate) fn unopened(&self) -> Vec<(ReplicaId, StoreError)> {
        let unopened = self.unopened.lock();
        let all = unopened.iter();
        all.filter_map(|(place, full)| Some((place.replica?, full.clone())))
            .collect()
    }

    pub(super) fn unopened_log(&self, id: ReplicaId) -> Option<StoreError> {
        let unopened = self.unopened.lock();
        let mut all = unopened.iter();
        let (_, full) = all.find(|(place, _)| place.replica == Some(id))?;
        Some(full.clone())
    }

    pub(super) fn is_unopened(&self, id: ReplicaId) -> bool {
        self.unopened_log(id).is_some()
    }

    /// Opens the logs that had no room, as far as there is some now; the replicas in them. Blocks.
    pub(crate) async fn open_late(&self) -> Vec<ReplicaLog> {
        // What moves may be moving to one of them.
        let _none_moves = self.moving.lock().await;
        let _none_is_made = self.creating.write().await;
        let places: Vec<_> = self.unopened.lock().keys().copied().collect();
        let mut opened = Vec::new();
        for place in places {
            match self.open_one_late(place) {
                Ok(replicas) => opened.extend(replicas),
                Err(error) => drop(self.unopened.lock().insert(place, error)),
            }
        }
        opened
    }

    fn open_one_late(&self, place: LogPlace) -> Result<Vec<ReplicaLog>, StoreError> {
        let first = self.logs.lock().get(&LogPlace::FIRST).cloned();
        let (Some(first), Some(id)) = (first, place.replica) else {
            return Ok(Vec::new());
        };
        let known = self.logs.lock().get(&place).cloned();
        if known.is_none() {
            let log = self.open_log(place)?;
            forget_removed(&log, &first)?;
            if self.withheld.lock().contains(&place.disk) {
                log.withhold_room(true);
            }
            (self.opened)(&log);
            self.logs.lock().insert(place, log);
        }
        self.settle(&first, |replica| replica == id)?;
        self.unopened.lock().remove(&place);
        if self.unused().contains(&place) {
            self.remove_log(place)?;
        }
        self.share_limits();
        Ok(self.replica(id).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use collie_log::{Level, RingMode};
    use collie_sim::SimDevice;

    use super::*;
    use crate::ids::{EntryId, LeaderId};
    use crate::layouts::Layout;
    use crate::raftlog::moving::tests::run;
    use crate::raftlog::{Entry, NodeLogOptions, NodeStoreOptions};

    /// With the reserve that a shared log has by default, and none for private ones.
    fn open(device: &SimDevice) -> Result<NodeStore, StoreError> {
        let mut shared = NodeLogOptions {
            log_limit: Some(8 << 20),
            ..NodeLogOptions::default()
        };
        shared.log.device = Arc::new(device.clone());
        shared.log.ring = RingMode::Private;
        shared.log.ring_bytes = 64 << 10;
        shared.log.segment_bytes = 64 << 10;
        let mut private = shared.clone();
        private.log.reserve_bytes = Some(0);
        let options = NodeStoreOptions {
            disks: vec!["/disk".into()],
            layout: Layout::Private.into(),
            private,
            shared,
            ..NodeStoreOptions::default()
        };
        NodeStore::open(options, Box::new(|log| drop(tokio::spawn(log.run()))))
    }

    async fn append(replica: &ReplicaLog, index: u64) {
        let leader = LeaderId { term: 1, replica: 1 };
        let entry = Entry {
            id: EntryId { leader, index },
            payload: vec![7; 1_000].into(),
        };
        replica.append(vec![entry], |_| {}).await.unwrap();
    }

    #[test]
    fn a_node_begins_on_a_full_disk_without_its_private_logs() {
        let device = SimDevice::new(1);
        run(async {
            let store = open(&device).unwrap();
            for id in [10, 20] {
                let replica = store.create(id, id, 0).await.unwrap();
                append(&replica, 0).await;
            }
            // One moves to the shared log, which has an older state of it when the stop comes.
            store.set_layouts(Layout::Shared.into());
            assert!(store.move_replica(20, 0, &|| true).await.unwrap());
            store.set_layouts(Layout::Private.into());
            assert!(store.move_replica(20, 0, &|| true).await.unwrap());
            append(&store.replica(20).unwrap(), 1).await;
            let logs = store.logs();
            logs.iter().for_each(|log| drop(log.log().flush(Level::Disk)));
            logs.into_iter().try_for_each(NodeLog::close).unwrap();
        });
        device.limit_space(Some(0));
        run(async {
            let store = open(&device).unwrap();
            // A log gives up what it had prepared, which may be room enough for another, here and later.
            let unopened: Vec<_> = store.unopened().into_iter().map(|(id, _)| id).collect();
            assert_eq!(store.replicas().len() + unopened.len(), 2);
            for id in unopened {
                let refused = store.replica(id).unwrap_err();
                assert!(refused.is_full_disk(), "{refused}");
                let created = store.create(id, id, 0).await.unwrap_err();
                assert!(created.is_full_disk(), "{created}");
            }
            store.open_late().await;
            device.limit_space(None);
            store.open_late().await;
            assert_eq!(store.replicas().len(), 2);
            assert!(store.unopened().is_empty());
            assert_eq!(store.replica(20).unwrap().bounds().last.unwrap().index, 1);
            append(&store.replica(10).unwrap(), 1).await;
        });
    }
}
