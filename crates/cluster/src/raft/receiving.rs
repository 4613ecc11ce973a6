//! Receiving a snapshot that another replica sends.

use std::time::Duration;

use openraft::storage::Snapshot;
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::ids::ReplicaId;
use crate::raft::applying::Served;
use crate::raft::ids::{from_vote, to_vote};
use crate::raft::machine::{SnapshotData, meta};
use crate::raft::types::Groups;
use crate::replica_store::{Description, Machine, MachineError, Missing, Position, Staging};
use crate::transport::wire::{
    Installed, Offer, Payload, Piece, Refusal, Response, SnapshotEnd, Stored, Wanted,
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

type Raft = openraft::Raft<Groups, Served>;

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
    let data = match staging {
        None => Ok(SnapshotData::Tables(machine.clone())),
        Some(mut staging) => {
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
            finished.await.map(SnapshotData::Staged)
        }
    };
    let data = match data {
        Ok(data) => data,
        Err(error) => return refused(error),
    };
    let meta = match meta(&position) {
        Ok(meta) => meta,
        Err(error) => return Response::Refusal(Refusal::failed(error.to_string())),
    };
    // What is applied here already is not installed again: raft has it committed.
    let snapshot = Snapshot { meta, snapshot: data };
    match raft.install_full_snapshot(to_vote(end.vote), snapshot).await {
        Ok(answer) => Response::Installed(Installed {
            vote: from_vote(&answer.vote),
        }),
        Err(fatal) => Response::Refusal(Refusal::failed(fatal.to_string())),
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
