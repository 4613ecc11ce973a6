//! What is stored beside the files themselves: the map, the log's records, the shadow file.

pub(crate) mod bytes;
pub(crate) mod dirty_ranges;
#[cfg(test)]
mod fuzz;
mod group_sync;
pub(crate) mod map;
pub(crate) mod record;
pub(crate) mod shadow;
