//! openraft's messages, and those of the wire.

use std::io;

use openraft::entry::RaftEntry;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::EntryOf;

use crate::raft::body;
use crate::raft::types::{Groups, from_log_id, from_vote, to_log_id, to_vote};
use crate::transport::wire::{Append, Appended, FRAME_MAX, LogEntry, Payload, TransferLeader, VoteAnswer};

/// What the entries of one append may have beside their payloads, and the append beside them.
const ROOM: usize = 32 << 10;
/// What an entry has beside its payload, at most.
const ENTRY_HEAD: usize = 48;

/// An append, of as many entries as fit into a frame: at least one, if there is one.
pub(super) fn from_append(rpc: &AppendEntriesRequest<Groups>) -> io::Result<Append> {
    let mut entries = Vec::with_capacity(rpc.entries.len());
    let mut bytes = 0;
    for entry in &rpc.entries {
        let payload = body::encode(&entry.payload)?;
        bytes += payload.len() + ENTRY_HEAD;
        if bytes > FRAME_MAX - ROOM && !entries.is_empty() {
            break;
        }
        entries.push(LogEntry {
            id: from_log_id(&entry.log_id),
            payload: Payload(payload),
        });
    }
    Ok(Append {
        vote: from_vote(&rpc.vote),
        previous: rpc.prev_log_id.as_ref().map(from_log_id),
        committed: rpc.leader_commit.as_ref().map(from_log_id),
        entries,
    })
}

pub(super) fn to_append(append: Append) -> io::Result<AppendEntriesRequest<Groups>> {
    let entry = |entry: LogEntry| {
        let body = body::decode(entry.id, &entry.payload.0)?;
        Ok(EntryOf::<Groups>::new(to_log_id(entry.id), body))
    };
    let entries: io::Result<Vec<_>> = append.entries.into_iter().map(entry).collect();
    Ok(AppendEntriesRequest {
        vote: to_vote(append.vote),
        prev_log_id: append.previous.map(to_log_id),
        entries: entries?,
        leader_commit: append.committed.map(to_log_id),
    })
}

pub(super) fn from_appended(answer: &AppendEntriesResponse<Groups>) -> Appended {
    match answer {
        AppendEntriesResponse::Success => Appended::Success,
        AppendEntriesResponse::PartialSuccess(last) => Appended::Partial(last.as_ref().map(from_log_id)),
        AppendEntriesResponse::Conflict => Appended::Conflict,
        AppendEntriesResponse::HigherVote(vote) => Appended::HigherVote(from_vote(vote)),
    }
}

pub(super) fn from_vote_request(rpc: &VoteRequest<Groups>) -> crate::transport::wire::VoteRequest {
    crate::transport::wire::VoteRequest {
        vote: from_vote(&rpc.vote),
        last: rpc.last_log_id.as_ref().map(from_log_id),
        leadership_transfer: rpc.leadership_transfer,
    }
}

pub(super) fn to_vote_request(request: &crate::transport::wire::VoteRequest) -> VoteRequest<Groups> {
    let last = request.last.map(to_log_id);
    let mut rpc = VoteRequest::new(to_vote(request.vote), last);
    rpc.leadership_transfer = request.leadership_transfer;
    rpc
}

pub(super) fn from_vote_response(answer: &VoteResponse<Groups>) -> VoteAnswer {
    VoteAnswer {
        vote: from_vote(&answer.vote),
        granted: answer.vote_granted,
        last: answer.last_log_id.as_ref().map(from_log_id),
    }
}

pub(super) fn to_vote_response(answer: &VoteAnswer) -> VoteResponse<Groups> {
    let last = answer.last.map(to_log_id);
    VoteResponse::new(to_vote(answer.vote), last, answer.granted)
}

pub(super) fn from_transfer(request: &TransferLeaderRequest<Groups>) -> TransferLeader {
    TransferLeader {
        vote: from_vote(request.from_leader()),
        to: *request.to_node_id(),
        last: request.last_log_id().map(from_log_id),
    }
}

pub(super) fn to_transfer(transfer: &TransferLeader) -> TransferLeaderRequest<Groups> {
    let last = transfer.last.map(to_log_id);
    TransferLeaderRequest::new(to_vote(transfer.vote), transfer.to, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EntryId, LeaderId, Vote};
    use crate::raft::types::EncodedEffects;
    use crate::transport::wire::{Frame, Message, Request, encode};
    use openraft::EntryPayload;

    fn append(sizes: &[usize]) -> AppendEntriesRequest<Groups> {
        let leader = LeaderId { term: 3, replica: 4 };
        let entry = |(index, size): (usize, &usize)| {
            let id = EntryId {
                leader,
                index: index as u64,
            };
            let body = EntryPayload::Normal(EncodedEffects::from(vec![7; *size]));
            EntryOf::<Groups>::new(to_log_id(id), body)
        };
        AppendEntriesRequest {
            vote: to_vote(Vote {
                leader,
                committed: true,
            }),
            prev_log_id: None,
            entries: sizes.iter().enumerate().map(entry).collect(),
            leader_commit: None,
        }
    }

    #[test]
    fn an_append_is_cut_to_a_frame_and_has_at_least_one_entry() {
        let largest = crate::replica_store::effects::MAX_BYTES + crate::proposals::HEADER;
        for (sizes, fit) in [
            (vec![], 0),
            (vec![10; 5_000], 5_000),
            (vec![largest], 1),
            (vec![largest, 1 << 20], 1),
            (vec![3 << 20; 3], 2),
        ] {
            let rpc = append(&sizes);
            let cut = from_append(&rpc).unwrap();
            assert_eq!(cut.entries.len(), fit, "{} entries", sizes.len());
            let message = Message::Request(Request::Append(cut.clone()));
            let frame = Frame {
                group: 1,
                from: 2,
                to: 3,
                request: 4,
                message,
            };
            assert!(encode(&frame).is_ok(), "{} entries", sizes.len());
            assert_eq!(to_append(cut).unwrap().entries, rpc.entries[..fit]);
        }
    }
}
