//! The work of the store's own threads: flushes, compactions, merges of whole families, and
//! the limit on the log's size.

pub(crate) mod compaction;
pub(crate) mod flush;
pub(crate) mod make_room;
pub(crate) mod merging;
pub(crate) mod threads;
pub(crate) mod wal_limit;
