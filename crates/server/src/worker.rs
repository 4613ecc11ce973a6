//! A thread that serves connections: one event loop, one barrier for each level, spare buffers.

use std::cell::RefCell;
use std::io;
use std::net::TcpStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use collie_db::Durability;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::barrier::Barrier;
use crate::clients::Client;
use crate::connection::Connection;
use crate::session::Shared;

/// Size of a spare buffer, in bytes; how much one read takes at most from an ordinary client.
const BUFFER: usize = 64 * 1024;
/// Spare buffers that a thread keeps.
const SPARE_MAX: usize = 32;

/// What the connections of one thread share.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) process: Barrier,
    pub(crate) disk: Barrier,
    /// How long a client that is to go may take to read its last replies.
    pub(crate) grace: Duration,
    spare: RefCell<Vec<Vec<u8>>>,
}

impl Worker {
    /// An empty buffer. A connection holds one only while it has unread or incomplete requests.
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.spare
            .borrow_mut()
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(BUFFER))
    }

    /// Takes a buffer back.
    pub(crate) fn give_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut spare = self.spare.borrow_mut();
        if buffer.capacity() == BUFFER && spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    }
}

/// A connection on its way to a thread.
struct Arrival {
    stream: StdStream,
    client: Arc<Client>,
}

/// A worker as the accepting thread sees it.
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

    /// Hands a connection over; it comes back where the thread has ended.
    pub(crate) fn hand_over(&self, stream: StdStream, client: Arc<Client>) -> Result<(), Arc<Client>> {
        // Relaxed: see `connections`.
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.arrivals
            .send(Arrival { stream, client })
            .map_err(|unsent| unsent.0.client)
    }

    /// Waits for the end of the thread, which comes when its connections have ended.
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Where no core is idle, what clients and the log's flusher do meanwhile is there in the next turn; where one
        // is, this costs next to nothing. Fewer and fuller turns are less work for each request.
        .on_thread_park(std::thread::yield_now)
        .build()?;
    let worker = Rc::new(Worker {
        shared,
        process: Barrier::new(Durability::Process),
        disk: Barrier::new(Durability::Disk),
        grace,
        spare: RefCell::default(),
    });
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let pumps = [Rc::clone(&worker), Rc::clone(&worker)];
        for (pump, is_disk) in pumps.into_iter().zip([false, true]) {
            tokio::task::spawn_local(async move {
                let barrier = if is_disk { &pump.disk } else { &pump.process };
                barrier.pump(&pump.shared.store.db, &pump.shared.health).await;
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
        // No more arrive: the server ends. Every connection was asked to go and has its grace.
        while connections.join_next().await.is_some() {}
    });
    Ok(())
}

async fn serve(worker: Rc<Worker>, arrival: Arrival) {
    let shared = Arc::clone(&worker.shared);
    let client = Arc::clone(&arrival.client);
    match TcpStream::from_std(arrival.stream) {
        Ok(stream) => match Connection::new(worker, stream, arrival.client) {
            Some(connection) => connection.serve().await,
            None => shared.clients.leave(&client),
        },
        Err(error) => {
            tracing::warn!(client = client.id, %error, "a connection was lost on its way to its thread");
            shared.clients.leave(&client);
        }
    }
}
