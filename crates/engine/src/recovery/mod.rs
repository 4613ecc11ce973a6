//! Opening a store: its lock file, its manifest, and the replay of its log.

mod disk;
mod large;
pub(crate) mod lock_file;
pub(crate) mod open;
pub(crate) mod replay;
