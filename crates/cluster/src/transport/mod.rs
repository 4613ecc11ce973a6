//! How nodes speak to each other: connections, requests and their answers, and which nodes answer
//! at all.
//!
//! Each node makes two connections to each peer: one for raft's messages and pings, one for files.
//! Requests go out on the connections that a node has made, and the answers come back on them.
//! What is sent is drawn in `docs/design/formats/peers.md`; decision 25 says why it is done so.

mod dispatch;
mod error;
mod greeting;
mod inbound;
mod link;
mod liveness;
mod network;
mod options;
mod outbox;
mod peers;
mod reader;
mod shared;
mod tls;
pub mod wire;

pub use dispatch::{Dispatch, Incoming, Reply};
pub use error::PeerError;
pub use greeting::{JoinError, ask_to_join};
pub use liveness::{Led, LedByNode, Liveness, NodeState, NodeStates, SKEW_MAX, Skew};
pub use network::{Network, PlainTcp};
pub use options::{Admission, Admitted, Identity, Limits, MapChanged, PeersOptions, Times};
#[cfg(feature = "testing")]
pub use peers::PeersStats;
pub use peers::{Call, Peers, PendingResponse};
pub use tls::{TLS_NAME, TlsContents, TlsError, TlsFiles, TlsStream, TlsTcp, Validity};
