//! The log store of a node: many replicas' logs in one collie-log.
//!
//! Rules of streams and replicas:
//!
//! 1. A break in the chain forgets; a replica is whole by what follows.
//! 2. Damage that no later frame or directory clears a replica of quarantines every replica that it may
//!    have hit.
//! 3. A quarantined replica stays so; every directory frame says it.
//! 4. Retention counts bytes of the log.
//! 5. A commit index never exceeds the last entry.
//! 6. Room is refused before proposing; appends themselves wait.
//! 7. A replica found in two logs is in the one of the higher generation, of which its copy is complete; of
//!    one generation, its node refuses to open.

mod admission;
mod completion;
mod error;
pub(crate) mod frames;
mod index;
mod layout;
mod limit;
mod moving;
mod node_log;
mod node_room;
mod options;
mod patience;
mod pressure;
mod recovery;
mod replica_log;
mod room;
mod shared;
mod state;

pub(crate) use admission::PATIENCE;
pub use error::StoreError;
pub use layout::{NodeStore, NodeStoreOptions, NoteLostRing, Opened};
pub(crate) use limit::disk;
pub use node_log::{NodeLog, NodeLogStats};
pub use options::{EntryDurability, NodeLogOptions, Retention};
pub(crate) use patience::Patience;
pub use recovery::Quarantined;
pub use replica_log::{Bounds, Entry, ReplicaLog};
pub(crate) use room::{Purpose, Reserved};
pub use state::Holding;
