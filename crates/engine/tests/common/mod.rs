//! What the tests share: random numbers from a printed seed, and small stores.
#![allow(clippy::expect_used, reason = "a test stops at the first surprise")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use collie_db::{Db, FamilyOptions, Options, RingMode};

mod random;
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use random::{Rng, number, seeds};

/// Options of a store for tests: little memory, small segments, a private ring.
pub(crate) fn small() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: 256 << 10,
        segment_bytes: 256 << 10,
        cache_bytes: 1 << 20,
        max_workers: 32,
        // What is closed and opened again is to be replayed.
        close_flush_bytes: 0,
        default_family: small_family(),
        ..Options::default()
    }
}

/// As [`small`], without a log.
pub(crate) fn unlogged() -> Options {
    Options {
        disable_wal: true,
        ..small()
    }
}

pub(crate) fn small_family() -> FamilyOptions {
    FamilyOptions {
        write_buffer_bytes: 32 << 10,
        table_bytes: 64 << 10,
        ..FamilyOptions::default()
    }
}

pub(crate) fn open(path: &Path, options: &Options) -> Db {
    Db::open(path, options.clone()).expect("the store opens")
}

/// A directory where a sync costs nothing, for tests that say nothing about durability: tmpfs if
/// there is one.
pub(crate) fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("there is room for a directory")
}
