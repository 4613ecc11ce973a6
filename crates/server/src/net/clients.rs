//! The connections of a server, as `CLIENT LIST` shows and `CLIENT KILL` finds them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What other threads may read of one connection, and how they close it. Only the connection's own
/// thread writes it, except `closing`. The numbers are statistics, so their accesses are Relaxed.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) addr: SocketAddr,
    pub(crate) laddr: SocketAddr,
    pub(crate) fd: i32,
    pub(crate) since_ms: u64,
    pub(crate) labels: Mutex<Labels>,
    pub(crate) db: AtomicU8,
    pub(crate) resp: AtomicU8,
    pub(crate) no_evict: AtomicBool,
    /// Commands since `MULTI`; −1 outside.
    pub(crate) queued: AtomicIsize,
    pub(crate) last_seen_ms: AtomicU64,
    pub(crate) last_command: Mutex<&'static str>,
    pub(crate) request_bytes: AtomicUsize,
    pub(crate) request_free: AtomicUsize,
    pub(crate) reply_bytes: AtomicUsize,
    /// Memory of the commands since `MULTI`, and of the watched keys.
    pub(crate) multi_bytes: AtomicUsize,
    /// Since when the client has not given the password that it needs; 0 where it has, or needs none.
    pub(crate) unauthenticated_since_ms: AtomicU64,
    closing: AtomicBool,
    wake: Notify,
}

/// The names that a client gives itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct Labels {
    pub(crate) name: Vec<u8>,
    pub(crate) lib_name: Vec<u8>,
    pub(crate) lib_version: Vec<u8>,
}

