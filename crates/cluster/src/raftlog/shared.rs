//! What all handles to a log of a node share: the log, and which replicas are in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use collie_log::{Level, Log, LogError, LogOptions, Lsn, RecoveryMode, Span, Worker};
use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::ids::{GroupId, ReplicaId};
use crate::map::MAP_GROUP;
use crate::raftlog::completion::{Completion, Done};
use crate::raftlog::error::StoreError;
use crate::raftlog::frames::{Directory, Listed, NODE_STREAM, STREAMS, State, StreamFrame, Tombstone};
use crate::raftlog::limit::{Alarms, Cuts, Limit, used};
use crate::raftlog::options::{EntryDurability, NodeLogOptions};
use crate::raftlog::recovery::{QUARANTINED, Quarantined, Recovered, Recovery};
use crate::raftlog::state::{Presence, ReplicaStream, StreamIdentity, StreamState};

/// Who holds the log for stream 0.
const NODE_HOLDER: &str = "raft/node";
/// Threads of a runtime that append at one instant; more wait for as long as a copy takes.
const WORKERS: usize = 16;
/// A frame of entries is closed at so many bytes.
const FRAME_BYTES: usize = 1 << 20;

/// Counters that the log's statistics show.
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
    pub(super) node: Mutex<Registry>,
    pub(super) options: NodeLogOptions,
    pub(super) limit: Limit,
    pub(super) counters: Counters,
    /// Whether replicas in this log may take over leadership: its disk has not been full lately.
    pub(super) may_take_over: AtomicBool,
    /// Room on its disk is left to what makes room.
    pub(super) withheld: AtomicBool,
    /// Bytes of entries that room is reserved for.
    pub(super) reserved: AtomicU64,
    /// Bytes of commands in parts that are to be appended.
    pub(super) in_parts: AtomicU64,
    pub(super) dir: PathBuf,
}

/// A log, and a replica's stream in it.
pub(super) struct Residence {
    pub(super) log: Arc<NodeLogInner>,
    pub(super) replica: Arc<ReplicaStream>,
}

impl Residence {
    /// Waits until the log is durable up to what was appended here. Of a replica that has moved away since, that
    /// was so before.
    pub(super) async fn wait_async(&self, end: Lsn) -> Result<(), StoreError> {
        self.unless_gone(self.log.log.wait_async(end, Level::Disk).await)
    }

    /// As [`Residence::wait_async`], and blocks.
    pub(super) fn wait(&self, end: Lsn) -> Result<(), StoreError> {
        self.unless_gone(self.log.log.wait(end, Level::Disk))
    }

    /// Calls `done` when entries up to `end` are what the node acknowledges.
    pub(super) fn when_it_counts(&self, end: Lsn, done: Done) {
        let counts_in_ring =
            self.log.options.entries == EntryDurability::Process && self.replica.identity.group != MAP_GROUP;
        match counts_in_ring && self.log.survives_process(end) {
            true => done(Ok(())),
            false => self.log.when_durable(end, done),
        }
    }

    fn unless_gone<T>(&self, waited: Result<T, LogError>) -> Result<(), StoreError> {
        match waited {
            Ok(_) => Ok(()),
            Err(_) if self.is_gone() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the replica has moved away.
    pub(super) fn is_gone(&self) -> bool {
        self.replica.live.lock().presence == Presence::Gone
    }
}

/// Where a replica's log is now.
pub(super) struct Home(ArcSwap<Residence>);

impl Home {
    pub(super) fn new(log: Arc<NodeLogInner>, replica: Arc<ReplicaStream>) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(Residence { log, replica })))
    }

    pub(super) fn residence(&self) -> Arc<Residence> {
        self.0.load_full()
    }

    /// Answers what is purged, as long as others have the log.
    pub(super) fn purged(this: &Arc<Self>) -> impl Fn() -> Option<u64> + use<> {
        let this = Arc::downgrade(this);
        move || {
            let residence = this.upgrade()?.residence();
            let live = residence.replica.live.lock();
            live.state.purged.map(|purged| purged.index)
        }
    }

    pub(super) fn set(&self, residence: Arc<Residence>) {
        self.0.store(residence);
    }
}

