//! The log of one replica.

use std::ops::Range;
use std::sync::Arc;

use collie_log::{LogError, Lsn, Span};

use crate::ids::{EntryId, GroupId, LeaderId, ReplicaId, Vote};
use crate::raftlog::error::StoreError;
use crate::raftlog::frames::{ENTRIES_HEAD, ENTRY_HEAD, Entries, Payloads, PayloadsBuf, StreamFrame};
use crate::raftlog::index::Run;
use crate::raftlog::patience::Patience;
use crate::raftlog::shared::{Home, NodeLogInner, Residence};
use crate::raftlog::state::{Holding, Live, Presence, StreamState};

/// An entry of a group's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which one.
    pub id: EntryId,
    /// What it holds.
    pub payload: Arc<[u8]>,
}

/// Where a replica's log begins and ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The last entry that was purged.
    pub purged: Option<EntryId>,
    /// The last entry, or the last purged one where there is none behind it.
    pub last: Option<EntryId>,
}

/// The log of one replica: entries, and its vote. Clones are handles to the same log.
///
/// Its changes are appended in the order of the calls, and what becomes durable of them is a prefix
/// of that order. The futures wait for room in the log, and for a moment where it moves to another log of the node;
/// for nothing else unless they say so.
#[derive(Clone)]
pub struct ReplicaLog {
    home: Arc<Home>,
    /// Until when appends wait for room on a full disk. Without it they do not.
    pub(super) patience: Option<Patience>,
}

impl std::fmt::Debug for ReplicaLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let residence = self.residence();
        f.debug_struct("ReplicaLog")
            .field("identity", &residence.replica.identity)
            .field("stream", &residence.replica.stream)
            .finish_non_exhaustive()
    }
}

impl ReplicaLog {
    pub(super) fn new(home: Arc<Home>) -> Self {
        Self { home, patience: None }
    }

    pub(super) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// Where it is now.
    pub(super) fn residence(&self) -> Arc<Residence> {
        self.home.residence()
    }

    /// The log that it is in.
    pub(super) fn shared(&self) -> Arc<NodeLogInner> {
        Arc::clone(&self.residence().log)
    }

    /// Its id.
    #[must_use]
    pub fn replica(&self) -> ReplicaId {
        self.residence().replica.identity.replica
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.residence().replica.identity.group
    }

    /// Its vote, which may not be durable yet if it is being saved.
    #[must_use]
    pub fn vote(&self) -> Option<Vote> {
        self.residence().replica.live.lock().state.vote
    }