impl Client {
    /// A connection that is not in the list of clients yet.
    pub(crate) fn new(id: u64, addr: SocketAddr, laddr: SocketAddr, fd: i32, now_ms: u64) -> Client {
        Client {
            id,
            addr,
            laddr,
            fd,
            since_ms: now_ms,
            labels: Mutex::default(),
            db: AtomicU8::new(0),
            resp: AtomicU8::new(2),
            no_evict: AtomicBool::new(false),
            queued: AtomicIsize::new(-1),
            last_seen_ms: AtomicU64::new(now_ms),
            last_command: Mutex::new("NULL"),
            request_bytes: AtomicUsize::new(0),
            request_free: AtomicUsize::new(0),
            reply_bytes: AtomicUsize::new(0),
            multi_bytes: AtomicUsize::new(0),
            unauthenticated_since_ms: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    /// Asks the connection to close. It finishes the requests that it has read.
    pub(crate) fn close(&self) {
        // Release pairs with the Acquire in `is_closing`. `notify_one` stores a permit if no task
        // waits yet, so that the request is not lost between the check and the wait.
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Whether it was asked to close.
    pub(crate) fn is_closing(&self) -> bool {
        // Acquire pairs with the Release in `close`.
        self.closing.load(Ordering::Acquire)
    }

    /// Wakes the connection so that it refreshes its state, although its client may be silent.
    pub(crate) fn notify(&self) {
        self.wake.notify_one();
    }

    /// Returns when it is asked to close or [notified](Client::notify).
    pub(crate) async fn notified_or_closing(&self) {
        if !self.is_closing() {
            self.wake.notified().await;
        }
    }

    /// Returns once it is asked to close.
    pub(crate) async fn closed(&self) {
        while !self.is_closing() {
            self.wake.notified().await;
        }
    }

    /// The line of `CLIENT LIST`, without its end.
    pub(crate) fn line(&self, now_ms: u64) -> Vec<u8> {
        let age = now_ms.saturating_sub(self.since_ms) / 1000;
        let idle = now_ms.saturating_sub(self.last_seen_ms.load(Ordering::Relaxed)) / 1000;
        let labels = self.labels.lock().clone();
        let (addr, laddr, fd, id) = (self.addr, self.laddr, self.fd, self.id);
        let mut line = format!("id={id} addr={addr} laddr={laddr} fd={fd} name=").into_bytes();
        line.extend_from_slice(&labels.name);
        let request = self.request_bytes.load(Ordering::Relaxed);
        let free = self.request_free.load(Ordering::Relaxed);
        let reply = self.reply_bytes.load(Ordering::Relaxed);
        let queued = self.queued.load(Ordering::Relaxed);
        let flags = match (queued >= 0, self.no_evict.load(Ordering::Relaxed)) {
            (false, false) => "N",
            (false, true) => "e",
            (true, false) => "x",
            (true, true) => "xe",
        };
        let (db, resp) = (self.db.load(Ordering::Relaxed), self.resp.load(Ordering::Relaxed));
        let command = *self.last_command.lock();
        let multi = self.multi_bytes.load(Ordering::Relaxed);
        let total = request + free + reply + multi;
        line.extend_from_slice(
            format!(
                " age={age} idle={idle} flags={flags} db={db} sub=0 psub=0 ssub=0 multi={queued} qbuf={request} \
                 qbuf-free={free} argv-mem=0 multi-mem={multi} rbs={reply} rbp={reply} obl={reply} oll=0 omem=0 \
                 tot-mem={total} events=r cmd={command} user=default redir=-1 resp={resp} lib-name="
            )
            .as_bytes(),
        );
        line.extend_from_slice(&labels.lib_name);
        line.extend_from_slice(b" lib-ver=");
        line.extend_from_slice(&labels.lib_version);
        line
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    last_id: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Bytes of requests and replies that are charged: those of each connection beyond its
    /// allowance.
    charged: AtomicI64,
    /// Those of connections that have not authenticated, all of whose bytes are charged.
    unauthenticated: AtomicI64,
}

/// The bytes that one connection is charged for.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    bytes: usize,
    is_unauthenticated: bool,
}

impl Charge {
    /// Whether it is charged for nothing.
    pub(crate) fn is_nothing(&self) -> bool {
        self.bytes == 0
    }
}

impl Clients {
    /// Adds a connection.
    pub(crate) fn enter(&self, addr: SocketAddr, laddr: SocketAddr, fd: i32, now_ms: u64) -> Arc<Client> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(Client::new(id, addr, laddr, fd, now_ms));
        self.open.lock().insert(client.id, Arc::clone(&client));
        client
    }

    /// Removes a connection.
    pub(crate) fn leave(&self, client: &Client) {
        self.open.lock().remove(&client.id);
    }

    /// Open connections.
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// All connections, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.open.lock().values().cloned().collect()
    }

    /// Charges a connection for that many bytes instead of what it was charged for.
    pub(crate) fn charge(&self, charge: &mut Charge, bytes: usize, is_unauthenticated: bool) {
        if (charge.bytes, charge.is_unauthenticated) == (bytes, is_unauthenticated) {
            return;
        }
        let (before, now) = (signed(charge.bytes), signed(bytes));
        self.charged.fetch_add(now - before, Ordering::Relaxed);
        if charge.is_unauthenticated {
            self.unauthenticated.fetch_sub(before, Ordering::Relaxed);
        }
        if is_unauthenticated {
            self.unauthenticated.fetch_add(now, Ordering::Relaxed);
        }
        *charge = Charge {
            bytes,
            is_unauthenticated,
        };
    }

    /// Changes the charged bytes by what a command works on aside.
    pub(crate) fn charge_aside(&self, change: i64) {
        self.charged.fetch_add(change, Ordering::Relaxed);
    }

    /// Bytes that connections which have not authenticated are charged for now.
    pub(crate) fn unauthenticated_bytes(&self) -> i64 {
        self.unauthenticated.load(Ordering::Relaxed)
    }

    /// Bytes that are charged now.
    pub(crate) fn charged_bytes(&self) -> i64 {
        self.charged.load(Ordering::Relaxed)
    }
}

/// A number of bytes as a difference.
pub(crate) fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_moves_when_the_client_authenticates() {
        let clients = Clients::default();
        let (mut one, mut other) = (Charge::default(), Charge::default());
        clients.charge(&mut one, 100, true);
        clients.charge(&mut other, 7, true);
        assert_eq!(
            (clients.charged_bytes(), clients.unauthenticated_bytes()),
            (107, 107)
        );
        clients.charge(&mut one, 30, false);
        assert_eq!(
            (clients.charged_bytes(), clients.unauthenticated_bytes()),
            (37, 7)
        );
        clients.charge(&mut one, 0, true);
        clients.charge(&mut other, 0, true);
        assert!(one.is_nothing() && other.is_nothing());
        assert_eq!((clients.charged_bytes(), clients.unauthenticated_bytes()), (0, 0));
    }
}
