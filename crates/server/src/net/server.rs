//! The server: it listens, assigns connections to its threads, and shuts down in order.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_db::Db;
use collie_io::Clock;
use collie_tls::Refusals;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::commands::{self, LiveSettings};
use crate::config::{ServerConfig, Settings};
use crate::cost::AsideBudget;
use crate::data::store::Store;
use crate::data::sweep;
use crate::error::ServerError;
use crate::metrics;
use crate::net::clients::{Client, Clients};
use crate::net::connection;
use crate::net::pause::ClientPause;
use crate::net::pressure::Pressure;
use crate::net::threads::{BLOCKING, Handle};
use crate::partitions::{self, Partitions};
use crate::process;
use crate::session::{Ending, Session, Shared};
use crate::slow_log::SlowLog;
use crate::stats::{CommandCounter, Counters};
use crate::tls::Tls;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 511;
/// How often connections are checked for having been silent, or without a password, for too long.
const LATE_CHECK: Duration = Duration::from_secs(1);
/// How long no connection is accepted after the system refused to create one, as it does when there
/// are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Commands that wait on threads that may block; others are tried again later. The rest of [`BLOCKING`] is for
/// commands that need not wait.
const WAITERS: usize = BLOCKING / 2;
/// Searches through all keys that run at a time; others wait.
const SEARCHES: usize = 2;
/// How long a node of a cluster that has handed over what it led redirects its clients, unless they all
/// leave before.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_CHECK: Duration = Duration::from_millis(20);

/// The addresses of a server that has no store yet.
///
/// Binding them first keeps a start that cannot succeed, because another server has the address,
/// from creating a store or recovering one. Clients cannot connect before the store is open.
#[derive(Debug)]
pub struct Addresses {
    config: ServerConfig,
    listener: Option<Taken>,
    tls: Option<(Taken, Tls)>,
    metrics: Option<Taken>,
}

impl Addresses {
    /// Checks the configuration, reads the files that TLS needs, and binds its addresses.
    ///
    /// # Errors
    /// The configuration contradicts itself or would open the server to the network unasked, a file
    /// cannot be used, or an address cannot be bound.
    pub fn take(mut config: ServerConfig) -> Result<Addresses, ServerError> {
        config.check()?;
        config.clients_max = allow_clients(config.clients_max);
        let tls = match config.tls.clone() {
            Some(tls) => Some((
                tls.listen,
                Tls::new(tls, config.open_to_network, Arc::clone(&config.clock))?,
            )),
            None => None,
        };
        let listener = config.plain.then(|| Taken::take(config.listen)).transpose()?;
        let tls = match tls {
            Some((addr, tls)) => Some((Taken::take(addr)?, tls)),
            None => None,
        };
        let metrics = config.metrics.map(Taken::take).transpose()?;
        Ok(Addresses {
            config,
            listener,
            tls,
            metrics,
        })
    }
}

impl Addresses {
    /// For a server of the keys of a cluster; see [`ServerConfig::cluster`]. `clock` is the one that
    /// the cluster's node goes by.
    #[must_use]
    pub fn in_cluster(mut self, cluster: Arc<dyn Cluster>, clock: Arc<dyn Clock>) -> Addresses {
        self.config.cluster = Some(cluster);
        self.config.clock = clock;
        self
    }
}

/// An address that is bound, and on which no socket listens yet.
#[derive(Debug)]
struct Taken {
    addr: SocketAddr,
    socket: socket2::Socket,
}

impl Taken {
    fn take(addr: SocketAddr) -> Result<Taken, ServerError> {
        let taken = || {
            let socket = socket2::Socket::new(
                socket2::Domain::for_address(addr),
                socket2::Type::STREAM.nonblocking().cloexec(),
                Some(socket2::Protocol::TCP),
            )?;
            socket.set_reuse_address(true)?;
            socket.bind(&addr.into())?;
            Ok(socket)
        };
        match taken() {
            Ok(socket) => Ok(Taken { addr, socket }),
            Err(source) => Err(ServerError::Listen { addr, source }),
        }
    }

    fn listen(self) -> Result<StdListener, ServerError> {
        let Taken { addr, socket } = self;
        match socket.listen(BACKLOG) {
            Ok(()) => Ok(socket.into()),
            Err(source) => Err(ServerError::Listen { addr, source }),
        }
    }

