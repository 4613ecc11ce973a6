//! What is openraft's: no other part of the crate names it, and nothing of it is on disk or on the
//! wire. An upgrade of it runs all that `docs/decisions/0023-raft-log-store.md` names.

mod body;
mod ids;
mod log_store;
mod machine;
mod types;

pub use machine::{SnapshotBuilder, SnapshotData, open_machine};
pub use types::{Effects, Groups, Member};
