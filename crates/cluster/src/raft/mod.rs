//! What is openraft's: no other part of the crate names it, and nothing of it is on disk or on the
//! wire. An upgrade of it runs all that `docs/decisions/0023-raft-log-store.md` names.

mod body;
mod log_store;
mod types;

pub use types::{Effects, Groups, Member};
