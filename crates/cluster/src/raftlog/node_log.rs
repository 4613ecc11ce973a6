//! One log of a node, and the replicas in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_log::{Level, Log, LogError, LogOptions, Lsn, RecoveryMode, Span, Worker};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ids::{GroupId, ReplicaId};
use crate::raftlog::completion::{Completion, Done};
use crate::raftlog::error::StoreError;
use crate::raftlog::frames::{Directory, Listed, NODE_STREAM, STREAMS, StreamFrame, Tombstone};
use crate::raftlog::limit::{Limit, Retention};
use crate::raftlog::recovery::{QUARANTINED, Quarantined, Recovered, Recovery};
use crate::raftlog::replica_log::ReplicaLog;
use crate::raftlog::state::{ReplicaStream, StreamIdentity, StreamState};

/// Who holds the log for stream 0.
const NODE_HOLDER: &str = "raft/node";
/// Threads of a runtime that append at one instant; more wait for as long as a copy takes.
const WORKERS: usize = 16;
/// A frame of entries is closed at so many bytes.
const FRAME_BYTES: usize = 1 << 20;

/// Options of one log of a node.
#[derive(Debug, Clone)]
pub struct NodeLogOptions {
    /// The log's own. Its recovery mode is always [`RecoveryMode::SkipDamaged`].
    pub log: LogOptions,
    /// How long the log may become, in bytes; see `NodeLog::maintain`. `None`, the default, fits its
    /// disk: an eighth of it, from 64 MiB to 2 GiB.
    pub log_limit: Option<u64>,
    /// What it keeps of entries that are in tables. `None`, the default: a sixteenth of its limit, and
    /// half of it for followers that lack them.
    pub retention: Option<Retention>,
    /// Where the file system of the log has less room than this, in bytes, and less than a quarter of
    /// its own size, the log is kept short as if it were full; see `NodeLog::maintain`. 0: never.
    /// Default 1 GiB.
    pub free_min: u64,
    /// Entries within so many bytes of the log's end are kept in memory, those that are not durable
    /// yet besides. It counts for each log: a node with many has less for each. Default 256 MiB.
    pub cache_bytes: u64,
}

impl Default for NodeLogOptions {
    fn default() -> Self {
        Self {
            log: LogOptions::default(),
            log_limit: None,
            retention: None,
            free_min: 1 << 30,
            cache_bytes: 256 << 20,
        }
    }
}

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

/// Counters of [`NodeLogStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) flushes: AtomicU64,
    pub(super) rewrites: AtomicU64,
    pub(super) refused: AtomicU64,
}

pub(super) struct NodeLogInner {
    pub(super) log: Log,
    /// Whether the log has threads that make room. Without, an append waits for it by itself.
    pub(super) threads: bool,
    workers: Vec<Mutex<Worker>>,
    pub(super) completion: Completion,
    node: Mutex<Registry>,
    pub(super) options: NodeLogOptions,
    pub(super) limit: Limit,
    pub(super) counters: Counters,
    /// Whether replicas in this log may take over leadership: its disk has not been full lately.
    pub(super) may_take_over: AtomicBool,
    /// Room on its disk is left to what makes room.
    pub(super) withheld: AtomicBool,
    /// Bytes of entries that room is reserved for.
    pub(super) reserved: AtomicU64,
    pub(super) dir: PathBuf,
}

/// What concerns all streams. Its lock is taken before a replica's.
#[derive(Default)]
struct Registry {
    /// By stream.
    replicas: BTreeMap<u32, Arc<ReplicaStream>>,
    quarantined: Vec<Quarantined>,
    tombstones: BTreeMap<ReplicaId, GroupId>,
    tombstones_lost: bool,
    /// Streams that are in use no more, and their last frames.
    retired: BTreeMap<u32, Lsn>,
    /// Replicas that were removed since the last directory, which hold the log for their tombstone.
    buried: Vec<Arc<ReplicaStream>>,
    /// The last frame of stream 0.
    last_frame: Lsn,
    /// The end of the last directory.
    directory_end: Lsn,
    last_stream: u32,
}

