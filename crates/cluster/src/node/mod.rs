//! The process of a node. [`Node`] has its logs, its connections, and the replicas that run on it.
//! [`ClusterNode`] is a node that is in the map, follows it, and, while its replica of group 0 leads,
//! changes it.

mod admission;
mod begin;
mod changing;
mod clocks;
mod cluster;
mod cluster_error;
mod cluster_options;
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
mod reserve;
mod room;
mod router;
mod routing;
mod shared;
mod spreading;
mod status;
mod steady;
mod suspicion;
mod telling;

pub use cluster::ClusterNode;
pub use cluster_error::ClusterError;
pub use cluster_options::{Begin, ClusterOptions};
pub use error::NodeError;
pub use options::{LogOpened, NodeOptions};
pub use process::Node;
pub use status::{ClusterStatus, NodeStatus, PartitionStatus, ReplicaStatus};
