//! Copying a snapshot to another replica: receiving one, and sending its description and the pieces that the
//! other replica lacks.

use std::sync::Arc;
use std::time::Duration;

use openraft::errors::{NetworkError, StreamingError};
use openraft::storage::Snapshot;
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::ids::{ReplicaId, Vote};
use crate::raft::links::{ASK_WITHIN, ReplicaLink};
use crate::raft::machine::{Raft, SnapshotData, meta};
use crate::raft::transfers::{Sending, TransferTurn};
use crate::raft::types::{Groups, from_vote, to_vote};
use crate::replica_store::{Description, Machine, MachineError, Missing, Position, Staging, Transfer};
use crate::transport::wire::{
    FileName, FileOffer, Installed, Offer, Payload, Piece, Refusal, Request, Response, Room, SnapshotEnd,
    Stored, Wanted,
};

/// A snapshot that is on its way here. One at a time: the next offer takes its place, and goes on
/// with the files that came.
pub(super) struct Receiving {
    from: ReplicaId,
    snapshot: u64,
    position: Position,
    /// None where all of it was applied here already.
    staging: Option<Staging>,
    /// When anything of it came last.
    since: Instant,
}

impl Receiving {
    /// Whether nothing has come for so long.
    pub(super) fn is_silent_for(&self, time: Duration) -> bool {
        self.since.elapsed() >= time
    }

    /// Removes what came, and blocks.
    pub(super) fn give_up(self) {
        if let Some(staging) = self.staging {
            staging.give_up();
        }
    }
}

/// Takes an offer, and says what is wanted of it.
pub(super) async fn offered(
    machine: &Machine,
    receiving: &mut Option<Receiving>,
    from: ReplicaId,
    offer: Offer,
) -> Response {
    if let Some(vote) = machine.log().vote().filter(|vote| *vote > offer.vote) {
        return Response::Wanted(Wanted {
            vote,
            from: Vec::new(),
        });
    }
    let (before, machine) = (receiving.take(), machine.clone());
    let staged = blocking(move || {
        // Given up before its files are looked at for the next.
        drop(before);
        let description = Description::decode(&offer.meta.0)?;
        let position = description.position.clone();
        let sizes: Vec<_> = description.files.iter().map(|file| file.size).collect();
        let (staging, from) = match machine.stage(description) {
            Ok(staging) => {
                let there = staging.there().collect();
                (Some(staging), there)
            }
            // The answer to an earlier one was lost.
            Err(MachineError::Order { .. }) => (None, sizes),
            Err(error) => return Err(error),
        };
        let wanted = Wanted {
            vote: offer.vote,
            from,
        };
        Ok((wanted, position, staging))
    });
    match staged.await {
        Ok((wanted, position, staging)) => {
            *receiving = Some(Receiving {
                from,
                snapshot: offer.snapshot,
                position,
                staging,
                since: Instant::now(),
            });
            Response::Wanted(wanted)
        }
        Err(error) => refused(error),
    }
}

/// Takes a piece of a file.
pub(super) async fn piece(receiving: &mut Option<Receiving>, from: ReplicaId, piece: Piece) -> Response {
    let Some(mut staging) = taken(receiving, from, piece.snapshot).and_then(|now| now.staging.take()) else {
        return unknown(piece.snapshot);
    };
    let at = Missing {
        file: piece.file as usize,
        offset: piece.offset,
    };
    let Payload(bytes) = piece.bytes;
    let upto = piece.offset + bytes.len() as u64;
    let (staging, written) = blocking(move || {
        let written = staging.write(at, &bytes);
        (staging, written)
    })
    .await;
    match written {
        Err(error) if error.is_no_room() && staging.is_lent() => {
            *receiving = None;
            blocking(move || drop(staging)).await;
            return refused(error);
        }
        _ => {}
    }
    if let Some(receiving) = receiving {
        receiving.staging = Some(staging);
        if written.is_ok() {
            receiving.since = Instant::now();
        }
    }
    match written {
        Ok(()) => Response::Stored(Stored { upto }),
        Err(error) => refused(error),
    }
}

/// All was sent: checks it, and has raft install it.
pub(super) async fn ended(
    raft: &Raft,
    machine: &Machine,
    receiving: &mut Option<Receiving>,
    from: ReplicaId,
    end: SnapshotEnd,
) -> Response {
    if taken(receiving, from, end.snapshot).is_none() {
        return unknown(end.snapshot);
    }
    let Some(Receiving {
        position, staging, ..
    }) = receiving.take()
    else {
        return unknown(end.snapshot);
    };
    if machine.log().had(position.applied) {
        return needs_none(machine, staging, &position, end.vote).await;
    }
    let Some(mut staging) = staging else {
        return unknown(end.snapshot);
    };
    let began = Instant::now();
    let finished = blocking(move || {
        // No piece is sent of a file of nothing.
        while let Some(missing) = staging.missing().filter(|missing| missing.offset == 0) {
            staging.write(missing, b"")?;
            if staging.missing() == Some(missing) {
                break;
            }
        }
        staging.finish()
    });
    let data = match finished.await {
        Ok(staged) => SnapshotData::Staged(staged),
        Err(error) => return refused(error),
    };
    let meta = match meta(&position) {
        Ok(meta) => meta,
        Err(error) => return Response::Refusal(Refusal::failed(error.to_string())),
    };
    let snapshot = Snapshot { meta, snapshot: data };
    let checked = began.elapsed();
    match raft.install_full_snapshot(to_vote(end.vote), snapshot).await {
        Ok(answer) => {
            let installed = began.elapsed().saturating_sub(checked);
            tracing::info!(
                from,
                last = %position.applied,
                ?checked,
                ?installed,
                "tables of another replica are taken over"
            );
            Response::Installed(Installed {
                vote: from_vote(&answer.vote),
            })
        }
        Err(fatal) => Response::Refusal(Refusal::failed(fatal.to_string())),
    }
}

