//! The frames of a replica's stream, and the node's directory of streams: what their payloads hold.
//!
//! A fixed layout of our own, little-endian, drawn in `docs/design/formats/cluster.md`. Every byte is
//! accounted for: what decodes is what was encoded, and nothing else decodes.

use collie_log::Lsn;

use crate::ids::{EntryId, GroupId, LeaderId, ReplicaId, Vote};

/// Entries of one leader.
pub const KIND_ENTRIES: u8 = 1;
/// A vote.
pub const KIND_VOTE: u8 = 2;
/// Entries at the end are gone.
pub const KIND_TRUNCATE: u8 = 3;
/// Entries at the beginning are gone.
pub const KIND_PURGE: u8 = 4;
/// All that is known of a replica but for its entries.
pub const KIND_STATE: u8 = 5;
/// A replica was removed from this node for good.
pub const KIND_TOMBSTONE: u8 = 6;
/// All streams of the log.
pub const KIND_DIRECTORY: u8 = 7;

/// The stream of the frames that concern the whole log; replicas have those from 1 on.
pub const NODE_STREAM: u32 = 0;
/// Streams are below this.
pub const STREAMS: u32 = 1 << 24;
/// The `committed` of an entries frame where no entry is known to be committed.
const NONE_COMMITTED: u64 = u64::MAX;
/// The `oldest` of a removed replica in a directory.
const REMOVED: u64 = u64::MAX;
/// What stands before the entries in their frame.
pub const ENTRIES_HEAD: usize = 8 + 8 + 8 + 16 + 4;
/// What stands before each entry.
pub const ENTRY_HEAD: usize = 4;
const ENTRY_ID: usize = 1 + 8 + 8 + 8;
const VOTE: usize = 8 + 8 + 1;
const LISTED: usize = 4 + 8 + 8 + 4 + 8 + 8;

/// One frame, without the LSN of its predecessor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFrame<'a> {
    /// [`KIND_ENTRIES`].
    Entries(Entries<'a>),
    /// [`KIND_VOTE`].
    Vote(Vote),
    /// [`KIND_TRUNCATE`]: the last entry that is left.
    Truncate(Option<EntryId>),
    /// [`KIND_PURGE`]: the last entry that is gone.
    Purge(EntryId),
    /// [`KIND_STATE`].
    State(State),
    /// [`KIND_TOMBSTONE`].
    Tombstone(Tombstone),
    /// [`KIND_DIRECTORY`].
    Directory(Directory),
}

/// Entries that follow each other, all of one leader. Without any, the frame only says what is
/// committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries<'a> {
    /// The last entry that is known to be committed.
    pub committed: Option<u64>,
    /// The index of the first.
    pub first: u64,
    /// Who proposed them.
    pub leader: LeaderId,
    /// What they hold.
    pub payloads: Payloads<'a>,
}

/// What the entries of a frame hold, each behind its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payloads<'a> {
    count: u32,
    bytes: &'a [u8],
}

/// Payloads on their way into a frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PayloadsBuf {
    count: u32,
    bytes: Vec<u8>,
}

/// The first frame of a stream, and every one that says anew what stands before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The group.
    pub group: GroupId,
    /// The replica.
    pub replica: ReplicaId,
    /// Counts the logs that the replica was moved to. The highest one counts.
    pub generation: u32,
    /// Zeros; or, of a copy that is not complete, the log that the replica is in.
    pub from_log: [u8; 16],
    /// Its last entry.
    pub last: Option<EntryId>,
    /// The last entry that is gone.
    pub purged: Option<EntryId>,
    /// The last entry that is known to be committed.
    pub committed: Option<EntryId>,
    /// Its vote.
    pub vote: Option<Vote>,
}

impl State {
    /// Whether the stream is a copy that is not complete.
    pub(in crate::raftlog) fn is_coming(&self) -> bool {
        self.from_log != [0; 16]
    }
}

/// A replica that was removed from this node for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tombstone {
    /// The group.
    pub group: GroupId,
    /// The replica.
    pub replica: ReplicaId,
}

/// All streams that have frames which are needed, and all removed replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    /// Of every stream, all frames below this LSN are known to its line. Others may stand between
    /// here and the directory.
    pub as_of: Lsn,
    /// A line for each.
    pub lines: Vec<Listed>,
}

