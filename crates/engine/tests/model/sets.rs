//! The option sets. Their stores run the same programs and must show the same.

use std::path::Path;

use collie_db::{Compression, Durability, FamilyOptions, Options, RingMode, WalRecoveryMode};

use crate::common;

/// What is left of acknowledged steps when the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// All of them.
    Acknowledged,
    /// All up to some moment, not before the last one that waited for the log; batches ask for
    /// [`Durability::Process`], which is to wait for it where `batches` says so.
    Flushed { batches: bool },
    /// What was flushed to tables, of each family by itself.
    Tables,
}

pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) options: Options,
    pub(crate) keeps: Keeps,
}

fn family(name: &'static str, change: fn(&mut FamilyOptions)) -> Set {
    set(name, |options| change(&mut options.default_family))
}

fn set(name: &'static str, change: impl FnOnce(&mut Options)) -> Set {
    // Most of them wait for no sync: those take nearly all of the time and change nothing that is
    // seen.
    let mut options = Options {
        durability: Durability::Process,
        ..common::small()
    };
    change(&mut options);
    let keeps = match options.durability {
        _ if options.disable_wal => Keeps::Tables,
        _ if options.manual_wal_flush => Keeps::Flushed { batches: false },
        Durability::Buffered => Keeps::Flushed { batches: true },
        _ => Keeps::Acknowledged,
    };
    Set { name, options, keeps }
}

/// All of them; rings that are shared are in `rings`.
pub(crate) fn all(rings: &Path) -> Vec<Set> {
    vec![
        set("small buffers, durable", |o| o.durability = Durability::Disk),
        family("one big buffer", |f| f.write_buffer_bytes = 64 << 20),
        family("tiny buffers, two of them", |f| {
            f.write_buffer_bytes = 4096;
            f.max_write_buffers = 2;
        }),
        family("lz4, small blocks, no blooms", |f| {
            f.compression = Compression::Lz4;
            f.block_bytes = 512;
            f.bloom_bits = 0;
        }),
        set("compressed log", |o| o.wal_compression = Compression::Lz4),
        family("eager compaction, tiny tables", |f| {
            f.level0_compaction = 2;
            f.table_bytes = 8192;
        }),
        set("no log", |o| o.disable_wal = true),
        set("shared ring", |o| o.ring = RingMode::Shared { dir: rings.into() }),
        set("short log", |o| {
            o.segment_bytes = 32 << 10;
            o.max_total_wal_size = Some(64 << 10);
            o.wal_recovery_mode = WalRecoveryMode::PointInTimeRecovery;
            o.flush_threads = 2;
            o.compaction_threads = 2;
        }),
        set("log flushed by hand", |o| {
            o.manual_wal_flush = true;
            o.pad_to_block = true;
            o.wal_recovery_mode = WalRecoveryMode::AbsoluteConsistency;
        }),
        set("two workers, buffered", |o| {
            o.max_workers = 2;
            o.durability = Durability::Buffered;
        }),
    ]
}
