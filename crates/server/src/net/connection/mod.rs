//! One connection: read, execute everything that was read, wait once, reply in one write.
//!
//! A connection is a task on one thread. Its commands run one after the other and do not yield;
//! work that takes long is [deferred](crate::exec::Deferred), so that the thread's other
//! connections run meanwhile. Nothing here blocks the thread for a sync: the connection's task
//! waits in the [barrier](crate::net::barrier).
//!
//! *Backpressure* of the engine blocks the writer. Writes that it may stall run
//! [aside](crate::net::pressure), on a thread of the runtime that may block, while the connection's
//! task waits. So do commands that [cost](crate::cost) too much for this thread. After
//! [`TIME_SLICE_NS`] the thread's other connections run first.

mod aside;
mod cluster;
mod deferred;
mod replies;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_db::Lsn;
use collie_protocol::{ReplyBuffer, Request, RequestParser};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::commands;
use crate::config::Ack;
use crate::cost::{Aside, LARGE};
use crate::exec::{Exec, Flow, Later, Outcome};
use crate::failure::text;
use crate::net::clients::{Charge, Client, signed};
use crate::net::handshake;
use crate::net::stream::{Stream, drain};
use crate::net::worker::Worker;
use crate::session::{ReplyMode, Session, Shared};

/// Replies are sent once they exceed this size, before the rest of a pipeline runs. It bounds the
/// memory that a pipeline of reads takes; ordinary pipelines stay below it and wait once.
const REPLY_BATCH: usize = 1024 * 1024;
/// The least free space for a read, in bytes.
const READ_MIN: usize = 16 * 1024;
/// The most by which the buffer of a large request grows ahead of the bytes that arrived.
const READ_MAX: usize = 4 * 1024 * 1024;
/// The time slice of a connection: how long its requests run before the thread's other connections
/// run, in nanoseconds.
const TIME_SLICE_NS: u64 = 1_000_000;
/// Bytes that a connection may take without being charged, once it has authenticated. What it takes
/// beyond is charged, and when all connections together are charged too much, the one that would add
/// to it is closed.
const ALWAYS_ALLOWED: usize = 256 * 1024;
/// The least free space for a read from a client that has not authenticated, in bytes: a password fits.
const UNAUTHENTICATED_READ_MIN: usize = 2 * 1024;
/// As `ALWAYS_ALLOWED`, for a connection that has not authenticated.
const UNAUTHENTICATED_ALLOWED: usize = 4 * 1024;
/// Bytes that all of those together are charged for at most.
const UNAUTHENTICATED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One connection.
pub(crate) struct Connection {
    worker: Rc<Worker>,
    stream: Stream,
    session: Session,
    parser: RequestParser,
    input: Vec<u8>,
    reply: ReplyBuffer,
    outgoing: Outgoing,
    /// Where each reply in `reply` starts, and which commits it reflects.
    marks: Vec<Mark>,
    /// The largest end in `marks`, and the strictest level that they wait for.
    pending: Lsn,
    level: Ack,
    /// The bytes that this connection is charged for.
    charge: Charge,
    /// What the next command waits for.
    later: Option<Later>,
    /// Since when it waits for a change of the cluster, and for how long at most.
    waiting: Option<(Instant, Duration)>,
}

/// What was sent of the replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    /// All of what was begun.
    Whole,
    /// A part: the write is under way, failed, or was given up. What followed would be taken for the
    /// rest of a reply.
    Cut,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    start: usize,
    end: Lsn,
}

/// What the connection does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    Close,
    /// Waits until the client pause is over, before the next command runs.
    Wait {
        is_write: bool,
    },
    /// Sends the replies, and waits as `later` requires before the next command runs.
    Later,
}

impl Connection {
    /// A connection of `client`, which is in the list of clients already.
    pub(crate) fn new(worker: Rc<Worker>, stream: Stream, client: Arc<Client>) -> Option<Connection> {
        let shared = Arc::clone(&worker.shared);
        let keyspace = shared.store.keyspace(0)?;
        let session = Session::new(&shared, client, keyspace);
        session.note_authentication(&shared);
        Some(Connection {
            session,
            parser: RequestParser::new(shared.settings.limits()),
            worker,
            stream,
            input: Vec::new(),
            reply: ReplyBuffer::new(),
            outgoing: Outgoing::Whole,
            marks: Vec::new(),
            pending: 0,
            level: Ack::Buffered,
            charge: Charge::default(),
            later: None,
            waiting: None,
        })
    }

    fn shared(&self) -> &Shared {
        &self.worker.shared
    }

