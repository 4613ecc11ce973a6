//! One log of a node, and the replicas in it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::{Level, Log, LogError};

use crate::ids::{EntryId, GroupId, ReplicaId, Vote};
use crate::raftlog::error::StoreError;
use crate::raftlog::frames::{State, Tombstone};
use crate::raftlog::limit::Alarms;
use crate::raftlog::options::NodeLogOptions;
use crate::raftlog::recovery::Quarantined;
use crate::raftlog::replica_log::ReplicaLog;
use crate::raftlog::shared::{Home, NodeLogInner, Registry};
use crate::raftlog::state::ReplicaStream;

/// An open log of a node. Clones are handles to the same log.
#[derive(Clone)]
pub struct NodeLog {
    pub(super) shared: Arc<NodeLogInner>,
}

impl std::fmt::Debug for NodeLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.log.fmt(f)
    }
}

/// What a [`NodeLog`] did and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeLogStats {
    /// Bytes from the oldest segment on.
    pub used: u64,
    /// How many it may have.
    pub limit: u64,
    /// Bytes of entries in memory.
    pub cached: u64,
    /// Callbacks that wait for durability.
    pub waiting: usize,
    /// How often the store of a replica was asked to flush, because it pins the log.
    pub flushes: u64,
    /// How often a replica's frames were appended anew, because they pinned the log.
    pub rewrites: u64,
    /// Proposals refused because the log is full.
    pub refused: u64,
}

impl NodeLog {
    /// Opens the log in `dir`, in one pass that finds each replica's state and where its entries are. It may
    /// become as long as `limit`, and `pressed` is woken when the log is to be made shorter.
    pub(super) fn open_with(
        dir: impl AsRef<Path>,
        options: NodeLogOptions,
        limit: u64,
        alarms: Alarms,
    ) -> Result<Self, StoreError> {
        let shared = NodeLogInner::open(dir.as_ref(), options, limit, alarms)?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The replicas, in the order of their ids.
    #[must_use]
    pub fn replicas(&self) -> Vec<ReplicaLog> {
        let mut node = self.shared.node.lock();
        let replicas = node.replicas();
        let mut all: Vec<_> = replicas
            .into_iter()
            .map(|replica| self.handle(&mut node, replica))
            .collect();
        drop(node);
        all.sort_by_key(ReplicaLog::replica);
        all
    }

    /// The log of a replica.
    ///
    /// # Errors
    /// [`StoreError::Removed`], [`StoreError::Quarantined`] and [`StoreError::Unknown`].
    pub fn replica(&self, id: ReplicaId) -> Result<ReplicaLog, StoreError> {
        let mut node = self.shared.node.lock();
        if let Some(replica) = node.replica(id) {
            return Ok(self.handle(&mut node, replica));
        }
        node.check_absent(id)?;
        Err(StoreError::Unknown { replica: id })
    }

    fn handle(&self, node: &mut Registry, replica: Arc<ReplicaStream>) -> ReplicaLog {
        ReplicaLog::new(node.home(&self.shared, replica))
    }

    /// The replicas that damage took frames of. They hold their part of the log until they are
    /// [removed](NodeLog::remove).
    #[must_use]
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.shared.node.lock().quarantined.clone()
    }

    /// Whether this replica was removed.
    #[must_use]
    pub fn is_removed(&self, replica: ReplicaId) -> bool {
        self.shared.node.lock().tombstones.contains_key(&replica)
    }

