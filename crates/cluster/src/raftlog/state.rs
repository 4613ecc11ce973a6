//! A replica of an open log: what its frames say, its last entries, and what it holds of the log. Recovery
//! builds the state from the frames of the stream, and an open log changes it by the same frames: there is
//! one reading of them.

use std::sync::Arc;

use collie_log::{Log, Lsn, Span};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ids::{EntryId, GroupId, ReplicaId, Vote};
use crate::raftlog::frames::{Entries, Listed, State, StreamFrame};
use crate::raftlog::index::{Cache, Index, Run};
use crate::transport::wire::NodeId;

/// Whose stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamIdentity {
    pub(super) group: GroupId,
    pub(super) replica: ReplicaId,
    pub(super) generation: u32,
}

/// A replica as its frames say.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    pub(super) identity: Option<StreamIdentity>,
    /// The frame that the next one names as its predecessor.
    pub(super) last_frame: Lsn,
    pub(super) vote: Option<Vote>,
    /// The frame that says the vote; none where it is not known.
    vote_at: Option<Lsn>,
    pub(super) purged: Option<EntryId>,
    /// The frame that says what is purged; none where it is not known.
    purged_at: Option<Lsn>,
    /// The state frame, until a durable directory names the stream.
    named_at: Option<Lsn>,
    /// The last entry, or what was purged where there is none.
    pub(super) last: Option<EntryId>,
    /// The index of the last entry that is known to be committed.
    committed: Option<u64>,
    pub(super) index: Index,
    /// Whether every frame was read from the stream's first on.
    from_birth: bool,
    /// Whether `last` was said, or follows from what was said: not where frames are missing and
    /// only some entries were met since.
    last_is_known: bool,
    /// The tombstone.
    pub(super) removed: bool,
    /// It is a copy that is not complete: the replica is in another log.
    pub(super) coming: bool,
    /// Everything of the stream below this LSN was read, or is known to be missing.
    pub(super) proven: Lsn,
    /// Where it began anew when frames were missing, or with the first frame that was read.
    anew_at: Lsn,
    /// What a frame says that cannot be.
    pub(super) contradiction: Option<String>,
}

impl StreamState {
    /// Takes the next frame of the stream, whose predecessor `prev` is. A first frame begins another
    /// replica's stream: a crash may bring back segments that the log let go of, with frames of the
    /// replica that had the number before. What contradicts the frames
    /// before is kept in [`StreamState::contradiction`].
    pub(super) fn apply(&mut self, prev: Lsn, frame: &StreamFrame<'_>, span: Span) {
        if prev != self.last_frame || self.anew_at == 0 {
            self.forget(span.start);
        }
        if prev == 0
            && let StreamFrame::State(state) = frame
        {
            *self = Self {
                anew_at: span.start,
                // Otherwise its entries are in the log that it came from.
                from_birth: state.last == state.purged,
                ..Self::default()
            };
        }
        self.last_frame = span.start;
        self.proven = span.end;
        if let Err(text) = self.take(frame, span)
            && self.contradiction.is_none()
        {
            self.contradiction = Some(format!("the frame at LSN {} {text}", span.start));
        }
    }

    /// A directory names the stream, and its last frame of those below `as_of`.
    pub(super) fn list(&mut self, last_frame: Lsn, as_of: Lsn) {
        if self.last_frame < last_frame {
            self.forget(as_of);
            self.last_frame = last_frame;
        }
        self.proven = self.proven.max(as_of);
        self.named_at = None;
        // No directory names a copy that is not complete.
        self.coming = false;
    }

    /// A durable directory at `at` names the stream.
    pub(super) fn named(&mut self, at: Lsn) {
        if self.named_at.is_some_and(|state| state < at) {
            self.named_at = None;
        }
    }

    /// Frames are missing here: what was known is of before them.
    fn forget(&mut self, at: Lsn) {
        *self = Self {
            anew_at: at,
            identity: self.identity,
            named_at: self.named_at,
            removed: self.removed,
            coming: self.coming,
            contradiction: self.contradiction.take(),
            ..Self::default()
        };
    }

