//! What a replica of a node is opened with, also one that a split puts beside another.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};

use collie_db::DiskReserve;
use collie_io::Device;
use collie_log::LogError;
use tokio::sync::{Notify, Semaphore, watch};

use crate::blocking::{blocking, blocking_while};
use crate::ids::{EntryId, GroupId, ReplicaId};
use crate::node::layouts::Homes;
use crate::node::options::NodeOptions;
use crate::node::room::MACHINES;
use crate::node::router::Router;
use crate::raft::{Claim, Claims, FullDisks, Losses, Replica, ReplicaOptions, SplitHost, Transfers, count};
use crate::raftlog::{ReplicaLog, StoreError};
use crate::replica_store::{Beside, MachineError};
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
    pub(super) merging: Arc<Semaphore>,
    pub(super) losses: Arc<Losses>,
    pub(super) claims: Claims,
    /// Woken when a replica was put here.
    pub(super) made: Notify,
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
            reads: self.options.reads,
            times: self.options.times.clone(),
            limits: self.options.limits.clone(),
            changes: self.changes.clone(),
            full: Arc::clone(&self.full),
            transfers: Arc::clone(&self.transfers),
            merging: Arc::clone(&self.merging),
            losses: Arc::clone(&self.losses),
            splits: Arc::new(splits),
        };
        let replica = Arc::new(Replica::start(options));
        self.router.insert(Arc::clone(&replica));
        replica
    }

    /// Begins the log of a replica, behind an entry or with none, and opens the replica. A log of its own is a file that
    /// is made, which blocks. Where there are threads for that, both are done also where this is dropped: a log alone
    /// would be no replica here.
    pub(super) async fn begin(
        self: &Arc<Self>,
        ids: (GroupId, ReplicaId),
        disk: usize,
        purged: Option<EntryId>,
    ) -> Result<Arc<Replica>, StoreError> {
        let this = Arc::clone(self);
        let begun = async move {
            let log = this.router.store.create_behind(ids, disk, purged).await?;
            let replica = this.open(log, Some(disk));
            this.made.notify_one();
            Ok(replica)
        };
        blocking_while(begun).await
    }

    /// The right to make a replica here; none: it is here or was removed, or another one has it.
    pub(super) fn claim(&self, replica: ReplicaId) -> Option<Claim> {
        let claim = self.claims.take(replica)?;
        let found = self.router.store.replica(replica);
        matches!(found, Err(StoreError::Unknown { .. })).then_some(claim)
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
    fn claim(&self, replica: ReplicaId) -> Option<Claim> {
        // Where the node has ended nothing is made, nor removed.
        self.node.upgrade()?.claim(replica)
    }

    fn begin(&self, beside: Beside) -> Pin<Box<dyn Future<Output = Result<(), MachineError>> + Send>> {
        let (node, disk) = (self.node.upgrade(), self.disk);
        Box::pin(async move {
            let node = node.ok_or(StoreError::Log(LogError::Closed))?;
            let Beside {
                group,
                replica,
                id,
                dir,
            } = beside;
            // Before it can vote: without its log it must not be made again.
            if let Some(note_made) = node.options.note_made.clone() {
                let noted = blocking(move || note_made(replica)).await;
                noted.map_err(|problem| MachineError::Io {
                    op: "note the replica of",
                    path: dir,
                    source: Arc::new(std::io::Error::other(problem)),
                })?;
            }
            node.begin((group, replica), disk, Some(id)).await?;
            tracing::info!(
                replica,
                group,
                "a replica begins with a part of another one's rows"
            );
            count(&node.changes);
            Ok(())
        })
    }
}