impl NodeLog {
    /// Opens the log in `dir`, in one pass that finds each replica's state and where its entries are. It may
    /// become as long as `limit`, and `pressed` is woken when the log is to be made shorter.
    pub(super) fn open_with(
        dir: impl AsRef<Path>,
        options: NodeLogOptions,
        limit: u64,
        pressed: Arc<Notify>,
    ) -> Result<Self, StoreError> {
        let options = options.fitting(limit);
        let log_options = LogOptions {
            recovery_mode: RecoveryMode::SkipDamaged,
            ..options.log.clone()
        };
        let threads = log_options.threads;
        let workers = WORKERS.min(log_options.max_workers);
        let mut recovery = Recovery::default();
        let dir = dir.as_ref().to_owned();
        let log = Log::open_with(&dir, log_options, |frame| recovery.visit(frame))?;
        let recovered = recovery.finish(&log.recovery().damaged);
        let workers = (0..workers).map(|_| log.worker().map(Mutex::new));
        let shared = NodeLogInner {
            workers: workers.collect::<Result<_, _>>()?,
            threads,
            completion: Completion::default(),
            node: Mutex::new(Registry::recovered(recovered, &log)),
            options,
            limit: Limit::new(limit, pressed),
            counters: Counters::default(),
            may_take_over: AtomicBool::new(true),
            withheld: AtomicBool::new(false),
            reserved: AtomicU64::new(0),
            dir,
            log,
        };
        let this = Self {
            shared: Arc::new(shared),
        };
        // From here on, damage to what was read is seen by whom it hits. On a full disk that comes
        // later: until then all of the log is retained.
        match this.shared.append_directory(true) {
            Err(StoreError::Log(error @ LogError::StorageFull { .. })) => {
                tracing::error!(%error, "a log of the node is opened on a full disk");
            }
            done => done?,
        }
        Ok(this)
    }

    /// The replicas, in the order of their ids.
    #[must_use]
    pub fn replicas(&self) -> Vec<ReplicaLog> {
        let replicas = self.shared.replicas();
        let mut all: Vec<_> = replicas.into_iter().map(|replica| self.handle(replica)).collect();
        all.sort_by_key(ReplicaLog::replica);
        all
    }

    /// The log of a replica.
    ///
    /// # Errors
    /// [`StoreError::Removed`], [`StoreError::Quarantined`] and [`StoreError::Unknown`].
    pub fn replica(&self, id: ReplicaId) -> Result<ReplicaLog, StoreError> {
        let node = self.shared.node.lock();
        if let Some(replica) = node.replica(id) {
            return Ok(self.handle(replica));
        }
        node.check_absent(id)?;
        Err(StoreError::Unknown { replica: id })
    }

