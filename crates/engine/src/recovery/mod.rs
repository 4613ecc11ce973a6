//! Opening a store: its lock file, its manifest, and the replay of its log.

mod disk;
pub(crate) mod inspect;
mod large;
pub(crate) mod open;
pub(crate) mod replay;
pub(crate) mod store_lock;
