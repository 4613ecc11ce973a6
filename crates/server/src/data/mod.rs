//! What the server stores in the engine: databases, their keys and values, and their locks, watches
//! and expiry.

pub(crate) mod cursors;
mod kept_counts;
pub(crate) mod keyspace;
pub(crate) mod locks;
pub(crate) mod numbers;
pub(crate) mod records;
pub(crate) mod stamp;
pub(crate) mod store;
pub(crate) mod sweep;
pub(crate) mod value;
pub(crate) mod watch;