/// A line of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The stream; [`NODE_STREAM`] for a removed replica that has none in this log.
    pub stream: u32,
    /// The group.
    pub group: GroupId,
    /// The replica.
    pub replica: ReplicaId,
    /// Its generation.
    pub generation: u32,
    /// The stream's last frame before the directory; more may stand between.
    pub last_frame: Lsn,
    /// The oldest frame of the stream that is needed; `None` where the replica was removed.
    pub oldest: Option<Lsn>,
}

/// A payload that no frame has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of a frame of kind {kind}: expected {expected}, found {found}")]
pub struct FrameError {
    /// The frame's kind.
    pub kind: u8,
    /// The byte in the payload.
    pub at: usize,
    /// What should be there.
    pub expected: &'static str,
    /// What is there.
    pub found: String,
}

impl PayloadsBuf {
    /// Adds an entry's payload, which must be shorter than 4 GiB, as all that fits a frame is.
    pub fn push(&mut self, payload: &[u8]) {
        self.count += 1;
        self.bytes
            .extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(payload);
    }

    /// The payloads as a frame takes them.
    #[must_use]
    pub fn payloads(&self) -> Payloads<'_> {
        Payloads {
            count: self.count,
            bytes: &self.bytes,
        }
    }
}

impl<'a> Payloads<'a> {
    /// No entry.
    pub const NONE: Payloads<'static> = Payloads { count: 0, bytes: &[] };

    /// How many entries.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The payloads, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk()?;
            let (payload, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = behind;
            Some(payload)
        })
    }
}

impl StreamFrame<'_> {
    /// The kind that the log notes.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Entries(_) => KIND_ENTRIES,
            Self::Vote(_) => KIND_VOTE,
            Self::Truncate(_) => KIND_TRUNCATE,
            Self::Purge(_) => KIND_PURGE,
            Self::State(_) => KIND_STATE,
            Self::Tombstone(_) => KIND_TOMBSTONE,
            Self::Directory(_) => KIND_DIRECTORY,
        }
    }

    /// Writes the payload into `to`, which it clears first. `prev` is the LSN of the stream's
    /// previous frame, 0 for the first.
    pub fn encode(&self, prev: Lsn, to: &mut Vec<u8>) {
        to.clear();
        put_u64(to, prev);
        match self {
            Self::Entries(entries) => {
                put_u64(to, entries.committed.unwrap_or(NONE_COMMITTED));
                put_u64(to, entries.first);
                put_leader(to, entries.leader);
                put_u32(to, entries.payloads.count);
                to.extend_from_slice(entries.payloads.bytes);
            }
            Self::Vote(vote) => put_vote(to, *vote),
            Self::Truncate(last) => put_entry_id(to, *last),
            Self::Purge(purged) => put_entry_id(to, Some(*purged)),
            Self::State(state) => {
                put_u64(to, state.group);
                put_u64(to, state.replica);
                put_u32(to, state.generation);
                to.extend_from_slice(&state.from_log);
                put_entry_id(to, state.last);
                put_entry_id(to, state.purged);
                put_entry_id(to, state.committed);
                to.push(u8::from(state.vote.is_some()));
                match state.vote {
                    Some(vote) => put_vote(to, vote),
                    None => to.extend_from_slice(&[0; VOTE]),
                }
            }
            Self::Tombstone(tombstone) => {
                put_u64(to, tombstone.group);
                put_u64(to, tombstone.replica);
            }
            Self::Directory(directory) => {
                put_u64(to, directory.as_of);
                put_u32(to, directory.lines.len() as u32);
                for line in &directory.lines {
                    put_u32(to, line.stream);
                    put_u64(to, line.group);
                    put_u64(to, line.replica);
                    put_u32(to, line.generation);
                    put_u64(to, line.last_frame);
                    put_u64(to, line.oldest.unwrap_or(REMOVED));
                }
            }
        }
    }
}

