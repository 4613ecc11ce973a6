//! Nodes that live, die, are cut off and come back; and clients that count.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::map::LEVEL;
use collie_cluster::testing::proposals::Answer;
use collie_cluster::testing::replica_store::{MachineOptions, Runs};
use collie_cluster::testing::transport::{Identity, Network, PeersOptions, PlainTcp, Times, TlsTcp};
use collie_cluster::testing::{
    CommandError, Executed, GroupLimits, GroupTimes, LossOptions, Member, Node, NodeOptions, Replica,
    ReplicaState, Retention, Row, Rows, StoreError, Value,
};
use collie_cluster::{Layout, NodeError, NodeLogOptions, NodeStoreOptions};
use collie_db::{Options, Shared, SharedOptions};
use collie_io::{Clock, Nanos, RealClock, RealDevice};
use collie_log::{LogError, LogOptions, RingMode};
use collie_server::cluster::Reads;
use collie_sim::{SimDevice, SplitDevice};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::addresses::addresses;
use crate::certificates::{Authority, write};
use crate::seam::read_applied;

pub(crate) const GROUP: u64 = 7;
/// Only a hang takes so long.
pub(crate) const CAP: Duration = Duration::from_secs(60);
/// From one look at what is waited for to the next.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of entries that stay in the log, and for followers that lack them.
const RETENTION: Retention = Retention {
    margin: 1 << 10,
    lagging: 1 << 30,
};
/// Each start of a node is another process to its peers.
static BOOTS: AtomicU64 = AtomicU64::new(1);

pub(crate) fn times() -> GroupTimes {
    GroupTimes {
        heartbeat: Duration::from_millis(100),
        election_min: Duration::from_millis(400),
        election_max: Duration::from_millis(800),
        command: Duration::from_secs(2),
        ..GroupTimes::default()
    }
}

/// A connection, secured or not.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

/// TCP, secured where there are certificates, that does not reach nodes that are cut off, nor from them.
#[derive(Clone, Default)]
pub(crate) struct Cuts {
    off: Arc<Mutex<HashSet<SocketAddr>>>,
    own: Option<SocketAddr>,
    tls: Option<TlsTcp>,
}

impl Cuts {
    fn is_cut(&self, other: SocketAddr) -> bool {
        let off = self.off.lock().unwrap();
        off.contains(&other) || self.own.is_some_and(|own| off.contains(&own))
    }
}

impl Network for Cuts {
    type Stream = Box<dyn Connection>;
    type Listener = TcpListener;
    type Accepted = TcpStream;

    fn check(&self, address: SocketAddr) -> Result<(), String> {
        PlainTcp.check(address)
    }

    async fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        PlainTcp.bind(address).await
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        PlainTcp.local_address(listener)
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        PlainTcp.accept(listener).await
    }

    async fn secure(&self, accepted: TcpStream) -> io::Result<Box<dyn Connection>> {
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.secure(accepted).await?),
            None => Box::new(accepted),
        })
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Connection>> {
        if self.is_cut(address) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.connect(address).await?),
            None => Box::new(PlainTcp.connect(address).await?),
        })
    }
}

/// A node of the cluster, dead or alive.
pub(crate) struct Place {
    pub(crate) id: u64,
    pub(crate) address: SocketAddr,
    pub(crate) dir: TempDir,
    /// Its certificate, if the cluster has a CA.
    tls: Option<TlsTcp>,
    alive: Mutex<Option<(Arc<Node>, Runtime)>>,
    clock: Arc<Behind>,
    /// What its log is on, or all of its tables but their files, if that is simulated.
    pub(crate) device: SimDevice,
}

/// What is on a simulated device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Simulated {
    Nothing,
    Logs,
    /// Memtables are small then.
    Tables,
    /// Logs, and all of the tables but their files.
    Disk,
}

/// A clock that may be behind.
#[derive(Debug, Default)]
struct Behind {
    ms: AtomicU64,
}

impl Clock for Behind {
    fn monotonic(&self) -> Nanos {
        RealClock.monotonic()
    }

    fn wall_ms(&self) -> u64 {
        RealClock.wall_ms() - self.ms.load(Ordering::SeqCst)
    }
}

/// Changes how a node is started.
type Adjust = Box<dyn Fn(&mut NodeOptions) + Send + Sync>;

