//! How nodes speak to each other: connections, requests and their answers, and which nodes answer
//! at all.
//!
//! Each node makes two connections to each peer: one for raft's messages and pings, one for files.
//! Requests go out on the connections that a node has made, and the answers come back on them.
//! What is sent is drawn in `docs/design/formats/peers.md`; decision 25 says why it is done so.

mod backoff;
mod budget;
mod dispatch;
mod error;
mod greeting;
mod inbound;
mod joining;
mod leaders;
mod link;
mod liveness;
mod network;
mod node;
mod options;
mod outbox;
mod pending;
mod reader;
mod refusals;
mod shared;
mod slots;
mod tls;
pub mod wire;

pub use dispatch::{Dispatch, Incoming, Reply};
pub use error::PeerError;
pub use joining::{Admission, Admitted, JoinError, ask_to_join};
pub use leaders::{Led, LedByNode};
pub use liveness::{Liveness, NodeState, NodeStates, SKEW_MAX, Skew};
pub use network::{Network, PlainTcp};
pub use node::{Answer, Call, Peers, PeersStats};
pub use options::{Identity, Limits, PeersOptions, Times};
pub use tls::{TLS_NAME, TlsContents, TlsError, TlsFiles, TlsStream, TlsTcp, Validity};
