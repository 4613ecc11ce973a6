//! `[store]` in the configuration of `collie serve`: the store, its log's ring and archive.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use collie_db::Options;
use collie_server::ServerConfig;
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use super::values::{Bytes, Number, seconds, signed};
use crate::args::values::Ring;

/// The ring's default size, and the size if its file system has no room for that.
const RING_BYTES: usize = 64 << 20;
const RING_BYTES_LOW: usize = 32 << 20;
/// What the ring's file needs beside the ring, with a margin, in bytes.
const RING_SPARE: u64 = 1 << 20;

/// The smallest ring of a log with padding.
const RING_BYTES_PADDED: usize = 16 << 10;

/// The least limit on the log's size: it is released in segments, which are prepared in steps of a
/// quarter of this.
const LOG_LEAST: u64 = 8 << 20;
/// Segments in a log of the largest size, at least.
const SEGMENTS_LEAST: u64 = 4;

/// `[store]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Store {
    pub(super) dir: Option<PathBuf>,
    pub(super) ring: Ring,
    pub(super) ring_dir: PathBuf,
    pub(super) ring_bytes: Option<RingBytes>,
    /// The longest value, where it is not the ring that bounds it.
    #[serde(skip)]
    pub(super) longest_value: Option<usize>,
    pub(super) cache_bytes: Bytes<0, { i64::MAX }>,
    pub(super) pad_to_block: bool,
    pub(super) max_total_wal_size: Bytes<0, { i64::MAX }>,
    pub(super) wal_ttl: Number<0, { u32::MAX as i64 }>,
    pub(super) wal_size_limit: Bytes<0, { i64::MAX }>,
}

impl Default for Store {
    fn default() -> Self {
        let options = Options::default();
        Self {
            dir: None,
            ring: Ring::Shared,
            ring_dir: PathBuf::from("/dev/shm"),
            ring_bytes: None,
            longest_value: None,
            cache_bytes: Bytes(i64::try_from(options.cache_bytes).unwrap_or(i64::MAX)),
            pad_to_block: options.pad_to_block,
            max_total_wal_size: Bytes(0),
            wal_ttl: Number(seconds(options.wal_ttl)),
            wal_size_limit: Bytes(i64::try_from(options.wal_size_limit).unwrap_or(i64::MAX)),
        }
    }
}

/// The size of the log's ring, a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct RingBytes(pub(super) Bytes<8192, { 1 << 30 }>);

impl<'de> Deserialize<'de> for RingBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Bytes::deserialize(deserializer)?;
        if !bytes.size().is_power_of_two() {
            let expected = "a power of two from \"8kb\" to \"1gb\"";
            return Err(D::Error::invalid_value(Unexpected::Signed(bytes.0), &expected));
        }
        Ok(Self(bytes))
    }
}

impl Store {
    /// What a server has to know of stores that others open: their directory, the size of their private rings, and the
    /// longest value that they take.
    pub(crate) fn elsewhere(dir: PathBuf, ring_bytes: usize, longest_value: usize) -> Self {
        Self {
            dir: Some(dir),
            ring: Ring::Private,
            ring_bytes: Some(RingBytes(Bytes(signed(ring_bytes)))),
            longest_value: Some(longest_value),
            ..Self::default()
        }
    }

    /// The size of the ring. By default values of 16 MiB and more fit, if the ring's file system
    /// has room for that; a smaller ring in shared memory is better than a larger one that is lost
    /// with the process.
    pub(super) fn ring_size(&self, warnings: &mut Vec<String>) -> usize {
        if let Some(asked) = self.ring_bytes {
            return asked.0.size();
        }
        // If the free space is unknown, the log finds out.
        let has_room = self.ring == Ring::Private
            || rustix::fs::statvfs(&self.ring_dir).is_ok_and(|system| {
                system.f_bavail.saturating_mul(system.f_frsize) > RING_BYTES as u64 + RING_SPARE
            });
        if has_room {
            return RING_BYTES;
        }
        let smaller = ServerConfig {
            ring_bytes: RING_BYTES_LOW,
            ..ServerConfig::default()
        };
        warnings.push(format!(
            "{} has no space for a ring of {} MiB: it gets {} MiB, and no value is longer than {} bytes; free some \
             there, or set ring-bytes",
            self.ring_dir.display(),
            RING_BYTES >> 20,
            RING_BYTES_LOW >> 20,
            smaller.value_len_max()
        ));
        RING_BYTES_LOW
    }

