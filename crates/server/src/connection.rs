//! One connection: read, execute everything that was read, wait once, reply in one write.
//!
//! A connection is a task on one thread. Its commands run one after the other without a pause; what takes
//! long is a [`Pause`], which lets the thread's other connections run. Nothing here waits for a sync on the
//! thread: the connection's task waits in the [barrier](crate::barrier).
//!
//! *When the engine pushes back* it blocks the writer. Writes that it may hold up are made
//! [aside](crate::pressure), on a thread of the runtime's that may block, while the connection's task waits. So is
//! what [costs](crate::cost) too much for this thread. After [`TURN_NS`] the other connections are served first.

mod aside;

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use collie_db::{Durability, Lsn};
use collie_protocol::{ReplyBuffer, RequestParser};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::barrier::{Barrier, Cause};
use crate::clients::Client;
use crate::commands;
use crate::config::Ack;
use crate::exec::{Exec, Flow, Outcome, Pause};
use crate::failure::{Failure, not_durable, text};
use crate::session::{ReplyMode, Session, Shared};
use crate::worker::Worker;
use aside::blocking;

/// Replies beyond so many bytes are sent before the rest of a pipeline runs. It bounds what a pipeline of
/// reads can make a connection hold; ordinary pipelines stay below it and wait once.
const REPLY_BATCH: usize = 1024 * 1024;
/// The least room for a read, in bytes.
const READ_MIN: usize = 16 * 1024;
/// A large request's buffer grows by at most so many bytes ahead of what arrived.
const READ_MAX: usize = 4 * 1024 * 1024;
/// How long one connection's requests run before other connections have the thread, in nanoseconds.
const TURN_NS: u64 = 1_000_000;
/// Bytes that are written to a socket before other connections have the thread.
const WRITE_TURN: usize = 8 * 1024 * 1024;
/// Bytes that every connection may hold. What one holds beyond is counted, and when all together hold too much
/// of that, the one that would add to it is closed.
const ALWAYS_ALLOWED: usize = 256 * 1024;
/// After a client was told to go its bytes are read and dropped, so that the system does not reset the
/// connection before the client has read why: until it has been silent for this long, or has sent so much, or so
/// much time has passed. A value that is somewhat too long is heard to its end.
const LINGER_SILENCE: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(10);
/// How often a connection that waits for something looks whether its client is still there.
const GONE_CHECK: Duration = Duration::from_millis(100);

/// One connection.
pub(crate) struct Connection {
    worker: Rc<Worker>,
    stream: TcpStream,
    session: Session,
    parser: RequestParser,
    input: Vec<u8>,
    reply: ReplyBuffer,
    /// Where each reply in `reply` starts, and what it tells of.
    marks: Vec<Mark>,
    /// The largest end in `marks`, and the strictest level that they are to reach.
    pending: Lsn,
    level: Ack,
    /// Bytes beyond `ALWAYS_ALLOWED` that are in the sum over all connections.
    held: usize,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    start: usize,
    end: Lsn,
}

/// Whether the connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    Close,
    /// The next command waits for the end of a pause.
    Wait {
        is_write: bool,
    },
}

impl Connection {
    /// A connection of `client`, who was counted already.
    pub(crate) fn new(worker: Rc<Worker>, stream: TcpStream, client: Arc<Client>) -> Option<Connection> {
        let shared = Arc::clone(&worker.shared);
        let keyspace = shared.store.keyspace(0)?;
        Some(Connection {
            session: Session::new(&shared, client, keyspace),
            parser: RequestParser::new(shared.settings.limits()),
            worker,
            stream,
            input: Vec::new(),
            reply: ReplyBuffer::new(),
            marks: Vec::new(),
            pending: 0,
            level: Ack::Buffered,
            held: 0,
        })
    }

    fn shared(&self) -> &Shared {
        &self.worker.shared
    }

