//! Row and range locks, and the detection of deadlocks.

pub(crate) mod deadlock;
pub(crate) mod owner;
pub(crate) mod shard;
pub(crate) mod table;
