//! What goes out on a connection: what is queued for it, how much may be on its way, and which requests have no
//! answer yet.
//!
//! One write takes what many groups have queued. Each of the two connections to a peer has half of the limit
//! of a group, and of that of all groups, so that files never take the room of raft's messages.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex as FairMutex, Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::ids::{GroupId, ReplicaId};
use crate::transport::error::End;
use crate::transport::options::Limits;
use crate::transport::wire::{Frame, Kind, Message, Response};

/// Pings and their answers that may wait: one that the peer does not take is enough.
const URGENT_MAX: usize = 64;

/// The frames on their way to one connection.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    ready: Notify,
    bytes_max: usize,
    /// Why the connection is to end, though its reader and writer see no reason.
    kick: Mutex<Option<End>>,
    kicked: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Pings and pongs: behind the others they would measure the queue.
    urgent: VecDeque<Vec<u8>>,
    frames: VecDeque<Queued>,
    bytes: usize,
    /// Whether a frame is to be written at once.
    hurries: bool,
    /// No frame is taken any more; what is there is still written.
    finished: bool,
}

#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    /// The room that the frame takes. Kept until it is written, also if nothing waits for an
    /// answer any more.
    permit: Option<Arc<Permit>>,
}

/// When a frame is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// At once.
    Now,
    /// With what the tasks send that are ready to run: heartbeats of many groups, and their answers, come
    /// at one moment, and are one write.
    Together,
}

/// What one write takes.
#[derive(Debug, Default)]
struct WriteBatch {
    bytes: Vec<u8>,
    frames: u64,
    permits: Vec<Arc<Permit>>,
}

/// How much was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    frames: AtomicU64,
    bytes: AtomicU64,
    writes: AtomicU64,
}

/// The connection takes no frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unqueued;

impl Outbox {
    pub(super) fn new(bytes_max: usize) -> Self {
        let (ready, kicked) = (Notify::new(), Notify::new());
        Self {
            queue: Mutex::default(),
            ready,
            bytes_max,
            kick: Mutex::default(),
            kicked,
        }
    }

    /// Queues a frame behind the others.
    pub(super) fn push(
        &self,
        bytes: Vec<u8>,
        permit: Option<Arc<Permit>>,
        haste: Haste,
    ) -> Result<(), Unqueued> {
        let mut queue = self.queue.lock();
        // A frame alone always has room, as one may be as large as the limit.
        if queue.finished || (queue.bytes > 0 && queue.bytes + bytes.len() > self.bytes_max) {
            return Err(Unqueued);
        }
        queue.bytes += bytes.len();
        queue.frames.push_back(Queued { bytes, permit });
        queue.hurries |= haste == Haste::Now;
        drop(queue);
        self.ready.notify_one();
        Ok(())
    }

    /// Queues a ping or its answer, before all other frames.
    pub(super) fn push_urgent(&self, bytes: Vec<u8>) -> Result<(), Unqueued> {
        let mut queue = self.queue.lock();
        if queue.finished || queue.urgent.len() == URGENT_MAX {
            return Err(Unqueued);
        }
        queue.urgent.push_back(bytes);
        drop(queue);
        self.ready.notify_one();
        Ok(())
    }

    /// Takes no more frames. Those that are queued are still written, and then the connection's
    /// sending half is closed.
    pub(super) fn finish(&self) {
        self.queue.lock().finished = true;
        self.ready.notify_one();
    }

    /// Takes no more frames, and forgets those that are queued: the connection has ended.
    pub(super) fn abandon(&self) {
        let mut queue = self.queue.lock();
        *queue = Queue {
            finished: true,
            ..Queue::default()
        };
        drop(queue);
        self.ready.notify_one();
    }

    /// Queues an answer. The connection of a peer that does not take its answers ends.
    pub(super) fn push_answer(&self, bytes: Vec<u8>, haste: Haste) {
        if self.push(bytes, None, haste).is_err() {
            let queued = self.queue.lock().bytes;
            self.kick(End::Unread { bytes: queued });
        }
    }

    /// The connection is to end.
    pub(super) fn kick(&self, why: End) {
        self.kick.lock().get_or_insert(why);
        self.kicked.notify_one();
    }

    /// Waits until the connection is to end. One task at a time waits.
    pub(super) async fn kicked(&self) -> End {
        loop {
            if let Some(end) = &*self.kick.lock() {
                return end.clone();
            }
            self.kicked.notified().await;
        }
    }

    /// Waits for frames and gathers those of the next write; `false` if there will be none.
    async fn gather(&self, batch: &mut WriteBatch, most: usize) -> bool {
        let mut others_ran = false;
        loop {
            let ready = self.ready.notified();
            let waits_for_others = {
                let mut queue = self.queue.lock();
                let waits = !(others_ran || queue.hurries || queue.is_empty());
                if !waits {
                    queue.gather(batch, most);
                    if batch.frames > 0 {
                        return true;
                    }
                    if queue.finished {
                        return false;
                    }
                }
                waits
            };
            match waits_for_others {
                true => yield_now().await,
                false => ready.await,
            }
            others_ran = waits_for_others;
        }
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.frames.is_empty()
    }

