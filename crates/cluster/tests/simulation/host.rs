//! A node: its process, which may end at any time, and what is left of it.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::map::LEVEL;
use collie_cluster::testing::replica_store::{MachineOptions, Runs};
use collie_cluster::testing::transport::{Identity, PeersOptions, Times};
use collie_cluster::testing::{
    GroupLimits, GroupTimes, LogOpened, LossOptions, LossRecord, Member, Node, NodeLog, NodeOptions,
    NoteLossRecord, Replica, Retention,
};
use collie_cluster::{EntryDurability, Layout, NodeError, NodeLogOptions, NodeStoreOptions};
use collie_db::{FamilyOptions, Options, Shared, SharedOptions};
use collie_io::Device;
use collie_log::{Level, LogOptions, RingMode};
use collie_server::cluster::Reads;
use collie_sim::{Rng, mix};
use tokio::runtime::Handle;

use crate::clients;
use crate::disk::Disk;
use crate::sockets::Simulated;
use crate::town::Plan;
use crate::world::{NodeClock, World};

const PORT: u16 = 4000;
/// Bytes of entries that stay in the log; who is further behind learns by a snapshot.
const RETENTION: Retention = Retention {
    margin: 1 << 10,
    lagging: 8 << 10,
};
/// Clients at each node.
const CLIENTS: u32 = 3;

/// Where a node is, running or not.
pub(crate) struct Place {
    pub(crate) id: u64,
    pub(crate) nodes: u64,
    pub(crate) groups: Vec<u64>,
    reads: Reads,
    entries: EntryDurability,
    /// What the node has stored of entries that it may lack.
    losses: Arc<Mutex<LossRecord>>,
    pub(crate) disk: Disk,
    pub(crate) world: Arc<World>,
    pub(crate) clock_offset_ms: Arc<AtomicI64>,
    boots: AtomicU64,
    /// Background work of its stores, which has no threads.
    background: Mutex<Option<Shared>>,
    runtime: Mutex<Option<Handle>>,
}

pub(crate) fn name(node: u64) -> String {
    format!("n{node}")
}

pub(crate) fn replica_on(group: u64, node: u64) -> u64 {
    group * 100 + node
}

impl Place {
    pub(crate) fn new(id: u64, plan: &Plan, world: &Arc<World>) -> Self {
        Self {
            id,
            nodes: plan.nodes,
            groups: plan.groups.clone(),
            reads: plan.reads,
            entries: plan.entries,
            losses: Arc::default(),
            disk: Disk::new(mix(world.seed.wrapping_mul(31).wrapping_add(id))),
            world: Arc::clone(world),
            clock_offset_ms: Arc::default(),
            boots: AtomicU64::new(0),
            background: Mutex::default(),
            runtime: Mutex::default(),
        }
    }

    /// The groups, and all that they were asked to be split into.
    pub(crate) fn all_groups(&self) -> Vec<u64> {
        let state = self.world.lock();
        let new = state.splits.iter().map(|split| split.new);
        self.groups.iter().copied().chain(new).collect()
    }

    /// The groups that may have a slot: that which it began with, first.
    pub(crate) fn groups_of(&self, slot: u16) -> Vec<u64> {
        let group = self.groups[usize::from(slot) % self.groups.len()];
        let state = self.world.lock();
        let new = state.splits.iter();
        let new = new.filter(|split| split.group == group && split.first <= slot);
        std::iter::once(group).chain(new.map(|split| split.new)).collect()
    }

