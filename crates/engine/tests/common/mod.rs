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

/// Copies what is in a directory, as a process leaves it that is killed now; what goes meanwhile, and
/// what `to` has already, is left out.
#[allow(clippy::disallowed_methods, reason = "copies files behind the store's back")]
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_dir(&from, &to);
        } else if !to.exists()
            && let Err(error) = std::fs::copy(&from, &to)
        {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", from.display());
        }
    }
}

/// A directory where a sync costs nothing, for tests that say nothing about durability: tmpfs if
/// there is one.
pub(crate) fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("there is room for a directory")
}
