//! A node of a cluster: a [`Node`](crate::Node) that is in the map, follows it, and, while its replica
//! of group 0 leads, changes it.

mod admission;
mod begin;
mod changing;
mod clocks;
mod controller;
mod error;
mod figures;
mod follower;
mod groups;
mod handing_over;
mod options;
mod problems;
mod process;
mod replicas;
mod routing;
mod shared;
mod spreading;
mod status;
mod steady;
mod suspicion;
mod telling;

pub use error::ClusterError;
pub use options::{Begin, ClusterOptions};
pub use process::ClusterNode;
pub use status::{ClusterStatus, NodeStatus, PartitionStatus, ReplicaStatus};
