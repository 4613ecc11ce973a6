//! Nodes that live, die and come back.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::ClusterStatus;
use collie_cluster::testing::GroupTimes;
use collie_cluster::testing::map::{LEVEL, Map};
use collie_cluster::testing::replica_store::{MachineOptions, Runs};
use collie_cluster::testing::transport::{JoinError, PlainTcp, Times, ask_to_join};
use collie_cluster::testing::wire::{Join, JoinAnswer, VERSION};
use collie_cluster::{
    Begin, ClusterError, ClusterNode, ClusterOptions, Layout, NodeLogOptions, NodeStoreOptions,
};
use collie_db::{Options, Shared, SharedOptions};
use collie_io::{Clock, Nanos, RealClock};
use collie_log::{LogOptions, RingMode};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::addresses::addresses;

/// Only a hang takes so long.
const CAP: Duration = Duration::from_secs(120);
/// From one look at what is waited for to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// A machine's clock that is wrong.
#[derive(Debug)]
pub(crate) struct Off(pub(crate) i64);

impl Clock for Off {
    fn monotonic(&self) -> Nanos {
        RealClock.monotonic()
    }

    fn wall_ms(&self) -> u64 {
        RealClock.wall_ms().saturating_add_signed(self.0)
    }
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A node, dead or alive, and its directory.
pub(crate) struct Site {
    pub(crate) dir: TempDir,
    pub(crate) peer: SocketAddr,
    pub(crate) client: SocketAddr,
    alive: Mutex<Option<(ClusterNode, Runtime)>>,
}

pub(crate) fn sites(count: usize) -> Vec<Site> {
    let addresses = addresses(2 * count);
    addresses
        .chunks(2)
        .map(|pair| Site::at(pair[0], pair[1]))
        .collect()
}

pub(crate) fn bootstrap(replicas: u8, partitions: u16) -> Begin {
    Begin::Bootstrap {
        replicas,
        partitions,
        voters: 3,
    }
}

impl Site {
    /// A dead one with an empty directory.
    pub(crate) fn at(peer: SocketAddr, client: SocketAddr) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            peer,
            client,
            alive: Mutex::default(),
        }
    }

    /// The same directory, elsewhere.
    pub(crate) fn moved(self, peer: SocketAddr, client: SocketAddr) -> Self {
        Self { peer, client, ..self }
    }

    pub(crate) fn options(&self) -> ClusterOptions {
        let dir = self.dir.path().to_owned();
        let mut options = ClusterOptions::new(dir, self.peer, self.client);
        options.own = Options {
            ring: RingMode::Private,
            ring_bytes: 256 << 10,
            segment_bytes: 1 << 20,
            reserve_bytes: Some(0),
            ..Options::default()
        };
        let log = NodeLogOptions {
            log: LogOptions {
                ring: RingMode::Private,
                ring_bytes: 1 << 20,
                segment_bytes: 1 << 20,
                max_workers: 4,
                reserve_bytes: Some(0),
                ..LogOptions::default()
            },
            ..NodeLogOptions::default()
        };
        options.store = NodeStoreOptions {
            layout: Layout::PerDisk.into(),
            shared: log.clone(),
            private: log,
            ..NodeStoreOptions::default()
        };
        options.machine = MachineOptions {
            db: Options {
                shared: Some(Shared::new(SharedOptions::default()).unwrap()),
                reserve_bytes: Some(0),
                ..Options::default()
            },
            ..MachineOptions::new(Arc::new(Runs))
        };
        options.times = GroupTimes {
            heartbeat: Duration::from_millis(150),
            election_min: Duration::from_millis(700),
            election_max: Duration::from_millis(1500),
            ..GroupTimes::default()
        };
        options.peer_times = Times {
            backoff_max: Duration::from_millis(100),
            ..Times::default()
        };
        options.look = Duration::from_millis(50);
        // Only where a test is about that.
        options.spread_after = Duration::from_secs(3600);
        options
    }

    /// The data disk, where none is named.
    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn start(&self, begin: Begin) {
        self.try_start(self.options(), begin).unwrap();
    }

    /// Starts the node. What died a moment ago may still be closing its files.
    pub(crate) fn try_start(&self, options: ClusterOptions, begin: Begin) -> Result<(), ClusterError> {
        let runtime = runtime();
        let node = runtime.block_on(ClusterNode::start(PlainTcp, options, begin));
        match node {
            Ok(node) => {
                *self.alive.lock().unwrap() = Some((node, runtime));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// What is said of an attempt to start.
    pub(crate) fn refusal(&self, options: ClusterOptions, begin: Begin) -> String {
        match self.try_start(options, begin) {
            Ok(()) => panic!("it starts"),
            Err(error) => error.to_string(),
        }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&ClusterNode, &Runtime) -> T) -> T {
        let alive = self.alive.lock().unwrap();
        let (node, runtime) = alive.as_ref().unwrap();
        look(node, runtime)
    }

    pub(crate) fn status(&self) -> ClusterStatus {
        self.with(|node, _| node.status())
    }

    pub(crate) fn map(&self) -> Option<Arc<Map>> {
        self.with(|node, _| node.map().borrow().clone())
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.lock().unwrap().is_some()
    }

    /// The process dies: its tasks end wherever they are.
    pub(crate) fn kill(&self) {
        let (node, runtime) = self.alive.lock().unwrap().take().unwrap();
        runtime.shutdown_timeout(CAP);
        drop(node);
    }

    pub(crate) fn close(&self) {
        let (node, runtime) = self.alive.lock().unwrap().take().unwrap();
        runtime.block_on(node.close()).unwrap();
    }
}

/// Waits for something, which is looked at again and again.
pub(crate) fn until<T>(sites: &[Site], what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..CAP.as_millis() / PAUSE.as_millis() {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
    let alive = sites.iter().filter(|site| site.is_alive());
    let state = |site: &Site| (site.status(), site.with(|node, _| node.cluster().problems()));
    let states: Vec<_> = alive.map(state).collect();
    panic!("{what} does not happen: {states:#?}")
}

/// A cluster that runs, with its partitions placed on the first nodes.
pub(crate) fn cluster(nodes: usize, replicas: u8, partitions: u16) -> Vec<Site> {
    let sites = sites(nodes);
    sites[0].start(bootstrap(replicas, partitions));
    for site in &sites[1..] {
        site.start(Begin::Join(vec![sites[0].peer]));
    }
    settled(&sites, nodes, partitions);
    sites
}

/// Waits until all nodes that are alive have the same map, and know the leaders of its partitions.
pub(crate) fn settled(sites: &[Site], nodes: usize, partitions: u16) -> Arc<Map> {
    until(sites, "agreement on the map and on all leaders", || {
        let alive = sites.iter().filter(|site| site.is_alive());
        let maps: Option<Vec<_>> = alive.map(Site::map).collect();
        let maps = maps?;
        let map = maps.first()?;
        let whole = map.nodes.len() == nodes && map.partitions.len() == usize::from(partitions);
        let alive = sites.iter().filter(|site| site.is_alive());
        let led = alive.map(Site::status).all(|status| {
            let mut here = status
                .partitions
                .iter()
                .filter(|partition| partition.here.is_some());
            let members = status
                .partitions
                .iter()
                .filter(|partition| partition.nodes.contains(&status.own));
            let all = members.count();
            here.clone().count() == all && here.all(|partition| partition.leader.is_some())
        });
        (whole && led && maps.iter().all(|other| other == map)).then(|| Arc::clone(map))
    })
}

/// The node that leads the group of the map.
pub(crate) fn map_leader(sites: &[Site]) -> &Site {
    until(sites, "a leader of the map", || {
        let mut alive = sites.iter().filter(|site| site.is_alive());
        alive.find(|site| site.status().map.is_some_and(|map| map.leads))
    })
}

/// A request to join by a process that never becomes a node.
pub(crate) fn request(token: u8) -> Join {
    let free = addresses(2);
    Join {
        version: VERSION,
        known: None,
        token: [token; 16],
        peer: free[0],
        client: free[1],
        disks: vec![[token; 16]],
        least: 1,
        most: LEVEL,
        wall_ms: 0,
    }
}

/// The answer of the node at an address.
pub(crate) fn ask(address: SocketAddr, join: &Join, clock: &dyn Clock) -> Result<JoinAnswer, JoinError> {
    let asked = ask_to_join(&PlainTcp, address, join.clone(), clock, CAP);
    runtime().block_on(asked)
}