/// What concerns all streams. Its lock is taken before a replica's.
#[derive(Default)]
pub(super) struct Registry {
    /// By stream.
    replicas: BTreeMap<u32, Arc<ReplicaStream>>,
    /// What the handles to a replica share, by stream.
    homes: BTreeMap<u32, Weak<Home>>,
    /// Copies of replicas that are in other logs until these are complete. No directory names them.
    coming: BTreeMap<u32, Arc<ReplicaStream>>,
    pub(super) quarantined: Vec<Quarantined>,
    pub(super) tombstones: BTreeMap<ReplicaId, GroupId>,
    pub(super) tombstones_lost: bool,
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

impl NodeLogInner {
    /// Opens the log in `dir`. It may become as long as `limit`, and `pressed` is woken when it is to be made
    /// shorter.
    pub(super) fn open(
        dir: &Path,
        options: NodeLogOptions,
        limit: u64,
        alarms: Alarms,
    ) -> Result<Self, StoreError> {
        let options = options.fitting(limit);
        let log_options = LogOptions {
            recovery_mode: RecoveryMode::SkipDamaged,
            ..options.log.clone()
        };
        let threads = log_options.threads;
        let workers = WORKERS.min(log_options.max_workers);
        let mut recovery = Recovery::default();
        let log = Log::open_with(dir, log_options, |frame| recovery.visit(frame))?;
        let recovered = recovery.finish(&log.recovery().damaged);
        let workers = (0..workers).map(|_| log.worker().map(Mutex::new));
        let this = Self {
            workers: workers.collect::<Result<_, _>>()?,
            threads,
            completion: Completion::default(),
            node: Mutex::new(Registry::recovered(recovered, &log)),
            options,
            limit: Limit::new(limit, alarms),
            counters: Counters::default(),
            may_take_over: AtomicBool::new(true),
            withheld: AtomicBool::new(false),
            reserved: AtomicU64::new(0),
            in_parts: AtomicU64::new(0),
            dir: dir.to_owned(),
            log,
        };
        // From here on, damage to what was read is seen by whom it hits. On a full disk that comes
        // later: until then all of the log is retained.
        match this.append_directory(true) {
            Err(StoreError::Log(error @ LogError::StorageFull { .. })) => {
                tracing::error!(%error, "a log of the node is opened on a full disk");
            }
            done => done?,
        }
        Ok(this)
    }

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
        if let Err((done, error)) = self.completion.add(end, done) {
            // What is durable is so, also in a log that was closed since.
            let is_durable = self.log.durable() >= end;
            return done(if is_durable { Ok(()) } else { Err(error) });
        }
        // It may have become durable before it was added.
        let durable = self.log.durable();
        if durable >= end {
            self.completion.complete(durable);
        }
    }

    /// Whether what was appended up to `end` is found by another process when this one is killed, without the disk.
    pub(super) fn survives_process(&self, end: Lsn) -> bool {
        // A private ring would have to be written for it, which waits as the disk does.
        self.log.recovery().ring_shared
            && matches!(
                self.log.wait_async(end, Level::Process).now_or_never(),
                Some(Ok(()))
            )
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
        used(&self.log)
    }

    /// What the log keeps now.
    pub(super) fn cuts(&self) -> Cuts {
        self.limit.cuts(&self.log, self.options.retention)
    }

    pub(super) fn replicas(&self) -> Vec<Arc<ReplicaStream>> {
        self.node.lock().replicas()
    }