impl<'a> StreamFrame<'a> {
    /// Reads a payload: the LSN of the stream's previous frame, and the frame.
    ///
    /// # Errors
    /// [`FrameError`] where no frame of this kind was ever encoded so.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Result<(Lsn, Self), FrameError> {
        let mut from = Decoder { kind, payload, at: 0 };
        let prev = from.u64("the LSN of the previous frame")?;
        let frame = match kind {
            KIND_ENTRIES => Self::Entries(from.entries()?),
            KIND_VOTE => Self::Vote(from.vote()?),
            KIND_TRUNCATE => Self::Truncate(from.entry_id()?),
            KIND_PURGE => {
                let at = from.at;
                let purged = from.entry_id()?;
                Self::Purge(purged.ok_or_else(|| from.wrong(at, "an entry id", "none"))?)
            }
            KIND_STATE => Self::State(State {
                group: from.u64("a group")?,
                replica: from.u64("a replica")?,
                generation: from.u32("a generation")?,
                from_log: from.array("the id of a log")?,
                last: from.entry_id()?,
                purged: from.entry_id()?,
                committed: from.entry_id()?,
                vote: from.optional_vote()?,
            }),
            KIND_TOMBSTONE => Self::Tombstone(Tombstone {
                group: from.u64("a group")?,
                replica: from.u64("a replica")?,
            }),
            KIND_DIRECTORY => Self::Directory(from.directory()?),
            _ => return Err(from.wrong(0, "a kind from 1 to 7", kind)),
        };
        from.end()?;
        Ok((prev, frame))
    }
}

/// The payload of a frame, and how far it was read.
struct Decoder<'a> {
    kind: u8,
    payload: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    fn wrong(&self, at: usize, expected: &'static str, found: impl ToString) -> FrameError {
        FrameError {
            kind: self.kind,
            at,
            expected,
            found: found.to_string(),
        }
    }

    fn rest(&self) -> &'a [u8] {
        self.payload.get(self.at..).unwrap_or_default()
    }

    fn bytes(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], FrameError> {
        let found = self.rest().get(..len);
        let found =
            found.ok_or_else(|| self.wrong(self.at, expected, format!("{} bytes", self.rest().len())))?;
        self.at += len;
        Ok(found)
    }

    fn array<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], FrameError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, expected)?);
        Ok(array)
    }

    fn u32(&mut self, expected: &'static str) -> Result<u32, FrameError> {
        self.array(expected).map(u32::from_le_bytes)
    }

    fn u64(&mut self, expected: &'static str) -> Result<u64, FrameError> {
        self.array(expected).map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, FrameError> {
        match self.array("0 or 1")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.wrong(self.at - 1, "0 or 1", other)),
        }
    }

    fn leader(&mut self) -> Result<LeaderId, FrameError> {
        Ok(LeaderId {
            term: self.u64("a term")?,
            replica: self.u64("a replica")?,
        })
    }

    fn vote(&mut self) -> Result<Vote, FrameError> {
        Ok(Vote {
            leader: self.leader()?,
            committed: self.flag()?,
        })
    }

    /// What follows a flag: `len` bytes, which are zeros where it is not set.
    fn optional<T>(
        &mut self,
        len: usize,
        read: impl FnOnce(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        if self.flag()? {
            return read(self).map(Some);
        }
        let at = self.at;
        let zeros = self.bytes(len, "zeros, where nothing is said")?;
        match zeros.iter().position(|&byte| byte != 0) {
            None => Ok(None),
            Some(n) => Err(self.wrong(at + n, "zeros, where nothing is said", "another byte")),
        }
    }

    fn entry_id(&mut self) -> Result<Option<EntryId>, FrameError> {
        self.optional(ENTRY_ID - 1, |from| {
            Ok(EntryId {
                leader: from.leader()?,
                index: from.u64("an index")?,
            })
        })
    }

    fn optional_vote(&mut self) -> Result<Option<Vote>, FrameError> {
        self.optional(VOTE, Self::vote)
    }

    fn entries(&mut self) -> Result<Entries<'a>, FrameError> {
        let committed = self.u64("an index")?;
        let first_at = self.at;
        let first = self.u64("an index")?;
        let leader = self.leader()?;
        let count = self.u32("a number of entries")?;
        if first.checked_add(u64::from(count)).is_none() {
            return Err(self.wrong(first_at, "an index that leaves room for the entries", first));
        }
        let bytes = self.rest();
        for _ in 0..count {
            let len = self.u32("the length of an entry")?;
            self.bytes(len as usize, "an entry as long as its length says")?;
        }
        let payloads = Payloads {
            count,
            bytes: bytes.get(..bytes.len() - self.rest().len()).unwrap_or_default(),
        };
        Ok(Entries {
            committed: (committed != NONE_COMMITTED).then_some(committed),
            first,
            leader,
            payloads,
        })
    }

    fn directory(&mut self) -> Result<Directory, FrameError> {
        let as_of = self.u64("an LSN")?;
        let count = self.u32("a number of streams")? as usize;
        // Checked before room is made for them.
        if Some(self.rest().len()) != count.checked_mul(LISTED) {
            let found = format!("{} bytes for {count} streams", self.rest().len());
            return Err(self.wrong(self.at, "40 bytes for each stream", found));
        }
        let lines = (0..count).map(|_| self.listed());
        let lines = lines.collect::<Result<_, _>>()?;
        Ok(Directory { as_of, lines })
    }

    fn listed(&mut self) -> Result<Listed, FrameError> {
        let stream = self.u32("a stream")?;
        if stream >= STREAMS {
            return Err(self.wrong(self.at - 4, "a stream below 2^24", stream));
        }
        let (group, replica) = (self.u64("a group")?, self.u64("a replica")?);
        let generation = self.u32("a generation")?;
        let (last_frame, oldest) = (self.u64("an LSN")?, self.u64("an LSN")?);
        Ok(Listed {
            stream,
            group,
            replica,
            generation,
            last_frame,
            oldest: (oldest != REMOVED).then_some(oldest),
        })
    }

    fn end(&self) -> Result<(), FrameError> {
        if self.rest().is_empty() {
            return Ok(());
        }
        let found = format!("{} more bytes", self.rest().len());
        Err(self.wrong(self.at, "the end", found))
    }
}

