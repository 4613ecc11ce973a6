//! The state of a connection between commands, and the state that all connections share.

use std::sync::Arc;

use collie_db::{Batch, Error as DbError, Lsn, RowOwner};
use collie_io::Clock;
use collie_protocol::{KeptRequest, ReplyBuffer, Version};
use collie_tls::Refusals;
use tokio::sync::watch;

use crate::config::{Ack, Settings, Verbosity};
use crate::cost::{Aside, AsideBudget};
use crate::data::keyspace::Keyspace;
use crate::data::store::{Replaced, Store};
use crate::data::watch::{WatchSet, Watches};
use crate::net::clients::{Client, Clients};
use crate::net::pause::ClientPause;
use crate::net::pressure::Pressure;
use crate::partitions::Partitions;
use crate::partitions::settle::Unsettled;
use crate::slow_log::SlowLog;
use crate::stats::{CommandCounter, Counters, Tally};
use crate::tls::Tls;

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    /// The cluster that the keys are in, if they are in one. The store holds none of them then.
    pub(crate) partitions: Option<Partitions>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) slow_log: SlowLog,
    pub(crate) client_pause: ClientPause,
    pub(crate) settings: Settings,
    pub(crate) clients: Clients,
    pub(crate) counters: Counters,
    /// Indexed by the number of the command in the table.
    pub(crate) calls: Vec<CommandCounter>,
    pub(crate) pressure: Pressure,
    /// Bounds the bytes that commands work on aside.
    pub(crate) aside_budget: AsideBudget,
    /// Bounds the commands that wait, for a lock or for the engine, on threads that may block.
    pub(crate) waiters: tokio::sync::Semaphore,
    /// Bounds the searches through all keys that run at a time.
    pub(crate) searches: tokio::sync::Semaphore,
    pub(crate) verbosity: Option<Arc<dyn Verbosity>>,
    pub(crate) config_file: Option<std::path::PathBuf>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started_ms: u64,
    pub(crate) listen: std::net::SocketAddr,
    pub(crate) threads: usize,
    /// Whether it listens for plain connections; else `listen` is where it does for TLS.
    pub(crate) is_plain: bool,
    pub(crate) tls: Option<Tls>,
    /// Limits the log messages about connections that are closed because of TLS.
    pub(crate) refusals: Refusals,
    /// Identifies this run of the server, as forty hexadecimal digits.
    pub(crate) run_id: String,
    /// How far its shutdown is.
    pub(crate) ending: watch::Sender<Ending>,
}

/// How far the shutdown of a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    Never,
    /// It still serves, and a node of a cluster hands over what it leads.
    Soon,
    /// It takes no connection and no request any more.
    Now,
}

impl Shared {
    /// The time by which keys expire, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Begins the shutdown of the server, as `SHUTDOWN` does, or continues it.
    pub(crate) fn end(&self, ending: Ending) {
        self.ending.send_modify(|now| *now = ending.max(*now));
    }

    /// Whether its shutdown has begun.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow() != Ending::Never
    }
}

/// Which replies a client gets (`CLIENT REPLY`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    On,
    Off,
    /// Not the reply to this command; the next one again.
    Skip,
    /// Not the reply to the next command.
    SkipNext,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    /// The number of the selected database.
    pub(crate) db: u8,
    pub(crate) keyspace: Arc<Keyspace>,
    /// The store's generation when `keyspace` was fetched.
    pub(crate) generation: u64,
    pub(crate) authenticated: bool,
    pub(crate) ack: Ack,
    /// Whether the client chose `ack`, so that a change of the server's level does not change it.
    pub(crate) ack_chosen: bool,
    pub(crate) reply_mode: ReplyMode,
    /// The commands since `MULTI`.
    pub(crate) queue: Option<Queue>,
    pub(crate) watched: WatchSet,
    /// Whether replicas that lag behind may answer reads (`READONLY`).
    pub(crate) reads_replicas: bool,
    /// What the replies wait for, in a cluster.
    pub(crate) unsettled: Unsettled,
    /// Keyspaces that the command took out of use; the connection drops them.
    pub(crate) replaced: Option<Replaced>,
    /// When the previous command ended, by the monotonic clock.
    pub(crate) clock_ns: u64,
    /// The full name of the latest command.
    pub(crate) last_command: &'static str,
    pub(crate) tally: Tally,
    /// How much the latest command worked on if it was heavy. The next command then starts aside at
    /// once, since finding a large value may already take long.
    pub(crate) heavy: Option<Aside>,
    /// The largest commit end that the current command wrote or saw.
    pub(crate) seen: Lsn,
    /// The largest commit end that this connection ever wrote or saw, for `WAITAOF`.
    pub(crate) last: Lsn,
    /// Bytes that the current command has written to the keyspace without waiting for background
    /// work that lags behind.
    pub(crate) unthrottled: usize,
    /// Owns the row locks of its commands.
    pub(crate) owner: RowOwner,
    /// Reused by every command: the engine's form of a key and of a value, and a batch.
    pub(crate) scratch: Scratch,
}