    /// Serves the connection to its end.
    pub(crate) async fn serve(mut self) {
        let mut told = false;
        let mut next = Next::Read;
        loop {
            let read = match next {
                Next::Wait { is_write } => Ok(self.pass_gate(is_write).await),
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
            next = self.execute_all().await;
            if let Err(error) = self.deliver().await {
                tracing::debug!(client = self.session.client.id, %error, "writing failed");
                break;
            }
            if next == Next::Close {
                told = true;
                break;
            }
            if next == Next::Read {
                self.rest();
            }
        }
        self.shared().clients.hold(-signed(self.held));
        if told {
            self.linger().await;
        }
        self.shared().clients.leave(&self.session.client);
    }

    /// Waits for the end of a pause; `false` when the connection is to end.
    async fn pass_gate(&self, is_write: bool) -> bool {
        tokio::select! {
            () = self.shared().gate.pass(is_write) => true,
            () = self.session.client.closed() => false,
        }
    }

    /// Waits for bytes and takes them; `false` at the end of the stream, or when the connection is to end.
    async fn read(&mut self) -> io::Result<bool> {
        let client = Arc::clone(&self.session.client);
        loop {
            if client.is_closing() {
                return Ok(false);
            }
            // A connection that is silent must not hold on to a database that was emptied meanwhile.
            self.session.refresh(&self.worker.shared.store);
            tokio::select! {
                biased;
                ready = self.stream.readable() => ready?,
                () = client.poked() => continue,
            }
            self.make_room();
            match self.stream.try_read_buf(&mut self.input) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.shared().counters.bytes_in.add(n as u64);
                    return Ok(true);
                }
                // That a socket is readable is remembered until a read finds nothing, as this one did after the last
                // request. A connection that is silent holds no buffer.
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

    /// Makes room for a read: a spare buffer where none is held, more where a large request is under way —
    /// but never much more than what of it has arrived.
    fn make_room(&mut self) {
        if self.input.capacity() == 0 {
            self.input = self.worker.take_buffer();
        }
        let missing = self.parser.missing(self.input.len());
        let ahead = missing.min(self.input.len()).clamp(READ_MIN, READ_MAX);
        if self.input.capacity() - self.input.len() < READ_MIN.min(ahead) || missing > 0 {
            self.input.reserve(ahead);
        }
    }

    /// Executes every complete request that was read.
    async fn execute_all(&mut self) -> Next {
        let worker = Rc::clone(&self.worker);
        let shared = &*worker.shared;
        let now_ms = shared.now_ms();
        self.session.client.last_seen_ms.store(now_ms, Ordering::Relaxed);
        self.parser.set_limits(shared.settings.limits());
        self.session.clock_ns = shared.clock.monotonic();
        let mut turn_began = self.session.clock_ns;
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
            if !shared.gate.is_open() {
                let is_write = commands::may_write(&self.session, request);
                if shared.gate.holds(is_write) {
                    // It is found again when it may run. What was answered before is sent first.
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
            let mut outcome = match aside::at_once(&self.session, request, is_near) {
                Some(why) => Ok(Flow::Aside(why)),
                None => {
                    let mut exec = Exec::new(shared, &mut self.session, &mut self.reply, now_ms);
                    commands::run(&mut exec, request)
                }
            };
            if let Ok(Flow::Aside(why)) = outcome {
                self.reply.truncate(start);
                outcome = self.run_aside(done - len, why, now_ms).await;
                is_near = self.is_pressure_near();
            }
            self.drop_replaced();
            if let Ok(Flow::Pause(pause)) = outcome {
                outcome = self.pause(pause, start).await;
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
            if self.reply.len() >= REPLY_BATCH && (!self.within_limits() || self.deliver().await.is_err()) {
                break Next::Close;
            }
            // The clock was read when the command ended.
            if self.session.clock_ns.saturating_sub(turn_began) >= TURN_NS {
                shared.counters.yields.add(1);
                tokio::task::yield_now().await;
                turn_began = shared.clock.monotonic();
                self.session.clock_ns = turn_began;
                is_near = self.is_pressure_near();
            }
        };
        shared.counters.commands.add(commands);
        self.session.tally.hand_in(&shared.calls);
        // After a panic nothing is left of it.
        self.input.drain(..done.min(self.input.len()));
        if self.within_limits() { next } else { Next::Close }
    }

    /// Whether the engine may hold up what this connection writes. Asked before what was read is executed: a
    /// buffer of small requests is little beside the room that is left.
    fn is_pressure_near(&self) -> bool {
        let shared = self.shared();
        if shared.pressure.is_look_due(shared.counters.bytes_in.get()) {
            let shared = Arc::clone(&self.worker.shared);
            drop(tokio::task::spawn_blocking(move || {
                shared.pressure.look(&shared.store.db)
            }));
        }
        shared.pressure.is_near(&shared.store.db, self.session.ack)
    }

    /// Encodes a failure, and notes what the reply tells of.
    fn conclude(&mut self, outcome: Outcome, start: usize) -> Next {
        // What was sent while the command paused is not in the buffer any more.
        let start = start.min(self.reply.len());
        let next = match outcome {
            Ok(Flow::Close) => Next::Close,
            Ok(Flow::Next | Flow::Pause(_) | Flow::Aside(_)) => Next::Read,
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
        next
    }

    /// Does what takes longer than a command may.
    async fn pause(&mut self, pause: Pause, start: usize) -> Outcome {
        let shared = Arc::clone(&self.worker.shared);
        match pause {
            Pause::Select(index) => {
                let keyspace = blocking(move || shared.store.create(index)).await??;
                self.session.select(index, keyspace);
                self.reply.ok();
            }
            Pause::Keys(pattern) => return self.search(pattern).await,
            Pause::Size(keyspace) => {
                keyspace.counted().await?;
                let size = keyspace.size().0;
                let mut exec = Exec::new(&shared, &mut self.session, &mut self.reply, shared.now_ms());
                exec.note_count(&keyspace)?;
                exec.reply.integer(size);
            }
            Pause::Info(sections) => {
                let text = blocking(move || commands::describe(&shared, &sections)).await?;
                self.reply.verbatim(*b"txt", text.as_bytes());
            }
            Pause::Local {
                wanted,
                replicas,
                timeout_ms,
            } => {
                self.reply.truncate(start);
                self.send_before_waiting().await?;
                return self.wait_local(wanted, replicas, timeout_ms).await;
            }
            Pause::Replicas { timeout_ms } => {
                self.reply.truncate(start);
                self.send_before_waiting().await?;
                if self.sleep(timeout_ms).await == Next::Close {
                    return Ok(Flow::Close);
                }
                self.reply.integer(0);
            }
        }
        Ok(Flow::Next)
    }

    /// Drops the keyspaces that a command took out of use, and has the connections that are silent let go of them.
    fn drop_replaced(&mut self) {
        let Some(replaced) = self.session.replaced.take() else {
            return;
        };
        let shared = Arc::clone(&self.worker.shared);
        for client in shared.clients.all() {
            client.poke();
        }
        // The old keys' space comes back later; the command does not wait for it.
        drop(tokio::task::spawn_blocking(move || {
            shared.store.drop_replaced(&replaced);
        }));
    }

    /// What the commands before told goes out before their client is kept waiting.
    async fn send_before_waiting(&mut self) -> Result<(), Failure> {
        self.deliver()
            .await
            .map_err(|error| format!("ERR writing failed: {error}").into())
    }

    /// `WAITAOF`: there are no replicas, so whoever wants some waits out its time.
    async fn wait_local(&mut self, wanted: bool, replicas: i64, timeout_ms: u64) -> Outcome {
        let (end, worker) = (self.session.last, Rc::clone(&self.worker));
        let db = &worker.shared.store.db;
        if wanted && db.durable() < end {
            let reached = tokio::select! {
                reached = worker.disk.reach(end) => Some(reached),
                next = self.sleep(timeout_ms) => {
                    if next == Next::Close {
                        return Ok(Flow::Close);
                    }
                    None
                }
            };
            if let Some(Err(cause)) = reached {
                return Err(not_durable(&cause).into());
            }
        }
        if replicas > 0 && self.sleep(timeout_ms).await == Next::Close {
            return Ok(Flow::Close);
        }
        self.reply.array(2);
        self.reply.integer(i64::from(db.durable() >= end));
        self.reply.integer(0);
        Ok(Flow::Next)
    }

    /// Waits out a time, 0 meaning for ever, unless the client goes or is to go.
    async fn sleep(&self, timeout_ms: u64) -> Next {
        let gone = async {
            while let Ok(ready) = self.stream.ready(Interest::READABLE).await {
                if ready.is_read_closed() {
                    break;
                }
                tokio::time::sleep(GONE_CHECK).await;
            }
        };
        let time = async {
            match timeout_ms {
                0 => std::future::pending().await,
                ms => tokio::time::sleep(Duration::from_millis(ms)).await,
            }
        };
        tokio::select! {
            () = time => Next::Read,
            () = gone => Next::Close,
            () = self.session.client.closed() => Next::Close,
        }
    }

    /// Waits until the replies may leave, and sends them.
    async fn deliver(&mut self) -> io::Result<()> {
        if !self.reply.is_empty() {
            self.settle().await;
            self.write().await?;
            let kept = READ_MIN;
            self.reply.clear(kept);
        }
        self.marks.clear();
        self.pending = 0;
        self.level = Ack::Buffered;
        Ok(())
    }

    /// Waits once for the largest end that the replies tell of. Where the log failed, the replies that tell
    /// of what is not durable become errors; the others leave as they are.
    async fn settle(&mut self) {
        let worker = Rc::clone(&self.worker);
        let barrier: &Barrier = match self.level.durability() {
            Durability::Buffered => return,
            Durability::Process => &worker.process,
            Durability::Disk => &worker.disk,
        };
        let db = &worker.shared.store.db;
        if self.pending == 0 || db.durable() >= self.pending {
            return;
        }
        // What is in a shared ring already survives the process: most waits at that level end here.
        let asked = std::pin::pin!(db.when(self.pending, self.level.durability()));
        let mut nobody = Context::from_waker(Waker::noop());
        if self.level == Ack::Process && matches!(asked.poll(&mut nobody), Poll::Ready(Ok(()))) {
            return;
        }
        worker.shared.counters.waits.add(1);
        if let Err(cause) = barrier.reach(self.pending).await {
            self.take_back(&cause);
        }
    }

    fn take_back(&mut self, cause: &Cause) {
        let durable = self.shared().store.db.durable();
        let error = not_durable(cause);
        let mut kept = ReplyBuffer::new();
        for (i, mark) in self.marks.iter().enumerate() {
            if mark.end > durable {
                kept.error(&error);
            } else {
                let end = self.marks.get(i + 1).map_or(self.reply.len(), |next| next.start);
                kept.raw(self.reply.as_slice().get(mark.start..end).unwrap_or_default());
            }
        }
        kept.set_version(self.reply.version());
        self.reply = kept;
    }

    /// Writes all replies. A client that is to go has a last span of time to take them.
    async fn write(&mut self) -> io::Result<()> {
        let mut rest = self.reply.as_slice();
        let client = &self.session.client;
        let mut last_call: Option<tokio::time::Instant> = None;
        let mut written = 0;
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    rest = rest.get(n..).unwrap_or_default();
                    written += n;
                    if written >= WRITE_TURN && !rest.is_empty() {
                        written = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match last_call {
                    None => tokio::select! {
                        ready = self.stream.writable() => ready?,
                        () = client.closed() => {
                            last_call = Some(tokio::time::Instant::now() + self.worker.grace);
                        }
                    },
                    Some(until) => tokio::time::timeout_at(until, self.stream.writable()).await??,
                },
                Err(error) => return Err(error),
            }
        }
        self.worker.shared.counters.bytes_out.add(self.reply.len() as u64);
        Ok(())
    }

    /// Accounts for what the connection holds, and checks it against the limits. The one that goes beyond is
    /// told so and closed.
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
        let total = self.account();
        let is_kept = self.held == 0 || self.session.client.no_evict.load(Ordering::Relaxed);
        if total > signed(shared.settings.in_flight_bytes_max()) && !is_kept {
            shared.counters.clients_evicted.add(1);
            // What it held is free at once, so that not everybody goes who grows at the same time.
            self.input = Vec::new();
            shared.clients.hold(-signed(self.held));
            self.held = 0;
            self.refuse("OOM requests and replies of all clients take more than maxmemory-clients");
            return false;
        }
        true
    }

    /// Brings the sum over all connections up to date; gives it. Only what is beyond `ALWAYS_ALLOWED` counts,
    /// so that ordinary connections leave the sum alone.
    fn account(&mut self) -> i64 {
        let queued = self.session.queue.as_ref().map_or(0, |queue| queue.bytes);
        let holds = (self.input.capacity() + self.reply.capacity() + queued).saturating_sub(ALWAYS_ALLOWED);
        let clients = &self.worker.shared.clients;
        if holds == self.held {
            return clients.held();
        }
        let total = clients.hold(signed(holds) - signed(self.held));
        self.held = holds;
        total
    }

    /// Replaces all replies by one error.
    fn refuse(&mut self, line: &str) {
        self.reply.clear(0);
        self.marks.clear();
        self.pending = 0;
        self.reply.error(line);
    }

    /// Gives back what is not needed while the client is silent.
    fn rest(&mut self) {
        self.session.trim();
        if self.input.is_empty() {
            self.worker.give_buffer(std::mem::take(&mut self.input));
        }
        self.account();
    }

    /// Ends the sending side, then reads and drops what still comes for a while.
    async fn linger(&mut self) {
        self.input = Vec::new();
        if socket2::SockRef::from(&self.stream)
            .shutdown(std::net::Shutdown::Write)
            .is_err()
        {
            return;
        }
        let drained = async {
            let mut dropped = 0;
            while dropped < LINGER_BYTES
                && matches!(
                    tokio::time::timeout(LINGER_SILENCE, self.stream.readable()).await,
                    Ok(Ok(()))
                )
            {
                let mut scratch = self.worker.take_buffer();
                let read = self.stream.try_read_buf(&mut scratch);
                self.worker.give_buffer(scratch);
                match read {
                    Ok(0) => break,
                    Ok(n) => dropped += n,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
        };
        // Either way the connection ends here.
        let _ = tokio::time::timeout(LINGER, drained).await;
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Tells a client that there are too many, as far as its connection takes it at once.
pub(crate) fn refuse(stream: &TcpStream) {
    let mut reply = ReplyBuffer::new();
    reply.error(text::MAX_CLIENTS);
    // The client that cannot read it in one piece sees the connection end.
    let _ = stream.try_write(reply.as_slice());
}
