//! What the tasks of a node's connections share.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::transport::budget::LaneLimits;
use crate::transport::dispatch::Dispatch;
use crate::transport::leaders::Leaders;
use crate::transport::liveness::NodeStates;
use crate::transport::options::PeersOptions;
use crate::transport::outbox::Written;
use crate::transport::refusals::Refusals;
use crate::transport::slots::Slots;
use crate::transport::wire::NodeId;

pub(super) struct Shared {
    pub(super) options: PeersOptions,
    pub(super) lane: LaneLimits,
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) states: watch::Sender<NodeStates>,
    /// See [`Peers::machine_clocks`](super::Peers::machine_clocks).
    pub(super) machine_clocks: Mutex<BTreeMap<NodeId, i64>>,
    pub(super) leaders: Leaders,
    pub(super) written: Written,
    pub(super) slots: Arc<Slots>,
    pub(super) strangers: Arc<Semaphore>,
    pub(super) refusals: Refusals,
    closing: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
    /// Numbers of requests. They go on over connections: an answer that is late by a whole
    /// connection finds nothing that waits for it.
    next_request: AtomicU64,
}

impl Shared {
    pub(super) fn new(options: PeersOptions, dispatch: Arc<dyn Dispatch>) -> Arc<Self> {
        Arc::new(Self {
            lane: LaneLimits::of(&options.limits),
            slots: Slots::new(options.limits.connections),
            strangers: Arc::new(Semaphore::new(options.limits.strangers)),
            refusals: Refusals::default(),
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
