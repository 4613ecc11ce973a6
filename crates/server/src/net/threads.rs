//! The threads that serve connections: one event loop each.

use std::io;
use std::net::TcpStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use collie_io::{RealClock, Yielding};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::net::clients::Client;
use crate::net::connection::Connection;
use crate::net::handshake;
use crate::net::stream::Stream;
use crate::net::worker::Worker;
use crate::session::Shared;

/// Threads for commands that may block, of each serving thread. Each takes up to 4 MB of what the
/// allocator keeps for it.
pub(crate) const BLOCKING: usize = 128;
/// How long such a thread is kept without a command. The runtime starts one whenever none is idle at
/// that moment, and wakes them in turn: kept for longer, each burst on a busy machine adds to them.
const BLOCKING_IDLE: Duration = Duration::from_millis(100);

/// A connection that was accepted and is sent to a thread.
struct Arrival {
    stream: StdStream,
    client: Arc<Client>,
    /// Whether it came to the TLS port.
    is_tls: bool,
}

/// The accepting thread's handle of a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    arrivals: mpsc::UnboundedSender<Arrival>,
    connections: Arc<AtomicUsize>,
    thread: JoinHandle<io::Result<()>>,
}

impl Handle {
    /// Starts thread number `index`.
    pub(crate) fn start(index: usize, shared: Arc<Shared>, grace: Duration) -> io::Result<Handle> {
        // The number of connections is bounded by the accepting thread, and so is this queue.
        let (arrivals, arriving) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let thread = std::thread::Builder::new()
            .name(format!("collie-serve-{index}"))
            .spawn(move || run(shared, grace, arriving, &count))?;
        Ok(Handle {
            arrivals,
            connections,
            thread,
        })
    }

    /// How many connections it has.
    pub(crate) fn connections(&self) -> usize {
        // Relaxed: a hint for the choice of a thread.
        self.connections.load(Ordering::Relaxed)
    }

    /// Sends a connection to the thread; returns its client if the thread has ended.
    pub(crate) fn hand_over(
        &self,
        stream: StdStream,
        client: Arc<Client>,
        is_tls: bool,
    ) -> Result<(), Arc<Client>> {
        // Relaxed: see `connections`.
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.arrivals
            .send(Arrival {
                stream,
                client,
                is_tls,
            })
            .map_err(|unsent| unsent.0.client)
    }

    /// Waits until the thread has ended, which it does after its connections.
    pub(crate) fn join(self) -> io::Result<()> {
        drop(self.arrivals);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("it panicked")))
    }
}

fn run(
    shared: Arc<Shared>,
    grace: Duration,
    mut arriving: mpsc::UnboundedReceiver<Arrival>,
    count: &Arc<AtomicUsize>,
) -> io::Result<()> {
    let yielding = Yielding::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(BLOCKING_IDLE)
        // If no core is idle, clients and the log's flusher run during the yield, and their results
        // are there in the next iteration; if one is, the yield costs next to nothing. Fewer
        // iterations with more to do in each are less work per request.
        .on_thread_park(move || {
            yielding.give_way(&RealClock);
        })
        .build()?;
    let worker = Rc::new(Worker::new(shared, grace));
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let pumps = [Rc::clone(&worker), Rc::clone(&worker)];
        for (pump, is_disk) in pumps.into_iter().zip([false, true]) {
            tokio::task::spawn_local(async move {
                let barrier = if is_disk { &pump.disk } else { &pump.process };
                barrier
                    .pump(&pump.shared.store.db, &pump.shared.store.health)
                    .await;
            });
        }
        let mut connections = tokio::task::JoinSet::new();
        while let Some(arrival) = arriving.recv().await {
            let (worker, count) = (Rc::clone(&worker), Arc::clone(count));
            connections.spawn_local(async move {
                serve(worker, arrival).await;
                // Relaxed: a hint for the choice of a thread.
                count.fetch_sub(1, Ordering::Relaxed);
            });
            while connections.try_join_next().is_some() {}
        }
        // The server shuts down: no more connections arrive. Each one was asked to close and has
        // its grace period.
        while connections.join_next().await.is_some() {}
    });
    Ok(())
}

async fn serve(worker: Rc<Worker>, arrival: Arrival) {
    let shared = Arc::clone(&worker.shared);
    let client = Arc::clone(&arrival.client);
    let stream = match TcpStream::from_std(arrival.stream) {
        Ok(stream) => match &shared.tls {
            Some(tls) if arrival.is_tls => handshake::secure(&worker, tls, &client, stream).await,
            _ => Some(Stream::Plain(stream)),
        },
        Err(error) => {
            tracing::warn!(client = client.id, %error, "a connection was lost on its way to its thread");
            None
        }
    };
    match stream.and_then(|stream| Connection::new(worker, stream, arrival.client)) {
        Some(connection) => connection.serve().await,
        None => shared.clients.leave(&client),
    }
}