    /// Begins a stream with this state; of a copy, what it is copied from is `of`.
    pub(super) fn try_create(
        &self,
        first: State,
        of: Option<&ReplicaStream>,
        payload: &mut Vec<u8>,
    ) -> Result<(Arc<ReplicaStream>, Span), StoreError> {
        // Held until the replica is listed: no directory behind its first frame leaves it out.
        let mut node = self.node.lock();
        let (group, id) = (first.group, first.replica);
        if node.stream_of(id).is_some() {
            return Err(StoreError::Exists { group, replica: id });
        }
        node.check_absent(id)?;
        let stream = node.free_stream(self.log.oldest())?;
        let mut state = StreamState::default();
        let frame = StreamFrame::State(first);
        frame.encode(0, payload);
        let span = self.append(stream, &frame, payload)?;
        state.apply(0, &frame, span);
        let identity = StreamIdentity {
            group,
            replica: id,
            generation: first.generation,
        };
        let replica = Arc::new(ReplicaStream::new(stream, identity, state, of));
        replica.pin(&self.log, span.start);
        let all = match first.is_coming() {
            true => &mut node.coming,
            false => &mut node.replicas,
        };
        all.insert(stream, Arc::clone(&replica));
        node.last_stream = stream;
        Ok((replica, span))
    }

