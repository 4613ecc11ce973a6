//! From the ring to the device: waiting, writing and syncing in groups, and what is durable.

pub(crate) mod background;
#[expect(
    clippy::module_inception,
    reason = "what the folder is about: a flush, of two stages"
)]
mod flush;
pub(crate) mod futures;
mod pad;
mod wait;
pub(crate) mod waiters;
pub(crate) mod writer;
