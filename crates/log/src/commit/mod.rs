//! From the ring to the device: waiting, writing and syncing in groups, and what is durable.

pub(crate) mod background;
pub(crate) mod changes;
pub(crate) mod crew;
pub(crate) mod duty;
pub(crate) mod filler;
mod flushing;
pub(crate) mod future;
mod pad;
mod preparing;
pub(crate) mod signal;
mod sync_group;
pub(crate) mod unsynced;
mod wait;
pub(crate) mod waiters;
pub(crate) mod watchers;
mod write_group;
pub(crate) mod writer;