    /// Whether damage may have taken tombstones: a replica that was removed may be taken for one that
    /// never was here.
    #[must_use]
    #[cfg_attr(
        not(feature = "testing"),
        expect(dead_code, reason = "no replica is removed yet")
    )]
    pub fn tombstones_lost(&self) -> bool {
        self.shared.node.lock().tombstones_lost
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    /// Adds a replica without entries and without a vote, or one whose tables have everything up to an entry, which is
    /// purged. It is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Removed`], [`StoreError::Exists`], [`StoreError::Quarantined`],
    /// [`StoreError::Streams`], and the log's.
    pub(super) async fn create_behind(
        &self,
        group: GroupId,
        replica: ReplicaId,
        purged: Option<EntryId>,
    ) -> Result<ReplicaLog, StoreError> {
        let new = State {
            group,
            replica,
            generation: 0,
            from_log: [0; 16],
            last: purged,
            purged,
            committed: purged,
            // No later leader has an earlier term than the entry.
            vote: purged.map(|purged| Vote {
                leader: purged.leader,
                committed: false,
            }),
        };
        let created = self.begin(new, None).await?;
        Ok(self.handle(&mut self.shared.node.lock(), created))
    }

    /// Begins the copy of a replica. It is durable when this returns, and the handle is for who copies alone.
    pub(super) async fn begin_copy(
        &self,
        first: State,
        of: &ReplicaStream,
    ) -> Result<ReplicaLog, StoreError> {
        let copy = self.begin(first, Some(of)).await?;
        Ok(ReplicaLog::new(Home::new(Arc::clone(&self.shared), copy)))
    }

    async fn begin(
        &self,
        first: State,
        of: Option<&ReplicaStream>,
    ) -> Result<Arc<ReplicaStream>, StoreError> {
        let mut payload = Vec::new();
        let (created, span) = loop {
            match self.shared.try_create(first, of, &mut payload) {
                Err(StoreError::Log(LogError::WouldBlock)) => self.shared.log.room(payload.len()).await?,
                done => break done?,
            }
        };
        self.shared.log.wait_async(span.end, Level::Disk).await?;
        Ok(created)
    }

    /// Removes a replica for good, also one that was never here: it leaves a tombstone, which is
    /// durable when this returns.
    ///
    /// # Errors
    /// The log's.
    pub async fn remove(&self, group: GroupId, replica: ReplicaId) -> Result<(), StoreError> {
        let mut payload = Vec::new();
        let span = loop {
            match self
                .shared
                .try_remove(Tombstone { group, replica }, &mut payload, false)
            {
                Err(StoreError::Log(LogError::WouldBlock)) => self.shared.log.room(payload.len()).await?,
                done => break done?,
            }
        };
        if let Some(span) = span {
            self.shared.log.wait_async(span.end, Level::Disk).await?;
        }
        Ok(())
    }

    /// Whether no replica is here, nor comes here.
    pub(super) fn is_empty(&self) -> bool {
        let node = self.shared.node.lock();
        node.generations().is_empty() && node.coming().is_empty() && node.quarantined.is_empty()
    }

    /// Whether the replica is here, whole or not.
    pub(super) fn knows(&self, replica: ReplicaId) -> bool {
        let node = self.shared.node.lock();
        node.stream_of(replica).is_some() || node.quarantined.iter().any(|lost| lost.replica == replica)
    }

    /// Removes a replica whose tombstone is in another log. Blocks.
    pub(super) fn forget(&self, group: GroupId, replica: ReplicaId) -> Result<(), StoreError> {
        self.shared
            .try_remove(Tombstone { group, replica }, &mut Vec::new(), true)?;
        Ok(())
    }

    /// Completes what waits for durability, and appends directories, until the log fails or is
    /// closed; resolves to why. One task for all replicas of the log: without it no callback comes.
    /// It does not keep the log open.
    pub fn run(&self) -> impl Future<Output = StoreError> + Send + use<> {
        let mut changes = self.shared.log.durable_changes();
        let shared = Arc::downgrade(&self.shared);
        async move {
            loop {
                let next = changes.next().await;
                let Some(shared) = shared.upgrade() else {
                    return LogError::Closed.into();
                };
                match next {
                    Ok(durable) => shared.completion.complete(durable),
                    Err(error) => {
                        let error = StoreError::from(error);
                        shared.completion.fail(&error);
                        return error;
                    }
                }
                if shared.directory_is_due()
                    && shared.shortage().is_none()
                    && let Err(error) = shared.append_directory_async().await
                {
                    tracing::warn!(%error, "cannot append the directory of the raft log");
                }
            }
        }
    }

    /// What the log holds, and what was done to keep it short.
    #[must_use]
    pub fn stats(&self) -> NodeLogStats {
        let shared = &self.shared;
        let replicas = shared.replicas();
        NodeLogStats {
            used: shared.used(),
            limit: shared.limit.bytes(),
            cached: replicas
                .iter()
                .map(|replica| replica.live.lock().cache.bytes())
                .sum(),
            waiting: shared.completion.len(),
            flushes: shared.counters.flushes.load(Ordering::Relaxed),
            rewrites: shared.counters.rewrites.load(Ordering::Relaxed),
            refused: shared.counters.refused.load(Ordering::Relaxed),
        }
    }

    /// Appends a directory, flushes, and closes the log. Blocks.
    ///
    /// # Errors
    /// The log's.
    pub fn close(self) -> Result<(), StoreError> {
        // It has no room on a full device; damage to the last part then hits more.
        let directory = self.shared.append_directory(true);
        self.shared.log.clone().close()?;
        self.shared.completion.complete(self.shared.log.durable());
        self.shared.completion.fail(&LogError::Closed.into());
        match directory {
            Err(StoreError::Log(LogError::StorageFull { .. })) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl NodeLog {
    /// Adds a replica without entries and without a vote. It is durable when this returns.
    ///
    /// # Errors
    /// As [`NodeStore::create`](crate::raftlog::NodeStore::create).
    pub async fn create(&self, group: GroupId, replica: ReplicaId) -> Result<ReplicaLog, StoreError> {
        self.create_behind(group, replica, None).await
    }

    /// Opens the log in `dir`, in one pass that finds each replica's state and where its entries
    /// are. Blocks.
    ///
    /// # Errors
    /// The log's; [`StoreError::Frame`] where a later version wrote it.
    pub fn open(dir: impl AsRef<Path>, options: NodeLogOptions) -> Result<Self, StoreError> {
        let limit = options.limit_in(dir.as_ref());
        Self::open_with(dir, options, limit, Alarms::default())
    }

    /// Completes what waits for what is durable by now: for logs without threads, in simulations.
    pub fn complete(&self) {
        self.shared.completion.complete(self.shared.log.durable());
    }
}