    /// Where it begins and ends.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        let residence = self.residence();
        let live = residence.replica.live.lock();
        Bounds {
            purged: live.state.purged,
            last: live.state.last,
        }
    }

    /// The last purged entry, asked for later: it keeps no log open.
    pub(crate) fn purged_later(&self) -> impl Fn() -> Option<u64> + use<> {
        Home::purged(&self.home)
    }

    /// The last entry that is known to be committed, of those that are here.
    #[must_use]
    pub fn committed(&self) -> Option<EntryId> {
        self.residence().replica.live.lock().state.committed()
    }

    /// The last entry of each leader that has any here, in their order.
    #[must_use]
    pub fn last_of_leaders(&self) -> Vec<EntryId> {
        let residence = self.residence();
        let live = residence.replica.live.lock();
        let state = &live.state;
        let mut ids: Vec<EntryId> = Vec::new();
        for (index, leader) in state.index.leaders() {
            if let Some(before) = ids.last_mut() {
                before.index = index - 1;
            }
            ids.push(EntryId { leader, index });
        }
        if let (Some(id), Some(last)) = (ids.last_mut(), state.last) {
            *id = last;
        }
        ids
    }

    /// The id of an entry that is here, or of the last that was purged.
    #[must_use]
    pub fn id(&self, index: u64) -> Option<EntryId> {
        let residence = self.residence();
        let live = residence.replica.live.lock();
        match live.state.purged {
            Some(purged) if purged.index == index => Some(purged),
            _ => live.state.id(index),
        }
    }

    /// Whether an entry is here, or was until it was purged.
    pub(crate) fn had(&self, id: EntryId) -> bool {
        let residence = self.residence();
        let live = residence.replica.live.lock();
        // What was purged is committed, so that no other has its index.
        let purged = live.state.purged.is_some_and(|purged| id.index <= purged.index);
        purged || live.state.id(id.index) == Some(id)
    }

    /// The index up to which entries are on the device; what was purged counts as if it were. It may
    /// be lower for a moment when entries are appended anew. Does not block.
    #[must_use]
    pub fn durable_through(&self) -> Option<u64> {
        let residence = self.residence();
        // Before the state: a frame that is found there may have become durable since.
        let durable = residence.log.log.durable();
        let live = residence.replica.live.lock();
        let here = live
            .state
            .index
            .end_below(durable)
            .and_then(|end| end.checked_sub(1));
        here.max(live.state.purged.map(|purged| purged.index))
    }

    /// Blocks until an entry is on the device, whatever entries wait for; one that was purged is not
    /// waited for.
    ///
    /// # Errors
    /// The log's, and [`StoreError::Order`] where there is no such entry.
    pub fn wait_durable(&self, index: u64) -> Result<(), StoreError> {
        let residence = self.residence();
        let end = {
            let live = residence.replica.live.lock();
            if live.state.purged.is_some_and(|purged| index <= purged.index) {
                return Ok(());
            }
            let run = live.state.index.run_of(index);
            let run = run.ok_or_else(|| self.order(format!("entry {index} is not in the log")))?;
            run.lsn + u64::from(run.bytes)
        };
        residence.wait(end)
    }

    /// Saves the vote. It is on the device when this returns, whatever entries wait for.
    ///
    /// # Errors
    /// The log's, and [`StoreError::Removed`].
    pub async fn save_vote(&self, vote: Vote) -> Result<(), StoreError> {
        let said = self.append_saying(|_| Ok(Some(StreamFrame::Vote(vote)))).await?;
        if let Some((residence, span)) = said {
            residence.wait_async(span.end).await?;
        }
        Ok(())
    }

    /// Appends entries, each behind the one before. They can be read when this returns, and `done` is called once they
    /// are on the device, by the task that runs [`NodeLog::run`](crate::NodeLog::run), or survive the process, if that
    /// is what they wait for. If this fails, `done` is dropped, and some of the entries may have been appended.
    ///
    /// # Errors
    /// [`StoreError::Order`], [`StoreError::Removed`], and the log's.
    pub async fn append(
        &self,
        entries: Vec<Entry>,
        done: impl FnOnce(Result<(), StoreError>) + Send + 'static,
    ) -> Result<(), StoreError> {
        let mut last = None;
        let mut rest = entries.as_slice();
        while let Some(first) = rest.first() {
            let (now, later) = rest.split_at(one_frame(rest, self.shared().frame_bytes()));
            rest = later;
            let mut payloads = PayloadsBuf::default();
            now.iter().for_each(|entry| payloads.push(&entry.payload));
            let payloads = payloads.payloads();
            let make = |state: &StreamState| {
                self.check_follows(state, now)?;
                Ok(Some(entries_frame(
                    state,
                    first.id.index,
                    first.id.leader,
                    payloads,
                )))
            };
            last = self
                .append_with(make, |live, _| {
                    live.committed_said = live.state.committed_index();
                    for entry in now {
                        live.cache.push(entry.id.index, Arc::clone(&entry.payload));
                    }
                })
                .await?;
        }
        match last {
            // What of them was appended before it moved here is on the device.
            Some((residence, span)) => {
                residence.when_it_counts(span.end, Box::new(done));
                residence.replica.trim_cache(residence.log.cache_cut());
            }
            None => done(Ok(())),
        }
        Ok(())
    }

    fn check_follows(&self, state: &StreamState, entries: &[Entry]) -> Result<(), StoreError> {
        let mut before = state.last.map(|last| last.index);
        for entry in entries {
            let index = entry.id.index;
            if index == u64::MAX || before.is_some_and(|before| before + 1 != index) {
                let last = before.map_or_else(|| "nothing".to_owned(), |last| format!("entry {last}"));
                return Err(self.order(format!("entry {index} does not follow {last}")));
            }
            before = Some(index);
        }
        Ok(())
    }

    fn order(&self, problem: String) -> StoreError {
        let replica = self.replica();
        StoreError::Order { replica, problem }
    }

    /// Removes all entries behind `last`.
    ///
    /// # Errors
    /// [`StoreError::Order`] where that would remove purged ones, [`StoreError::Removed`], and the
    /// log's.
    pub async fn truncate(&self, last: Option<EntryId>) -> Result<(), StoreError> {
        let make = |state: &StreamState| {
            let end = last.map_or(0, |last| last.index + 1);
            if state.last.is_none_or(|id| id.index < end) {
                return Ok(None);
            }
            if last.map(|id| id.index) < state.purged.map(|id| id.index) {
                return Err(self.order("entries that were purged cannot be truncated".to_owned()));
            }
            Ok(Some(StreamFrame::Truncate(last)))
        };
        let truncate = |live: &mut Live, _| live.cache.truncate(last.map_or(0, |last| last.index + 1));
        self.append_with(make, truncate).await?;
        Ok(())
    }

    /// Removes all entries up to `through`, of which there may be fewer. The log lets go of them
    /// once that is durable.
    ///
    /// # Errors
    /// [`StoreError::Removed`], and the log's.
    pub async fn purge(&self, through: EntryId) -> Result<(), StoreError> {
        self.append_purge(through).await?;
        Ok(())
    }

    /// As [`ReplicaLog::purge`]. It is on the device when this returns.
    ///
    /// # Errors
    /// As [`ReplicaLog::purge`].
    pub async fn purge_durably(&self, through: EntryId) -> Result<(), StoreError> {
        let (residence, end) = match self.append_purge(through).await? {
            Some((residence, span)) => (residence, span.end),
            // Where it was purged before, that may not be durable yet.
            None => {
                let residence = self.residence();
                let end = residence.log.log.appended();
                (residence, end)
            }
        };
        residence.wait_async(end).await
    }

    async fn append_purge(&self, through: EntryId) -> Result<Option<Appended>, StoreError> {
        self.append_saying(|state| {
            let purged = state.purged.is_some_and(|purged| purged.index >= through.index);
            Ok((!purged).then_some(StreamFrame::Purge(through)))
        })
        .await
    }

    /// Notes what is committed. It becomes durable with the next entries, or with the next call of
    /// [`NodeLog::maintain`](crate::NodeLog::maintain): it is a hint.
    pub fn save_committed(&self, id: EntryId) {
        let residence = self.residence();
        let mut live = residence.replica.live.lock();
        let last = live.state.last.map(|last| last.index);
        live.state.commit(last.map(|last| last.min(id.index)));
    }

    /// Appends what is committed, if no frame says so yet.
    pub(super) async fn say_committed(&self) -> Result<(), StoreError> {
        if self.residence().replica.live.lock().has_said_committed() {
            return Ok(());
        }
        let make = |state: &StreamState| {
            let first = state.last.map_or(0, |last| last.index + 1);
            // Of no entry.
            let leader = LeaderId { term: 0, replica: 0 };
            Ok(Some(entries_frame(state, first, leader, Payloads::NONE)))
        };
        let say = |live: &mut Live, _| live.committed_said = live.state.committed_index();
        self.append_with(make, say).await?;
        Ok(())
    }

    /// Appends anew what the replica's frames say, and its entries if wanted, so that the log can let
    /// go of the old ones. Returns how many bytes that took. Reads entries from the device that are
    /// not in memory, and blocks on that.
    ///
    /// # Errors
    /// [`StoreError::Removed`], the log's, and those of [`ReplicaLog::read`].
    pub async fn rewrite(&self, entries: bool) -> Result<u64, StoreError> {
        let say = |state: &StreamState| Ok(state.as_frame().map(StreamFrame::State));
        let Some((residence, said)) = self.append_saying(say).await? else {
            return Ok(0);
        };
        let mut bytes = said.end - said.start;
        let runs: Vec<Run> = match entries {
            true => residence.replica.live.lock().state.index.runs_from(0).collect(),
            false => Vec::new(),
        };
        for run in runs.into_iter().filter(|run| run.lsn < said.start) {
            let read = self.read(run.first..run.end())?;
            let Some(first) = read.first().filter(|_| read.len() == run.count as usize) else {
                // Purged or truncated meanwhile.
                continue;
            };
            let mut payloads = PayloadsBuf::default();
            read.iter().for_each(|entry| payloads.push(&entry.payload));
            let make = |state: &StreamState| {
                // Not if other entries took their place, some are gone, or it has moved.
                let same = state.index.run_of(run.first) == Some(run);
                let frame = || entries_frame(state, run.first, first.id.leader, payloads.payloads());
                Ok(same.then(frame))
            };
            if let Some((_, span)) = self.append_saying(make).await? {
                bytes += span.end - span.start;
            }
        }
        Ok(bytes)
    }

    /// Appends a frame that may let the log go of older ones, once it is durable.
    async fn append_saying<'f>(
        &self,
        make: impl FnMut(&StreamState) -> Result<Option<StreamFrame<'f>>, StoreError>,
    ) -> Result<Option<Appended>, StoreError> {
        let mut oldest = 0;
        let appended = self
            .append_with(make, |live, _| {
                if let Some(purged) = live.state.purged {
                    live.cache.drop_below(purged.index + 1);
                }
                oldest = live.state.oldest_needed();
            })
            .await?;
        if let Some((residence, span)) = &appended {
            let pinned = Arc::clone(residence);
            let pin = move |answer: Result<(), StoreError>| {
                if answer.is_ok() {
                    pinned.replica.pin(&pinned.log.log, oldest);
                }
            };
            residence.log.when_durable(span.end, Box::new(pin));
        }
        Ok(appended)
    }

    /// Appends the frame that `make` makes of the state, if any, and changes the state by it; then
    /// `applied` is called. All that under the replica's lock, which is not held while room is
    /// awaited: `make` is called again then. Where the disk is full, nothing was appended.
    pub(super) async fn append_with<'f>(
        &self,
        mut make: impl FnMut(&StreamState) -> Result<Option<StreamFrame<'f>>, StoreError>,
        mut applied: impl FnMut(&mut Live, Span),
    ) -> Result<Option<Appended>, StoreError> {
        let mut is_said = false;
        loop {
            let residence = self.residence();
            // Before the lock: it may be notified as soon as that is free.
            let resumed = residence.replica.resumed.notified();
            let appended = {
                let mut live = residence.replica.live.lock();
                let live = &mut *live;
                if live.state.removed {
                    let replica = self.replica();
                    return Err(StoreError::Removed { replica });
                }
                match live.presence {
                    Presence::Here => {
                        let Some(frame) = make(&live.state)? else {
                            return Ok(None);
                        };
                        let prev = live.state.last_frame;
                        frame.encode(prev, &mut live.payload);
                        match residence
                            .log
                            .append(residence.replica.stream, &frame, &live.payload)
                        {
                            Ok(span) => {
                                live.state.apply(prev, &frame, span);
                                debug_assert_eq!(live.state.contradiction, None);
                                applied(live, span);
                                return Ok(Some((Arc::clone(&residence), span)));
                            }
                            Err(LogError::WouldBlock) => Ok(Some(live.payload.len())),
                            Err(error) => Err(error),
                        }
                    }
                    Presence::Waiting => Ok(None),
                    Presence::Gone => continue,
                }
            };
            let room = match appended {
                Ok(Some(len)) => residence.log.log.room(len).await,
                Ok(None) => {
                    resumed.await;
                    continue;
                }
                Err(error) => Err(error),
            };
            match room {
                Err(_) if residence.is_gone() => {}
                Err(error @ LogError::StorageFull { .. }) => self.wait_for_room(error, &mut is_said).await?,
                room => room?,
            }
        }
    }

    /// As [`ReplicaLog::read_up_to`], if all those entries are in memory. Does not block.
    #[must_use]
    pub fn read_cached(&self, range: Range<u64>, bytes: u64) -> Option<Vec<Entry>> {
        let residence = self.residence();
        let live = residence.replica.live.lock();
        let plan = Plan::of(&live, range, bytes);
        plan.pieces.is_empty().then_some(plan.cached)
    }

    /// The entries of `range` that are there: as of one moment, and without a gap. Blocks on file I/O
    /// for those that are not in memory.
    ///
    /// # Errors
    /// The log's, and [`StoreError::Misplaced`].
    pub fn read(&self, range: Range<u64>) -> Result<Vec<Entry>, StoreError> {
        self.read_up_to(range, u64::MAX)
    }

    /// As [`ReplicaLog::read`], but only the first ones: of about `bytes` bytes, and at least one, if there is one.
    ///
    /// # Errors
    /// As [`ReplicaLog::read`].
    pub fn read_up_to(&self, range: Range<u64>, bytes: u64) -> Result<Vec<Entry>, StoreError> {
        loop {
            let residence = self.residence();
            let plan = Plan::of(&residence.replica.live.lock(), range.clone(), bytes);
            let mut entries = Vec::new();
            let mut gone = None;
            for piece in &plan.pieces {
                match read_piece(&residence, piece, &mut entries) {
                    // All of it may be gone with the replica.
                    Err(StoreError::Log(error)) if residence.is_gone() => {
                        gone = Some((piece.range.start, error));
                        break;
                    }
                    Err(StoreError::Log(error @ LogError::Missing { .. })) => {
                        gone = Some((piece.range.start, error));
                        break;
                    }
                    done => done?,
                }
            }
            let Some((first, error)) = gone else {
                entries.extend(plan.cached);
                return Ok(entries);
            };
            if residence.is_gone() {
                continue;
            }
            // The log let go of them: they were purged since, or truncated, or stand elsewhere.
            let same = Plan::of(&residence.replica.live.lock(), first..first + 1, u64::MAX);
            if same
                .pieces
                .first()
                .is_some_and(|now| plan.pieces.iter().any(|piece| piece.lsn == now.lsn))
            {
                return Err(error.into());
            }
        }
    }

    /// What its live frames with entries take in the log, and from where on it holds the log.
    pub(super) fn weight(&self) -> (u64, Lsn) {
        let replica = &self.residence().replica;
        let bytes = replica.live.lock().state.index.bytes();
        (bytes, replica.pinned())
    }

    /// The last entry that the log keeps only for those that are known to lack it, and the last that it
    /// keeps for none of them.
    pub(crate) fn dispensable(&self) -> (Option<u64>, Option<u64>) {
        let residence = self.residence();
        let cuts = residence.log.cuts();
        let live = residence.replica.live.lock();
        let index = &live.state.index;
        (index.last_below(cuts.soft), index.last_below(cuts.hard))
    }

    /// Wakes who purges the replica if it has entries in frames below.
    pub(super) fn want_purge_below(&self, lsn: Lsn) {
        let replica = &self.residence().replica;
        let oldest = replica.live.lock().state.index.oldest_frame();
        if oldest.is_some_and(|oldest| oldest < lsn) {
            replica.wanted.notify_one();
        }
    }

    /// Waits until entries are to be purged if that is possible.
    pub(crate) async fn purge_wanted(&self) {
        // The same in all logs.
        let wanted = Arc::clone(&self.residence().replica.wanted);
        wanted.notified().await;
    }

    /// Notes why the log has entries of the replica.
    pub(crate) fn note_holding(&self, holding: Holding) {
        self.residence().replica.set_holding(holding);
    }

    /// The name by which it holds its log.
    pub(crate) fn holder(&self) -> String {
        self.residence().replica.holder().to_owned()
    }

    /// Why the log has entries of the replica.
    pub(crate) fn holding(&self) -> Holding {
        self.residence().replica.holding()
    }

    /// The oldest frame that says something else than entries.
    pub(super) fn said_at(&self) -> Option<Lsn> {
        self.residence().replica.live.lock().state.said_at()
    }
}

