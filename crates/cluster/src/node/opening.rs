//! What a replica of a node is opened with, also one that a split puts beside another.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};

use collie_db::DiskReserve;
use collie_io::Device;
use collie_log::LogError;
use tokio::sync::watch;

use crate::ids::ReplicaId;
use crate::node::layouts::Homes;
use crate::node::options::NodeOptions;
use crate::node::room::MACHINES;
use crate::node::router::Router;
use crate::raft::{FullDisks, Replica, ReplicaOptions, SplitHost, Transfers, count};
use crate::raftlog::{ReplicaLog, StoreError};
use crate::replica_store::Beside;
use crate::transport::Peers;

/// What the replicas of a node share.
pub(super) struct Opening {
    pub(super) options: NodeOptions,
    pub(super) router: Arc<Router>,
    pub(super) peers: Arc<Peers>,
    pub(super) changes: watch::Sender<u64>,
    pub(super) full: Arc<FullDisks>,
    /// Of each disk.
    pub(super) reserves: Vec<Option<DiskReserve>>,
    pub(super) transfers: Arc<Transfers>,
}

impl Opening {
    /// Opens a replica, with its tables on this disk, or where they are found.
    pub(super) fn open(self: &Arc<Self>, log: ReplicaLog, disk: Option<usize>) -> Arc<Replica> {
        let dir = self.machine_dir(log.replica(), disk);
        let mut machine = self.options.machine.clone();
        let disk = self.disk_of(&dir);
        machine.db.disk_reserve = disk.and_then(|disk| self.reserves.get(disk)?.clone());
        let splits = DiskHost {
            node: Arc::downgrade(self),
            disk: disk.unwrap_or_default(),
        };
        let options = ReplicaOptions {
            dir,
            log,
            machine,
            peers: Arc::clone(&self.peers),
            clock: Arc::clone(&self.options.clock),
            beat: self.peers.beat(),
            times: self.options.times.clone(),
            limits: self.options.limits.clone(),
            changes: self.changes.clone(),
            full: Arc::clone(&self.full),
            transfers: Arc::clone(&self.transfers),
            splits: Arc::new(splits),
        };
        let replica = Arc::new(Replica::start(options));
        self.router.insert(Arc::clone(&replica));
        replica
    }

    pub(super) fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.options.machine.db.device)
    }

    /// Its disks.
    pub(super) fn homes(&self) -> Homes {
        Homes {
            device: self.device(),
            disks: self.options.store.disks.clone(),
        }
    }

    /// Where the state machine of a replica is: on the disk that it is put on, or that it is found
    /// on.
    pub(super) fn machine_dir(&self, id: ReplicaId, disk: Option<usize>) -> PathBuf {
        let disks = &self.options.store.disks;
        let disk = disk.or_else(|| self.homes().disk_of(id));
        let disk = disk.and_then(|disk| disks.get(disk)).or(disks.first());
        disk.map(|disk| disk.join(MACHINES).join(id.to_string()))
            .unwrap_or_default()
    }

    /// The disk of a state machine's directory.
    fn disk_of(&self, dir: &Path) -> Option<usize> {
        let disks = &self.options.store.disks;
        disks.iter().position(|disk| dir.starts_with(disk.join(MACHINES)))
    }
}

/// Has the replicas that splits put on a disk of a node. It does not keep the node.
#[derive(Clone)]
struct DiskHost {
    node: Weak<Opening>,
    disk: usize,
}

impl std::fmt::Debug for DiskHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskHost")
            .field("disk", &self.disk)
            .finish_non_exhaustive()
    }
}

impl SplitHost for DiskHost {
    fn had(&self, replica: ReplicaId) -> bool {
        let node = self.node.upgrade();
        node.is_some_and(|node| {
            let found = node.router.store.replica(replica);
            !matches!(found, Err(StoreError::Unknown { .. }))
        })
    }

    fn begin(&self, beside: Beside) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>> {
        let (node, disk) = (self.node.upgrade(), self.disk);
        Box::pin(async move {
            let node = node.ok_or(StoreError::Log(LogError::Closed))?;
            let Beside {
                group, replica, id, ..
            } = beside;
            let store = &node.router.store;
            let log = store.create_behind((group, replica), disk, Some(id)).await?;
            tracing::info!(
                replica,
                group,
                "a replica begins with a part of another one's rows"
            );
            node.open(log, Some(disk));
            count(&node.changes);
            Ok(())
        })
    }
}