    fn take(&mut self, frame: &StreamFrame<'_>, span: Span) -> Result<(), String> {
        match frame {
            StreamFrame::Entries(entries) => self.take_entries(entries, span)?,
            StreamFrame::Vote(vote) => {
                self.vote = Some(*vote);
                self.vote_at = Some(span.start);
            }
            StreamFrame::Truncate(last) => self.truncate(*last)?,
            StreamFrame::Purge(purged) => {
                self.purge(*purged);
                self.purged_at = Some(span.start);
            }
            StreamFrame::State(state) => self.take_state(state, span)?,
            StreamFrame::Tombstone(tombstone) => {
                self.check_identity(tombstone.group, tombstone.replica)?;
                self.removed = true;
            }
            StreamFrame::Directory(_) => return Err("is a directory, which only stream 0 has".to_owned()),
        }
        Ok(())
    }

    fn take_entries(&mut self, entries: &Entries<'_>, span: Span) -> Result<(), String> {
        let count = entries.payloads.count();
        if count > 0 {
            let run = Run {
                first: entries.first,
                lsn: span.start,
                count,
                bytes: u32::try_from(span.end - span.start).unwrap_or(u32::MAX),
            };
            let next = self.last.map(|last| last.index + 1);
            match next {
                // Again, at another place.
                Some(next) if run.end() <= next => {
                    let mut known = (run.first..run.end()).filter_map(|at| self.index.leader(at));
                    if let Some(other) = known.find(|leader| *leader != entries.leader) {
                        return Err(format!("has entries of {} as if of {}", other, entries.leader));
                    }
                }
                Some(next) if run.first != next && self.last_is_known => {
                    return Err(format!(
                        "has the entries {} to {}, where {next} comes next",
                        run.first,
                        run.end() - 1
                    ));
                }
                _ => {
                    self.last = Some(EntryId {
                        leader: entries.leader,
                        index: run.end() - 1,
                    });
                }
            }
            self.index.put(run, entries.leader);
            if let Some(purged) = self.purged.filter(|purged| run.first <= purged.index) {
                self.index.purge(purged.index + 1);
            }
        }
        self.commit(entries.committed);
        Ok(())
    }

    /// Notes what is committed; it never goes back.
    pub(super) fn commit(&mut self, index: Option<u64>) {
        self.committed = self.committed.max(index);
    }

    fn truncate(&mut self, last: Option<EntryId>) -> Result<(), String> {
        if last.map(|id| id.index) < self.purged.map(|id| id.index) {
            return Err("cuts off entries that were purged".to_owned());
        }
        self.index.truncate(last.map_or(0, |id| id.index + 1));
        self.last = last;
        self.last_is_known = true;
        Ok(())
    }

    fn purge(&mut self, purged: EntryId) {
        if self.purged.is_none_or(|before| before.index < purged.index) {
            self.purged = Some(purged);
        }
        self.index.purge(purged.index + 1);
        if self.last.is_none_or(|last| last.index < purged.index) {
            self.last = Some(purged);
        }
    }

    fn take_state(&mut self, state: &State, span: Span) -> Result<(), String> {
        self.check_identity(state.group, state.replica)?;
        if let Some(identity) = &mut self.identity {
            identity.generation = state.generation;
        }
        self.coming = state.is_coming();
        if self.last_is_known && self.last != state.last {
            return Err(format!(
                "says that the last entry is {}, not {}",
                said(state.last),
                said(self.last)
            ));
        }
        // Where frames are missing it says what they said.
        self.last = state.last;
        self.last_is_known = true;
        if let Some(purged) = state.purged {
            self.purge(purged);
        }
        self.vote = state.vote;
        self.commit(state.committed.map(|id| id.index));
        self.vote_at = Some(span.start);
        self.purged_at = Some(span.start);
        self.named_at = Some(span.start);
        Ok(())
    }

    fn check_identity(&mut self, group: GroupId, replica: ReplicaId) -> Result<(), String> {
        let found = StreamIdentity {
            group,
            replica,
            generation: 0,
        };
        let known = *self.identity.get_or_insert(found);
        if (known.group, known.replica) == (group, replica) {
            return Ok(());
        }
        Err(format!(
            "is of replica {replica} of group {group}, not of replica {} of group {}",
            known.replica, known.group
        ))
    }

    /// The last entry that is known to be committed, of those that are here.
    pub(super) fn committed(&self) -> Option<EntryId> {
        let index = self.committed?.min(self.last?.index);
        match self.purged {
            Some(purged) if index <= purged.index => Some(purged),
            _ => self.id(index),
        }
    }

