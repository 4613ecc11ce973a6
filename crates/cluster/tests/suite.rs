//! openraft's own tests of a log store, on each layout. They know no crash and no second group: for
//! those see `tests/store`.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use collie_cluster::{Groups, Layout, NodeLog, NodeLogOptions, NodeStore, NodeStoreOptions, ReplicaLog};
use collie_log::{LogOptions, LogSet, LogSetOptions, RingMode};
use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend, StorageError};
use tempfile::TempDir;

/// A state machine without data.
#[derive(Debug, Clone, Default)]
struct Applied {
    last: Option<LogIdOf<Groups>>,
    membership: StoredMembershipOf<Groups>,
}

#[derive(Debug, Clone, Default)]
struct Machine {
    applied: Applied,
    snapshot: Arc<Mutex<Option<Applied>>>,
}

impl Applied {
    fn snapshot(&self) -> SnapshotOf<Groups, Applied> {
        Snapshot {
            meta: SnapshotMeta {
                last_log_id: self.last,
                last_membership: self.membership.clone(),
            },
            snapshot: self.clone(),
        }
    }
}

impl RaftSnapshotBuilder<Groups> for Machine {
    type SnapshotData = Applied;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Groups, Applied>, io::Error> {
        *self.snapshot.lock().unwrap() = Some(self.applied.clone());
        Ok(self.applied.snapshot())
    }
}

impl RaftStateMachine<Groups> for Machine {
    type SnapshotData = Applied;
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogIdOf<Groups>>, StoredMembershipOf<Groups>), io::Error> {
        Ok((self.applied.last, self.applied.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Groups>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            self.applied.last = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                self.applied.membership = StoredMembershipOf::<Groups>::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Groups>,
        snapshot: Applied,
    ) -> Result<(), io::Error> {
        assert_eq!(meta.last_log_id, snapshot.last);
        self.applied = snapshot.clone();
        *self.snapshot.lock().unwrap() = Some(snapshot);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Groups, Applied>>, io::Error> {
        Ok(self.snapshot.lock().unwrap().as_ref().map(Applied::snapshot))
    }
}

/// Makes a store with a replica in it; how often it did tells on which disk.
struct Builder {
    layout: Layout,
    set: LogSet,
    built: Mutex<usize>,
}

impl Builder {
    fn options(&self, dir: &TempDir) -> NodeStoreOptions {
        let log = LogOptions {
            ring: RingMode::Private,
            ring_bytes: 64 << 10,
            segment_bytes: 1 << 20,
            max_workers: 4,
            reserve_bytes: Some(0),
            set: Some(self.set.clone()),
            ..LogOptions::default()
        };
        let log = NodeLogOptions {
            log,
            ..NodeLogOptions::default()
        };
        let disks: Vec<PathBuf> = (0..2)
            .map(|disk| dir.path().join(format!("disk{disk}")))
            .collect();
        NodeStoreOptions {
            disks,
            layout: self.layout,
            shared: log.clone(),
            private: log,
            ..NodeStoreOptions::default()
        }
    }
}

impl StoreBuilder<Groups, ReplicaLog, Machine, (NodeStore, TempDir)> for Builder {
    async fn build(&self) -> Result<((NodeStore, TempDir), ReplicaLog, Machine), StorageError<Groups>> {
        let dir = tempfile::tempdir().unwrap();
        let run = |log: &NodeLog| {
            tokio::spawn(log.run());
        };
        let store = NodeStore::open(self.options(&dir), Box::new(run)).unwrap();
        let disk = {
            let mut built = self.built.lock().unwrap();
            *built += 1;
            *built % 2
        };
        let replica = store.create(1, 7, disk).await.unwrap();
        Ok(((store, dir), replica, Machine::default()))
    }
}

fn suite(layout: Layout) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let builder = Builder {
        layout,
        set: LogSet::new(LogSetOptions::default()).unwrap(),
        built: Mutex::new(0),
    };
    runtime.block_on(Suite::test_all(builder)).unwrap();
}

#[test]
fn openrafts_suite_passes_in_one_shared_log() {
    suite(Layout::Shared);
}

#[test]
fn openrafts_suite_passes_in_a_log_per_disk() {
    suite(Layout::PerDisk);
}

#[test]
fn openrafts_suite_passes_in_private_logs() {
    suite(Layout::Private);
}
