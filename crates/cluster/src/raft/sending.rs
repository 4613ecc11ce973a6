//! Sending a snapshot: its description, and the pieces that the other replica lacks.

use std::sync::Arc;

use openraft::errors::{NetworkError, StreamingError};

use crate::blocking::blocking;
use crate::ids::Vote;
use crate::raft::network::{ASK_WITHIN, Link};
use crate::raft::types::Groups;
use crate::replica_store::{Machine, MachineError, Transfer};
use crate::transport::wire::{
    FileName, FileOffer, Offer, Payload, Piece, Request, Response, Room, SnapshotEnd,
};

type Failed = StreamingError<Groups>;

/// Sends what the tables hold to another replica, and waits until it is installed there. The answer
/// is what that replica has voted for. One that does not answer, or has no room, costs no more than that
/// question.
pub(super) async fn send(link: &Link, vote: Vote, machine: Machine) -> Result<Vote, Failed> {
    let bytes = machine.bytes();
    match link.call(Request::Room(Room { bytes }), ASK_WITHIN).await? {
        Response::HasRoom => {}
        other => return Err(link.unexpected(&other).into()),
    }
    let _turn = link.transfer_turn().await?;
    let transfer = blocking(move || machine.transfer()).await.map_err(broken)?;
    let transfer = Arc::new(transfer);
    let sent = send_transfer(link, vote, &transfer).await;
    // It removes its files, and that blocks.
    blocking(move || drop(transfer)).await;
    sent
}

async fn send_transfer(link: &Link, vote: Vote, transfer: &Arc<Transfer>) -> Result<Vote, Failed> {
    let snapshot = link.next_snapshot();
    let piece_within = link.times().piece;
    let description = transfer.description();
    let files: Result<Vec<_>, _> = description.files.iter().enumerate().map(offered).collect();
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
    for (file, from) in wanted.from.into_iter().enumerate() {
        let size = description.files.get(file).map_or(0, |file| file.size);
        let mut offset = from;
        while offset < size {
            let reading = Arc::clone(transfer);
            let bytes = blocking(move || reading.read(file, offset))
                .await
                .map_err(broken)?;
            let next = offset + bytes.len() as u64;
            let piece = Piece {
                snapshot,
                file: u32::try_from(file).unwrap_or(u32::MAX),
                offset,
                bytes: Payload(bytes),
            };
            match link.call(Request::Piece(piece), piece_within).await? {
                Response::Stored(stored) if stored.upto == next => offset = next,
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
fn offered((number, file): (usize, &crate::replica_store::Described)) -> Result<FileOffer, String> {
    Ok(FileOffer {
        name: FileName::new(number.to_string())?,
        bytes: file.size,
        crc32c: file.crc32c,
    })
}

/// Tried again: what is wrong with the store itself shows where it is written.
fn broken(error: MachineError) -> Failed {
    NetworkError::new(&error).into()
}