    /// The index of the last entry that is known to be committed.
    pub(super) fn committed_index(&self) -> Option<u64> {
        self.committed
    }

    /// An entry that is here.
    pub(super) fn id(&self, index: u64) -> Option<EntryId> {
        let leader = self.index.leader(index)?;
        Some(EntryId { leader, index })
    }

    /// What a state frame says of it now; none where it is not known whose it is.
    pub(super) fn as_frame(&self) -> Option<State> {
        let identity = self.identity?;
        Some(State {
            group: identity.group,
            replica: identity.replica,
            generation: identity.generation,
            from_log: [0; 16],
            last: self.last,
            purged: self.purged,
            committed: self.committed(),
            vote: self.vote,
        })
    }

    /// The oldest frame that must stay in the log.
    pub(super) fn oldest_needed(&self) -> Lsn {
        let said = [self.said_at(), self.index.oldest_frame()];
        said.into_iter().flatten().min().unwrap_or(self.last_frame)
    }

    /// The oldest frame that must stay in the log once a directory names the stream that is appended
    /// now.
    pub(super) fn oldest_needed_once_named(&self) -> Lsn {
        let needed = [self.vote_at, self.purged_at, self.index.oldest_frame()];
        needed.into_iter().flatten().min().unwrap_or(self.last_frame)
    }

    /// The oldest frame that says something else than entries and that must stay in the log.
    pub(super) fn said_at(&self) -> Option<Lsn> {
        let said = [self.vote_at, self.purged_at, self.named_at];
        said.into_iter().flatten().min()
    }

    /// What is missing of it, if anything is.
    pub(super) fn missing(&self) -> Option<String> {
        if let Some(text) = &self.contradiction {
            return Some(text.clone());
        }
        if self.identity.is_none() {
            return Some("no frame says whose it is".to_owned());
        }
        let what = self.missing_frames()?;
        Some(format!("{what}, in what is read from LSN {} on", self.anew_at))
    }

    fn missing_frames(&self) -> Option<String> {
        if self.vote_at.is_none() {
            return Some("no frame says its vote".to_owned());
        }
        if self.purged_at.is_none() {
            return Some("no frame says what was purged".to_owned());
        }
        let end = self.last.map_or(0, |last| last.index + 1);
        let first = match self.purged {
            Some(purged) if !self.from_birth => purged.index + 1,
            // A log that was read whole begins where its first entry is.
            _ => self.index.first().unwrap_or(end),
        };
        let begins = self.from_birth || self.purged.is_some() || first == 0;
        if !begins || !self.index.covers(first, end) {
            let last = end.saturating_sub(1);
            return Some(format!("not all of the entries {first} to {last} are there"));
        }
        None
    }
}

fn said(id: Option<EntryId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

/// A replica. Its `live` is locked for every frame that is appended: the lock orders the stream.
pub(super) struct ReplicaStream {
    pub(super) stream: u32,
    pub(super) identity: StreamIdentity,
    pub(super) live: Mutex<Live>,
    /// Notified when appends may go on that waited for a move.
    pub(super) resumed: Notify,
    holder: String,
    /// From where on it holds the log. Locked after `live`.
    pinned: Mutex<Lsn>,
    /// Why, as who purges it last saw; shared with what it was copied from, as `wanted` is.
    holding: Arc<Mutex<Holding>>,
    /// Wakes who purges it.
    pub(super) wanted: Arc<Notify>,
}

/// Whether a replica is in this log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Presence {
    #[default]
    Here,
    /// It moves: nothing is appended until it is known where it is.
    Waiting,
    /// It is in another log.
    Gone,
}

impl StreamIdentity {
    /// The name by which a replica holds the log: another one for each copy that is made there.
    fn holder(&self, stream: u32) -> String {
        let Self {
            group,
            replica,
            generation,
        } = self;
        match generation {
            0 => format!("raft/replica {replica} of group {group}"),
            _ => format!("raft/replica {replica} of group {group}, stream {stream}"),
        }
    }
}

/// What changes with every frame.
#[derive(Default)]
pub(super) struct Live {
    pub(super) state: StreamState,
    pub(super) cache: Cache,
    /// Where payloads are encoded.
    pub(super) payload: Vec<u8>,
    /// What the last frame said is committed.
    pub(super) committed_said: Option<u64>,
    pub(super) presence: Presence,
}

