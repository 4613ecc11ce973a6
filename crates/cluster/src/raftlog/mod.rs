//! The log store of a node: many replicas' logs in one collie-log.

mod cache;
mod completion;
mod error;
pub mod frames;
mod index;
mod layout;
mod limit;
mod node_log;
mod pressure;
mod recovery;
mod replica;
mod replica_log;
mod room;
mod state;

pub use error::StoreError;
pub use layout::{Layout, NodeStore, NodeStoreOptions, Opened};
pub(crate) use limit::disk;
pub use limit::{Holding, Retention};
pub use node_log::{NodeLog, NodeLogOptions, NodeLogStats};
pub use recovery::Quarantined;
pub(crate) use replica::replica_holder;
pub use replica_log::{Bounds, Entry, ReplicaLog};
pub(crate) use room::{Patience, Purpose, Reserved};