    fn gather(&mut self, batch: &mut WriteBatch, most: usize) {
        while let Some(bytes) = self.urgent.pop_front() {
            batch.put(bytes, None);
        }
        while let Some(next) = self.frames.front()
            && (batch.frames == 0 || batch.bytes.len() + next.bytes.len() <= most)
            && let Some(Queued { bytes, permit }) = self.frames.pop_front()
        {
            self.bytes -= bytes.len();
            batch.put(bytes, permit);
        }
        self.hurries &= !self.frames.is_empty();
    }
}

impl WriteBatch {
    fn put(&mut self, bytes: Vec<u8>, permit: Option<Arc<Permit>>) {
        // A large frame comes alone, and is not copied.
        match self.bytes.is_empty() && bytes.len() > self.bytes.capacity() {
            true => self.bytes = bytes,
            false => self.bytes.extend_from_slice(&bytes),
        }
        self.permits.extend(permit);
        self.frames += 1;
    }
}

/// Writes what is queued until no more will be, and closes the sending half then.
pub(super) async fn write_frames<W: AsyncWrite + Unpin>(
    mut to: W,
    outbox: &Outbox,
    batch_bytes: usize,
    stall: Duration,
    written: &Written,
) -> Result<(), End> {
    let mut batch = WriteBatch {
        bytes: Vec::with_capacity(4096),
        ..WriteBatch::default()
    };
    while outbox.gather(&mut batch, batch_bytes).await {
        let write = async {
            to.write_all(&batch.bytes).await?;
            to.flush().await
        };
        timeout(stall, write).await.map_err(|_| End::Stalled(stall))??;
        written.frames.fetch_add(batch.frames, Ordering::Relaxed);
        written
            .bytes
            .fetch_add(batch.bytes.len() as u64, Ordering::Relaxed);
        written.writes.fetch_add(1, Ordering::Relaxed);
        batch.frames = 0;
        batch.permits.clear();
        batch.bytes.clear();
        // The memory of a large frame goes; that of an ordinary batch stays.
        batch.bytes.shrink_to(batch_bytes);
    }
    timeout(stall, to.shutdown())
        .await
        .map_err(|_| End::Stalled(stall))??;
    Ok(())
}

/// Groups that are kept before those that nothing is on its way of are looked for.
const GROUPS_KEPT: usize = 1024;

/// The room on one connection to a peer.
#[derive(Debug)]
pub(super) struct Budget {
    peer: Arc<Semaphore>,
    groups: Mutex<HashMap<GroupId, Arc<GroupBudget>>>,
    limits: LaneLimits,
}

/// The limits of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneLimits {
    pub(super) peer_bytes: u32,
    pub(super) group_bytes: u32,
    pub(super) group_appends: u32,
    pub(super) requests: usize,
}

#[derive(Debug)]
struct GroupBudget {
    /// Held from the wait for room until the frame is queued: tokio's mutex is fair, so frames are
    /// queued in the order in which they were to be sent, though they wait for three semaphores.
    turn: Arc<FairMutex<()>>,
    appends: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The room that one request takes, from before it is queued until it is both written and answered
/// or given up.
#[derive(Debug)]
pub(super) struct Permit {
    _append: Option<OwnedSemaphorePermit>,
    _group: OwnedSemaphorePermit,
    _peer: OwnedSemaphorePermit,
}

/// The right to queue the next frame of a group.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "held, and dropped")] OwnedMutexGuard<()>);

impl LaneLimits {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            peer_bytes: limits.peer_bytes / 2,
            group_bytes: limits.group_bytes / 2,
            group_appends: limits.group_appends,
            requests: limits.requests,
        }
    }
}

impl Budget {
    pub(super) fn new(limits: LaneLimits) -> Self {
        Self {
            peer: Arc::new(Semaphore::new(limits.peer_bytes as usize)),
            groups: Mutex::default(),
            limits,
        }
    }

    /// Waits for room. The caller queues its frame before it lets the turn go.
    pub(super) async fn take(&self, group: GroupId, bytes: usize, append: bool) -> (Turn, Arc<Permit>) {
        let group = self.group(group);
        let turn = Arc::clone(&group.turn).lock_owned().await;
        let append = match append {
            true => Some(acquire(&group.appends, 1).await),
            false => None,
        };
        // What is larger than a limit goes alone.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let of_group = acquire(&group.bytes, bytes.min(self.limits.group_bytes)).await;
        let of_peer = acquire(&self.peer, bytes.min(self.limits.peer_bytes)).await;
        (
            Turn(turn),
            Arc::new(Permit {
                _append: append,
                _group: of_group,
                _peer: of_peer,
            }),
        )
    }

