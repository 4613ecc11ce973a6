//! The log of one replica, on collie-log.
//!
//! A frame has an entry, a truncation, or the replica's state: its vote, how far it has committed and
//! how far it has purged. Reading all frames in their order gives what the log holds, so recovery
//! does what was done when they were appended.
//!
//! * Whatever is written waits for nothing that was written before: when a frame is durable, so is
//!   every frame before it. An entry that follows a truncation is not acknowledged without it.
//! * openraft calls `append` from one task and is told later that the entries are durable. While it
//!   is not, further ones are appended, and one sync serves all of them.
//! * The vote is in the same log. It would pin the log for ever, so a purge writes the state anew
//!   before the log drops what lies before.
//! * Entries are kept in memory until they are purged. A store with longer logs keeps the LSN of an
//!   entry that is durable, and reads it with `Log::get`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collie_log::{FrameRef, Level, Log, LogOptions, Lsn, Span, Worker};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::{OptionalSend, entry::RaftEntry};
use serde::{Deserialize, Serialize};

openraft::declare_raft_types!(
    /// Commands are strings, and so are their answers.
    pub(crate) Types:
        D = String,
        R = String,
);

/// Many replicas may share one log, each with a stream of its own.
const STREAM: u32 = 0;
const ENTRY: u8 = 1;
const TRUNCATION: u8 = 2;
const STATE: u8 = 3;

/// What is kept of a replica beside its entries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    vote: Option<VoteOf<Types>>,
    committed: Option<LogIdOf<Types>>,
    purged: Option<LogIdOf<Types>>,
}

/// What the log holds.
#[derive(Debug, Default)]
struct Contents {
    state: State,
    /// Where the newest state stands.
    state_at: Lsn,
    /// By index, each with its place.
    entries: BTreeMap<u64, (Lsn, EntryOf<Types>)>,
}

impl Contents {
    fn recover(&mut self, frame: FrameRef<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        match frame.kind {
            ENTRY => self.append(frame.start, postcard::from_bytes(frame.payload)?),
            TRUNCATION => self.truncate_from(postcard::from_bytes(frame.payload)?),
            STATE => self.set_state(frame.start, postcard::from_bytes(frame.payload)?),
            kind => return Err(format!("a frame of kind {kind} at LSN {}", frame.start).into()),
        }
        Ok(())
    }

    fn append(&mut self, at: Lsn, entry: EntryOf<Types>) {
        self.entries.insert(entry.index(), (at, entry));
    }

    fn truncate_from(&mut self, index: u64) {
        self.entries.split_off(&index);
    }

    fn set_state(&mut self, at: Lsn, state: State) {
        if let Some(purged) = &state.purged {
            self.entries = self.entries.split_off(&(purged.index + 1));
        }
        (self.state, self.state_at) = (state, at);
    }

    fn last(&self) -> Option<LogIdOf<Types>> {
        let last = self.entries.last_key_value();
        last.map(|(_, (_, entry))| entry.log_id()).or(self.state.purged)
    }

    /// From where on the log is needed.
    fn needed_from(&self) -> Lsn {
        let first = self.entries.first_key_value();
        first.map_or(self.state_at, |(_, (at, _))| self.state_at.min(*at))
    }
}

/// The replica's log. openraft has one of these, and any number of [`LogReader`]s.
#[derive(Debug)]
pub(crate) struct LogStore {
    log: Log,
    worker: Worker,
    contents: Arc<Mutex<Contents>>,
}

/// Reads the entries of a [`LogStore`].
#[derive(Debug, Clone)]
pub(crate) struct LogReader(Arc<Mutex<Contents>>);

impl LogStore {
    /// Opens or creates the log in a directory. Blocks. An entry may take half the ring.
    pub(crate) fn open(dir: &Path, options: LogOptions) -> io::Result<Self> {
        let mut contents = Contents::default();
        let opened = Log::open_with(dir, options, |frame| contents.recover(frame));
        let log = opened.map_err(io::Error::other)?;
        // An opened log frees nothing until it is told from where on it is needed.
        if contents.state_at > 0 {
            log.retain("raft", contents.needed_from());
        }
        let worker = log.worker().map_err(io::Error::other)?;
        Ok(Self {
            log,
            worker,
            contents: Arc::new(Mutex::new(contents)),
        })
    }

    /// Closes the log. Blocks. (To drop it does the same, without an answer.)
    pub(crate) fn close(self) -> io::Result<()> {
        self.log.close().map_err(io::Error::other)
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        lock(&self.contents)
    }

    async fn write(&mut self, kind: u8, frame: &impl Serialize) -> io::Result<Span> {
        let payload = postcard::to_stdvec(frame).map_err(io::Error::other)?;
        let appended = self.worker.append_async(STREAM, kind, &payload).await;
        // Whatever the error is, openraft stops the replica: also for a full device, where nothing was
        // appended. A store that must outlive that waits here until there is room (`Log::room`).
        appended.map_err(io::Error::other)
    }

    async fn write_state(&mut self, change: impl FnOnce(&mut State)) -> io::Result<Span> {
        let mut state = self.contents().state.clone();
        change(&mut state);
        let span = self.write(STATE, &state).await?;
        self.contents().set_state(span.start, state);
        Ok(span)
    }

    async fn durable(&self, span: Span) -> io::Result<()> {
        let durable = self.log.wait_async(span.end, Level::Disk).await;
        durable.map_err(io::Error::other)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let contents = self.contents();
        Ok(LogState {
            last_purged_log_id: contents.state.purged,
            last_log_id: contents.last(),
        })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        LogReader(Arc::clone(&self.contents))
    }

    /// A replica that forgot its vote could vote twice in one term: so it is waited for.
    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        let span = self.write_state(|state| state.vote = Some(*vote)).await?;
        self.durable(span).await
    }

    /// Not waited for: after a crash an older one only means that more is learned from the leader.
    async fn save_committed(&mut self, committed: Option<LogIdOf<Types>>) -> io::Result<()> {
        let written = self.write_state(|state| state.committed = committed).await;
        written.map(|_| ())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<Types>>> {
        Ok(self.contents().state.committed)
    }

    /// Returns when the entries can be read, and calls back when they are durable.
    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut last = None;
        for entry in entries {
            let span = self.write(ENTRY, &entry).await?;
            self.contents().append(span.start, entry);
            last = Some(span);
        }
        let Some(last) = last else {
            flushed.io_completed(Ok(()));
            return Ok(());
        };
        let durable = self.log.wait_async(last.end, Level::Disk);
        tokio::spawn(async move { flushed.io_completed(durable.await.map_err(io::Error::other)) });
        Ok(())
    }

    /// Not waited for: it is durable before any entry that takes the place of those that go.
    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        self.write(TRUNCATION, &from).await?;
        self.contents().truncate_from(from);
        Ok(())
    }

    async fn purge(&mut self, through: LogIdOf<Types>) -> io::Result<()> {
        let span = self.write_state(|state| state.purged = Some(through)).await?;
        // Before the entries go: or a power cut leaves a log that begins later than its state says.
        self.durable(span).await?;
        let needed_from = self.contents().needed_from();
        self.log.retain("raft", needed_from);
        Ok(())
    }
}

impl RaftLogReader<Types> for LogReader {
    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<EntryOf<Types>>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let contents = lock(&self.0);
        let entries = contents.entries.range(range);
        Ok(entries.map(|(_, (_, entry))| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<Types>>> {
        Ok(lock(&self.0).state.vote)
    }
}

fn lock(contents: &Mutex<Contents>) -> MutexGuard<'_, Contents> {
    contents.lock().unwrap_or_else(PoisonError::into_inner)
}