    /// Listens, and returns the address with its port.
    fn listen_at(self) -> Result<(StdListener, SocketAddr), ServerError> {
        let addr = self.addr;
        let listener = self.listen()?;
        match listener.local_addr() {
            Ok(addr) => Ok((listener, addr)),
            Err(source) => Err(ServerError::Listen { addr, source }),
        }
    }
}

/// A server that listens and is ready to run.
#[derive(Debug)]
pub struct Server {
    listener: Option<StdListener>,
    tls: Option<StdListener>,
    metrics: Option<StdListener>,
    shared: Arc<Shared>,
    grace: Duration,
}

impl Server {
    /// Binds the addresses and listens on them, for a store that is open already. As
    /// [`Addresses::take`] and [`Server::listen`].
    ///
    /// # Errors
    /// As those functions.
    pub fn bind(config: ServerConfig, db: Db) -> Result<Server, ServerError> {
        Server::listen(Addresses::take(config)?, db)
    }

    /// Opens the databases in `db` and listens. Clients may connect from now on; they are served by
    /// [`run`](Server::run).
    ///
    /// # Errors
    /// Another server has begun to listen on the address, or the databases cannot be opened, or they have
    /// keys although the server is in a cluster.
    pub fn listen(addresses: Addresses, db: Db) -> Result<Server, ServerError> {
        let Addresses {
            config,
            listener,
            tls,
            metrics,
        } = addresses;
        let mut listen = config.listen;
        let listener = match listener {
            Some(taken) => {
                let listener;
                (listener, listen) = taken.listen_at()?;
                Some(listener)
            }
            None => None,
        };
        let is_plain = listener.is_some();
        let (secured, tls) = match tls {
            Some((taken, mut tls)) => {
                let listener;
                (listener, tls.addr) = taken.listen_at()?;
                if !is_plain {
                    listen = tls.addr;
                }
                (Some(listener), Some(tls))
            }
            None => (None, None),
        };
        let metrics = metrics.map(Taken::listen).transpose()?;
        let mut seed = [0; 40];
        random(&mut seed).map_err(|source| ServerError::Thread {
            what: "random numbers",
            source,
        })?;
        let cursor_seed = seed.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let started_ms = config.clock.wall_ms();
        let store = Store::open(db, cursor_seed, config.databases.clone())?;
        if config.cluster.is_some()
            && let Some(database) = store.first_with_keys()?
        {
            return Err(ServerError::HoldsKeys { database });
        }
        let shared = Arc::new(Shared {
            store,
            partitions: config.cluster.clone().map(Partitions::new),
            watches: Arc::default(),
            slow_log: SlowLog::default(),
            client_pause: ClientPause::default(),
            settings: Settings::new(&config),
            verbosity: config.verbosity,
            config_file: config.config_file,
            clients: Clients::default(),
            counters: Counters::default(),
            calls: commands::names().map(|_| CommandCounter::default()).collect(),
            pressure: Pressure::new(config.ring_bytes),
            // Enough for two of the longest values.
            aside_budget: AsideBudget::new(config.ring_bytes),
            waiters: tokio::sync::Semaphore::new(WAITERS),
            searches: tokio::sync::Semaphore::new(SEARCHES),
            clock: config.clock,
            started_ms,
            listen,
            threads,
            is_plain,
            tls,
            refusals: Refusals::default(),
            run_id: seed.iter().skip(20).map(|byte| format!("{byte:02x}")).collect(),
            ending: watch::Sender::new(Ending::Never),
        });
        Ok(Server {
            listener,
            tls: secured,
            metrics,
            shared,
            grace: config.shutdown_grace,
        })
    }