    /// Serves the connection to its end.
    pub(crate) async fn serve(mut self) {
        let mut lingers = false;
        let mut next = Next::Read;
        loop {
            let read = match next {
                Next::Wait { is_write } => Ok(self.wait_for_client_pause(is_write).await),
                Next::Later => Ok(self.wait_until_later().await),
                Next::Read | Next::Close => self.read().await,
            };
            match read {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(client = self.session.client.id, %error, "reading failed");
                    break;
                }
            }
            if self.stream.is_plain() && handshake::is_begun_by(&self.input) {
                handshake::report_on_plain(self.shared(), self.session.client.addr);
                break;
            }
            next = self.execute_all().await;
            match self.deliver().await {
                Ok(Next::Close) => next = Next::Close,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(client = self.session.client.id, %error, "writing failed");
                    break;
                }
            }
            if next == Next::Close {
                lingers = true;
                break;
            }
            if next == Next::Read {
                self.release_idle_memory();
            }
        }
        self.charge(0);
        if self.outgoing == Outgoing::Whole {
            self.stream.send_close_notify().await;
        }
        if lingers {
            self.input = Vec::new();
            drain(self.stream.socket(), &self.worker).await;
        }
        self.shared().clients.leave(&self.session.client);
    }

    /// Waits for the end of the client pause; `false` when the connection is to close.
    async fn wait_for_client_pause(&self, is_write: bool) -> bool {
        tokio::select! {
            () = self.shared().client_pause.wait(is_write) => true,
            () = self.session.client.closed() => false,
        }
    }

    /// Waits for bytes and reads them; `false` at the end of the stream, or when the connection is
    /// to close.
    async fn read(&mut self) -> io::Result<bool> {
        let client = Arc::clone(&self.session.client);
        loop {
            if client.is_closing() {
                return Ok(false);
            }
            // A silent connection must not keep alive the keyspace of a database that was emptied
            // meanwhile.
            self.session.refresh(&self.worker.shared.store);
            tokio::select! {
                biased;
                ready = self.stream.readable() => ready?,
                () = client.notified_or_closing() => continue,
            }
            self.make_room();
            match self.stream.try_read_buf(&mut self.input) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.shared().counters.bytes_in.add(n as u64);
                    return Ok(true);
                }
                // The runtime considers a socket readable until a read returns nothing, as this one
                // did after the last request. A silent connection keeps no buffer.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.input.is_empty() {
                        self.worker.give_buffer(std::mem::take(&mut self.input));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes space for a read: takes a spare buffer if there is none, and grows it while a large
    /// request arrives — but never much beyond what has arrived.
    fn make_room(&mut self) {
        let read_min = match self.session.authenticated {
            true => READ_MIN,
            false => UNAUTHENTICATED_READ_MIN,
        };
        if self.input.capacity() == 0 && self.session.authenticated {
            self.input = self.worker.take_buffer();
        }
        let missing = self.parser.missing(self.input.len());
        let ahead = missing.min(self.input.len()).clamp(read_min, READ_MAX);
        if self.input.capacity() - self.input.len() < ahead || missing > 0 {
            self.input.reserve(ahead);
        }
    }

    /// Executes every complete request in the input.
    async fn execute_all(&mut self) -> Next {
        let worker = Rc::clone(&self.worker);
        let shared = &*worker.shared;
        let now_ms = shared.now_ms();
        self.session.client.last_seen_ms.store(now_ms, Ordering::Relaxed);
        self.parser.set_limits(shared.settings.limits());
        self.session.clock_ns = shared.clock.monotonic();
        let mut slice_began = self.session.clock_ns;
        let mut done = 0;
        let mut commands = 0;
        let mut is_near = self.is_pressure_near();
        let next = loop {
            let rest = self.input.get(done..).unwrap_or_default();
            let request = match self.parser.parse(rest, self.session.authenticated) {
                Ok(Some(request)) => request,
                Ok(None) => break Next::Read,
                Err(error) => {
                    shared.counters.protocol_errors.add(1);
                    self.marks.push(Mark {
                        start: self.reply.len(),
                        end: 0,
                    });
                    self.reply.error([b"ERR ", error.text().as_slice()].concat());
                    break Next::Close;
                }
            };
            if !shared.client_pause.is_off() {
                let is_write = commands::may_write(&self.session, request);
                if shared.client_pause.delays(is_write) {
                    // The request stays in the input and is parsed again later. Earlier replies are
                    // sent first.
                    break Next::Wait { is_write };
                }
            }
            done += request.consumed();
            if request.is_empty() {
                continue;
            }
            commands += 1;
            let start = self.reply.len();
            self.session.seen = 0;
            let len = request.consumed();
            let mut outcome = match must_go_aside(&self.session, request, is_near) {
                Some(why) => Ok(Flow::Aside(why)),
                None => {
                    let mut exec = Exec::new(shared, &mut self.session, &mut self.reply, now_ms);
                    exec.may_wait = may_wait(self.waiting);
                    commands::run(&mut exec, request)
                }
            };
            if let Ok(Flow::Aside(why)) = outcome {
                self.reply.truncate(start);
                outcome = self.run_aside(done - len, why, now_ms).await;
                is_near = self.is_pressure_near();
            }
            if let Ok(Flow::Later(later)) = outcome {
                // The request stays in the input and is parsed again later. Earlier replies are sent
                // first.
                self.reply.truncate(start);
                self.put_off(later);
                done -= len;
                commands -= 1;
                break Next::Later;
            }
            self.waiting = None;
            self.drop_replaced();
            if let Ok(Flow::Deferred(deferred)) = outcome {
                outcome = self.run_deferred(deferred, start).await;
                self.session.clock_ns = shared.clock.monotonic();
            }
            if self.conclude(outcome, start) == Next::Close {
                break Next::Close;
            }
            if self.reply.len() > shared.settings.reply_bytes_max() {
                shared.counters.output_limit_closed.add(1);
                self.refuse(text::REPLY_TOO_LARGE);
                break Next::Close;
            }
            let is_batch = self.reply.len() >= REPLY_BATCH || self.session.unsettled.is_full();
            if is_batch && (!self.within_limits() || !matches!(self.deliver().await, Ok(Next::Read))) {
                break Next::Close;
            }
            // The clock was read at the end of the command.
            if self.session.clock_ns.saturating_sub(slice_began) >= TIME_SLICE_NS {
                shared.counters.yields.add(1);
                tokio::task::yield_now().await;
                slice_began = shared.clock.monotonic();
                self.session.clock_ns = slice_began;
                is_near = self.is_pressure_near();
            }
        };
        shared.counters.commands.add(commands);
        self.session.tally.flush(&shared.calls);
        // After a panic the input is empty.
        self.input.drain(..done.min(self.input.len()));
        if self.within_limits() { next } else { Next::Close }
    }

    /// Whether the engine may stall the writes of this connection. Checked before the input is
    /// executed: a buffer of small requests is little compared to the space that is left.
    fn is_pressure_near(&self) -> bool {
        let shared = self.shared();
        if shared.pressure.is_sample_due(shared.counters.bytes_in.get()) {
            shared.pressure.sample(&shared.store.db);
        }
        shared.pressure.is_near(&shared.store.db, self.session.ack)
    }

    /// Encodes a failure, and notes which commits the reply reflects.
    fn conclude(&mut self, outcome: Outcome, start: usize) -> Next {
        // Replies that were sent while the command was deferred are not in the buffer any more.
        let start = start.min(self.reply.len());
        let next = match outcome {
            Ok(Flow::Close) => Next::Close,
            Ok(Flow::Next | Flow::Deferred(_) | Flow::Aside(_) | Flow::Later(_)) => Next::Read,
            Err(failure) => {
                self.shared().counters.commands_failed.add(1);
                self.reply.truncate(start);
                self.reply.error(failure.line());
                Next::Read
            }
        };
        let seen = self.session.seen;
        self.session.last = self.session.last.max(seen);
        match self.session.reply_mode {
            ReplyMode::On => {}
            ReplyMode::Off => self.reply.truncate(start),
            ReplyMode::SkipNext => self.session.reply_mode = ReplyMode::Skip,
            ReplyMode::Skip => {
                self.reply.truncate(start);
                self.session.reply_mode = ReplyMode::On;
            }
        }
        if self.reply.len() > start {
            self.marks.push(Mark { start, end: seen });
            if seen > 0 {
                self.pending = self.pending.max(seen);
                self.level = self.level.max(self.session.ack);
            }
        }
        if self.session.unsettled.has_current() {
            if self.reply.len() == start {
                // The client has turned off the reply, but the connection is closed if the command may
                // not hold.
                self.marks.push(Mark { start, end: 0 });
            }
            self.session
                .unsettled
                .conclude(self.marks.len().saturating_sub(1));
        }
        next
    }

    /// Drops the keyspaces that a command took out of use, and wakes silent connections so that
    /// they release them too.
    fn drop_replaced(&mut self) {
        let Some(replaced) = self.session.replaced.take() else {
            return;
        };
        let shared = Arc::clone(&self.worker.shared);
        for client in shared.clients.all() {
            client.notify();
        }
        // The space of the old keys is freed later; the command does not wait for that.
        drop(tokio::task::spawn_blocking(move || {
            shared.store.drop_replaced(&replaced);
        }));
    }

    /// Charges what the connection takes, and checks it against the limits. A connection that
    /// exceeds them gets an error and is closed.
    fn within_limits(&mut self) -> bool {
        let worker = Rc::clone(&self.worker);
        let shared = &*worker.shared;
        let client = &self.session.client;
        *client.last_command.lock() = self.session.last_command;
        client.request_bytes.store(self.input.len(), Ordering::Relaxed);
        client
            .request_free
            .store(self.input.capacity() - self.input.len(), Ordering::Relaxed);
        client.reply_bytes.store(self.reply.capacity(), Ordering::Relaxed);
        client.multi_bytes.store(self.multi_bytes(), Ordering::Relaxed);
        self.account();
        if self.charge.is_nothing() {
            return true;
        }
        let is_unauthenticated = !self.session.authenticated;
        if is_unauthenticated && shared.clients.unauthenticated_bytes() > signed(UNAUTHENTICATED_BYTES_MAX) {
            self.evict("OOM requests of clients that have not authenticated take more than 64 MiB");
            return false;
        }
        let is_kept = self.session.client.no_evict.load(Ordering::Relaxed);
        if shared.clients.charged_bytes() > signed(shared.settings.in_flight_bytes_max()) && !is_kept {
            self.evict("OOM requests and replies of all clients take more than maxmemory-clients");
            return false;
        }
        true
    }

    /// Ends the connection for the memory that it takes, which is freed at once, so that connections
    /// which grow at the same time are not all closed.
    fn evict(&mut self, line: &str) {
        self.shared().counters.clients_evicted.add(1);
        self.input = Vec::new();
        self.session.watched.clear();
        self.session.set_queue(None);
        self.charge(0);
        self.refuse(line);
    }

    /// The memory of what waits for `EXEC`, in bytes.
    fn multi_bytes(&self) -> usize {
        let queued = self.session.queue.as_ref().map_or(0, |queue| queue.bytes);
        queued + self.session.watched.bytes()
    }

    /// Updates the charge of this connection. Only bytes beyond what is always allowed are charged, so
    /// that ordinary connections do not touch the shared totals.
    fn account(&mut self) {
        let allowed = match self.session.authenticated {
            true => ALWAYS_ALLOWED,
            false => UNAUTHENTICATED_ALLOWED,
        };
        let taken = self.input.capacity() + self.reply.capacity() + self.multi_bytes();
        self.charge(taken.saturating_sub(allowed));
    }

    fn charge(&mut self, bytes: usize) {
        let is_unauthenticated = !self.session.authenticated;
        let clients = &self.worker.shared.clients;
        clients.charge(&mut self.charge, bytes, is_unauthenticated);
    }

    /// Replaces all replies by one error.
    fn refuse(&mut self, line: &str) {
        self.reply.clear(0);
        self.marks.clear();
        self.session.unsettled.clear();
        self.pending = 0;
        self.reply.error(line);
    }

    /// Frees what is not needed while the client is silent.
    fn release_idle_memory(&mut self) {
        self.session.trim();
        if self.input.is_empty() {
            self.worker.give_buffer(std::mem::take(&mut self.input));
        }
        self.account();
    }
}

/// Whether the next command may wait for the cluster: since when it does, and for how long at most.
fn may_wait(waiting: Option<(Instant, Duration)>) -> bool {
    waiting.is_none_or(|(since, limit)| Instant::now() < since + limit)
}

/// Why a request must not run on a thread that serves connections, if so.
fn must_go_aside(session: &Session, request: Request<'_>, is_near: bool) -> Option<Aside> {
    let len = request.consumed();
    if (is_near || len >= LARGE) && commands::may_write(session, request) {
        return Some(if len >= LARGE {
            Aside::Heavy(len)
        } else {
            Aside::Waits
        });
    }
    session.heavy.filter(|_| commands::names_keys(request))
}

/// Sends a client the error that there are too many, if its socket takes it at once.
pub(crate) fn refuse(stream: &TcpStream) {
    let mut reply = ReplyBuffer::new();
    reply.error(text::MAX_CLIENTS);
    // A client whose socket does not take it in one piece only sees the connection end.
    let _ = stream.try_write(reply.as_slice());
}
