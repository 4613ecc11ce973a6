//! When and where rows were written, in a cluster that is duplicated to another one, and the tombstones
//! of removed keys. docs/design/formats/values.md draws both.

use collie_db::Value;
use thiserror::Error;

/// Tag of tombstones. A key has a row of its value, or a tombstone, or neither: what reads keys need not
/// know of it.
pub(crate) const TOMBSTONE: u8 = b'd';
/// The version of a tombstone.
const TOMBSTONE_VERSION: u8 = 1;
/// The length of a tombstone.
const TOMBSTONE_LEN: usize = 25;
/// Bits of a stamp's time that count within a millisecond.
const COUNTER_BITS: u32 = 16;

/// When a row was written, and in which cluster. Of two versions of a row the one with the greater stamp
/// is newer, wherever they meet: so that clusters which have exchanged all rows have the same ones. Two
/// clusters never give the same stamp, as their origins differ.
///
/// A write has a greater stamp than what it replaces, whatever the clock of its cluster says: what was
/// written in knowledge of another version stays, and only what was written at the same time in two
/// clusters is decided by their clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Milliseconds since the Unix epoch, times 65,536; plus a counter. 0 of rows that were written before
    /// their partition gave stamps.
    pub time: u64,
    /// The cluster.
    pub origin: u64,
}

impl Stamp {
    /// The length of an encoded stamp.
    pub(crate) const LEN: usize = 16;

    /// That of a row that has none.
    pub(crate) fn of_unstamped(origin: u64) -> Stamp {
        Stamp { time: 0, origin }
    }

    /// That of a write at `now_ms`, which replaces what has the stamp `prior`.
    pub(crate) fn next(prior: Option<Stamp>, now_ms: u64, origin: u64) -> Stamp {
        let now = now_ms.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS;
        let least = prior.map_or(0, |prior| prior.time.saturating_add(1));
        let time = now.max(least);
        Stamp { time, origin }
    }

    /// When it was written, in milliseconds since the Unix epoch, by the clock of its cluster.
    pub(crate) fn written_ms(self) -> u64 {
        self.time >> COUNTER_BITS
    }

    pub(crate) fn encode(self) -> [u8; Stamp::LEN] {
        let both = u128::from(self.time) | u128::from(self.origin) << u64::BITS;
        both.to_le_bytes()
    }

    pub(crate) fn decode(bytes: &[u8; Stamp::LEN]) -> Stamp {
        let both = u128::from_le_bytes(*bytes);
        // Each half as it is.
        Stamp {
            time: both as u64,
            origin: (both >> u64::BITS) as u64,
        }
    }
}

/// What is left of a key that was removed, so that what was written before that does not come back from
/// another cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tombstone {
    /// That of the removal.
    pub(crate) stamp: Stamp,
    /// When this cluster wrote it, in milliseconds since the Unix epoch.
    pub(crate) written_ms: u64,
}

/// A tombstone that this version of the server cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BadTombstone {
    #[error(
        "the tombstone of a key has format version {found}, this server reads version {TOMBSTONE_VERSION}: use a newer \
         server"
    )]
    Version { found: u8 },
    #[error("the tombstone of a key is {found} bytes long, expected {TOMBSTONE_LEN}: the store is damaged")]
    Length { found: usize },
}

impl Tombstone {
    pub(crate) fn encode(self) -> Value {
        let mut bytes = Vec::with_capacity(TOMBSTONE_LEN);
        bytes.push(TOMBSTONE_VERSION);
        bytes.extend_from_slice(&self.stamp.encode());
        bytes.extend_from_slice(&self.written_ms.to_le_bytes());
        Value::from(&bytes[..])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Tombstone, BadTombstone> {
        let length = BadTombstone::Length { found: bytes.len() };
        let (&version, rest) = bytes.split_first().ok_or(length)?;
        if version != TOMBSTONE_VERSION {
            return Err(BadTombstone::Version { found: version });
        }
        let (stamp, rest) = rest.split_first_chunk().ok_or(length)?;
        Ok(Tombstone {
            stamp: Stamp::decode(stamp),
            written_ms: u64::from_le_bytes(rest.try_into().map_err(|_| length)?),
        })
    }
}

/// The engine's key for the tombstone of the user's `key`.
pub(crate) fn tombstone_key(key: &[u8]) -> Vec<u8> {
    [&[TOMBSTONE], key].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME: u64 = (1_700_000_000_123 << 16) + 2;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "reads a fixture")]
    fn a_tombstone_of_version_1_says_what_was_written() {
        let tombstone = Tombstone {
            stamp: Stamp {
                time: TIME,
                origin: 0x0102_0304_0506_0708,
            },
            written_ms: 1_700_000_000_456,
        };
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tombstone-v1.bin");
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(Tombstone::decode(&bytes), Ok(tombstone));
        assert_eq!(*tombstone.encode(), *bytes);
        assert_eq!(tombstone_key(b"key"), b"dkey");
    }

    #[test]
    fn unknown_and_damaged_tombstones_are_refused_by_name() {
        let whole = Tombstone {
            stamp: Stamp::of_unstamped(1),
            written_ms: 2,
        }
        .encode();
        for found in [0, 1, 24] {
            let cut = Tombstone::decode(&whole[..found]);
            assert_eq!(cut, Err(BadTombstone::Length { found }));
        }
        let long = Tombstone::decode(&[&whole[..], b"x"].concat());
        assert_eq!(long, Err(BadTombstone::Length { found: 26 }));
        assert_eq!(
            Tombstone::decode(b"\x02"),
            Err(BadTombstone::Version { found: 2 })
        );
    }

    #[test]
    fn a_write_is_stamped_by_the_clock_or_behind_what_it_replaces() {
        let stamp = |time, origin| Stamp { time, origin };
        assert_eq!(Stamp::next(None, 5, 7), stamp(5 << 16, 7));
        let earlier = stamp((4 << 16) + 9, 8);
        assert_eq!(Stamp::next(Some(earlier), 5, 7), stamp(5 << 16, 7));
        // The other cluster's clock is ahead.
        let later = stamp((6 << 16) + 9, 8);
        assert_eq!(Stamp::next(Some(later), 5, 7), stamp((6 << 16) + 10, 7));
        assert_eq!(
            Stamp::next(None, u64::MAX, 7),
            stamp(u64::MAX << 16, 7),
            "behind all others"
        );
        assert!(stamp(2, 1) > stamp(1, 2) && stamp(1, 2) > stamp(1, 1));
        assert!(Stamp::of_unstamped(9) < stamp(1, 0));
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(time: u64, origin: u64, written_ms: u64) {
            let tombstone = Tombstone { stamp: Stamp { time, origin }, written_ms };
            prop_assert_eq!(Tombstone::decode(&tombstone.encode()), Ok(tombstone));
        }

        #[test]
        fn bytes_of_any_kind_are_refused_or_come_back(bytes in proptest::collection::vec(0..3_u8, 0..30)) {
            if let Ok(tombstone) = Tombstone::decode(&bytes) {
                prop_assert_eq!(&*tombstone.encode(), &bytes[..]);
            }
        }
    }
}
