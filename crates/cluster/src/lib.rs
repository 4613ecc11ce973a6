//! **Replicated mode**: nodes that keep partitions of a key space on several machines by raft, and serve
//! them to unmodified Redis Cluster clients. A write is acknowledged when a majority of its
//! partition's replicas has it on disk.
//!
//! * A [`ClusterNode`] is what most programs want: it makes a cluster or joins one, follows the map of
//!   nodes and partitions, and changes it. [`collie_server`] serves its clients.
//! * A [`Node`] below it is a process with its replicas, without a map: raft groups, run by openraft, and
//!   the connections between nodes ([`peers`]).
//! * A [`NodeLog`] has the raft logs of any number of replicas in one write-ahead log
//!   ([`collie_log`]), so that one sync makes the entries of all of them durable.
//! * A [`machine::Machine`] is the state of a replica: a store ([`collie_db`]) that has no log of its
//!   own, as it takes its commits from the raft log.
//!
//! ```no_run
//! use collie_cluster::peers::PlainTcp;
//! use collie_cluster::{Begin, ClusterNode, ClusterOptions};
//! use collie_server::{Server, ServerConfig, termination};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let runtime = tokio::runtime::Runtime::new()?;
//!     let peer = "10.0.0.1:16380".parse()?; // Where other nodes reach it, and where clients do.
//!     let client = "10.0.0.1:6380".parse()?;
//!     let options = ClusterOptions::new("/var/lib/collie".into(), peer, client);
//!     // The first node of a cluster; others have `Begin::Join(vec![peer])`.
//!     let begin = Begin::Bootstrap { replicas: 3, partitions: 16, voters: 3 };
//!     // Without TLS; `peers::TlsTcp` has it.
//!     let node = runtime.block_on(ClusterNode::start(PlainTcp, options, begin))?;
//!     let config = ServerConfig {
//!         listen: client,
//!         cluster: Some(node.cluster()),
//!         clock: node.clock(),
//!         ..ServerConfig::default()
//!     };
//!     Server::bind(config, node.db().clone())?.run(termination())?;
//!     runtime.block_on(node.close())?;
//!     Ok(())
//! }
//! ```
//!
//! `collie node`, in the crate `collie-cli`, is that with options, TLS and metrics. Which modules a
//! program may rely on is not settled before 1.0. In Collie's repository `docs/book/src/cluster.md` says how a
//! cluster is run and what it does not do yet, and `docs/design/formats/cluster.md` and `docs/design/formats/peers.md`
//! draw what is on disk and on the wire.

mod blocking;
mod identity;
mod ids;
pub mod map;
mod node;
pub mod proposals;
mod raft;
pub mod raftlog;
pub mod replica_store;
pub mod transport;

pub use identity::{Asked, IdentityError, MARK, NodeIdentity, is_node};
pub use ids::{EntryId, GroupId, LeaderId, ReplicaId, Vote};
pub use node::{
    Begin, ClusterError, ClusterNode, ClusterOptions, ClusterStatus, LogOpened, Node, NodeError, NodeOptions,
    NodeStatus, PartitionStatus, ReplicaStatus,
};
pub use raft::{
    AppliedRows, CommandError, Effects, ElectionCause, Executed, FullDisks, GroupLimits, GroupTimes, Groups,
    Member, Members, Replica, ReplicaError, ReplicaOptions, ReplicaState, Row, Rows, SnapshotBuilder,
    SnapshotData, Value, open_machine, seed_draws,
};
pub use raftlog::{
    Bounds, Entry, Holding, Layout, NodeLog, NodeLogOptions, NodeLogStats, NodeStore, NodeStoreOptions,
    Opened, Quarantined, ReplicaLog, Retention, StoreError,
};
