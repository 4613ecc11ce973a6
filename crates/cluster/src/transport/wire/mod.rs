//! What nodes say to each other: the frame, and the messages in it, all of them types of our own.
//!
//! `docs/design/formats/peers.md` draws them. Decoding trusts nothing: a frame is looked at only once all
//! of its bytes are there, and no length or count in it makes the decoder allocate ahead of bytes
//! that it has.

mod frame;
mod ids;
mod kind;
mod map;
mod message;
mod snapshot;
#[cfg(test)]
mod versions;

pub use frame::{FRAME_MAX, Frame, GREETING_MAX, HEAD, decode, encode, frame_len};
pub use ids::{ClusterId, NodeId, Payload};
pub use kind::{Kind, VERSION, WireError};
pub use map::{ADDRESSES_MAX, LayoutOf, MEMBERS_MAX, MapRequest, Site, Target};
pub use message::{
    Append, Appended, DISKS_MAX, ENTRIES_MAX, HandOver, Hello, Join, JoinAnswer, Joined, LED_MAX, Lane,
    LastEntry, Leads, LogEntry, Message, PEERS_MAX, Park, Ping, Place, Pong, Refusal, Refused, Request,
    Response, Room, TEXT_MAX, TransferLeader, VoteAnswer, VoteRequest,
};
pub use snapshot::{
    FILES_MAX, FileName, FileOffer, Installed, NAME_MAX, Offer, Piece, SnapshotEnd, Stored, Wanted,
};
