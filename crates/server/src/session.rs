//! What a connection remembers between commands, and the state that all connections share.

use std::sync::Arc;

use collie_db::{Batch, Error as DbError, Lsn, RowOwner};
use collie_io::Clock;
use collie_protocol::{KeptRequest, ReplyBuffer, Version};
use tokio::sync::watch;

use crate::clients::{Client, Clients};
use crate::commands::{Command, SlowLog};
use crate::config::{Ack, Settings, Verbosity};
use crate::cost::{Aside, Room};
use crate::gate::Gate;
use crate::health::WriteHealth;
use crate::keyspace::Keyspace;
use crate::pressure::Pressure;
use crate::stats::{CommandCounter, Counters, Tally};
use crate::store::{Replaced, Store};
use crate::watch::{WatchSet, Watches};

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) watches: Arc<Watches>,
    pub(crate) slow_log: SlowLog,
    pub(crate) gate: Gate,
    pub(crate) settings: Settings,
    pub(crate) clients: Clients,
    pub(crate) counters: Counters,
    /// By the number of the command in the table.
    pub(crate) calls: Vec<CommandCounter>,
    pub(crate) pressure: Pressure,
    pub(crate) health: WriteHealth,
    /// What is worked on aside at a time.
    pub(crate) room: Room,
    /// Searches through all keys that are at work at a time.
    pub(crate) searches: tokio::sync::Semaphore,
    pub(crate) verbosity: Option<Arc<dyn Verbosity>>,
    pub(crate) config_file: Option<std::path::PathBuf>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started_ms: u64,
    pub(crate) listen: std::net::SocketAddr,
    pub(crate) threads: usize,
    /// Identifies this run of the server, as forty hexadecimal digits.
    pub(crate) run_id: String,
    /// True from the moment on at which the server ends.
    pub(crate) ending: watch::Sender<bool>,
}

impl Shared {
    /// The time by which keys expire, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Asks the server to end, as `SHUTDOWN` does.
    pub(crate) fn end(&self) {
        self.ending.send_replace(true);
    }
}

/// Which replies a client wants (`CLIENT REPLY`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    On,
    Off,
    /// Not the reply to this command; the next one again.
    Skip,
    /// Not the reply to the next command.
    SkipNext,
}

/// What one connection remembers.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    /// The selected database's number, and what it holds.
    pub(crate) db: u8,
    pub(crate) keyspace: Arc<Keyspace>,
    /// The store's generation when `keyspace` was fetched.
    pub(crate) generation: u64,
    pub(crate) authenticated: bool,
    pub(crate) ack: Ack,
    /// Whether `ack` was chosen by the client, and so survives a change of the server's own.
    pub(crate) ack_chosen: bool,
    pub(crate) reply_mode: ReplyMode,
    /// The commands since `MULTI`.
    pub(crate) queue: Option<Queue>,
    pub(crate) watched: WatchSet,
    /// Keyspaces that the command took out of use; dropping them is left to the connection.
    pub(crate) replaced: Option<Replaced>,
    /// When the command before ended, by the monotonic clock.
    pub(crate) clock_ns: u64,
    /// The full name of the latest command.
    pub(crate) last_command: &'static str,
    pub(crate) tally: Tally,
    /// Where the latest command was heavy, what it worked on: the next one is not even tried where it arrived, for finding
    /// the value may take long by itself.
    pub(crate) heavy: Option<Aside>,
    /// The largest commit end that the current command wrote or saw.
    pub(crate) seen: Lsn,
    /// The largest commit end that this connection ever wrote or saw, for `WAITAOF`.
    pub(crate) last: Lsn,
    /// Whom it locks keys for.
    pub(crate) owner: RowOwner,
    /// Reused by every command: the engine's form of a key and of a value, and a batch.
    pub(crate) scratch: Scratch,
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) commands: Vec<(&'static Command, KeptRequest)>,
    /// Memory that they hold, in bytes.
    pub(crate) bytes: usize,
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
    /// Forgets the batch's entries, and its memory where that is large.
    pub(crate) fn empty_batch(&mut self) {
        if self.batch.size_bytes() > SCRATCH_KEPT {
            self.batch = Batch::new();
        } else {
            self.batch.clear();
        }
    }
}

/// Scratch memory above this size is given back after a command.
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
            replaced: None,
            clock_ns: 0,
            last_command: "NULL",
            tally: Tally::default(),
            heavy: None,
            seen: 0,
            last: 0,
            owner: shared.store.db.row_owner("a client"),
            scratch: Scratch {
                key: Vec::new(),
                value: Vec::new(),
                batch: Batch::new(),
            },
        }
    }

    /// Notes that the current command wrote or saw the commit that ends at `end`.
    pub(crate) fn note(&mut self, end: Lsn) {
        self.seen = self.seen.max(end);
    }

    /// Notes that the current command tells what the database holds, whose keyspace was fetched before.
    pub(crate) fn note_database(&mut self, store: &Store) -> Result<(), DbError> {
        let end = store.exchanged(self.db)?;
        self.note(end);
        Ok(())
    }

    /// Fetches the database again where it was emptied since.
    pub(crate) fn refresh(&mut self, store: &Store) {
        let generation = store.generation();
        if generation != self.generation {
            if let Some(current) = store.keyspace(self.db) {
                self.keyspace = current;
            }
            self.generation = generation;
        }
    }

    /// Turns to another database.
    pub(crate) fn select(&mut self, db: u8, keyspace: Arc<Keyspace>) {
        // Relaxed: a statistic.
        self.client.db.store(db, std::sync::atomic::Ordering::Relaxed);
        self.db = db;
        self.keyspace = keyspace;
    }

    /// Begins to queue commands, or ends it and gives what was queued.
    pub(crate) fn set_queue(&mut self, queue: Option<Queue>) -> Option<Queue> {
        // Relaxed: a statistic.
        let queued = if queue.is_some() { 0 } else { -1 };
        self.client
            .queued
            .store(queued, std::sync::atomic::Ordering::Relaxed);
        std::mem::replace(&mut self.queue, queue)
    }

    /// Ends the connection's choices, as `RESET` does.
    pub(crate) fn reset(&mut self, shared: &Shared, reply: &mut ReplyBuffer) {
        if let Some(first) = shared.store.keyspace(0) {
            self.select(0, first);
        }
        self.set_queue(None);
        self.watched.clear();
        self.authenticated = shared.settings.password().is_none();
        self.ack = shared.settings.ack();
        self.ack_chosen = false;
        self.reply_mode = ReplyMode::On;
        self.set_version(reply, Version::Resp2);
        self.client.labels.lock().name.clear();
    }

    /// Speaks another version of the protocol from the next reply on.
    pub(crate) fn set_version(&self, reply: &mut ReplyBuffer, version: Version) {
        let number = if version == Version::Resp3 { 3 } else { 2 };
        // Relaxed: a statistic.
        self.client
            .resp
            .store(number, std::sync::atomic::Ordering::Relaxed);
        reply.set_version(version);
    }

    /// Gives back what a large value made the scratch memory grow to.
    pub(crate) fn trim(&mut self) {
        // A command that failed left its batch, and with it a hold on the family.
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