    /// The node, while it runs.
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.world.lock().nodes.get(&self.id)?.upgrade()
    }

    pub(crate) fn replica(&self, group: u64) -> Option<Arc<Replica>> {
        self.node()?.replica(replica_on(group, self.id))
    }

    /// Does what background threads would do.
    pub(crate) fn work(&self) {
        let background = self.background.lock().unwrap().clone();
        if let Some(background) = background {
            while background.work() {}
        }
    }

    /// Does something on the node, while it runs.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &*self.runtime.lock().unwrap() {
            runtime.spawn(work);
        }
    }

    /// What is left when the process has died.
    pub(crate) fn forget(&self) {
        self.world.lock().nodes.remove(&self.id);
        self.world.lock().failed.remove(&self.id);
        self.background.lock().unwrap().take();
        self.runtime.lock().unwrap().take();
    }

    pub(crate) fn members(&self, group: u64) -> BTreeMap<u64, Member> {
        let member = |node| {
            let member = Member {
                node,
                disk: 0,
                address: format!("{}:{PORT}", turmoil::lookup(name(node))),
            };
            (replica_on(group, node), member)
        };
        (1..=self.nodes).map(member).collect()
    }

    fn options(self: &Arc<Self>, boot: u64) -> NodeOptions {
        let identity = Identity {
            cluster: *b"cluster of tests",
            node: self.id,
            boot: u128::from(boot).to_le_bytes(),
            level: LEVEL,
            spoken: 1..=LEVEL,
        };
        let clock = Arc::new(NodeClock {
            world: Arc::clone(&self.world),
            offset_ms: Arc::clone(&self.clock_offset_ms),
            slower: mix(self.world.seed ^ (self.id << 16)) % 10,
        });
        let seed = mix(self.world.seed ^ (self.id << 32) ^ boot);
        let mut peers = PeersOptions::new(identity, ([0, 0, 0, 0], PORT).into(), clock, seed);
        peers.times = Times {
            ping: Duration::from_millis(100),
            suspect: Duration::from_millis(600),
            backoff_max: Duration::from_millis(200),
            ..Times::default()
        };
        let log = NodeLogOptions {
            log: LogOptions {
                device: Arc::new(self.disk.log()),
                ring: match self.entries {
                    EntryDurability::Disk => RingMode::Private,
                    EntryDurability::Process => RingMode::default(),
                },
                // Half of it is the largest frame: values of some objects are larger, and go in parts.
                ring_bytes: match self.world.seed.is_multiple_of(2) {
                    true => 16 << 10,
                    false => 256 << 10,
                },
                segment_bytes: 64 << 10,
                max_workers: 4,
                reserve_bytes: Some(0),
                threads: false,
                ..LogOptions::default()
            },
            entries: self.entries,
            retention: Some(RETENTION),
            ..NodeLogOptions::default()
        };
        let background = Shared::new(SharedOptions {
            flush_threads: 0,
            compaction_threads: 0,
            device: self.disk.tables(),
            ..SharedOptions::default()
        });
        let background = background.unwrap();
        *self.background.lock().unwrap() = Some(background.clone());
        NodeOptions {
            store: NodeStoreOptions {
                disks: vec![self.disk.path()],
                layout: Layout::Shared.into(),
                shared: log.clone(),
                private: log,
                ..NodeStoreOptions::default()
            },
            clock: Arc::clone(&peers.clock),
            peers,
            machine: MachineOptions {
                db: Options {
                    device: self.disk.tables(),
                    shared: Some(background),
                    reserve_bytes: Some(0),
                    default_family: FamilyOptions {
                        // Some are full, and none waits for a flush: that comes with the next step.
                        write_buffer_bytes: 64 << 10,
                        max_write_buffers: 16,
                        ..FamilyOptions::default()
                    },
                    ..Options::default()
                },
                ..MachineOptions::new(Arc::new(Runs))
            },
            transfer_rate: 0,
            reads: self.reads,
            times: GroupTimes {
                heartbeat: Duration::from_millis(100),
                election_min: Duration::from_millis(400),
                election_max: Duration::from_millis(800),
                append: Duration::from_millis(800),
                piece: Duration::from_secs(3),
                command: Duration::from_secs(2),
                ..GroupTimes::default()
            },
            limits: GroupLimits {
                // Faults come more often here than anywhere else.
                failures: 1000,
                ..GroupLimits::default()
            },
            log_opened: Some(self.flusher()),
            note_made: None,
            losses: LossOptions {
                record: self.losses.lock().unwrap().clone(),
                note: Some(self.note_losses()),
            },
        }
    }

    /// Stores it, as long as the disk of the log works: that of the node's own store is the same one.
    fn note_losses(self: &Arc<Self>) -> NoteLossRecord {
        let (losses, log) = (Arc::clone(&self.losses), self.disk.log());
        Arc::new(move |record| {
            log.list(std::path::Path::new("/"))
                .map_err(|error| error.to_string())?;
            *losses.lock().unwrap() = record.clone();
            Ok(())
        })
    }

    /// Whether it may lack entries that it has acknowledged, by what is stored.
    pub(crate) fn is_in_doubt(&self) -> bool {
        let losses = self.losses.lock().unwrap();
        !losses.logs.is_empty() || !losses.replicas.is_empty()
    }

    /// A task that syncs the log, in place of the log's threads.
    fn flusher(self: &Arc<Self>) -> LogOpened {
        let place = Arc::clone(self);
        Arc::new(move |log: &NodeLog| {
            let (log, place) = (log.log().clone(), Arc::clone(&place));
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(place.disk.next_sync()).await;
                    if log.durable() < log.appended() && log.flush(Level::Disk).is_err() {
                        return;
                    }
                }
            });
        })
    }

    /// The life of a process. One that cannot go on waits until it is ended.
    pub(crate) async fn run(self: Arc<Self>) -> turmoil::Result {
        *self.runtime.lock().unwrap() = Some(Handle::current());
        let boot = self.boots.fetch_add(1, Ordering::SeqCst) + 1;
        let problem = match self.serve(boot).await {
            Ok(problem) => problem,
            Err(error) => error.to_string(),
        };
        assert!(
            self.disk.is_failing(),
            "node {}: {problem}, and nothing was made to fail",
            self.id
        );
        // The name of the directory is drawn by the system.
        let problem = problem.replace(&*self.disk.path().to_string_lossy(), "DIR");
        self.world.happened(format_args!("node {}: {problem}", self.id));
        self.world.lock().failed.insert(self.id, problem);
        pending().await
    }

    /// Ends when the log has failed.
    async fn serve(self: &Arc<Self>, boot: u64) -> Result<String, NodeError> {
        let node = Arc::new(Node::start(Simulated, self.options(boot)).await?);
        self.world.lock().nodes.insert(self.id, Arc::downgrade(&node));
        self.world
            .happened(format_args!("node {} is up, boot {boot}", self.id));
        for other in (1..=self.nodes).filter(|&other| other != self.id) {
            node.set_peer(other, (turmoil::lookup(name(other)), PORT).into())?;
        }
        for &group in &self.groups {
            let members = self.members(group);
            match node.replica(replica_on(group, self.id)) {
                None => drop(node.bootstrap(group, members).await?),
                // The process may have ended before it began the group.
                Some(replica) if self.id == 1 => {
                    let _begun = replica.initialize(members).await;
                }
                Some(_) => {}
            }
        }
        for client in 0..CLIENTS {
            let rng = Rng::new(mix(self.world.seed
                ^ (self.id << 40)
                ^ (boot << 8)
                ^ u64::from(client)));
            tokio::spawn(clients::run(Arc::clone(self), Arc::clone(&node), client, rng));
        }
        tokio::spawn(flush(Arc::clone(self), Arc::clone(&node), boot));
        tokio::spawn(observe(Arc::clone(self), Arc::clone(&node)));
        tokio::spawn(make_what_is_missing(Arc::clone(self), Arc::clone(&node)));
        Ok(node.failed().await.to_string())
    }
}

