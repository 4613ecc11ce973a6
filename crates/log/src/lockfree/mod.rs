//! The lock-free core: the completion boundary, the applied boundary, the limit of admission, group
//! commit, and the word that threads sleep on. `tests/loom.rs` builds this folder alone, with the models
//! that explore it; so it uses nothing of the crate's other folders.

pub(crate) mod applied;
pub(crate) mod boundary;
pub(crate) mod group;
pub(crate) mod limit;
#[cfg(loom)]
mod models;
pub(crate) mod sync;
pub(crate) mod wait_word;

/// A log sequence number: a byte position in the log's frame stream, a multiple of 8.
pub type Lsn = u64;
