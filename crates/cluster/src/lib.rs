//! Raft groups on the nodes of a cluster. Any number of them have their logs in one write-ahead log,
//! so that one sync makes the entries of all durable, and each replica has a store that takes its
//! commits from there.
//!
//! [`Node`] is a process with its replicas. Formats are drawn in `docs/design/formats/cluster.md` and
//! `docs/design/formats/peers.md`.

mod blocking;
mod cluster_node;
pub mod frames;
mod identity;
mod ids;
pub mod machine;
pub mod map;
mod node;
pub mod peers;
pub mod proposals;
mod raft;
mod store;
pub mod wire;

pub use cluster_node::{
    Begin, ClusterError, ClusterNode, ClusterOptions, ClusterStatus, NodeStatus, PartitionStatus,
    ReplicaStatus,
};
pub use identity::{Asked, IdentityError, MARK, NodeIdentity, is_node};
pub use ids::{EntryId, GroupId, LeaderId, ReplicaId, Vote};
pub use node::{LogOpened, Node, NodeError, NodeOptions};
pub use raft::{
    AppliedRows, CommandError, Effects, ElectionCause, Executed, FullDisks, GroupLimits, GroupTimes, Groups,
    Member, Members, Replica, ReplicaError, ReplicaOptions, ReplicaState, Row, Rows, SnapshotBuilder,
    SnapshotData, Value, open_machine, seed_draws,
};
pub use store::{
    Bounds, Entry, Holding, Layout, NodeLog, NodeLogOptions, NodeLogStats, NodeStore, NodeStoreOptions,
    Opened, Quarantined, ReplicaLog, Retention, StoreError,
};