/// The commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) commands: Vec<KeptRequest>,
    /// Memory that they take, in bytes.
    pub(crate) bytes: usize,
    /// Whether one of them may write.
    pub(crate) may_write: bool,
    /// Whether one of them was refused, so that `EXEC` refuses all.
    pub(crate) is_broken: bool,
}

/// Memory that commands reuse.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) batch: Batch,
}

impl Scratch {
    /// Drops the batch's entries, and its memory if that is large.
    pub(crate) fn empty_batch(&mut self) {
        if self.batch.size_bytes() > SCRATCH_KEPT {
            self.batch = Batch::new();
        } else {
            self.batch.clear();
        }
    }
}

/// Scratch memory above this size is freed after a command.
const SCRATCH_KEPT: usize = 64 * 1024;

impl Session {
    pub(crate) fn new(shared: &Shared, client: Arc<Client>, keyspace: Arc<Keyspace>) -> Session {
        Session {
            client,
            db: 0,
            keyspace,
            generation: 0,
            authenticated: shared.settings.password().is_none(),
            ack: shared.settings.ack(),
            ack_chosen: false,
            reply_mode: ReplyMode::On,
            queue: None,
            watched: WatchSet::new(Arc::clone(&shared.watches)),
            reads_replicas: false,
            unsettled: Unsettled::default(),
            replaced: None,
            clock_ns: 0,
            last_command: "NULL",
            tally: Tally::default(),
            heavy: None,
            seen: 0,
            last: 0,
            unthrottled: 0,
            owner: shared.store.db.row_owner("a client"),
            scratch: Scratch {
                key: Vec::new(),
                value: Vec::new(),
                batch: Batch::new(),
            },
        }
    }

    /// Notes since when the client has to authenticate, if it has to; called when the connection begins and
    /// when the client has authenticated.
    pub(crate) fn note_authentication(&self, shared: &Shared) {
        let since_ms = match self.authenticated {
            true => 0,
            false => shared.now_ms(),
        };
        // Relaxed: a late look at it closes the connection a second later.
        self.client
            .unauthenticated_since_ms
            .store(since_ms, std::sync::atomic::Ordering::Relaxed);
    }

    /// Notes that the current command wrote or saw the commit that ends at `end`.
    pub(crate) fn note(&mut self, end: Lsn) {
        self.seen = self.seen.max(end);
    }

    /// Notes that the reply reflects which keyspace the session's database has. The keyspace was
    /// fetched before.
    pub(crate) fn note_database(&mut self, store: &Store) -> Result<(), DbError> {
        let end = store.exchanged(self.db)?;
        self.note(end);
        Ok(())
    }

    /// Fetches the keyspace again if the database was emptied or swapped since.
    pub(crate) fn refresh(&mut self, store: &Store) {
        let generation = store.generation();
        if generation != self.generation {
            if let Some(current) = store.keyspace(self.db) {
                self.keyspace = current;
            }
            self.generation = generation;
        }
    }

    /// Changes to another database.
    pub(crate) fn select(&mut self, db: u8, keyspace: Arc<Keyspace>) {
        // Relaxed: a statistic.
        self.client.db.store(db, std::sync::atomic::Ordering::Relaxed);
        self.db = db;
        self.keyspace = keyspace;
    }

    /// Begins to queue commands, or stops and returns the queue.
    pub(crate) fn set_queue(&mut self, queue: Option<Queue>) -> Option<Queue> {
        // Relaxed: a statistic.
        let queued = if queue.is_some() { 0 } else { -1 };
        self.client
            .queued
            .store(queued, std::sync::atomic::Ordering::Relaxed);
        std::mem::replace(&mut self.queue, queue)
    }

    /// Resets what the client has chosen, as `RESET` does.
    pub(crate) fn reset(&mut self, shared: &Shared, reply: &mut ReplyBuffer) {
        if let Some(first) = shared.store.keyspace(0) {
            self.select(0, first);
        }
        self.set_queue(None);
        self.watched.clear();
        self.reads_replicas = false;
        self.authenticated = shared.settings.password().is_none();
        self.note_authentication(shared);
        self.ack = shared.settings.ack();
        self.ack_chosen = false;
        self.reply_mode = ReplyMode::On;
        self.set_version(reply, Version::Resp2);
        self.client.labels.lock().name.clear();
    }

    /// Uses another version of the protocol from the next reply on.
    pub(crate) fn set_version(&self, reply: &mut ReplyBuffer, version: Version) {
        let number = if version == Version::Resp3 { 3 } else { 2 };
        // Relaxed: a statistic.
        self.client
            .resp
            .store(number, std::sync::atomic::Ordering::Relaxed);
        reply.set_version(version);
    }

    /// Frees scratch memory that a large value has made grow.
    pub(crate) fn trim(&mut self) {
        // A command that failed left its batch, which keeps the family from being dropped.
        if !self.scratch.batch.is_empty() {
            self.scratch.empty_batch();
        }
        if self.scratch.key.capacity() > SCRATCH_KEPT {
            self.scratch.key = Vec::new();
        }
        if self.scratch.value.capacity() > SCRATCH_KEPT {
            self.scratch.value = Vec::new();
        }
    }
}
