//! What the tests share: random numbers from a printed seed, and small stores.
#![allow(clippy::expect_used, reason = "a test stops at the first surprise")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use collie_db::{Db, FamilyOptions, Options, RingMode};

/// xorshift64*: small, fast, the same everywhere.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A number from the environment: `COLLIE_SEED`, `COLLIE_RUNS`, `COLLIE_OPS`.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// The seeds of a random test: `COLLIE_SEED` alone where it is set, else the first `count`, or as many as
/// `COLLIE_RUNS` says.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    if let Some(seed) = number("COLLIE_SEED") {
        return vec![seed];
    }
    (1..=number("COLLIE_RUNS").unwrap_or(count)).collect()
}

/// Options of a store for tests: little memory, small segments, a private ring.
pub(crate) fn small() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: 256 << 10,
        segment_bytes: 256 << 10,
        cache_bytes: 1 << 20,
        max_workers: 32,
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

/// A directory where a sync costs nothing, for tests that say nothing about durability: tmpfs if there is one.
pub(crate) fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("there is room for a directory")
}
