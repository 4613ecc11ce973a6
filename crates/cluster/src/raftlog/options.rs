//! What is set of a log of a node.

use collie_log::LogOptions;
use serde::{Deserialize, Serialize};

/// What entries of a partition survive when a replica says that it has them. Votes, and the entries of the map, are
/// always on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryDurability {
    /// The loss of power.
    #[default]
    Disk,
    /// The end of the process: they are in a ring that is in memory, outside of it. Where the ring is not to be had,
    /// as [`EntryDurability::Disk`].
    Process,
}

/// Options of one log of a node.
#[derive(Debug, Clone)]
pub struct NodeLogOptions {
    /// The log's own. Its recovery mode is always [`RecoveryMode::SkipDamaged`](collie_log::RecoveryMode::SkipDamaged).
    pub log: LogOptions,
    /// What entries wait for.
    pub entries: EntryDurability,
    /// How long the log may become, in bytes; see `NodeLog::maintain`. `None`, the default, fits its
    /// disk: an eighth of it, from 64 MiB to 2 GiB.
    pub log_limit: Option<u64>,
    /// What it keeps of entries that are in tables. `None`, the default: a sixteenth of its limit, and
    /// half of it for followers that lack them.
    pub retention: Option<Retention>,
    /// Where the file system of the log has less room than this, in bytes, and less than a quarter of
    /// its own size, the log is kept short as if it were full; see `NodeLog::maintain`. 0: never.
    /// Default 1 GiB.
    pub free_min: u64,
    /// Entries within so many bytes of the log's end are kept in memory, those that are not durable
    /// yet besides. It counts for each log: a node with many has less for each. Default 256 MiB.
    pub cache_bytes: u64,
}

impl Default for NodeLogOptions {
    fn default() -> Self {
        Self {
            log: LogOptions::default(),
            entries: EntryDurability::default(),
            log_limit: None,
            retention: None,
            free_min: 1 << 30,
            cache_bytes: 256 << 20,
        }
    }
}

/// What a log keeps of entries that are in tables, in bytes from its end on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Entries stay for so long, whether a replica lacks them or not: who leads next may meet one that
    /// does.
    pub margin: u64,
    /// Entries that a follower lacks stay for so long. One that is further behind gets tables.
    pub lagging: u64,
}

impl Retention {
    /// What fits a log of so many bytes.
    #[must_use]
    pub fn of(limit: u64) -> Self {
        Self {
            margin: limit / 16,
            lagging: limit / 2,
        }
    }
}