impl ReplicaStream {
    /// A stream; of a copy, what it is copied from is `of`.
    pub(super) fn new(stream: u32, identity: StreamIdentity, state: StreamState, of: Option<&Self>) -> Self {
        Self {
            stream,
            identity,
            live: Mutex::new(Live {
                committed_said: state.committed_index(),
                state,
                ..Live::default()
            }),
            holder: identity.holder(stream),
            pinned: Mutex::new(0),
            holding: of.map(|of| Arc::clone(&of.holding)).unwrap_or_default(),
            wanted: of.map(|of| Arc::clone(&of.wanted)).unwrap_or_default(),
            resumed: Notify::new(),
        }
    }

    /// Holds the log from `oldest` on, and lets go of what is below. All that says so must be
    /// durable.
    pub(super) fn pin(&self, log: &Log, oldest: Lsn) {
        let mut pinned = self.pinned.lock();
        if *pinned < oldest {
            *pinned = oldest;
            log.retain(&self.holder, oldest);
        }
    }

    /// Lets go of the log for good.
    pub(super) fn unpin(&self, log: &Log) {
        *self.pinned.lock() = Lsn::MAX;
        log.release(&self.holder);
    }

    /// From where on it holds the log.
    pub(super) fn pinned(&self) -> Lsn {
        *self.pinned.lock()
    }

    /// The name by which it holds the log.
    pub(super) fn holder(&self) -> &str {
        &self.holder
    }

    /// Why it holds the log.
    pub(super) fn holding(&self) -> Holding {
        *self.holding.lock()
    }

    pub(super) fn set_holding(&self, holding: Holding) {
        *self.holding.lock() = holding;
    }

    /// Its line of a directory that is about to be appended.
    pub(super) fn list(self: &Arc<Self>) -> (Listed, Arc<Self>) {
        let live = self.live.lock();
        let line = Listed {
            stream: self.stream,
            group: self.identity.group,
            replica: self.identity.replica,
            generation: live.state.identity.map_or(0, |identity| identity.generation),
            last_frame: live.state.last_frame,
            oldest: Some(live.state.oldest_needed_once_named()),
        };
        (line, Arc::clone(self))
    }

    /// Forgets payloads of entries in frames that end at `cut` or before.
    pub(super) fn trim_cache(&self, cut: Lsn) {
        self.live.lock().trim_cache(cut);
    }
}

impl Live {
    /// Whether a frame says what is committed.
    pub(super) fn has_said_committed(&self) -> bool {
        self.committed_said == self.state.committed_index()
    }

    pub(super) fn trim_cache(&mut self, cut: Lsn) {
        while let Some(first) = self.cache.first() {
            match self.state.index.run_of(first) {
                Some(run) if run.lsn + u64::from(run.bytes) > cut => return,
                Some(run) => self.cache.drop_below(run.end()),
                // Purged, or truncated: it should not be here.
                None => self.cache.drop_below(first + 1),
            }
        }
    }
}

/// Why the log still has entries of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holding {
    /// The replica is not run, so that nothing is known.
    #[default]
    NotRun,
    /// Its tables do not have them yet.
    Tables,
    /// A follower lacks them.
    Follower {
        /// The follower.
        replica: ReplicaId,
        /// Where it is.
        node: NodeId,
    },
    /// They are behind tables that another replica is getting.
    Transfer,
    /// A cluster that rows are duplicated to lacks them.
    Target,
    /// They are the last ones, which are kept for replicas that may lack them.
    Margin,
}

impl Holding {
    /// One word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotRun => "not_run",
            Self::Tables => "tables",
            Self::Follower { .. } => "follower",
            Self::Transfer => "transfer",
            Self::Target => "target",
            Self::Margin => "margin",
        }
    }
}

impl std::fmt::Display for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRun => write!(f, "a replica that is not run"),
            Self::Tables => write!(f, "entries that its tables do not have yet"),
            Self::Follower { replica, node } => {
                write!(f, "entries that replica {replica} on node {node} lacks")
            }
            Self::Transfer => write!(f, "entries behind tables that another replica is getting"),
            Self::Target => write!(f, "entries that a cluster lacks which rows are duplicated to"),
            Self::Margin => write!(f, "its last entries, for replicas that may lack them"),
        }
    }
}