    /// Checks the log's options against each other and against the size of the ring.
    pub(super) fn check(&self, ring_bytes: usize) -> anyhow::Result<()> {
        ensure!(
            !self.pad_to_block || ring_bytes >= RING_BYTES_PADDED,
            "ring-bytes is {ring_bytes}, expected at least {RING_BYTES_PADDED} with pad-to-block"
        );
        let limit = self.max_total_wal_size.0.unsigned_abs();
        ensure!(
            limit == 0 || limit >= LOG_LEAST,
            "max-total-wal-size is {limit}, expected 0 or at least {LOG_LEAST}: the log is released in segments"
        );
        Ok(())
    }

    /// Warns if the archive's limit is below a single segment.
    pub(super) fn warn(&self, warnings: &mut Vec<String>) {
        let segment = Options::default().segment_bytes;
        let limit = self.wal_size_limit.0.unsigned_abs();
        if (1..segment).contains(&limit) {
            warnings.push(format!(
                "wal-size-limit is {limit} bytes, below that of one segment of the log ({segment}): none is kept; raise it, \
                 or set wal-ttl alone"
            ));
        }
    }

    /// Sets the engine's options.
    pub(super) fn apply_to(&self, options: Options) -> Options {
        let limit = Some(self.max_total_wal_size.0.unsigned_abs()).filter(|limit| *limit > 0);
        let largest = |limit: u64| 1 << (limit / SEGMENTS_LEAST).ilog2();
        Options {
            segment_bytes: limit.map_or(options.segment_bytes, |limit| {
                options.segment_bytes.min(largest(limit))
            }),
            max_total_wal_size: limit,
            ring: self.ring.mode_in(&self.ring_dir),
            cache_bytes: self.cache_bytes.0.unsigned_abs(),
            pad_to_block: self.pad_to_block,
            wal_ttl: Duration::from_secs(self.wal_ttl.0.unsigned_abs()),
            wal_size_limit: self.wal_size_limit.0.unsigned_abs(),
            ..options
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_as_large_as_its_file_system_has_room_for() {
        let mut warnings = Vec::new();
        let mut store = Store {
            ring_dir: PathBuf::from("/proc"),
            ..Store::default()
        };
        assert_eq!(store.ring_size(&mut warnings), RING_BYTES_LOW);
        let [warning] = &warnings[..] else {
            panic!("{warnings:?}")
        };
        assert!(
            warning.contains("/proc has no space") && warning.contains("16515072"),
            "{warning}"
        );
        store.ring = Ring::Private;
        assert_eq!(store.ring_size(&mut warnings), RING_BYTES);
        store.ring_bytes = Some(RingBytes(Bytes(8192)));
        assert_eq!(store.ring_size(&mut warnings), 8192);
        assert_eq!(warnings.len(), 1);
    }

    #[test]
    fn a_short_log_has_short_segments() {
        let of = |limit| {
            let store = Store {
                max_total_wal_size: Bytes(limit),
                ..Store::default()
            };
            store
                .check(RING_BYTES)
                .map(|()| store.apply_to(Options::default()))
        };
        let default = Options::default().segment_bytes;
        for (limit, asked, segment) in [
            (0, None, default),
            (8 << 20, Some(8 << 20), 2 << 20),
            (100 << 20, Some(100 << 20), 16 << 20),
            (1 << 30, Some(1 << 30), default),
        ] {
            let options = of(limit).unwrap();
            assert_eq!(
                (options.max_total_wal_size, options.segment_bytes),
                (asked, segment)
            );
        }
        let refused = of((8 << 20) - 1).unwrap_err().to_string();
        assert!(refused.contains("expected 0 or at least 8388608"), "{refused}");
    }

    #[test]
    fn a_limit_below_a_segment_is_warned_about_and_no_other() {
        for (limit, is_low) in [(0, false), (1, true), ((64 << 20) - 1, true), (64 << 20, false)] {
            let mut warnings = Vec::new();
            let store = Store {
                wal_size_limit: Bytes(limit),
                ..Store::default()
            };
            store.warn(&mut warnings);
            assert_eq!(warnings.len(), usize::from(is_low), "{limit}: {warnings:?}");
        }
    }
}