/// Where a frame was appended.
pub(super) type Appended = (Arc<Residence>, Span);

/// Where entries are to be had from: first some from the log, then some from memory.
struct Plan {
    pieces: Vec<PlannedPiece>,
    cached: Vec<Entry>,
}

/// Entries that are in one frame.
struct PlannedPiece {
    lsn: Lsn,
    frame_end: Lsn,
    range: Range<u64>,
    leader: LeaderId,
}

impl Plan {
    fn of(live: &Live, range: Range<u64>, bytes: u64) -> Self {
        let (mut pieces, mut cached, mut sum) = (Vec::new(), Vec::new(), 0);
        let cached_from = live.cache.first().unwrap_or(u64::MAX);
        for run in live.state.index.runs_from(range.start) {
            let (first, end) = (run.first.max(range.start), run.end().min(range.end));
            let Some(leader) = live.state.index.leader(run.first).filter(|_| first < end) else {
                break;
            };
            if sum > 0 && sum + u64::from(run.bytes) > bytes {
                break;
            }
            sum += u64::from(run.bytes);
            let in_log = first..end.min(cached_from);
            if !in_log.is_empty() {
                pieces.push(PlannedPiece {
                    lsn: run.lsn,
                    frame_end: run.lsn + u64::from(run.bytes),
                    range: in_log,
                    leader,
                });
            }
            cached.extend((first.max(cached_from)..end).filter_map(|index| {
                Some(Entry {
                    id: EntryId { leader, index },
                    payload: Arc::clone(live.cache.get(index)?),
                })
            }));
        }
        Self { pieces, cached }
    }
}