    /// The address that it listens on; that of TLS, if there is no other.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.listen
    }

    /// The address that it listens on for TLS, if it does.
    #[must_use]
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.shared.tls.as_ref().map(|tls| tls.addr)
    }

    /// The address at which it answers requests for metrics, if it does.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// What changes its settings while it runs.
    #[must_use]
    pub fn settings(&self) -> LiveSettings {
        LiveSettings::new(Arc::clone(&self.shared))
    }

    /// Serves until `shutdown` completes or a client sends `SHUTDOWN`. Then a node of a cluster hands
    /// over what it leads, and serves meanwhile, unless that was `SHUTDOWN NOW`. It stops accepting
    /// connections, finishes the requests that were read, sends their replies, and closes the
    /// engine. Blocks the calling thread, which must not be one of a runtime.
    ///
    /// # Errors
    /// A thread could not be started or panicked, or the engine did not close cleanly.
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Server {
            listener,
            tls,
            metrics,
            shared,
            grace,
        } = self;
        let thread_error = |what| move |source| ServerError::Thread { what, source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(thread_error("the accepting thread"))?;
        let mut workers = Vec::with_capacity(shared.threads);
        for index in 0..shared.threads {
            let worker = Handle::start(index, Arc::clone(&shared), grace);
            workers.push(worker.map_err(thread_error("a serving thread"))?);
        }
        let stop = Arc::new(sweep::Stop::default());
        let sweeper = start_sweeper(&shared, &stop).map_err(thread_error("the expiring thread"))?;
        let metrics = match metrics {
            None => None,
            Some(listener) => {
                Some(start_metrics(listener, &shared).map_err(thread_error("the metrics thread"))?)
            }
        };

        let accepted = runtime.block_on(accept([listener, tls], &shared, &workers, shutdown));
        tracing::info!("the server ends: connections finish what they have read");
        for client in shared.clients.all() {
            client.close();
        }
        let mut ended = accepted.map_err(thread_error("the accepting thread"));
        for worker in workers {
            let joined = worker.join().map_err(thread_error("a serving thread"));
            ended = ended.and(joined);
        }
        if let Some(metrics) = metrics {
            let joined = metrics
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("it panicked")));
            ended = ended.and(joined.map_err(thread_error("the metrics thread")));
        }
        stop.set();
        if let Some(sweeper) = sweeper
            && sweeper.join().is_err()
        {
            let source = io::Error::other("it panicked");
            ended = ended.and(Err(ServerError::Thread {
                what: "the expiring thread",
                source,
            }));
        }
        shared.store.close()?;
        ended
    }
}

/// Completes on SIGTERM or SIGINT: an argument for [`Server::run`].
pub async fn termination() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals cannot be caught: use the SHUTDOWN command to end the server");
            std::future::pending().await
        }
    }
}

/// Ignores SIGHUP from now on, until the process ends: closing a terminal does not end the server. A
/// program that [reloads](LiveSettings::reload) settings by it installs a handler of its own.
///
/// # Errors
/// The system does not let the process catch the signal.
pub fn ignore_hangup() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    // The handler stays installed, although no task waits for the signal.
    signal(SignalKind::hangup()).map(drop)
}

/// Raises the limit on open files to the hard limit, and returns how many of `wanted` clients it
/// allows beside the engine's files.
fn allow_clients(wanted: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    if before != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, limit)
    {
        tracing::warn!(%error, ?before, "the limit of open files stays as it was");
    }
    let files = process::descriptors_max();
    let possible = process::clients_possible(files);
    if wanted > possible {
        tracing::warn!(
            wanted,
            possible,
            files,
            "maxclients is lowered to what the limit of open files allows; raise that limit (ulimit -n, LimitNOFILE)"
        );
    }
    wanted.min(possible)
}

fn random(buffer: &mut [u8]) -> io::Result<()> {
    let device = collie_io::RealDevice::new();
    collie_io::Device::random(&device, buffer)
}

fn start_metrics(
    listener: StdListener,
    shared: &Arc<Shared>,
) -> io::Result<std::thread::JoinHandle<io::Result<()>>> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("collie-metrics".to_owned());
    thread.spawn(move || metrics::run(listener, &shared))
}

fn start_sweeper(
    shared: &Arc<Shared>,
    stop: &Arc<sweep::Stop>,
) -> io::Result<Option<std::thread::JoinHandle<()>>> {
    let Some(keyspace) = shared.store.keyspace(0) else {
        return Ok(None);
    };
    let own = Arc::new(Client::new(
        0,
        shared.listen,
        shared.listen,
        -1,
        shared.started_ms,
    ));
    let session = Session::new(shared, own, keyspace);
    let (shared, stop) = (Arc::clone(shared), Arc::clone(stop));
    let thread = std::thread::Builder::new().name("collie-expire".to_owned());
    let sweep = move || match &shared.partitions {
        Some(partitions) => partitions::sweep::run(&shared, partitions, &stop),
        None => sweep::run(&shared, session, &stop),
    };
    thread.spawn(sweep).map(Some)
}

