//! One pass over a log: what its frames say of each replica, and whose frames damage took.
//!
//! It forgets what was known of a stream where `prev` is not its previous frame; a state with `prev` 0
//! begins another replica's stream. A replica is whole if
//!
//! 1. its last frame is not before the last directory's `last_frame`;
//! 2. a vote or state, and a purge or state, were read since it last began anew;
//! 3. its entries reach from behind `purged` to `last` without a gap;
//! 4. no damage lies behind both its last frame and the last directory's `as_of`.
//!
//! Otherwise it is *quarantined*: reported and not opened.
//!
//! Damage counts against every replica that has no later frame, and that no later directory names,
//! though it may be another's: its last vote may have been there, and a replica that forgets a vote
//! can vote twice. A directory at each opening, at each close and in each segment keeps that part
//! short.

use std::collections::BTreeMap;

use collie_log::{Damaged, FrameRef, Lsn, Span};

use crate::ids::{GroupId, ReplicaId};
use crate::raftlog::error::StoreError;
use crate::raftlog::frames::{Listed, NODE_STREAM, StreamFrame};
use crate::raftlog::state::{StreamIdentity, StreamState};

/// The `last_frame` of a stream that is quarantined: no frame is ever found that far, so that it is
/// not whole again, also when the damaged part is gone.
pub(super) const QUARANTINED: Lsn = Lsn::MAX;

/// A replica that damage took frames of. It is not opened; what is left of it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its group; 0 where no frame is left that says so.
    pub group: GroupId,
    /// The replica; 0 where no frame is left that says so.
    pub replica: ReplicaId,
    /// What is missing.
    pub lost: String,
    /// Its stream.
    pub(super) stream: u32,
    /// Its generation.
    pub(super) generation: u32,
    /// It is a copy that was not complete.
    pub(super) coming: bool,
    /// From where on the log is kept for it.
    pub(super) oldest: Lsn,
}

/// What a log holds.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    pub(super) replicas: Vec<(u32, StreamIdentity, StreamState)>,
    pub(super) quarantined: Vec<Quarantined>,
    pub(super) tombstones: BTreeMap<ReplicaId, GroupId>,
    /// The last frames of streams that are in use no more.
    pub(super) retired: BTreeMap<u32, Lsn>,
    /// The last frame of stream 0.
    pub(super) node_frame: Lsn,
    /// Whether damage may have taken a tombstone.
    pub(super) tombstones_lost: bool,
}

/// The pass under way.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    streams: BTreeMap<u32, Stream>,
    tombstones: BTreeMap<ReplicaId, GroupId>,
    node_frame: Lsn,
    /// Where the last directory stands.
    directory: Option<Lsn>,
    /// Everything of stream 0 below this LSN was read, or is not needed.
    node_proven: Lsn,
    tombstones_lost: bool,
}

#[derive(Debug, Default)]
struct Stream {
    state: StreamState,
    /// From where on it needs the log, as the last directory that lists it says, or else its first
    /// frame.
    oldest: Lsn,
    /// The last directory that lists it.
    listed: Option<Lsn>,
    /// Whether that says that it is quarantined.
    quarantined: bool,
}

impl Recovery {
    /// Takes the next frame of the log.
    pub(super) fn visit(&mut self, frame: FrameRef<'_>) -> Result<(), StoreError> {
        let (lsn, stream) = (frame.start, frame.stream);
        let decoded = StreamFrame::decode(frame.kind, frame.payload);
        let (prev, content) = decoded.map_err(|error| StoreError::Frame { lsn, stream, error })?;
        let span = Span {
            start: frame.start,
            end: frame.end,
        };
        if stream == NODE_STREAM {
            self.visit_node(prev, &content, span);
        } else {
            let stream = self.streams.entry(stream).or_default();
            if prev == 0 {
                // The number may have been another replica's before.
                let before = std::mem::take(stream).state;
                if let Some(identity) = before.identity.filter(|_| before.removed) {
                    self.tombstones.insert(identity.replica, identity.group);
                }
            }
            if stream.oldest == 0 {
                stream.oldest = span.start;
            }
            stream.state.apply(prev, &content, span);
        }
        Ok(())
    }

    fn visit_node(&mut self, prev: Lsn, content: &StreamFrame<'_>, span: Span) {
        // What is missing before a directory is in it.
        self.tombstones_lost |= prev != self.node_frame;
        self.node_frame = span.start;
        self.node_proven = span.end;
        match content {
            StreamFrame::Directory(directory) => {
                self.tombstones_lost = false;
                self.directory = Some(span.start);
                for line in &directory.lines {
                    self.list(line, directory.as_of, span.start);
                }
            }
            StreamFrame::Tombstone(tombstone) => {
                self.tombstones.insert(tombstone.replica, tombstone.group);
            }
            // No other kind is appended to stream 0: it says nothing.
            _ => {}
        }
    }

