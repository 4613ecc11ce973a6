//! The work of the store's own threads: flushes, compactions, merges of whole families, and
//! the limit on the log's size.

pub(crate) mod at_close;
pub(crate) mod compaction;
pub(crate) mod flush;
mod idle;
pub(crate) mod make_room;
mod member;
pub(crate) mod registered;
pub(crate) mod wal_limit;
pub(crate) mod whole_merge;
