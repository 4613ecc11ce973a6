//! A node of a cluster, from its start to its end, and what the server asks it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_db::Db;
use collie_io::Clock;
use collie_server::cluster::{
    Cluster, DuplicationInfo, Endpoint, Figure, LogLayout, LogsInfo, LogsOf, NodeInfo, NodeRequest, NodeRole,
    Partition, PartitionInfo, Route, Topology,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::blocking::blocking;
use crate::identity::{IdentityError, IdentityStore, LayoutRecord, NodeIdentity};
use crate::layouts::Layout;
use crate::map::{self, MapMember, NodeRecord};
use crate::node::addresses::announce;
use crate::node::clocks::watch_clocks;
use crate::node::controller::control;
use crate::node::disks::{self, keep_room, watch_disks};
use crate::node::duplicating::{self, duplicate_partitions};
use crate::node::error::ClusterError;
use crate::node::follower::follow;
use crate::node::joining::{Gate, begin};
use crate::node::lagging::watch_lag;
use crate::node::layout_requests;
use crate::node::leaders::{retire, take_over, watch_nodes};
use crate::node::loss_requests;
use crate::node::map_requests::ask;
use crate::node::members::keep_members;
use crate::node::options::{Begin, ClusterOptions, LossOptions, NoteLossRecord};
use crate::node::routing::{Here, KnownNodes, Routing, name};
use crate::node::shared::ClusterInner;
use crate::node::splitting::split_partitions;
use crate::node::steady::{ClockVerdict, LeadingClock, SteadyClock};
use crate::node::{Node, NodeError, NodeOptions};
use crate::raft::LEVEL_OF_LOSSES;
use crate::raftlog::{EntryDurability, StoreError};
use crate::transport::wire::{LayoutOf, MapRequest};
use crate::transport::{Identity, Network, PeersOptions};

/// What a node that is closed has begun to answer is answered within so long.
const ANSWERS: Duration = Duration::from_secs(15);
/// From one look whether it is to the next.
const LOOK: Duration = Duration::from_millis(5);

/// A node of a cluster that runs: its logs, connections and replicas, the map, and what follows and
/// changes it. Dropped, it ends without closing its stores properly; see [`close`](Self::close).
pub struct ClusterNode {
    pub(super) inner: Arc<ClusterInner>,
    tasks: Mutex<JoinSet<()>>,
}

impl ClusterNode {
    /// Starts a node on what is in its directory; makes a cluster, or joins one, where `with` says so
    /// and it is no node yet. To be called on a tokio runtime.
    ///
    /// Returns once the node is one, durably, and takes connections. A join waits for a node of the
    /// cluster that answers, for ever; it may be given up by dropping the future, and goes on when it
    /// is called again. The map and the replicas come later.
    ///
    /// # Errors
    /// [`ClusterError`]. Each says what to do.
    pub async fn start<N: Network + Clone>(
        network: N,
        options: ClusterOptions,
        with: Begin,
    ) -> Result<Self, ClusterError> {
        let mut options = options.checked(&with)?;
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
        let seeds = match &with {
            Begin::Join(seeds) => seeds.clone(),
            Begin::Bootstrap { .. } | Begin::Start => Vec::new(),
        };
        let (identity, found) = begin(&network, &options, &store, with).await?;
        options.store.disks = found.dirs;
        let gate = Arc::new(Gate::default());
        // A join may wait for long, while the clock of the machine is set right.
        let clock = Arc::new(SteadyClock::new(Arc::clone(&options.clock)));
        let own_store = store.clone();
        if blocking(move || own_store.clock_was_off()).await? {
            clock.set_verdict(ClockVerdict::WasOff);
        }
        let mut node_options = node_options(&options, &identity, Arc::clone(&gate))?;
        node_options.peers.clock = Arc::clone(&clock) as _;
        node_options.clock = Arc::new(LeadingClock(Arc::clone(&clock)));
        let own_store = store.clone();
        node_options.note_made = Some(Arc::new(move |replica| {
            own_store.set_made(replica).map_err(|error| error.to_string())
        }));
        if options.store.shared.entries == EntryDurability::Process && identity.level < LEVEL_OF_LOSSES {
            return Err(ClusterError::Options {
                option: "durability",
                problem: format!(
                    "`process` needs feature level {LEVEL_OF_LOSSES}, and the cluster has {}: start with `disk`, ask for \
                     `collie cluster finalize` once all nodes run this version, and start again",
                    identity.level
                ),
            });
        }
        let own_store = store.clone();
        let record = blocking(move || own_store.losses()).await?;
        let own_store = store.clone();
        let note: NoteLossRecord =
            Arc::new(move |record| own_store.set_losses(record).map_err(|error| error.to_string()));
        node_options.losses = LossOptions {
            record,
            note: Some(note),
        };
        let (own_store, option) = (store.clone(), options.store.layout.node());
        let mut layouts = blocking(move || {
            let stored = own_store.layout()?;
            let record = LayoutRecord::started(stored.clone(), option);
            if stored.as_ref() != Some(&record) {
                own_store.set_layout(&record)?;
            }
            Ok::<_, IdentityError>(record.layouts)
        })
        .await?;
        layouts.set_absent(found.absent);
        node_options.store.layout = layouts;
        let node = Arc::new(Node::start(network.clone(), node_options).await?);
        let own_store = store.clone();
        let emptied = blocking(move || own_store.emptied()).await?;
        let inner = Arc::new(ClusterInner::new(node, options, clock, identity, store));
        inner.disks.begin_with(emptied);
        gate.open(&inner);
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(Arc::clone(&inner)));
        tasks.spawn(control(Arc::clone(&inner)));
        tasks.spawn(keep_members(Arc::clone(&inner)));
        tasks.spawn(split_partitions(Arc::clone(&inner)));
        tasks.spawn(watch_disks(Arc::clone(&inner)));
        tasks.spawn(keep_room(inner.store.clone()));
        tasks.spawn(duplicate_partitions(Arc::clone(&inner)));
        tasks.spawn(watch_nodes(Arc::clone(&inner)));
        tasks.spawn(watch_clocks(Arc::clone(&inner)));
        tasks.spawn(watch_lag(Arc::clone(&inner)));
        tasks.spawn(take_over(Arc::clone(&inner)));
        tasks.spawn(announce(Arc::clone(&inner), network, seeds));
        let tasks = Mutex::new(tasks);
        Ok(Self { inner, tasks })
    }

    /// Which node it is.
    #[must_use]
    pub fn identity(&self) -> &NodeIdentity {
        &self.inner.identity
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
    /// stepped by up to `SKEW_MAX`, half a second. A jump beyond that is followed once it is
    /// known to be right. Where the node's own is off, it is that of most nodes.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(LeadingClock(Arc::clone(&self.inner.clock)))
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
        let closed = match alone(node).await {
            Some(node) => node.close().await,
            None => Err(NodeError::Files {
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

/// The node, once nothing else has it: what other nodes asked of it may still be answered.
async fn alone(mut node: Arc<Node>) -> Option<Node> {
    let until = Instant::now() + ANSWERS;
    loop {
        node = match Arc::try_unwrap(node) {
            Ok(node) => return Some(node),
            Err(node) if Instant::now() < until => node,
            Err(_) => return None,
        };
        sleep(LOOK).await;
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
        reads: options.reads,
        times: options.times.clone(),
        limits: options.limits.clone(),
        transfer_rate: options.transfer_rate,
        log_opened: None,
        note_made: None,
        losses: LossOptions::default(),
    })
}

/// The nodes of these members, but for those that are among `others`.
fn nodes_of(members: &[MapMember], others: &[MapMember]) -> Vec<u64> {
    let left = members.iter().filter(|member| !others.contains(member));
    left.map(|member| member.node).collect()
}

/// Where clients reach a node.
fn endpoint(node: &NodeRecord) -> Endpoint {
    Endpoint {
        address: node.client,
        host: (!node.host.is_empty()).then(|| node.host.clone()),
    }
}

/// A node, as its server sees the cluster.
struct Routes(Arc<ClusterInner>);

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes")
            .field("node", &self.0.number())
            .finish_non_exhaustive()
    }
}

impl Cluster for Routes {
    fn topology(&self) -> Arc<Topology> {
        let inner = &self.0;
        let routing = inner.routing.load();
        let (states, led) = (inner.peers().states(), inner.peers().leaders());
        let known = KnownNodes {
            number: inner.number(),
            states: &states.borrow(),
            led: &led.borrow(),
        };
        let own = inner.number();
        let logs = LogsInfo {
            layout: match inner.node.layouts().node() {
                Layout::Shared => LogLayout::Shared,
                Layout::PerDisk => LogLayout::PerDisk,
                Layout::Private => LogLayout::Private,
            },
            to_move: inner.node.log_moves().to_move(),
        };
        let drained_here = inner.disks.shown();
        let Some(map) = &routing.map else {
            return Arc::new(Topology {
                cluster: None,
                epoch: 0,
                level: 0,
                newest_level: *inner.options.spoken.end(),
                own,
                logs,
                drained_here,
                reads: inner.options.reads,
                durability: inner.durability(),
                nodes: Vec::new(),
                partitions: Vec::new(),
            });
        };
        let nodes = map.nodes.values().map(|node| NodeInfo {
            number: node.number,
            name: name(&map.cluster.id, node.number),
            client: endpoint(node),
            peer: node.peer,
            is_alive: known.is_alive(node.number),
            role: match node.role {
                map::NodeRole::Serves => NodeRole::Serves,
                map::NodeRole::Drains => NodeRole::Drains,
                map::NodeRole::Leaves { .. } => NodeRole::Leaves,
            },
            drained: node
                .drained
                .iter()
                .map(|disk| (*disk, map.count_on(node.number, *disk)))
                .collect(),
        });
        let mut partitions: Vec<_> = map
            .partitions
            .values()
            .map(|partition| {
                let leader = routing.leader(partition, &known);
                PartitionInfo {
                    group: partition.group,
                    slots: partition.slots(),
                    leader,
                    is_served: routing.is_served(partition, leader, &known),
                    replicas: nodes_of(&partition.members, &[]),
                    joining: nodes_of(&partition.wanted, &partition.members),
                    leaving: match partition.wanted.is_empty() {
                        true => Vec::new(),
                        false => nodes_of(&partition.members, &partition.wanted),
                    },
                    split_at: partition.split.as_ref().map(|split| split.first),
                }
            })
            .collect();
        partitions.sort_by_key(|partition| *partition.slots.start());
        Arc::new(Topology {
            cluster: Some(map.cluster.id),
            epoch: map.cluster.epoch,
            level: map.cluster.level,
            newest_level: *inner.options.spoken.end(),
            own,
            logs,
            drained_here,
            reads: inner.options.reads,
            durability: inner.durability(),
            nodes: nodes.collect(),
            partitions,
        })
    }

    fn route(&self, slot: u16) -> Route {
        let routing = self.0.routing.load();
        let Some((map, partition)) = routing.partition(slot) else {
            return Route::Nowhere;
        };
        let here = routing.here(partition.group);
        if let Some(here) = here.filter(|here| here.leads()) {
            return Route::Here(Arc::clone(&here.partition));
        }
        let (states, led) = (self.0.peers().states(), self.0.peers().leaders());
        let known = KnownNodes {
            number: self.0.number(),
            states: &states.borrow(),
            led: &led.borrow(),
        };
        // One that has a replica knows the way.
        let knows = || {
            let mut nodes = partition.all().map(|member| member.node);
            nodes.find(|node| here.is_none() && known.is_alive(*node))
        };
        let leader = routing.leader(partition, &known).or_else(knows);
        match leader.and_then(|node| map.nodes.get(&node)) {
            Some(node) => Route::At(endpoint(node)),
            None => Route::Nowhere,
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.node.changes()
    }

    fn led(&self) -> Vec<Arc<dyn Partition>> {
        let routing = self.0.routing.load();
        let led = routing.each_here().filter(|here| here.leads());
        led.map(|here| Arc::clone(&here.partition)).collect()
    }

    fn take_over(&self) -> Result<(), String> {
        let inner = &self.0;
        if let Some(problem) = inner.off_problem() {
            return Err(problem);
        }
        // Relaxed: what it takes over after all it hands over again.
        if inner.retires.load(Ordering::Relaxed) {
            return Err("this node is about to end".to_owned());
        }
        let routing = inner.routing.load();
        if routing.each_here().all(Here::leads) {
            return Err("this node leads all that it has replicas of".to_owned());
        }
        inner.taking_over.notify_one();
        Ok(())
    }

    fn change_node(&self, request: NodeRequest) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> {
        let inner = Arc::clone(&self.0);
        let request = match request {
            NodeRequest::Layout { node, of, layout } => {
                let request = MapRequest::Layout {
                    of: match of {
                        LogsOf::Node => LayoutOf::Node,
                        LogsOf::Disk(disk) => LayoutOf::Disk(disk),
                        LogsOf::Partition(group) => LayoutOf::Group(group),
                    },
                    layout: match layout {
                        LogLayout::Shared => Layout::Shared,
                        LogLayout::PerDisk => Layout::PerDisk,
                        LogLayout::Private => Layout::Private,
                    },
                };
                return Box::pin(async move { layout_requests::ask(&inner, node, request).await });
            }
            NodeRequest::ServeDisk { .. } | NodeRequest::DrainDisk { .. }
                if let Some(refused) = disks::refused(&inner) =>
            {
                return Box::pin(async move { Err(refused) });
            }
            NodeRequest::ServeDisk { node, disk } => MapRequest::ServeDisk { node, disk },
            NodeRequest::DrainDisk { node, disk } => MapRequest::DrainDisk { node, disk },
            NodeRequest::Serve(node) => MapRequest::Serve(node),
            NodeRequest::Drain(node) => MapRequest::Drain(node),
            NodeRequest::Remove(node) => MapRequest::Remove(node),
            NodeRequest::Replace { node, by } => MapRequest::Replace { node, by },
            NodeRequest::Split(first) => {
                // An older version ends the connection when it is asked this: not before all know it.
                let level = inner.map().map(|map| map.cluster.level);
                if let Some(level) = level.filter(|level| *level < map::LEVEL_OF_SPLITS) {
                    let refused = map::splits_from(level);
                    return Box::pin(async move { Err(refused) });
                }
                MapRequest::Split(first)
            }
            NodeRequest::Duplicate { name, addresses } => {
                return Box::pin(async move { duplicating::add(&inner, name, addresses).await });
            }
            NodeRequest::EndDuplication(_)
            | NodeRequest::Receive(_)
            | NodeRequest::PauseDuplication(_)
            | NodeRequest::ResumeDuplication(_)
                if let Some(refused) = duplicating::refused(&inner) =>
            {
                return Box::pin(async move { Err(refused) });
            }
            NodeRequest::EndDuplication(name) => MapRequest::EndDuplication(name),
            NodeRequest::Receive(from) => MapRequest::Receive(from),
            NodeRequest::AcceptLoss { without } => {
                return Box::pin(async move { loss_requests::accept(&inner, &without).await });
            }
            NodeRequest::PauseDuplication(name) => MapRequest::PauseDuplication(name),
            NodeRequest::ResumeDuplication(name) => MapRequest::ResumeDuplication(name),
            NodeRequest::Finalize => MapRequest::Finalize(*inner.options.spoken.end()),
        };
        Box::pin(async move { ask(&inner, request).await })
    }

    fn retire(&self) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { retire(&inner).await })
    }

    fn problems(&self) -> Vec<String> {
        self.0.problem_lines()
    }

    fn duplications(&self) -> Vec<DuplicationInfo> {
        self.0.duplications()
    }

    fn replica(&self, slot: u16) -> Option<Arc<dyn Partition>> {
        let routing = self.0.routing.load();
        let (_, partition) = routing.partition(slot)?;
        // One that is just being made may have nothing yet.
        let mut members = partition.members.iter();
        members.find(|member| member.node == self.0.number())?;
        let here = routing.here(partition.group)?;
        here.has_slot(slot).then(|| Arc::clone(&here.partition))
    }

    fn figures(&self) -> Vec<Figure> {
        self.0.figures()
    }
}