    pub(super) fn handle(&self, replica: Arc<ReplicaStream>) -> ReplicaLog {
        ReplicaLog::new(Arc::clone(&self.shared), replica)
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

    /// Adds a replica without entries and without a vote. It is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Removed`], [`StoreError::Exists`], [`StoreError::Quarantined`],
    /// [`StoreError::Streams`], and the log's.
    pub async fn create(&self, group: GroupId, replica: ReplicaId) -> Result<ReplicaLog, StoreError> {
        let identity = StreamIdentity {
            group,
            replica,
            generation: 0,
        };
        let mut payload = Vec::new();
        let (created, span) = loop {
            match self.shared.try_create(identity, &mut payload) {
                Err(StoreError::Log(LogError::WouldBlock)) => self.shared.log.room(payload.len()).await?,
                done => break done?,
            }
        };
        self.shared.log.wait_async(span.end, Level::Disk).await?;
        Ok(self.handle(created))
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

    /// Whether the replica is here, whole or not.
    pub(super) fn knows(&self, replica: ReplicaId) -> bool {
        let node = self.shared.node.lock();
        node.replica(replica).is_some() || node.quarantined.iter().any(|lost| lost.replica == replica)
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

impl NodeLogInner {
    /// Appends a frame without waiting for room, if the log has threads that make it.
    pub(super) fn append(
        &self,
        stream: u32,
        frame: &StreamFrame<'_>,
        payload: &[u8],
    ) -> Result<Span, LogError> {
        self.append_to_log(stream, frame.kind(), payload, !self.threads)
    }

    fn append_to_log(&self, stream: u32, kind: u8, payload: &[u8], wait: bool) -> Result<Span, LogError> {
        let worker = self.workers.get(stream as usize % self.workers.len());
        let mut worker = worker.ok_or(LogError::Closed)?.lock();
        if wait {
            worker.append(stream, kind, payload)
        } else {
            worker.try_append(stream, kind, payload)
        }
    }

    /// Calls `done` when the log is durable up to `end`.
    pub(super) fn when_durable(&self, end: Lsn, done: Done) {
        self.completion.add(end, done);
        // It may have become durable before it was added.
        let durable = self.log.durable();
        if durable >= end {
            self.completion.complete(durable);
        }
    }

    /// Entries go into one frame up to so many bytes; a longer one has a frame for itself.
    pub(super) fn frame_bytes(&self) -> usize {
        FRAME_BYTES.min(self.options.log.max_payload())
    }

    /// Entries in frames that end there or before need not be in memory.
    pub(super) fn cache_cut(&self) -> Lsn {
        let far = self.log.appended().saturating_sub(self.options.cache_bytes);
        // What is not durable cannot be read from the log.
        far.min(self.log.durable())
    }

    /// Bytes from the oldest segment on.
    pub(super) fn used(&self) -> u64 {
        self.log.appended().saturating_sub(self.log.oldest())
    }

    pub(super) fn replicas(&self) -> Vec<Arc<ReplicaStream>> {
        self.node.lock().replicas.values().cloned().collect()
    }

    fn try_create(
        &self,
        identity: StreamIdentity,
        payload: &mut Vec<u8>,
    ) -> Result<(Arc<ReplicaStream>, Span), StoreError> {
        // Held until the replica is listed: no directory behind its first frame leaves it out.
        let mut node = self.node.lock();
        let (group, id) = (identity.group, identity.replica);
        if node.replica(id).is_some() {
            return Err(StoreError::Exists { group, replica: id });
        }
        node.check_absent(id)?;
        let stream = node.free_stream(self.log.oldest())?;
        let mut state = StreamState::default();
        let frame = StreamFrame::State(state.as_frame(identity));
        frame.encode(0, payload);
        let span = self.append(stream, &frame, payload)?;
        state.apply(0, &frame, span);
        let replica = Arc::new(ReplicaStream::new(stream, identity, state));
        replica.pin(&self.log, span.start);
        node.replicas.insert(stream, Arc::clone(&replica));
        node.last_stream = stream;
        Ok((replica, span))
    }

    /// Appends a tombstone, and waits for room or not.
    fn try_remove(
        &self,
        tombstone: Tombstone,
        payload: &mut Vec<u8>,
        wait: bool,
    ) -> Result<Option<Span>, StoreError> {
        let wait = wait || !self.threads;
        let mut node = self.node.lock();
        if node.tombstones.contains_key(&tombstone.replica) {
            return Ok(None);
        }
        let frame = StreamFrame::Tombstone(tombstone);
        let span = match node.replica(tombstone.replica) {
            Some(replica) => {
                let mut live = replica.live.lock();
                let prev = live.state.last_frame;
                frame.encode(prev, payload);
                let span = self.append_to_log(replica.stream, frame.kind(), payload, wait)?;
                live.state.apply(prev, &frame, span);
                drop(live);
                node.replicas.remove(&replica.stream);
                node.retired.insert(replica.stream, span.start);
                node.buried.push(replica);
                span
            }
            None => {
                frame.encode(node.last_frame, payload);
                let span = self.append_to_log(NODE_STREAM, frame.kind(), payload, wait)?;
                node.last_frame = span.start;
                span
            }
        };
        node.tombstones.insert(tombstone.replica, tombstone.group);
        let quarantined = node
            .quarantined
            .iter()
            .position(|lost| lost.replica == tombstone.replica);
        if let Some(at) = quarantined {
            let lost = node.quarantined.remove(at);
            // Its frames are damaged: which is the last is not known.
            node.retired.insert(lost.stream, QUARANTINED);
            let log = self.log.clone();
            let release = move |answer: Result<(), StoreError>| {
                if answer.is_ok() {
                    log.release(&lost.holder());
                }
            };
            drop(node);
            self.when_durable(span.end, Box::new(release));
        }
        Ok(Some(span))
    }

    /// Whether a segment's length of log has no directory.
    pub(super) fn directory_is_due(&self) -> bool {
        let end = self.node.lock().directory_end;
        self.log.appended().saturating_sub(end) >= self.options.log.segment_bytes
    }

    /// Whether the log lets go of what is below `mark` only with another directory: of the last one,
    /// or of replicas that were removed.
    pub(super) fn directory_holds(&self, mark: Lsn) -> bool {
        let node = self.node.lock();
        node.directory_end < mark || !node.buried.is_empty()
    }

    /// Lets go of what is kept below the last directory of replicas that damage took frames of. They stay
    /// quarantined, as each directory says; all others need the room.
    pub(super) fn let_go_of_damaged(&self) {
        let mut node = self.node.lock();
        let mark = node.directory_end;
        for lost in &mut node.quarantined {
            if lost.oldest < mark {
                let (replica, group) = (lost.replica, lost.group);
                tracing::error!(
                    replica,
                    group,
                    "the log is full, and lets go of what was left of a replica that damage took frames of"
                );
                lost.oldest = mark;
                self.log.retain(&lost.holder(), mark);
            }
        }
    }

    /// Appends a directory when there is room.
    pub(super) async fn append_directory_async(&self) -> Result<(), StoreError> {
        loop {
            match self.append_directory(!self.threads) {
                Err(StoreError::Log(LogError::WouldBlock)) => {
                    // Of a small frame, since others may come and go until then.
                    self.log.room(0).await?;
                }
                done => return done,
            }
        }
    }

    /// Appends a directory, and waits for room or not. What it names is released when it is durable.
    fn append_directory(&self, wait: bool) -> Result<(), StoreError> {
        let mut node = self.node.lock();
        let node = &mut *node;
        // Before any line is made: a replica's line knows all its frames below.
        let as_of = self.log.appended();
        let replicas: Vec<_> = node.replicas.values().map(|replica| replica.list()).collect();
        let lines = replicas.iter().map(|(line, _)| *line);
        let lines = lines.chain(node.quarantined.iter().map(Quarantined::listed));
        let lines = lines.chain(node.tombstones.iter().map(|(&replica, &group)| Listed {
            stream: NODE_STREAM,
            group,
            replica,
            generation: 0,
            last_frame: 0,
            oldest: None,
        }));
        let lines = lines.collect();
        let frame = StreamFrame::Directory(Directory { as_of, lines });
        let mut payload = Vec::new();
        frame.encode(node.last_frame, &mut payload);
        let span = self.append_to_log(NODE_STREAM, frame.kind(), &payload, wait)?;
        node.last_frame = span.start;
        node.directory_end = span.end;
        let (log, buried) = (self.log.clone(), std::mem::take(&mut node.buried));
        let done = move |answer: Result<(), StoreError>| {
            if answer.is_err() {
                return;
            }
            for (line, replica) in replicas {
                replica.live.lock().state.named(span.start);
                replica.pin(&log, line.oldest.unwrap_or_default());
            }
            for replica in buried {
                replica.unpin(&log);
            }
            log.retain(NODE_HOLDER, span.start);
        };
        self.completion.add(span.end, Box::new(done));
        Ok(())
    }
}

impl Registry {
    /// What an opened log holds, which from now on retains what is needed.
    fn recovered(recovered: Recovered, log: &Log) -> Self {
        let mut node = Self {
            quarantined: recovered.quarantined,
            tombstones: recovered.tombstones,
            tombstones_lost: recovered.tombstones_lost,
            retired: recovered.retired,
            last_frame: recovered.node_frame,
            ..Self::default()
        };
        // The first holder lets go of what others have yet to retain, so it retains all, until the
        // first directory of this opening is durable.
        log.retain(NODE_HOLDER, log.recovery().first_frame);
        for lost in &node.quarantined {
            log.retain(&lost.holder(), lost.oldest);
        }
        for (stream, identity, state) in recovered.replicas {
            let oldest = state.oldest_needed();
            let replica = ReplicaStream::new(stream, identity, state);
            replica.pin(log, oldest);
            node.replicas.insert(stream, Arc::new(replica));
        }
        node
    }

    fn replica(&self, id: ReplicaId) -> Option<Arc<ReplicaStream>> {
        let mut replicas = self.replicas.values();
        replicas.find(|replica| replica.identity.replica == id).cloned()
    }

    /// Refuses ids that were here.
    fn check_absent(&self, id: ReplicaId) -> Result<(), StoreError> {
        if self.tombstones.contains_key(&id) {
            return Err(StoreError::Removed { replica: id });
        }
        match self.quarantined.iter().find(|lost| lost.replica == id) {
            Some(lost) => Err(StoreError::Quarantined {
                group: lost.group,
                replica: id,
                lost: lost.lost.clone(),
            }),
            None => Ok(()),
        }
    }

    /// A number that no frame of the log has, which begins at `oldest`.
    fn free_stream(&mut self, oldest: Lsn) -> Result<u32, StoreError> {
        self.retired.retain(|_, last_frame| *last_frame >= oldest);
        let taken = |stream: &u32| {
            self.replicas.contains_key(stream)
                || self.retired.contains_key(stream)
                || self.quarantined.iter().any(|lost| lost.stream == *stream)
        };
        let behind = self.last_stream + 1..STREAMS;
        let mut free = behind.chain(1..=self.last_stream).filter(|stream| !taken(stream));
        free.next().ok_or(StoreError::Streams { limit: STREAMS })
    }
}

impl Quarantined {
    /// How it holds the log.
    fn holder(&self) -> String {
        format!(
            "raft/quarantined replica {} of group {}, stream {}",
            self.replica, self.group, self.stream
        )
    }

    fn listed(&self) -> Listed {
        Listed {
            stream: self.stream,
            group: self.group,
            replica: self.replica,
            generation: self.generation,
            last_frame: QUARANTINED,
            oldest: Some(self.oldest),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl NodeLog {
    /// Opens the log in `dir`, in one pass that finds each replica's state and where its entries
    /// are. Blocks.
    ///
    /// # Errors
    /// The log's; [`StoreError::Frame`] where a later version wrote it.
    pub fn open(dir: impl AsRef<Path>, options: NodeLogOptions) -> Result<Self, StoreError> {
        let limit = options.limit_in(dir.as_ref());
        Self::open_with(dir, options, limit, Arc::default())
    }

    /// Completes what waits for what is durable by now: for logs without threads, in simulations.
    pub fn complete(&self) {
        self.shared.completion.complete(self.shared.log.durable());
    }
}
