//! The server: it listens, hands connections to its threads, and ends in order.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use collie_db::Db;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::clients::{Client, Clients};
use crate::commands::{self, SlowLog};
use crate::config::{ServerConfig, Settings};
use crate::connection;
use crate::cost::Room;
use crate::error::ServerError;
use crate::gate::Gate;
use crate::health::WriteHealth;
use crate::metrics;
use crate::pressure::Pressure;
use crate::process;
use crate::session::{Session, Shared};
use crate::stats::{CommandCounter, Counters};
use crate::store::Store;
use crate::sweep;
use crate::worker::Handle;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 511;
/// Open files that are not connections: the engine's tables and segments, and what the program has of its own.
const OWN_DESCRIPTORS: u64 = 1024;
/// How often connections are looked at for having been idle too long.
const IDLE_CHECK: Duration = Duration::from_secs(1);
/// How long nothing is accepted after the system refused to give a connection, as it does when there are no
/// file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Searches through all keys that are at work at a time; others wait for their turn.
const SEARCHES: usize = 2;

/// The addresses of a server that has no store yet.
///
/// Taking them first keeps a start that cannot succeed, because another server has the address, from creating a store or
/// recovering one. Nobody can connect before the store is open.
#[derive(Debug)]
pub struct Addresses {
    config: ServerConfig,
    listener: Taken,
    metrics: Option<Taken>,
}

impl Addresses {
    /// Takes the addresses that the configuration names, where it is one that a server can run with.
    ///
    /// # Errors
    /// The configuration contradicts itself or would let strangers in, or an address cannot be had.
    pub fn take(mut config: ServerConfig) -> Result<Addresses, ServerError> {
        config.check()?;
        config.clients_max = allow_clients(config.clients_max);
        let listener = Taken::take(config.listen)?;
        let metrics = config.metrics.map(Taken::take).transpose()?;
        Ok(Addresses {
            config,
            listener,
            metrics,
        })
    }
}

/// An address that others cannot have any more, on which nobody is listened to yet.
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
}

/// A server that listens and is ready to run.
#[derive(Debug)]
pub struct Server {
    listener: StdListener,
    metrics: Option<StdListener>,
    shared: Arc<Shared>,
    grace: Duration,
}

impl Server {
    /// Takes the addresses and listens there, for a store that is open already. As [`Addresses::take`] and
    /// [`Server::listen`].
    ///
    /// # Errors
    /// As those.
    pub fn bind(config: ServerConfig, db: Db) -> Result<Server, ServerError> {
        Server::listen(Addresses::take(config)?, db)
    }