pub(crate) struct Cluster {
    pub(crate) places: Vec<Place>,
    cuts: Cuts,
    limits: GroupLimits,
    adjust: Adjust,
    simulated: Simulated,
    /// For the clients.
    pub(crate) runtime: Runtime,
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A node's network, with a certificate that holds today.
fn certified(ca: &Authority) -> TlsTcp {
    let dir = tempfile::tempdir().unwrap();
    let long = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2090, 1, 1));
    let signed = ca.sign(|params| (params.not_before, params.not_after) = long);
    let files = write(dir.path(), &ca.pem, &signed);
    TlsTcp::new(files, Arc::new(RealDevice::new()), Arc::new(RealClock)).unwrap()
}

/// The replica on a node.
pub(crate) fn replica_on(node: u64) -> u64 {
    100 + node
}

pub(crate) fn members(nodes: &[(u64, SocketAddr)]) -> BTreeMap<u64, Member> {
    let member = |&(node, address): &(u64, SocketAddr)| {
        let member = Member {
            node,
            disk: 0,
            address: address.to_string(),
        };
        (replica_on(node), member)
    };
    nodes.iter().map(member).collect()
}

pub(crate) fn peers_options(node: u64, listen: SocketAddr) -> PeersOptions {
    let identity = Identity {
        cluster: *b"cluster of tests",
        node,
        boot: (u128::from(BOOTS.fetch_add(1, Ordering::SeqCst))).to_le_bytes(),
        level: LEVEL,
        spoken: 1..=LEVEL,
    };
    let mut options = PeersOptions::new(identity, listen, Arc::new(RealClock), node);
    options.times = Times {
        // A node that died and its successor have one number.
        ping: Duration::from_millis(100),
        suspect: Duration::from_millis(500),
        backoff_max: Duration::from_millis(100),
        ..Times::default()
    };
    options
}

pub(crate) fn log_options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        max_workers: 4,
        reserve_bytes: Some(0),
        ..LogOptions::default()
    }
}

pub(crate) fn node_options(dir: &std::path::Path, log: LogOptions, peers: PeersOptions) -> NodeOptions {
    let log = NodeLogOptions {
        log,
        retention: Some(RETENTION),
        ..NodeLogOptions::default()
    };
    NodeOptions {
        store: NodeStoreOptions {
            disks: vec![dir.to_owned()],
            layout: Layout::Shared.into(),
            shared: log.clone(),
            private: log,
            ..NodeStoreOptions::default()
        },
        clock: Arc::clone(&peers.clock),
        peers,
        machine: MachineOptions {
            db: Options {
                shared: Some(Shared::new(SharedOptions::default()).unwrap()),
                reserve_bytes: Some(0),
                ..Options::default()
            },
            ..MachineOptions::new(Arc::new(Runs))
        },
        reads: Reads::Index,
        times: times(),
        limits: GroupLimits::default(),
        transfer_rate: 0,
        log_opened: None,
        note_made: None,
        losses: LossOptions::default(),
    }
}

impl Place {
    pub(crate) fn replica(&self) -> Option<Arc<Replica>> {
        let alive = self.alive.lock().unwrap();
        alive
            .as_ref()
            .and_then(|(node, _)| node.replica(replica_on(self.id)))
    }

    /// The node, and where it runs.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Node, &Runtime) -> T) -> Option<T> {
        let alive = self.alive.lock().unwrap();
        alive.as_ref().map(|(node, runtime)| look(node, runtime))
    }

    /// The changes of the node.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<u64>> {
        let alive = self.alive.lock().unwrap();
        alive.as_ref().map(|(node, _)| node.changes())
    }

    /// Sets its clock back, from now on.
    pub(crate) fn set_behind(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap();
        self.clock.ms.store(ms, Ordering::SeqCst);
    }

    /// Its log prepares room for so many bytes.
    pub(crate) fn prepare(&self, bytes: usize) {
        let prepared = self.with(|node, runtime| {
            let log = node.logs()[0].log().clone();
            runtime.block_on(async { tokio::time::timeout(CAP, log.room(bytes)).await })
        });
        prepared.unwrap().unwrap().unwrap();
    }

    pub(crate) fn state(&self) -> Option<ReplicaState> {
        self.replica().and_then(|replica| replica.state().ok())
    }

    /// The process dies: its tasks end wherever they are.
    pub(crate) fn kill(&self) {
        let (node, runtime) = self.alive.lock().unwrap().take().unwrap();
        runtime.shutdown_timeout(CAP);
        drop(node);
    }
}