/// The entries came while the tables were sent, or their answer was late: the leader goes on behind them. Raft takes no
/// tables whose last entry its log has behind the committed ones: its debug build ends.
async fn needs_none(
    machine: &Machine,
    staging: Option<Staging>,
    position: &Position,
    vote: Vote,
) -> Response {
    let (log, index) = (machine.log().clone(), position.applied.index);
    let durable = blocking(move || {
        if let Some(staging) = staging {
            staging.give_up();
        }
        log.wait_durable(index)
    });
    match durable.await {
        Ok(()) => Response::Installed(Installed {
            vote: machine.log().vote().max(Some(vote)).unwrap_or(vote),
        }),
        Err(error) => Response::Refusal(Refusal::failed(error.to_string())),
    }
}

fn taken(receiving: &mut Option<Receiving>, from: ReplicaId, snapshot: u64) -> Option<&mut Receiving> {
    receiving
        .as_mut()
        .filter(|now| (now.from, now.snapshot) == (from, snapshot))
}

fn unknown(snapshot: u64) -> Response {
    Response::Refusal(Refusal::failed(format!(
        "snapshot {snapshot} was not offered, or given up"
    )))
}

fn refused(error: MachineError) -> Response {
    tracing::warn!(%error, "a snapshot is not taken");
    if error.is_no_room() {
        return Response::Refusal(Refusal::NoRoom);
    }
    Response::Refusal(Refusal::failed(error.to_string()))
}

type SendFailed = StreamingError<Groups>;

/// Sends what the tables hold to another replica, and waits until it is installed there. The answer
/// is what that replica has voted for. One that does not answer, or has no room, costs no more than that
/// question.
pub(super) async fn send(link: &ReplicaLink, vote: Vote, machine: Machine) -> Result<Vote, SendFailed> {
    let bytes = machine.bytes();
    match link.call(Request::Room(Room { bytes }), ASK_WITHIN).await? {
        Response::HasRoom => {}
        other => return Err(link.unexpected(&other).into()),
    }
    let turn = link.transfer_turn().await;
    let transfer = blocking(move || machine.transfer()).await.map_err(broken)?;
    let transfer = Arc::new(transfer);
    let sent = send_transfer(link, &turn, vote, &transfer).await;
    // It removes its files, and that blocks.
    blocking(move || drop(transfer)).await;
    sent
}

async fn send_transfer(
    link: &ReplicaLink,
    turn: &TransferTurn,
    vote: Vote,
    transfer: &Arc<Transfer>,
) -> Result<Vote, SendFailed> {
    let snapshot = link.next_snapshot();
    let piece_within = link.times().piece;
    let description = transfer.description();
    let files: Result<Vec<_>, _> = description.files.iter().enumerate().map(file_offer).collect();
    let offer = Offer {
        vote,
        snapshot,
        last: Some(description.position.applied),
        meta: Payload(description.encode()),
        files: files.map_err(NetworkError::from_string)?,
    };
    // The receiver compares the checksums of what it has first.
    let wanted = match link.call(Request::Offer(offer), link.times().install).await? {
        Response::Wanted(wanted) => wanted,
        other => return Err(link.unexpected(&other).into()),
    };
    if wanted.vote > vote {
        return Ok(wanted.vote);
    }
    turn.is_at(Sending {
        group: link.links.group,
        node: link.node,
        sent: wanted.from.iter().fold(0, |sum, from| from.saturating_add(sum)),
        bytes: description.bytes(),
    });
    for (file, from) in wanted.from.into_iter().enumerate() {
        let size = description.files.get(file).map_or(0, |file| file.size);
        let mut offset = from;
        while offset < size {
            let reading = Arc::clone(transfer);
            let bytes = blocking(move || reading.read(file, offset))
                .await
                .map_err(broken)?;
            let (len, next) = (bytes.len(), offset + bytes.len() as u64);
            turn.wait_to_send(len).await;
            let piece = Piece {
                snapshot,
                file: u32::try_from(file).unwrap_or(u32::MAX),
                offset,
                bytes: Payload(bytes),
            };
            match link.call(Request::Piece(piece), piece_within).await? {
                Response::Stored(stored) if stored.upto == next => {
                    turn.sent(len);
                    offset = next;
                }
                other => return Err(link.unexpected(&other).into()),
            }
        }
    }
    let end = Request::SnapshotEnd(SnapshotEnd { vote, snapshot });
    match link.call(end, link.times().install).await? {
        Response::Installed(installed) => Ok(installed.vote),
        other => Err(link.unexpected(&other).into()),
    }
}

/// A file of the description. Its name there is a path; on the wire it is its number.
fn file_offer((number, file): (usize, &crate::replica_store::Described)) -> Result<FileOffer, String> {
    Ok(FileOffer {
        name: FileName::new(number.to_string())?,
        bytes: file.size,
        crc32c: file.crc32c,
    })
}

/// Tried again: what is wrong with the store itself shows where it is written.
fn broken(error: MachineError) -> SendFailed {
    NetworkError::new(&error).into()
}
