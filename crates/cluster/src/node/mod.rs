//! The process of a node. [`Node`] has its logs, its connections, and the replicas that run on it.
//! [`ClusterNode`] is a node that is in the map, follows it, and, while its replica of group 0 leads,
//! changes it.

mod addresses;
mod changing;
mod clocks;
mod cluster;
mod controller;
mod disks;
mod drained;
mod duplicating;
mod error;
mod follower;
mod gossip;
mod joining;
mod lagging;
mod layout_requests;
mod layouts;
mod leaders;
mod levels;
mod loss_requests;
mod losses;
mod map_requests;
mod members;
mod opening;
mod options;
mod process;
mod room;
mod router;
mod routing;
mod shared;
mod splitting;
mod status;
mod steady;
#[cfg(feature = "testing")]
mod testing;

pub use cluster::ClusterNode;
pub use error::{ClusterError, NodeError};
pub use layouts::LEVEL_OF_LAYOUTS;
pub use options::{Begin, ClusterOptions, LogOpened, LossOptions, NodeOptions, NoteLossRecord, NoteMade};
pub use process::Node;
#[cfg(feature = "testing")]
pub use testing::{ClusterStatus, NodeStatus, PartitionStatus, ReplicaStatus};