impl Cluster {
    /// Waits until each of these lacks an entry that the leader has.
    pub(crate) fn until_lacking(&self, places: &[&Place], leader: &Place) {
        self.until("an entry that a follower lacks", || {
            // One that had no room for a vote is started again, and has no state meanwhile.
            let mut states = places.iter().map(|place| place.state().zip(leader.state()));
            let lack = states.all(|both| both.is_some_and(|(its, led)| its.last < led.last));
            lack.then_some(())
        });
    }

    pub(crate) fn new(limits: GroupLimits) -> Self {
        Self::with(limits, None, Simulated::Nothing)
    }

    /// One with simulated devices, whose leaders are patient.
    pub(crate) fn simulated(simulated: Simulated) -> Self {
        Self::with(GroupLimits::default(), None, simulated)
    }

    /// One whose logs keep no entries for followers that lack them.
    pub(crate) fn forgetful() -> Self {
        Self::adjusted(Simulated::Nothing, |options| {
            options.store.shared.retention = Some(Retention {
                margin: 0,
                lagging: 0,
            });
        })
    }

    /// One whose nodes are started with other options.
    pub(crate) fn adjusted(
        simulated: Simulated,
        adjust: impl Fn(&mut NodeOptions) + Send + Sync + 'static,
    ) -> Self {
        Self::start(Box::new(adjust), GroupLimits::default(), None, simulated)
    }

    /// One whose nodes speak TLS.
    pub(crate) fn secured() -> Self {
        let ca = Authority::new("of the cluster");
        Self::with(GroupLimits::default(), Some(&ca), Simulated::Nothing)
    }

    fn with(limits: GroupLimits, ca: Option<&Authority>, simulated: Simulated) -> Self {
        Self::start(Box::new(|_| {}), limits, ca, simulated)
    }

    fn start(adjust: Adjust, limits: GroupLimits, ca: Option<&Authority>, simulated: Simulated) -> Self {
        let place = |(index, address): (usize, SocketAddr)| Place {
            id: index as u64 + 1,
            address,
            dir: tempfile::tempdir().unwrap(),
            tls: ca.map(certified),
            alive: Mutex::default(),
            clock: Arc::default(),
            device: SimDevice::new(index as u64),
        };
        let cluster = Self {
            places: addresses(3).into_iter().enumerate().map(place).collect(),
            cuts: Cuts::default(),
            limits,
            adjust,
            simulated,
            runtime: runtime(),
        };
        let addresses: Vec<_> = cluster
            .places
            .iter()
            .map(|place| (place.id, place.address))
            .collect();
        for place in cluster.places.iter().rev() {
            cluster.open(place);
            let alive = place.alive.lock().unwrap();
            let (node, runtime) = alive.as_ref().unwrap();
            runtime
                .block_on(node.bootstrap(GROUP, members(&addresses)))
                .unwrap();
        }
        cluster
    }

    /// Starts a node on what is in its directory.
    pub(crate) fn open(&self, place: &Place) {
        let runtime = runtime();
        // Clients that wait for a node that died keep its files open.
        let node = self.until("the end of what died", || {
            let network = Cuts {
                own: Some(place.address),
                tls: place.tls.clone(),
                ..self.cuts.clone()
            };
            let mut peers = peers_options(place.id, place.address);
            peers.clock = Arc::clone(&place.clock) as _;
            let mut options = node_options(place.dir.path(), log_options(), peers);
            options.limits = self.limits.clone();
            self.simulate(place, &mut options);
            (self.adjust)(&mut options);
            match runtime.block_on(Node::start(network, options)) {
                Err(NodeError::Store(StoreError::Log(LogError::Locked { .. }))) => None,
                node => Some(node.unwrap()),
            }
        });
        runtime.block_on(async {
            for other in self.places.iter().filter(|other| other.id != place.id) {
                node.set_peer(other.id, other.address).unwrap();
            }
        });
        *place.alive.lock().unwrap() = Some((Arc::new(node), runtime));
    }