    /// Opens the databases in `db` and listens. Clients may connect from now on; they are served by
    /// [`run`](Server::run).
    ///
    /// # Errors
    /// Another server has begun to listen on the address, or the databases cannot be opened.
    pub fn listen(addresses: Addresses, db: Db) -> Result<Server, ServerError> {
        let Addresses {
            config,
            listener,
            metrics,
        } = addresses;
        let addr = listener.addr;
        let listener = listener.listen()?;
        let listen = listener
            .local_addr()
            .map_err(|source| ServerError::Listen { addr, source })?;
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
        let shared = Arc::new(Shared {
            store: Store::open(db, cursor_seed, config.databases.clone())?,
            watches: Arc::default(),
            slow_log: SlowLog::default(),
            gate: Gate::default(),
            settings: Settings::new(&config),
            verbosity: config.verbosity,
            config_file: config.config_file,
            clients: Clients::default(),
            counters: Counters::default(),
            calls: commands::names().map(|_| CommandCounter::default()).collect(),
            pressure: Pressure::new(config.ring_bytes),
            health: WriteHealth::default(),
            // Two of the longest values.
            room: Room::new(config.ring_bytes),
            searches: tokio::sync::Semaphore::new(SEARCHES),
            clock: config.clock,
            started_ms,
            listen,
            threads,
            run_id: seed.iter().skip(20).map(|byte| format!("{byte:02x}")).collect(),
            ending: watch::Sender::new(false),
        });
        Ok(Server {
            listener,
            metrics,
            shared,
            grace: config.shutdown_grace,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.listen
    }

    /// Where it answers requests for metrics, if it does.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until `shutdown` completes or a client says `SHUTDOWN`. Then it accepts nobody more, finishes the
    /// requests that were read, sends their replies, and closes the engine. Blocks the calling thread, which must
    /// not be one of a runtime.
    ///
    /// # Errors
    /// A thread could not be started or panicked, or the engine did not close cleanly.
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Server {
            listener,
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
            Some(listener) => Some(
                start_metrics(listener, &shared).map_err(thread_error("the thread that tells metrics"))?,
            ),
        };

        let accepted = runtime.block_on(accept(listener, &shared, &workers, shutdown));
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
            ended = ended.and(joined.map_err(thread_error("the thread that tells metrics")));
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
        shared.store.stop_counting();
        shared.store.db.clone().close()?;
        ended
    }
}

/// Completes when the process is asked to end, by SIGTERM or by SIGINT: what to give to [`Server::run`].
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

/// Has SIGHUP do nothing from now on, for as long as the process lives: a terminal that closes takes no server with it.
/// There is nothing to be read again, so the signal has no other use; Redis ignores it too.
///
/// # Errors
/// The system does not let the signal be caught.
pub fn ignore_hangup() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    // What is registered stays, also when nobody waits for the signal.
    signal(SignalKind::hangup()).map(drop)
}

/// Raises the limit of open files as far as the system lets it, and gives how many of `wanted` clients find room
/// beside the engine's files.
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
    let possible = clients_possible(files);
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

/// How many clients find room where so many files may be open. Half of them are theirs at least.
pub(crate) fn clients_possible(files: u64) -> usize {
    usize::try_from(files - OWN_DESCRIPTORS.min(files / 2)).unwrap_or(usize::MAX)
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
    thread
        .spawn(move || sweep::run(&shared, session, &stop))
        .map(Some)
}

/// Accepts until it is time to end.
async fn accept(
    listener: StdListener,
    shared: &Arc<Shared>,
    workers: &[Handle],
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut ending = shared.ending.subscribe();
    let mut idle_check = tokio::time::interval(IDLE_CHECK);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            // The sender lives in `shared`.
            _ = ending.wait_for(|ending| *ending) => break,
            _ = idle_check.tick() => close_idle(shared),
            accepted = listener.accept() => match accepted {
                Ok((stream, addr)) => admit(stream, addr, shared, workers),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    shared.end();
    Ok(())
}

/// Gives a connection to the thread that has the fewest.
fn admit(stream: TcpStream, addr: SocketAddr, shared: &Arc<Shared>, workers: &[Handle]) {
    if shared.clients.len() >= shared.settings.clients_max() {
        shared.counters.connections_refused.add(1);
        connection::refuse(&stream);
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
            if let Err(client) = worker.hand_over(stream, client) {
                shared.clients.leave(&client);
            }
        }
        Err(error) => tracing::warn!(%addr, %error, "a connection could not be handed over"),
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

/// Closes the connections that have been silent for longer than is allowed.
fn close_idle(shared: &Shared) {
    let limit_s = shared.settings.idle_timeout_s();
    if limit_s == 0 {
        return;
    }
    let now_ms = shared.now_ms();
    for client in shared.clients.all() {
        // Relaxed: a statistic of the connection's thread; a look that comes too early comes again.
        let last = client.last_seen_ms.load(std::sync::atomic::Ordering::Relaxed);
        if now_ms.saturating_sub(last) > limit_s * 1000 && !client.is_closing() {
            shared.counters.clients_timed_out.add(1);
            client.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_the_stores_files_share_what_may_be_open() {
        for (files, clients) in [
            (600, 300),
            (2048, 1024),
            (20_000, 18_976),
            (131_072, 130_048),
            (u64::MAX, usize::MAX - 1024),
        ] {
            assert_eq!(clients_possible(files), clients, "{files}");
        }
    }
}
