//! **The raft logs of a node**: any number of groups in one write-ahead log, so that one sync makes
//! the entries of all of them durable.
//!
//! The frames that the logs hold are drawn in `docs/format/cluster.md`.

pub mod frames;
mod ids;
pub mod peers;
mod store;
pub mod wire;

pub use ids::{EntryId, GroupId, LeaderId, ReplicaId, Vote};
pub use store::{Bounds, Entry, NodeLog, NodeLogOptions, NodeLogStats, Quarantined, ReplicaLog, StoreError};
