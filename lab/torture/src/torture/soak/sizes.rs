//! How large the store of the soak test is, and what memory and disk it may take for that.

use collie_db::{FamilyOptions, Options};
use collie_server::ServerConfig;

/// Memory of one memtable, and the size of a table.
const BUFFER: u64 = 1 << 20;
/// The log's segments, and its limit.
const SEGMENT: u64 = 2 << 20;
const LOG_LIMIT: u64 = 16 << 20;
/// The log's ring, and the cache for blocks of tables.
const RING: u64 = 4 << 20;
const CACHE: u64 = 8 << 20;
/// Families at a time: the databases' names, three databases, one that is about to replace another,
/// and one that goes.
const FAMILIES: u64 = 6;
/// Freed memtables that a store keeps for the next ones.
const SPARE_MEMTABLES: u64 = 64 << 20;
/// The program itself with its threads, the requests and replies of the clients, what a compaction
/// holds, and the filters and indexes of the tables that are open. Of nine runs of a minute on two
/// cores (2026-11-27) it took 87 MiB at most, in the first second, where all is written at once.
const PROGRAM: u64 = 128 << 20;
/// Beside the log's limit: the segment that is prepared ahead, those that are kept for use as new
/// ones, and what is written while families are flushed because the limit was reached.
const BESIDE_LOG: u64 = 6 * SEGMENT;
/// How many times the live data the store may take.
const TIMES_LIVE: u64 = 2;
/// Tables that a merge has written while those that it replaces are still there, and memtables that
/// were just flushed: level 0 is merged from four runs on.
const MERGING: u64 = 16 * BUFFER;

/// The databases' families.
fn databases() -> FamilyOptions {
    FamilyOptions {
        write_buffer_bytes: BUFFER,
        table_bytes: BUFFER,
        ..FamilyOptions::default()
    }
}

/// Options under which a minute sees many flushes, compactions and released segments, for a server
/// that has `options` otherwise.
pub(crate) fn options(options: Options) -> Options {
    Options {
        ring_bytes: RING as usize,
        cache_bytes: CACHE,
        segment_bytes: SEGMENT,
        max_total_wal_size: Some(LOG_LIMIT),
        default_family: databases(),
        ..options
    }
}

/// The server's configuration with such databases.
pub(crate) fn config(config: ServerConfig) -> ServerConfig {
    ServerConfig {
        databases: databases(),
        ..config
    }
}

/// What the server's process may have resident, in bytes.
pub(crate) fn memory_cap() -> u64 {
    let buffers = databases().max_write_buffers as u64 * BUFFER;
    RING + CACHE + FAMILIES * buffers + SPARE_MEMTABLES + PROGRAM
}

/// What the store may take on disk, in bytes, when so many are live.
pub(crate) fn disk_cap(live: u64) -> u64 {
    TIMES_LIVE * live + LOG_LIMIT + BESIDE_LOG + MERGING
}
