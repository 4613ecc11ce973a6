//! The log store of a node: many replicas' logs in one collie-log.

mod completion;
mod error;
pub(crate) mod frames;
mod index;
mod layout;
mod limit;
mod node_log;
mod pressure;
mod recovery;
mod replica_log;
mod room;
mod state;

pub use error::StoreError;
pub use layout::{Layout, NodeStore, NodeStoreOptions, Opened};
pub use limit::Retention;
pub(crate) use limit::disk;
pub use node_log::{NodeLog, NodeLogOptions, NodeLogStats};
pub use recovery::Quarantined;
pub use replica_log::{Bounds, Entry, ReplicaLog};
pub(crate) use room::{Patience, Purpose, Reserved};
pub use state::Holding;
pub(crate) use state::replica_holder;