/// Brings what is applied into tables now and then, more often than anything else would: then entries
/// are purged, and who is behind learns by a snapshot.
async fn flush(place: Arc<Place>, node: Arc<Node>, boot: u64) {
    let mut rng = Rng::new(mix(place.world.seed ^ (place.id << 48) ^ boot));
    loop {
        tokio::time::sleep(Duration::from_millis(500 + rng.below(6000))).await;
        for group in place.all_groups() {
            if let Some(replica) = node.replica(replica_on(group, place.id)) {
                let flushed = replica.flush().await.is_ok();
                place.world.happened(format_args!(
                    "node {}: group {group} is flushed: {flushed}",
                    place.id
                ));
            }
        }
    }
}

/// Notes who leads, as this node knows it.
async fn observe(place: Arc<Place>, node: Arc<Node>) {
    let mut changes = node.changes();
    let mut known = BTreeMap::new();
    loop {
        for group in place.all_groups() {
            let leader = node
                .replica(replica_on(group, place.id))
                .and_then(|replica| replica.leader());
            if known.insert(group, leader) != Some(leader) {
                place.world.happened(format_args!(
                    "node {}: replica {leader:?} leads group {group}",
                    place.id
                ));
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Makes replicas of new groups where the one of the group that was split is past that by tables of another one, as
/// a node does by the map.
async fn make_what_is_missing(place: Arc<Place>, node: Arc<Node>) {
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let splits = place.world.lock().splits.clone();
        for split in splits {
            let id = replica_on(split.new, place.id);
            let is_past = node
                .replica(replica_on(split.group, place.id))
                .and_then(|replica| replica.slots())
                .is_some_and(|slots| !slots.contains(&split.first));
            let is_made = || {
                let nodes = place.world.lock().nodes.clone();
                let mut nodes = nodes.iter().filter_map(|(at, node)| Some((*at, node.upgrade()?)));
                nodes.any(|(at, node)| node.replica(replica_on(split.new, at)).is_some())
            };
            if is_past && node.replica(id).is_none() && is_made() {
                let made = node.create(split.new, id, 0).await.is_ok();
                place.world.happened(format_args!(
                    "node {}: replica {id} is made empty: {made}",
                    place.id
                ));
            }
        }
    }
}
