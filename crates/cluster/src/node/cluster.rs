//! A node of a cluster, from its start to its end.

use std::sync::Arc;

use collie_db::Db;
use collie_io::Clock;
use collie_server::cluster::Cluster;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::identity::{IdentityError, IdentityStore, NodeIdentity};
use crate::map::Map;
use crate::node::admission::Gate;
use crate::node::begin::begin;
use crate::node::clocks::watch_clocks;
use crate::node::cluster_error::ClusterError;
use crate::node::cluster_options::{Begin, ClusterOptions};
use crate::node::controller::control;
use crate::node::follower::follow;
use crate::node::handing_over::take_over;
use crate::node::routing::{Routes, Routing};
use crate::node::shared::Inner;
use crate::node::status::ClusterStatus;
use crate::node::steady::{LeadingClock, SteadyClock, Verdict};
use crate::node::suspicion::watch_nodes;
use crate::node::telling::tell_leaders;
use crate::node::{Node, NodeError, NodeOptions};
use crate::raftlog::StoreError;
use crate::transport::{Identity, Network, PeersOptions};

/// A node of a cluster that runs: its logs, connections and replicas, the map, and what follows and
/// changes it. Dropped, it ends without closing its stores properly; see [`close`](Self::close).
pub struct ClusterNode {
    inner: Arc<Inner>,
    tasks: Mutex<JoinSet<()>>,
}

impl ClusterNode {
    /// Starts a node on what is in its directory; makes a cluster, or joins one, where `with` says so
    /// and it is no node yet. To be called on a tokio runtime.
    ///
    /// Returns once the node is one, durably, and takes connections. A join waits for a node of the
    /// cluster that answers, for ever; it may be given up by dropping the future, and goes on when it
    /// is called again. The map and the replicas come later: see [`ready`](Self::ready).
    ///
    /// # Errors
    /// [`ClusterError`]. Each says what to do.
    pub async fn start<N: Network + Clone>(
        network: N,
        options: ClusterOptions,
        with: Begin,
    ) -> Result<Self, ClusterError> {
        let options = options.checked(&with)?;
        let (dir, own) = (options.dir.clone(), options.own.clone());
        let device = Arc::clone(&options.machine.db.device);
        let store = blocking(move || {
            device.create_dir_all(&dir).map_err(|error| IdentityError::Io {
                op: "create",
                path: dir.clone(),
                error: Arc::new(error),
            })?;
            IdentityStore::open(&dir, own)
        });
        let store = store.await?;
        let identity = begin(&network, &options, &store, with).await?;
        let gate = Arc::new(Gate::default());
        // A join may wait for long, while the clock of the machine is set right.
        let clock = Arc::new(SteadyClock::new(Arc::clone(&options.clock)));
        let own_store = store.clone();
        if blocking(move || own_store.clock_was_off()).await? {
            clock.set_verdict(Verdict::WasOff);
        }
        let mut node_options = node_options(&options, &identity, Arc::clone(&gate))?;
        node_options.peers.clock = Arc::clone(&clock) as _;
        node_options.clock = Arc::new(LeadingClock(Arc::clone(&clock)));
        let node = Arc::new(Node::start(network, node_options).await?);
        let inner = Arc::new(Inner::new(node, options, clock, identity, store));
        gate.open(&inner);
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(Arc::clone(&inner)));
        tasks.spawn(control(Arc::clone(&inner)));
        tasks.spawn(watch_nodes(Arc::clone(&inner)));
        tasks.spawn(watch_clocks(Arc::clone(&inner)));
        tasks.spawn(take_over(Arc::clone(&inner)));
        tasks.spawn(tell_leaders(Arc::clone(&inner)));
        let tasks = Mutex::new(tasks);
        Ok(Self { inner, tasks })
    }

    /// Which node it is.
    #[must_use]
    pub fn identity(&self) -> &NodeIdentity {
        &self.inner.identity
    }

    /// Its logs, connections and replicas.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.inner.node
    }

    /// Its own store, for the server. It holds no users' keys.
    #[must_use]
    pub fn db(&self) -> &Db {
        self.inner.db()
    }

    /// The cluster, as the server asks for it.
    #[must_use]
    pub fn cluster(&self) -> Arc<dyn Cluster> {
        Arc::new(Routes(Arc::clone(&self.inner)))
    }

    /// The time that the node goes by, for the server: that of its machine's clock, which may be
    /// stepped by up to [`SKEW_MAX`](crate::transport::SKEW_MAX). A jump beyond that is followed once it is
    /// known to be right. Where the node's own is off, it is that of most nodes.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(LeadingClock(Arc::clone(&self.inner.clock)))
    }

    /// The map as this node has applied it; none before it has anything of it.
    #[must_use]
    pub fn map(&self) -> watch::Receiver<Option<Arc<Map>>> {
        self.inner.map.subscribe()
    }

    /// Waits until this node has a map that it is in.
    pub async fn ready(&self) -> Arc<Map> {
        let own = self.inner.number();
        let mut maps = self.map();
        loop {
            if let Some(map) = maps.borrow_and_update().clone()
                && map.nodes.contains_key(&own)
            {
                return map;
            }
            // An error: the sender is in `self`.
            let _never = maps.changed().await;
        }
    }

    /// What this node knows of the cluster.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        self.inner.status()
    }

    /// Waits until a log has failed: the node can write no more, and its process is to exit.
    pub async fn failed(&self) -> StoreError {
        self.inner.node.failed().await
    }

    /// Ends what follows and changes the map, all replicas, the connections, and the stores. What the
    /// server was given of this node is to be dropped before.
    ///
    /// # Errors
    /// The logs', and the own store's.
    pub async fn close(self) -> Result<(), ClusterError> {
        let Self { inner, tasks } = self;
        let mut tasks = tasks.into_inner();
        tasks.shutdown().await;
        // Replicas hold the connections.
        inner.routing.store(Arc::new(Routing::default()));
        let store = inner.store.clone();
        let node = Arc::clone(&inner.node);
        drop(inner);
        let closed = match Arc::try_unwrap(node) {
            Ok(node) => node.close().await,
            Err(_) => Err(NodeError::Files {
                what: "closing the node".to_owned(),
                problem: "the server, or another holder of its cluster, still has it; drop that before"
                    .to_owned(),
            }),
        };
        let stored = blocking(move || store.close()).await;
        closed?;
        Ok(stored?)
    }
}

fn node_options(
    options: &ClusterOptions,
    identity: &NodeIdentity,
    gate: Arc<Gate>,
) -> Result<NodeOptions, ClusterError> {
    let mut boot = [0; 16];
    let device = &options.machine.db.device;
    device.random(&mut boot).map_err(|error| ClusterError::System {
        what: "random bytes",
        problem: error.to_string(),
    })?;
    let who = Identity {
        cluster: identity.cluster,
        node: identity.node,
        boot,
        level: identity.level,
        spoken: options.spoken.clone(),
    };
    let seed = u64::from(crc32c::crc32c(&boot));
    let mut peers = PeersOptions::new(who, options.listen, Arc::clone(&options.clock), seed);
    peers.limits = options.peer_limits.clone();
    peers.times = options.peer_times.clone();
    peers.admission = Some(gate);
    Ok(NodeOptions {
        store: options.store.clone(),
        clock: Arc::clone(&peers.clock),
        peers,
        machine: options.machine.clone(),
        times: options.times.clone(),
        limits: options.limits.clone(),
        log_opened: None,
    })
}