    fn group(&self, group: GroupId) -> Arc<GroupBudget> {
        let mut groups = self.groups.lock();
        if groups.len() >= GROUPS_KEPT && !groups.contains_key(&group) {
            groups.retain(|_, group| Arc::strong_count(group) > 1 || !group.is_idle(self.limits));
        }
        let made = || {
            Arc::new(GroupBudget {
                turn: Arc::default(),
                appends: Arc::new(Semaphore::new(self.limits.group_appends as usize)),
                bytes: Arc::new(Semaphore::new(self.limits.group_bytes as usize)),
            })
        };
        Arc::clone(groups.entry(group).or_insert_with(made))
    }
}

impl GroupBudget {
    fn is_idle(&self, limits: LaneLimits) -> bool {
        self.bytes.available_permits() == limits.group_bytes as usize
    }
}

async fn acquire(from: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    match Arc::clone(from).acquire_many_owned(count).await {
        Ok(permit) => permit,
        // No code closes it; were it closed, nothing could be sent.
        Err(_) => std::future::pending().await,
    }
}

/// What is waited for, by the number of the request.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: Mutex<Waitings>,
}

#[derive(Debug, Default)]
struct Waitings {
    by_request: BTreeMap<u64, PendingRequest>,
    /// Why no answer will come any more.
    ended: Option<End>,
}

#[derive(Debug)]
struct PendingRequest {
    kind: Kind,
    group: GroupId,
    from: ReplicaId,
    to: ReplicaId,
    answer: oneshot::Sender<Result<Response, End>>,
    /// Given back with the answer.
    _permit: Option<Arc<Permit>>,
}

/// Why a request cannot wait for an answer.
#[derive(Debug)]
pub(super) enum Unawaited {
    /// The connection has ended.
    Ended(End),
    /// There are as many as there may be.
    Full,
}

/// The place of one request among those that wait. Dropped, the request is given up.
#[derive(Debug)]
pub(super) struct PendingSlot {
    pending: Arc<Pending>,
    request: u64,
}

impl Pending {
    /// Notes a request that will be sent, at most as the `most`th.
    pub(super) fn enter(
        self: &Arc<Self>,
        frame: &Frame,
        permit: Option<Arc<Permit>>,
        most: usize,
    ) -> Result<(PendingSlot, oneshot::Receiver<Result<Response, End>>), Unawaited> {
        let (answer, receiver) = oneshot::channel();
        let &Frame {
            group,
            from,
            to,
            request,
            ..
        } = frame;
        let waiting = PendingRequest {
            kind: frame.message.kind(),
            group,
            from,
            to,
            answer,
            _permit: permit,
        };
        let mut waitings = self.waiting.lock();
        if let Some(end) = &waitings.ended {
            return Err(Unawaited::Ended(end.clone()));
        }
        if waitings.by_request.len() >= most {
            return Err(Unawaited::Full);
        }
        waitings.by_request.insert(request, waiting);
        Ok((
            PendingSlot {
                pending: Arc::clone(self),
                request,
            },
            receiver,
        ))
    }

    /// Hands an answer to what waits for it. One that nothing waits for came too late.
    pub(super) fn answer(&self, frame: Frame) -> Result<(), End> {
        let Frame {
            group,
            from,
            to,
            request,
            message,
        } = frame;
        let Message::Response(response) = message else {
            return Err(End::Unexpected {
                expected: "an answer",
                found: message.kind(),
            });
        };
        let Some(waiting) = self.waiting.lock().by_request.remove(&request) else {
            return Ok(());
        };
        let found = response.kind();
        if !found.answers(waiting.kind) || (group, from, to) != (waiting.group, waiting.to, waiting.from) {
            let end = End::Mismatch {
                request,
                asked: waiting.kind,
                found,
            };
            let _gone = waiting.answer.send(Err(end.clone()));
            return Err(end);
        }
        // An error: what waited has just been given up.
        let _gone = waiting.answer.send(Ok(response));
        Ok(())
    }

    /// The connection has ended: no answer comes any more.
    pub(super) fn end(&self, end: &End) {
        let mut waitings = self.waiting.lock();
        waitings.ended = Some(end.clone());
        let all = std::mem::take(&mut waitings.by_request);
        drop(waitings);
        for waiting in all.into_values() {
            let _gone = waiting.answer.send(Err(end.clone()));
        }
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        let given_up = self.pending.waiting.lock().by_request.remove(&self.request);
        drop(given_up);
    }
}

#[cfg(feature = "testing")]
impl Written {
    /// Frames, their bytes, and the writes that took them.
    pub(super) fn read(&self) -> (u64, u64, u64) {
        // Counters that nothing is concluded from.
        (
            self.frames.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
            self.writes.load(Ordering::Relaxed),
        )
    }
}