/// Accepts connections until the shutdown: plain ones, and those over TLS.
async fn accept(
    [plain, tls]: [Option<StdListener>; 2],
    shared: &Arc<Shared>,
    workers: &[Handle],
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let plain = plain.map(TcpListener::from_std).transpose()?;
    let tls = tls.map(TcpListener::from_std).transpose()?;
    let mut late_check = tokio::time::interval(LATE_CHECK);
    let mut ended = std::pin::pin!(ended(shared, shutdown));
    loop {
        tokio::select! {
            () = &mut ended => break,
            _ = late_check.tick(), if shared.clients.len() > 0 => close_late(shared),
            accepted = accept_on(plain.as_ref()) => admit(accepted, false, shared, workers).await,
            accepted = accept_on(tls.as_ref()) => admit(accepted, true, shared, workers).await,
        }
    }
    shared.end(Ending::Now);
    Ok(())
}

/// Waits for the shutdown, and until what this node leads is led elsewhere.
async fn ended(shared: &Shared, shutdown: impl Future<Output = ()>) {
    let mut ending = shared.ending.subscribe();
    tokio::select! {
        () = shutdown => {}
        // The sender lives in `shared`.
        _ = ending.wait_for(|ending| *ending != Ending::Never) => {}
    }
    shared.end(Ending::Soon);
    let handed_over = async {
        let Some(partitions) = &shared.partitions else {
            return;
        };
        if partitions.cluster.retire().await {
            let lingered = async {
                while shared.clients.len() > 0 {
                    tokio::time::sleep(LINGER_CHECK).await;
                }
            };
            // Clients that keep their connections learn the rest when these end.
            let _over = tokio::time::timeout(LINGER, lingered).await;
        }
    };
    tokio::select! {
        () = handed_over => {}
        _ = ending.wait_for(|ending| *ending == Ending::Now) => {}
    }
}

async fn accept_on(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// Assigns a connection to the thread that has the fewest.
async fn admit(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    is_tls: bool,
    shared: &Arc<Shared>,
    workers: &[Handle],
) {
    let (stream, addr) = match accepted {
        Ok(accepted) => accepted,
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            return;
        }
    };
    if shared.clients.len() >= shared.settings.clients_max() {
        shared.counters.connections_refused.add(1);
        if let Some(tls) = &shared.tls {
            tls.make_room(shared.now_ms());
        }
        // Before its handshake a client can be sent nothing over TLS, as in Redis.
        if !is_tls {
            connection::refuse(&stream);
        }
        return;
    }
    shared.counters.connections.add(1);
    let laddr = stream.local_addr().unwrap_or(shared.listen);
    let fd = stream.as_raw_fd();
    if let Err(error) = tune(&stream, shared) {
        tracing::debug!(%addr, %error, "a connection ended before it began");
        return;
    }
    let Some(worker) = workers.iter().min_by_key(|worker| worker.connections()) else {
        return;
    };
    match stream.into_std() {
        Ok(stream) => {
            let client = shared.clients.enter(addr, laddr, fd, shared.now_ms());
            if let Err(client) = worker.hand_over(stream, client, is_tls) {
                shared.clients.leave(&client);
            }
        }
        Err(error) => tracing::warn!(%addr, %error, "a connection could not be passed to its thread"),
    }
}

fn tune(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let seconds = shared.settings.tcp_keepalive_s();
    if seconds > 0 {
        let time = Duration::from_secs(seconds);
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(time)
            .with_interval(time / 3)
            .with_retries(3);
        socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    }
    Ok(())
}

/// Closes the connections that have been silent, or have not authenticated, for longer than is
/// allowed.
fn close_late(shared: &Shared) {
    let allows = |limit_s, since_ms: u64, now_ms: u64| {
        limit_s == 0 || since_ms == 0 || now_ms.saturating_sub(since_ms) <= limit_s * 1000
    };
    let (silent_s, strange_s) = (
        shared.settings.idle_timeout_s(),
        shared.settings.authentication_timeout_s(),
    );
    if silent_s == 0 && (strange_s == 0 || shared.settings.password().is_none()) {
        return;
    }
    let now_ms = shared.now_ms();
    // Relaxed: statistics of the connection's thread; a stale value only delays the close to the
    // next check.
    let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
    for client in shared.clients.all() {
        if client.is_closing() {
            continue;
        }
        if !allows(silent_s, read(&client.last_seen_ms), now_ms) {
            shared.counters.clients_timed_out.add(1);
            client.close();
        } else if !allows(strange_s, read(&client.unauthenticated_since_ms), now_ms) {
            shared.counters.unauthenticated_timed_out.add(1);
            client.close();
        }
    }
}