fn read_piece(residence: &Residence, piece: &PlannedPiece, to: &mut Vec<Entry>) -> Result<(), StoreError> {
    let misplaced = |found: String| StoreError::Misplaced {
        replica: residence.replica.identity.replica,
        lsn: piece.lsn,
        expected: format!("the entries {:?} of {}", piece.range, piece.leader),
        found,
    };
    // A rewrite that is not durable yet, of entries that are not in memory.
    if piece.frame_end > residence.log.log.durable() {
        residence.log.log.wait(piece.frame_end, collie_log::Level::Disk)?;
    }
    let frame = residence.log.log.get(piece.lsn)?;
    if frame.stream != residence.replica.stream {
        return Err(misplaced(format!("a frame of stream {}", frame.stream)));
    }
    let (lsn, stream) = (frame.start, frame.stream);
    let decoded = StreamFrame::decode(frame.kind, &frame.payload);
    let (_, content) = decoded.map_err(|error| StoreError::Frame { lsn, stream, error })?;
    let StreamFrame::Entries(entries) = content else {
        return Err(misplaced(format!("a frame of kind {}", frame.kind)));
    };
    let end = entries.first + u64::from(entries.payloads.count());
    if entries.leader != piece.leader || entries.first > piece.range.start || end < piece.range.end {
        let found = format!("the entries {:?} of {}", entries.first..end, entries.leader);
        return Err(misplaced(found));
    }
    let skip = piece.range.start - entries.first;
    let payloads = entries.payloads.iter().skip(skip as usize);
    to.extend(piece.range.clone().zip(payloads).map(|(index, payload)| Entry {
        id: EntryId {
            leader: piece.leader,
            index,
        },
        payload: payload.into(),
    }));
    Ok(())
}

/// How many of these entries go into one frame: of one leader, and not too long.
fn one_frame(entries: &[Entry], limit: usize) -> usize {
    let mut bytes = ENTRIES_HEAD;
    let fits = entries.iter().enumerate().take_while(|(n, entry)| {
        bytes += ENTRY_HEAD + entry.payload.len();
        let same = entries
            .first()
            .is_some_and(|first| first.id.leader == entry.id.leader);
        *n == 0 || (same && bytes <= limit)
    });
    fits.count()
}

fn entries_frame<'f>(
    state: &StreamState,
    first: u64,
    leader: LeaderId,
    payloads: Payloads<'f>,
) -> StreamFrame<'f> {
    StreamFrame::Entries(Entries {
        committed: state.committed_index(),
        first,
        leader,
        payloads,
    })
}
