//! What nodes say to each other: the frame, and the messages in it, all of them types of our own.
//!
//! `docs/design/formats/peers.md` draws them. Decoding trusts nothing: a frame is looked at only once all
//! of its bytes are there, and no length or count in it makes the decoder allocate ahead of bytes
//! that it has.

mod error;
mod frame;
mod ids;
mod join;
mod kind;
mod message;
mod snapshot;

pub use error::WireError;
pub use frame::{FRAME_MAX, Frame, GREETING_MAX, HEAD, decode, encode, frame_len};
pub use join::{DISKS_MAX, Join, JoinAnswer, Joined, PEERS_MAX, Place};
pub use kind::Kind;
pub use message::{
    Append, Appended, ClusterId, ENTRIES_MAX, HandOver, Hello, LED_MAX, Lane, Leads, LogEntry, Message,
    NodeId, Payload, Ping, Pong, Refusal, Refused, Request, Response, Room, TEXT_MAX, Transfer, VERSION,
    VoteAnswer, VoteRequest,
};
pub use snapshot::{
    FILES_MAX, FileName, FileOffer, Installed, NAME_MAX, Offer, Piece, SnapshotEnd, Stored, Wanted,
};