    /// Puts on the simulated device of a node what is to be on it.
    fn simulate(&self, place: &Place, options: &mut NodeOptions) {
        let simulated = Arc::new(place.device.clone());
        match self.simulated {
            Simulated::Nothing => return,
            Simulated::Logs => options.store.shared.log.device = simulated,
            Simulated::Tables | Simulated::Disk => {
                let store = place
                    .dir
                    .path()
                    .join("replicas")
                    .join(replica_on(place.id).to_string());
                let families = store.join("store/families");
                let db = &mut options.machine.db;
                db.device = Arc::new(SplitDevice::new(
                    families,
                    Arc::new(RealDevice::new()),
                    Arc::clone(&simulated) as _,
                ));
                if self.simulated == Simulated::Disk {
                    options.store.shared.log.device = simulated;
                } else {
                    db.default_family.write_buffer_bytes = 64 << 10;
                    db.default_family.max_write_buffers = 2;
                }
            }
        }
        options.times.heartbeat = Duration::from_millis(200);
        options.times.election_min = Duration::from_secs(2);
        options.times.election_max = Duration::from_secs(3);
    }

    /// No connection of a node stands any more, in either direction, nor can one be made.
    pub(crate) fn cut_off(&self, place: &Place) {
        self.cuts.off.lock().unwrap().insert(place.address);
        self.reconnect(place);
    }

    pub(crate) fn heal(&self, place: &Place) {
        self.cuts.off.lock().unwrap().remove(&place.address);
    }

    /// Ends the connections between a node and the others: they are made anew, if they can be.
    fn reconnect(&self, place: &Place) {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let reset = |from: &Place, to: &Place| {
            if let Some((node, runtime)) = &*from.alive.lock().unwrap() {
                let _context = runtime.enter();
                node.set_peer(to.id, nowhere).unwrap();
                node.set_peer(to.id, to.address).unwrap();
            }
        };
        for other in self.places.iter().filter(|other| other.id != place.id) {
            reset(place, other);
            reset(other, place);
        }
    }