    /// Appends a tombstone, and waits for room or not.
    pub(super) fn try_remove(
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
        let span = match node.stream_of(tombstone.replica) {
            Some(replica) => {
                let mut live = replica.live.lock();
                let prev = live.state.last_frame;
                frame.encode(prev, payload);
                let span = self.append_to_log(replica.stream, frame.kind(), payload, wait)?;
                live.state.apply(prev, &frame, span);
                drop(live);
                // What waits for the end of a move.
                replica.resumed.notify_waiters();
                node.retire(replica, span.start);
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
        if let Some(holder) = node.let_go_of_quarantined(|lost| lost.replica == tombstone.replica) {
            let log = self.log.clone();
            let release = move |answer: Result<(), StoreError>| {
                if answer.is_ok() {
                    log.release(&holder);
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
    pub(super) fn append_directory(&self, wait: bool) -> Result<(), StoreError> {
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
        if let Err((done, error)) = self.completion.add(span.end, Box::new(done)) {
            done(Err(error));
        }
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
            let (oldest, is_coming) = (state.oldest_needed(), state.coming);
            let replica = ReplicaStream::new(stream, identity, state, None);
            replica.pin(log, oldest);
            let all = match is_coming {
                true => &mut node.coming,
                false => &mut node.replicas,
            };
            all.insert(stream, Arc::new(replica));
        }
        node
    }

    pub(super) fn replicas(&self) -> Vec<Arc<ReplicaStream>> {
        self.replicas.values().cloned().collect()
    }

    pub(super) fn replica(&self, id: ReplicaId) -> Option<Arc<ReplicaStream>> {
        find(&self.replicas, id)
    }

    /// A replica that is here, or comes here.
    pub(super) fn stream_of(&self, id: ReplicaId) -> Option<Arc<ReplicaStream>> {
        self.replica(id).or_else(|| find(&self.coming, id))
    }

    /// The replicas of which copies are not complete, and the copies' streams.
    pub(super) fn coming(&self) -> Vec<(GroupId, ReplicaId, u32)> {
        let coming = self.coming.values();
        let coming = coming.map(|copy| (copy.identity.group, copy.identity.replica, copy.stream));
        let lost = self.quarantined.iter().filter(|lost| lost.coming);
        let lost = lost.map(|lost| (lost.group, lost.replica, lost.stream));
        coming.chain(lost).collect()
    }

    /// The replicas that are here, the generations of their streams, and these.
    pub(super) fn generations(&self) -> Vec<(ReplicaId, u32, u32)> {
        let whole = self.replicas.values().map(|replica| {
            let live = replica.live.lock();
            let generation = live.state.identity.map_or(0, |identity| identity.generation);
            (replica.identity.replica, generation, replica.stream)
        });
        // Without an id, no frame is left that says whose it is.
        let lost = self.quarantined.iter();
        let lost = lost.filter(|lost| !lost.coming && lost.replica != 0);
        whole
            .chain(lost.map(|lost| (lost.replica, lost.generation, lost.stream)))
            .collect()
    }

    /// Quarantines the copy of a replica that is in no other log.
    pub(super) fn quarantine_copy(&mut self, stream: u32) -> Option<(Arc<ReplicaStream>, Quarantined)> {
        let copy = self.coming.remove(&stream)?;
        let oldest = copy.live.lock().state.oldest_needed();
        let lost = Quarantined {
            group: copy.identity.group,
            replica: copy.identity.replica,
            lost: "it was being copied from another log, which is not there".to_owned(),
            stream: copy.stream,
            generation: copy.identity.generation,
            coming: true,
            oldest,
        };
        self.quarantined.push(lost.clone());
        Some((copy, lost))
    }

    /// Whether a copy is here that is not complete.
    pub(super) fn is_coming(&self, copy: &ReplicaStream) -> bool {
        self.coming.contains_key(&copy.stream)
    }

    /// It is complete, and the handles to the replica share this.
    pub(super) fn has_come(&mut self, copy: &Arc<ReplicaStream>, home: &Arc<Home>) {
        self.coming.remove(&copy.stream);
        self.homes.insert(copy.stream, Arc::downgrade(home));
        self.replicas.insert(copy.stream, Arc::clone(copy));
    }

    /// The stream of this number.
    pub(super) fn stream(&self, stream: u32) -> Option<Arc<ReplicaStream>> {
        let here = self.replicas.get(&stream);
        here.or_else(|| self.coming.get(&stream)).cloned()
    }

    /// What the handles to a replica share.
    pub(super) fn home(&mut self, log: &Arc<NodeLogInner>, replica: Arc<ReplicaStream>) -> Arc<Home> {
        let known = self.homes.entry(replica.stream).or_default();
        known.upgrade().unwrap_or_else(|| {
            let home = Home::new(Arc::clone(log), replica);
            *known = Arc::downgrade(&home);
            home
        })
    }

    /// Lets go of a quarantined replica. Returns how it holds the log.
    pub(super) fn let_go_of_quarantined(&mut self, is_it: impl Fn(&Quarantined) -> bool) -> Option<String> {
        let at = self.quarantined.iter().position(is_it)?;
        let lost = self.quarantined.remove(at);
        // Its frames are damaged: which is the last is not known.
        self.retired.insert(lost.stream, QUARANTINED);
        Some(lost.holder())
    }

    /// Lets a stream go, once a directory that leaves it out is durable.
    pub(super) fn retire(&mut self, replica: Arc<ReplicaStream>, last_frame: Lsn) {
        let stream = replica.stream;
        let was_here = self.replicas.remove(&stream).or(self.coming.remove(&stream));
        // The number may be another's.
        self.homes.remove(&stream);
        if was_here.is_some() {
            self.retired.insert(stream, last_frame);
            self.buried.push(replica);
        }
    }

    /// Refuses ids that were here.
    pub(super) fn check_absent(&self, id: ReplicaId) -> Result<(), StoreError> {
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
                || self.coming.contains_key(stream)
                || self.retired.contains_key(stream)
                || self.quarantined.iter().any(|lost| lost.stream == *stream)
        };
        let behind = self.last_stream + 1..STREAMS;
        let mut free = behind.chain(1..=self.last_stream).filter(|stream| !taken(stream));
        free.next().ok_or(StoreError::Streams { limit: STREAMS })
    }
}

fn find(streams: &BTreeMap<u32, Arc<ReplicaStream>>, id: ReplicaId) -> Option<Arc<ReplicaStream>> {
    let mut replicas = streams.values();
    replicas.find(|replica| replica.identity.replica == id).cloned()
}

impl Quarantined {
    /// How it holds the log.
    pub(super) fn holder(&self) -> String {
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