    fn list(&mut self, line: &Listed, as_of: Lsn, at: Lsn) {
        let Some(oldest) = line.oldest else {
            self.tombstones.insert(line.replica, line.group);
            return;
        };
        let stream = self.streams.entry(line.stream).or_default();
        let known = stream.state.identity;
        if known.is_some_and(|identity| identity.replica != line.replica) {
            // Damage took the first frame of a stream that is used again.
            *stream = Stream::default();
        }
        stream.state.identity.get_or_insert(StreamIdentity {
            group: line.group,
            replica: line.replica,
            generation: line.generation,
        });
        stream.state.list(line.last_frame, as_of);
        stream.oldest = oldest;
        stream.listed = Some(at);
        stream.quarantined = line.last_frame == QUARANTINED;
    }

    /// Judges what was read of a log that has these damaged parts.
    pub(super) fn finish(mut self, damaged: &[Damaged]) -> Recovered {
        for stream in self.streams.values() {
            if let Some(identity) = stream.state.identity.filter(|_| stream.state.removed) {
                self.tombstones.insert(identity.replica, identity.group);
            }
        }
        let hit = |proven: Lsn| damaged.iter().find(|part| part.from >= proven);
        let mut recovered = Recovered {
            node_frame: self.node_frame,
            tombstones_lost: self.tombstones_lost || hit(self.node_proven).is_some(),
            ..Recovered::default()
        };
        for (number, stream) in self.streams {
            let state = stream.state;
            let removed = state
                .identity
                .is_some_and(|identity| self.tombstones.contains_key(&identity.replica));
            // A directory lists all that are in use.
            let left_out = stream.listed != self.directory && self.directory > Some(state.last_frame);
            if removed || left_out {
                recovered.retired.insert(number, state.last_frame);
                continue;
            }
            let lost = match state.missing() {
                _ if stream.quarantined => Some("it was quarantined before".to_owned()),
                None => hit(state.proven).map(|part| {
                    format!(
                        "perhaps frames from LSN {} to {}, and no later frame says that they were not its own",
                        part.from, part.to
                    )
                }),
                missing => missing,
            };
            match (state.identity, lost) {
                (Some(identity), None) => recovered.replicas.push((number, identity, state)),
                (identity, lost) => recovered.quarantined.push(Quarantined {
                    group: identity.map_or(0, |identity| identity.group),
                    replica: identity.map_or(0, |identity| identity.replica),
                    lost: lost.unwrap_or_default(),
                    stream: number,
                    generation: identity.map_or(0, |identity| identity.generation),
                    coming: state.coming,
                    oldest: stream.oldest,
                }),
            }
        }
        recovered.tombstones = self.tombstones;
        recovered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raftlog::frames::{State, Tombstone};

    /// A frame of stream 1.
    fn visit(recovery: &mut Recovery, lsn: Lsn, prev: Lsn, frame: &StreamFrame<'_>) {
        let mut payload = Vec::new();
        frame.encode(prev, &mut payload);
        let frame = FrameRef {
            start: lsn,
            end: lsn + 200,
            stream: 1,
            kind: frame.kind(),
            payload: &payload,
        };
        recovery.visit(frame).unwrap();
    }

    fn born(group: GroupId, replica: ReplicaId) -> StreamFrame<'static> {
        StreamFrame::State(State {
            group,
            replica,
            generation: 0,
            from_log: [0; 16],
            last: None,
            purged: None,
            committed: None,
            vote: None,
        })
    }

    /// Damage that takes the frame by which a copy was complete does not make it one that is not.
    #[test]
    fn a_directory_names_no_copy_that_is_not_complete() {
        let StreamFrame::State(born) = born(1, 10) else {
            unreachable!()
        };
        let coming = StreamFrame::State(State {
            generation: 1,
            from_log: [1; 16],
            ..born
        });
        let recover = |is_listed| {
            let mut recovery = Recovery::default();
            visit(&mut recovery, 1_000, 0, &coming);
            if is_listed {
                // The frame at 1,200 cannot be read.
                let line = Listed {
                    stream: 1,
                    group: 1,
                    replica: 10,
                    generation: 1,
                    last_frame: 1_200,
                    oldest: Some(1_000),
                };
                recovery.list(&line, 1_400, 1_500);
            }
            recovery.finish(&[])
        };
        let recovered = recover(false);
        assert!(recovered.quarantined.is_empty() && recovered.replicas[0].2.coming);
        let recovered = recover(true);
        let lost = &recovered.quarantined[0];
        assert_eq!((lost.replica, lost.generation, lost.coming), (10, 1, false));
    }

    /// A crash may bring back a segment that the log let go of.
    #[test]
    fn a_reused_stream_is_the_later_replicas() {
        let mut recovery = Recovery::default();
        visit(&mut recovery, 1_000, 0, &born(1, 10));
        let (group, replica) = (1, 10);
        visit(
            &mut recovery,
            1_200,
            1_000,
            &StreamFrame::Tombstone(Tombstone { group, replica }),
        );
        visit(&mut recovery, 9_000, 0, &born(2, 20));
        let recovered = recovery.finish(&[]);
        let ids: Vec<_> = recovered
            .replicas
            .iter()
            .map(|(_, identity, _)| identity.replica)
            .collect();
        assert_eq!((ids, recovered.quarantined), (vec![20], vec![]));
        assert_eq!(recovered.tombstones, BTreeMap::from([(10, 1)]));
    }
}