    /// Waits for something, which is looked at again and again.
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        for _ in 0..CAP.as_millis() / PAUSE.as_millis() {
            if let Some(found) = look() {
                return found;
            }
            // A look may wait for an answer.
            if begun.elapsed() > 2 * CAP {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let states: Vec<_> = self.places.iter().map(Place::state).collect();
        panic!("{what} does not happen: {states:#?}")
    }

    /// The node whose replica leads, among those that may.
    pub(crate) fn leader(&self, may: impl Fn(&Place) -> bool) -> &Place {
        self.until("a leader", || {
            let mut places = self.places.iter().filter(|place| may(place));
            places.find(|place| place.state().is_some_and(|state| state.leads))
        })
    }

    pub(crate) fn replicas(&self) -> Vec<Arc<Replica>> {
        self.places.iter().filter_map(Place::replica).collect()
    }

    /// Counts up so many times by each of several tasks, while `meanwhile` happens.
    pub(crate) fn count(
        self: &Arc<Self>,
        tally: &Arc<Tally>,
        tasks: usize,
        times: usize,
        meanwhile: impl FnOnce(),
    ) {
        let clients: Vec<_> = (0..tasks)
            .map(|task| {
                let (cluster, tally) = (Arc::clone(self), Arc::clone(tally));
                self.runtime.spawn(async move {
                    for n in 0..times {
                        tally.count(&cluster, (task + n) % tally.keys.len()).await;
                    }
                })
            })
            .collect();
        meanwhile();
        for client in clients {
            self.runtime.block_on(client).unwrap();
        }
    }

    /// What was counted holds: on the leader, and then on all nodes that are up.
    pub(crate) fn check(self: &Arc<Self>, tally: &Tally) {
        for (key, counted) in tally.keys.iter().enumerate() {
            let row = row(key);
            let value = self.runtime.block_on(read(self, &row));
            let counted = counted.lock().unwrap();
            let (known, most) = (
                counted.replies.len() as u64,
                counted.replies.len() as u64 + counted.unknown,
            );
            assert!(
                known <= value && value <= most,
                "key {key} is {value}; {known} counts were answered, and {} have no known outcome",
                counted.unknown
            );
            assert!(
                counted.replies.last().is_none_or(|last| *last <= value),
                "key {key} is {value}, and {:?} was answered",
                counted.replies.last()
            );
        }
        self.until("agreement", || {
            let states: Vec<_> = self.places.iter().filter_map(Place::state).collect();
            let applied: BTreeSet<_> = states.iter().map(|state| (state.applied, state.last)).collect();
            let done = |state: &ReplicaState| state.applied.map(|id| id.index) == state.last;
            (applied.len() == 1 && states.iter().all(done)).then_some(())
        });
    }
}

/// What clients know of the keys that they count on.
pub(crate) struct Tally {
    pub(crate) keys: Vec<Mutex<Counted>>,
    stopped: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Counted {
    /// The values that were answered, each once.
    replies: BTreeSet<u64>,
    unknown: u64,
}

pub(crate) fn row(key: usize) -> Row {
    Row {
        slot: key as u16,
        key: format!("counter {key}").into_bytes(),
    }
}

fn number(value: Option<Value>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// INCR.
pub(crate) fn incr(row: Row) -> impl Fn(&mut Rows<'_>) -> Executed<u64> + Send + Sync + 'static {
    move |rows| {
        let next = number(rows.get(&row)?) + 1;
        let value = Some(next.to_le_bytes().to_vec());
        Ok((BTreeMap::from([(row.clone(), value)]), next))
    }
}

/// GET, as a part of a pipeline would.
pub(crate) fn get(row: Row) -> impl Fn(&mut Rows<'_>) -> Executed<u64> + Send + Sync + 'static {
    move |rows| Ok((BTreeMap::new(), number(rows.get(&row)?)))
}

/// Asks one replica after the other until one answers.
pub(crate) async fn ask<T, F, A>(cluster: &Cluster, ask: F) -> Answer<T>
where
    F: Fn(Arc<Replica>) -> A,
    A: Future<Output = Result<Answer<T>, CommandError>>,
{
    let asked = tokio::time::timeout(CAP, async {
        loop {
            for replica in cluster.replicas() {
                match ask(replica).await {
                    Ok(Answer::TryAgain) | Err(_) => {}
                    Ok(answer) => return answer,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    asked.await.unwrap_or_else(|_| panic!("nobody answers"))
}

pub(crate) async fn read(cluster: &Cluster, row: &Row) -> u64 {
    let read = |replica| async move {
        let read = read_applied(&replica, row).await;
        Ok(read.map_or(Answer::TryAgain, Answer::Reply))
    };
    match ask(cluster, read).await {
        Answer::Reply(value) => number(value.map(|value| value.to_vec())),
        other => panic!("a read has {other:?}"),
    }
}

impl Tally {
    pub(crate) fn new(keys: usize) -> Arc<Self> {
        Arc::new(Self {
            keys: (0..keys).map(|_| Mutex::default()).collect(),
            stopped: AtomicBool::new(false),
        })
    }

    async fn count(&self, cluster: &Cluster, key: usize) {
        let before = self.keys[key].lock().unwrap().replies.last().copied();
        let seen = match ask(
            cluster,
            |replica| async move { replica.execute(get(row(key))).await },
        )
        .await
        {
            Answer::Reply(seen) => seen,
            other => panic!("a read has {other:?}"),
        };
        assert!(
            Some(seen) >= before,
            "{before:?} was answered before {seen} was read"
        );
        let answer = ask(
            cluster,
            |replica| async move { replica.execute(incr(row(key))).await },
        )
        .await;
        let mut counted = self.keys[key].lock().unwrap();
        match answer {
            Answer::Reply(value) => {
                assert!(value > seen, "{seen} was read before {value} was answered");
                assert!(counted.replies.insert(value), "{value} was answered twice");
            }
            Answer::Unknown => counted.unknown += 1,
            Answer::TryAgain => unreachable!("it is asked again"),
        }
    }

    /// How many counts have been answered.
    pub(crate) fn answered(&self) -> usize {
        let answered = |key: &Mutex<Counted>| key.lock().unwrap().replies.len();
        self.keys.iter().map(answered).sum()
    }

    /// Counts until it is [stopped](Self::stop).
    pub(crate) fn keep_counting(self: &Arc<Self>, cluster: &Arc<Cluster>) -> tokio::task::JoinHandle<()> {
        let (tally, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let runtime = cluster.runtime.handle().clone();
        runtime.spawn(async move {
            let mut n = 0;
            while !tally.stopped.load(Ordering::SeqCst) {
                tally.count(&cluster, n % tally.keys.len()).await;
                n += 1;
            }
        })
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}