fn put_u32(to: &mut Vec<u8>, value: u32) {
    to.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(to: &mut Vec<u8>, value: u64) {
    to.extend_from_slice(&value.to_le_bytes());
}

fn put_leader(to: &mut Vec<u8>, leader: LeaderId) {
    put_u64(to, leader.term);
    put_u64(to, leader.replica);
}

fn put_vote(to: &mut Vec<u8>, vote: Vote) {
    put_leader(to, vote.leader);
    to.push(u8::from(vote.committed));
}

fn put_entry_id(to: &mut Vec<u8>, id: Option<EntryId>) {
    to.push(u8::from(id.is_some()));
    match id {
        Some(id) => {
            put_leader(to, id.leader);
            put_u64(to, id.index);
        }
        None => to.extend_from_slice(&[0; ENTRY_ID - 1]),
    }
}

const _: () = assert!(LISTED == 40, "the text of an error says so");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaders() -> impl Strategy<Value = LeaderId> {
        any::<(u64, u64)>().prop_map(|(term, replica)| LeaderId { term, replica })
    }

    fn entry_ids() -> impl Strategy<Value = EntryId> {
        (leaders(), any::<u64>()).prop_map(|(leader, index)| EntryId { leader, index })
    }

    fn votes() -> impl Strategy<Value = Vote> {
        (leaders(), any::<bool>()).prop_map(|(leader, committed)| Vote { leader, committed })
    }

    fn states() -> impl Strategy<Value = State> {
        let ids = || proptest::option::of(entry_ids());
        let head = any::<(u64, u64, u32, [u8; 16])>();
        (head, ids(), ids(), ids(), proptest::option::of(votes())).prop_map(
            |((group, replica, generation, from_log), last, purged, committed, vote)| State {
                group,
                replica,
                generation,
                from_log,
                last,
                purged,
                committed,
                vote,
            },
        )
    }

    fn listed() -> impl Strategy<Value = Listed> {
        let oldest = proptest::option::of(0..REMOVED);
        (0..STREAMS, any::<(u64, u64, u32, u64)>(), oldest).prop_map(
            |(stream, (group, replica, generation, last_frame), oldest)| Listed {
                stream,
                group,
                replica,
                generation,
                last_frame,
                oldest,
            },
        )
    }

    fn others() -> impl Strategy<Value = StreamFrame<'static>> {
        prop_oneof![
            votes().prop_map(StreamFrame::Vote),
            proptest::option::of(entry_ids()).prop_map(StreamFrame::Truncate),
            entry_ids().prop_map(StreamFrame::Purge),
            states().prop_map(StreamFrame::State),
            any::<(u64, u64)>()
                .prop_map(|(group, replica)| StreamFrame::Tombstone(Tombstone { group, replica })),
            (any::<u64>(), proptest::collection::vec(listed(), 0..20))
                .prop_map(|(as_of, lines)| StreamFrame::Directory(Directory { as_of, lines })),
        ]
    }

    /// Encodes a frame; decodes it; decodes every shorter payload and one that is longer.
    fn assert_round_trip(prev: Lsn, frame: &StreamFrame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(prev, &mut bytes);
        assert_eq!(
            StreamFrame::decode(frame.kind(), &bytes),
            Ok((prev, frame.clone()))
        );
        for len in 0..bytes.len() {
            let short = StreamFrame::decode(frame.kind(), &bytes[..len]);
            assert!(short.is_err(), "{len} of {} bytes: {short:?}", bytes.len());
        }
        bytes.push(0);
        let long = StreamFrame::decode(frame.kind(), &bytes).unwrap_err();
        assert!(long.at <= bytes.len() && long.kind == frame.kind(), "{long}");
    }

    proptest! {
        #[test]
        fn what_decodes_is_what_was_encoded(prev: u64, frame in others()) {
            assert_round_trip(prev, &frame);
        }

        #[test]
        fn entries_come_back_as_they_were(
            prev: u64,
            committed in proptest::option::of(0..NONE_COMMITTED),
            first in 0..u64::MAX - 20,
            leader in leaders(),
            entries in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..10),
        ) {
            let mut payloads = PayloadsBuf::default();
            entries.iter().for_each(|entry| payloads.push(entry));
            let payloads = payloads.payloads();
            assert_round_trip(prev, &StreamFrame::Entries(Entries { committed, first, leader, payloads }));
            let back: Vec<_> = payloads.iter().collect();
            prop_assert_eq!(back, entries);
        }

        /// Whatever decodes is encoded to the same bytes: there are no two ways to say one thing.
        #[test]
        fn any_bytes_are_refused_or_are_the_only_ones(kind in 0..9_u8, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((prev, frame)) = StreamFrame::decode(kind, &bytes) {
                let mut again = Vec::new();
                frame.encode(prev, &mut again);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn a_changed_byte_is_refused_or_is_another_frame(frame in others(), at: prop::sample::Index, change in 1..=255_u8) {
            let mut bytes = Vec::new();
            frame.encode(8, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            if let Ok(other) = StreamFrame::decode(frame.kind(), &bytes) {
                prop_assert_ne!(other, (8, frame));
            }
        }
    }

    #[test]
    fn errors_say_where_what_was_expected_and_what_was_found() {
        let said = |kind, bytes: &[u8]| StreamFrame::decode(kind, bytes).unwrap_err().to_string();
        assert_eq!(
            said(9, &[0; 8]),
            "byte 0 of a frame of kind 9: expected a kind from 1 to 7, found 9"
        );
        assert_eq!(
            said(KIND_VOTE, &[2; 25]),
            "byte 24 of a frame of kind 2: expected 0 or 1, found 2"
        );
        assert_eq!(
            said(KIND_PURGE, &[0; 33]),
            "byte 8 of a frame of kind 4: expected an entry id, found none"
        );
        assert_eq!(
            said(KIND_TOMBSTONE, &[0; 27]),
            "byte 24 of a frame of kind 6: expected the end, found 3 more bytes"
        );
        let many = [[0; 16].as_slice(), &[255; 4]].concat();
        assert_eq!(
            said(KIND_DIRECTORY, &many),
            "byte 20 of a frame of kind 7: expected 40 bytes for each stream, found 0 bytes for 4294967295 streams"
        );
        let mut entries = Vec::new();
        let (committed, first) = (None, u64::MAX);
        let leader = LeaderId { term: 1, replica: 1 };
        let mut payloads = PayloadsBuf::default();
        payloads.push(b"x");
        let payloads = payloads.payloads();
        StreamFrame::Entries(Entries {
            committed,
            first,
            leader,
            payloads,
        })
        .encode(0, &mut entries);
        assert!(said(KIND_ENTRIES, &entries).contains("leaves room"));
    }
}

#[cfg(test)]
mod versions;
