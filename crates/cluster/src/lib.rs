//! **Replicated mode**: nodes that keep partitions of a key space on several machines by raft, and serve
//! them to unmodified Redis Cluster clients. A write is acknowledged when a majority of its
//! partition's replicas has it on disk.
//!
//! * A [`ClusterNode`] is what most programs want: it makes a cluster or joins one, follows the map of
//!   nodes and partitions, and changes it. [`collie_server`] serves its clients.
//! * The raft logs of a node's replicas are in one write-ahead log for each disk ([`collie_log`]), so
//!   that one sync makes the entries of all of them durable.
//! * The state of a replica is a store ([`collie_db`]) that has no log of its own, as it takes its
//!   commits from the raft log.
//!
//! ```no_run
//! use collie_cluster::{Begin, ClusterNode, ClusterOptions, PlainTcp};
//! use collie_server::{Server, ServerConfig, termination};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let runtime = tokio::runtime::Runtime::new()?;
//!     let peer = "10.0.0.1:16380".parse()?; // Where other nodes reach it, and where clients do.
//!     let client = "10.0.0.1:6380".parse()?;
//!     let options = ClusterOptions::new("/var/lib/collie".into(), peer, client);
//!     // The first node of a cluster; others have `Begin::Join(vec![peer])`.
//!     let begin = Begin::Bootstrap { replicas: 3, partitions: 16, voters: 3 };
//!     // Without TLS; `TlsTcp` has it.
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
//! `collie node`, in the crate `collie-cli`, is that with options, TLS and metrics. In Collie's
//! repository `docs/book/src/cluster.md` says how a
//! cluster is run and what it does not do yet, and `docs/design/formats/cluster.md` and `docs/design/formats/peers.md`
//! draw what is on disk and on the wire.

#![cfg_attr(
    not(feature = "testing"),
    expect(
        unreachable_pub,
        unused_imports,
        reason = "what only the feature `testing` exports is `pub` for it"
    )
)]

mod beat;
mod blocking;
mod duplication;
#[cfg(test)]
mod fixtures;
mod identity;
mod ids;
mod layouts;
mod map;
mod node;
mod proposals;
mod raft;
mod raftlog;
mod replica_store;
mod transport;

pub use duplication::{TargetConnection, TargetNetwork, TargetReply};
pub use identity::{Asked, IdentityError, MARK, NodeIdentity, is_node};
pub use layouts::{Layout, Layouts};
pub use node::{Begin, ClusterError, ClusterNode, ClusterOptions, LEVEL_OF_LAYOUTS, NodeError};
pub use raft::{LEVEL_OF_LEASES, LEVEL_OF_LOSSES};
pub use raftlog::{EntryDurability, NodeLogOptions, NodeStoreOptions};
pub use transport::{Network, PlainTcp, TLS_NAME, TlsContents, TlsError, TlsFiles, TlsTcp, Validity};

/// What this crate's own tests need and users do not. It is built with the feature `testing` alone, so that
/// the compiler finds what only tests call.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::identity::LossRecord;
    pub use crate::ids::*;
    pub use crate::node::*;
    pub use crate::raft::*;
    pub use crate::raftlog::*;

    pub mod frames {
        pub use crate::raftlog::frames::*;
    }
    pub mod map {
        pub use crate::map::*;
    }
    pub mod proposals {
        pub use crate::proposals::*;
    }
    pub mod replica_store {
        pub use crate::replica_store::*;
    }
    pub mod transport {
        pub use crate::transport::*;
    }
    pub mod wire {
        pub use crate::transport::wire::*;
    }
}
