//! openraft's own tests of a log store and a state machine, on each layout. They know no crash and no
//! second group: for those see `tests/raftlog` and `tests/replica_store`.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use collie_cluster::testing::replica_store::{Machine, MachineOptions, Runs};
use collie_cluster::testing::{
    Groups, NodeLog, NodeStore, ReplicaLog, SnapshotBuilder, SnapshotData, open_machine,
};
use collie_cluster::{Layout, NodeLogOptions, NodeStoreOptions};
use collie_db::{Shared, SharedOptions};
use collie_log::{LogOptions, LogSet, LogSetOptions, RingMode};
use futures_util::Stream;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{OptionalSend, StorageError};
use tempfile::TempDir;

/// The state machine, of which the suite asks for snapshots of entries that it put into no log. They
/// are then taken for purged ones: nothing is brought into tables ahead of the log.
struct Unlogged(Machine);

impl RaftStateMachine<Groups> for Unlogged {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogIdOf<Groups>>, StoredMembershipOf<Groups>), io::Error> {
        self.0.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Groups>, io::Error>> + Unpin + OptionalSend,
    {
        RaftStateMachine::apply(&mut self.0, entries).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        let applied = self.0.applied();
        if let Some(applied) = applied.filter(|_| applied > self.0.log().bounds().last) {
            self.0.log().purge_durably(applied).await.unwrap();
        }
        self.0.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        self.0.get_snapshot_builder().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Groups>,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        self.0.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Groups, SnapshotData>>, io::Error> {
        self.0.get_current_snapshot().await
    }
}

/// Makes a store with a replica in it; how often it did tells on which disk.
struct Builder {
    layout: Layout,
    set: LogSet,
    shared: Shared,
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
            layout: self.layout.into(),
            shared: log.clone(),
            private: log,
            ..NodeStoreOptions::default()
        }
    }
}

impl StoreBuilder<Groups, ReplicaLog, Unlogged, (NodeStore, TempDir)> for Builder {
    async fn build(&self) -> Result<((NodeStore, TempDir), ReplicaLog, Unlogged), StorageError<Groups>> {
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
        let mut options = MachineOptions::new(Arc::new(Runs));
        options.db.shared = Some(self.shared.clone());
        options.db.reserve_bytes = Some(0);
        let machine = open_machine(dir.path().join("machine"), replica.clone(), options);
        Ok(((store, dir), replica, Unlogged(machine.await.unwrap())))
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
        shared: Shared::new(SharedOptions::default()).unwrap(),
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
