//! What the tasks of a node's connections share: the connections that peers have made to this node, one of each
//! lane for each of them, and what the log says of those that are refused.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::beat::Beat;
use crate::transport::dispatch::Dispatch;
use crate::transport::error::{End, GreetingError};
use crate::transport::liveness::{Leaders, NodeStates};
use crate::transport::options::PeersOptions;
use crate::transport::outbox::{LaneLimits, Outbox, Written};
use crate::transport::wire::{Hello, Lane, NodeId};

pub(super) struct PeersInner {
    pub(super) options: PeersOptions,
    pub(super) lane: LaneLimits,
    pub(super) beat: Beat,
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) states: watch::Sender<NodeStates>,
    /// See [`Peers::machine_clocks`](super::Peers::machine_clocks).
    pub(super) machine_clocks: Mutex<BTreeMap<NodeId, i64>>,
    pub(super) leaders: Leaders,
    pub(super) written: Written,
    pub(super) slots: Arc<Slots>,
    pub(super) strangers: Arc<Semaphore>,
    pub(super) refusals: Refusals,
    /// The feature level of the cluster.
    level: AtomicU32,
    closing: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
    /// Numbers of requests. They go on over connections: an answer that is late by a whole
    /// connection finds nothing that waits for it.
    next_request: AtomicU64,
}

impl PeersInner {
    pub(super) fn new(options: PeersOptions, dispatch: Arc<dyn Dispatch>) -> Arc<Self> {
        Arc::new(Self {
            lane: LaneLimits::of(&options.limits),
            beat: Beat::begin(),
            slots: Slots::new(options.limits.connections),
            strangers: Arc::new(Semaphore::new(options.limits.strangers)),
            refusals: Refusals::default(),
            level: AtomicU32::new(options.identity.level),
            options,
            dispatch,
            states: watch::Sender::default(),
            machine_clocks: Mutex::default(),
            leaders: Leaders::default(),
            written: Written::default(),
            closing: watch::Sender::new(false),
            tasks: Mutex::default(),
            next_request: AtomicU64::new(1),
        })
    }

    /// The feature level of the cluster, as this node knows it.
    pub(super) fn level(&self) -> u32 {
        // Relaxed, also below: nothing else hangs on it.
        self.level.load(Ordering::Relaxed)
    }

    pub(super) fn set_level(&self, level: u32) {
        self.level.store(level, Ordering::Relaxed);
    }

    pub(super) fn next_request(&self) -> u64 {
        // Only that no number comes twice.
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs a task, unless the node is closing its connections.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        if *self.closing.borrow() {
            return;
        }
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Waits until the node closes its connections.
    pub(super) async fn closed(&self) {
        let mut closing = self.closing.subscribe();
        // An error: the sender is in `self`.
        let _never = closing.wait_for(|&closing| closing).await;
    }

    /// Lets all tasks end by themselves.
    pub(super) fn begin_close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits for the tasks to end, and stops those that do not within `most`.
    pub(super) async fn join(&self, most: Duration) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(most, all).await.is_err() {
            tasks.shutdown().await;
        }
    }
}

#[derive(Debug)]
pub(super) struct Slots {
    taken: Mutex<HashMap<(NodeId, Lane), Slot>>,
    most: usize,
}

#[derive(Debug)]
struct Slot {
    boot: [u8; 16],
    heard: Instant,
    outbox: Arc<Outbox>,
}

/// The place of one connection, until it ends.
#[derive(Debug)]
pub(super) struct Taken {
    slots: Arc<Slots>,
    pub(super) node: NodeId,
    pub(super) lane: Lane,
    /// The peer's process.
    pub(super) boot: [u8; 16],
    outbox: Arc<Outbox>,
}

impl Slots {
    /// Ends the connections of a peer to this node.
    pub(super) fn end(&self, node: NodeId) {
        let taken = self.taken.lock();
        let of_node = taken.iter().filter(|((peer, _), _)| *peer == node);
        of_node.for_each(|(_, slot)| slot.outbox.abandon());
    }

    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            most,
        })
    }

    /// Takes the place of a peer's connection. An older one of the same process ends: the peer has
    /// given it up, though this node has not noticed. One of another process that was heard within
    /// `recent` is alive, so there are two processes with one number.
    pub(super) fn take(
        self: &Arc<Self>,
        hello: &Hello,
        outbox: &Arc<Outbox>,
        recent: Duration,
    ) -> Result<Taken, GreetingError> {
        let mut taken = self.taken.lock();
        let node = hello.node;
        for lane in [Lane::Raft, Lane::Bulk] {
            if let Some(slot) = taken.get(&(node, lane))
                && slot.boot != hello.boot
                && slot.heard.elapsed() < recent
            {
                return Err(GreetingError::SecondBoot { node });
            }
        }
        let place = (node, hello.lane);
        if taken.len() >= self.most && !taken.contains_key(&place) {
            return Err(GreetingError::Connections { limit: self.most });
        }
        let slot = Slot {
            boot: hello.boot,
            heard: Instant::now(),
            outbox: Arc::clone(outbox),
        };
        if let Some(older) = taken.insert(place, slot) {
            older.outbox.kick(End::Replaced);
        }
        Ok(Taken {
            slots: Arc::clone(self),
            node,
            lane: hello.lane,
            boot: hello.boot,
            outbox: Arc::clone(outbox),
        })
    }
}

impl Taken {
    /// Whether no newer connection has its place.
    pub(super) fn is_current(&self) -> bool {
        let taken = self.slots.taken.lock();
        let slot = taken.get(&(self.node, self.lane));
        slot.is_some_and(|slot| Arc::ptr_eq(&slot.outbox, &self.outbox))
    }

    /// A frame came on the connection.
    pub(super) fn heard(&self) {
        if let Some(slot) = self.slots.taken.lock().get_mut(&(self.node, self.lane))
            && Arc::ptr_eq(&slot.outbox, &self.outbox)
        {
            slot.heard = Instant::now();
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        let place = (self.node, self.lane);
        if taken
            .get(&place)
            .is_some_and(|slot| Arc::ptr_eq(&slot.outbox, &self.outbox))
        {
            taken.remove(&place);
        }
    }
}

/// Logs refused connections, a limited number of them.
#[derive(Debug)]
pub(super) struct Refusals {
    made: Instant,
    counted: collie_tls::Refusals,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            made: Instant::now(),
            counted: collie_tls::Refusals::default(),
        }
    }
}

impl Refusals {
    /// Logs a refusal, unless too many were logged lately.
    pub(super) fn report(&self, address: SocketAddr, end: &End) {
        match self.counted.next(self.made.elapsed()) {
            Some(0) => tracing::warn!(%address, %end, "the connection of a peer is refused"),
            Some(left_out) => tracing::warn!(
                %address, %end, left_out,
                "the connection of a peer is refused, as others were that are not logged"
            ),
            None => tracing::debug!(%address, %end, "the connection of a peer is refused"),
        }
    }
}
