//! From the ring to the device: waiting, writing and syncing in groups, and what is durable.

#[cfg(not(loom))]
pub(crate) mod background;
#[cfg(not(loom))]
pub(crate) mod changes;
#[cfg(not(loom))]
pub(crate) mod crew;
#[cfg(not(loom))]
pub(crate) mod durable;
#[cfg(not(loom))]
pub(crate) mod duty;
#[cfg(not(loom))]
pub(crate) mod filler;
#[cfg(not(loom))]
mod flushing;
#[cfg(not(loom))]
pub(crate) mod future;
pub(crate) mod group;
#[cfg(not(loom))]
mod pad;
#[cfg(not(loom))]
mod preparing;
#[cfg(not(loom))]
pub(crate) mod signal;
#[cfg(not(loom))]
mod sync_group;
#[cfg(not(loom))]
pub(crate) mod unsynced;
#[cfg(not(loom))]
mod wait;
#[cfg(not(loom))]
pub(crate) mod waiters;
#[cfg(not(loom))]
pub(crate) mod watchers;
#[cfg(not(loom))]
mod write_group;
#[cfg(not(loom))]
pub(crate) mod writer;
