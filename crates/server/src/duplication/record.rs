//! The record of a row, by which another cluster takes it over: two arguments of `COLLIE.MERGE`, the header and the
//! payload, so that neither is longer than a client's value may be.
//!
//! ```text
//! version u8 = 1 | 'k' | time u64 | origin u64 | kind u8 | expiry u64 (where kind says so)      payload
//! version u8 = 1 | 'd' | time u64 | origin u64                                                  nothing
//! ```
//!
//! The first is of a value, the second of a removed key. Time and origin are the stamp's; the lower
//! seven bits of the kind are the type, 0 for a string, and its top bit says that an expiry follows. Integers are
//! little-endian.

use thiserror::Error;

use super::{BadRow, Stamp, Wrong, stamp_of};
use crate::data::stamp::TOMBSTONE;
use crate::data::value::{self, DATA};

const VERSION: u8 = 1;
const TYPE_STRING: u8 = 0;
const HAS_EXPIRY: u8 = 0x80;
/// A stamp may be so far ahead of the time here: clocks of clusters differ.
const AHEAD_MS: u64 = 24 * 3_600_000;

/// What `COLLIE.MERGE` takes for a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentRow<'s> {
    /// The stamp that is in it.
    pub stamp: Stamp,
    /// The first argument behind the key.
    pub header: Vec<u8>,
    /// The second: the user's value, or nothing.
    pub payload: &'s [u8],
}

/// What `COLLIE.MERGE` takes for a stored row of this cluster.
///
/// # Errors
/// [`BadRow`], also of a row that is neither that of a value nor a tombstone.
pub fn record<'s>(row: &[u8], stored: &'s [u8], own_origin: u64) -> Result<SentRow<'s>, BadRow> {
    let stamp = stamp_of(row, stored, own_origin)?;
    let content = match row.first() {
        Some(&TOMBSTONE) => Content::Removed,
        _ => {
            let (header, payload) = value::read_inline(stored).map_err(Wrong::from)?;
            Content::String {
                expiry_ms: header.expiry_ms,
                payload,
            }
        }
    };
    let (header, payload) = Incoming { stamp, content }.encode();
    Ok(SentRow {
        stamp,
        header,
        payload,
    })
}

/// A row of another cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Incoming<'r> {
    pub(crate) stamp: Stamp,
    pub(crate) content: Content<'r>,
}

/// What another cluster has at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content<'r> {
    Removed,
    String {
        expiry_ms: Option<u64>,
        payload: &'r [u8],
    },
}

/// A record that this version of the server does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BadIncoming {
    #[error("format version {found}, this server takes version {VERSION}: use a newer server")]
    Version { found: u8 },
    #[error("'{}', expected 'k' for a value or 'd' for a removed key", .found.escape_ascii())]
    Form { found: u8 },
    #[error("a value of type {found}, this server knows type {TYPE_STRING} (string): use a newer server")]
    Type { found: u8 },
    #[error("{found} bytes, expected {expected} or more")]
    Short { found: usize, expected: usize },
    #[error("{found} bytes, expected {expected}")]
    Long { found: usize, expected: usize },
}

impl<'r> Incoming<'r> {
    /// Whether it was written later than any clock that may be right says: it would win over all that is written.
    pub(crate) fn is_ahead(&self, now_ms: u64) -> bool {
        self.stamp.written_ms() > now_ms.saturating_add(AHEAD_MS)
    }

    /// What becomes of its key, which has a row with the stamp `stored`, or none. `None`: that is as new, or
    /// newer.
    pub(crate) fn merged(self, stored: Option<Stamp>, now_ms: u64) -> Option<Content<'r>> {
        if stored.is_some_and(|stored| self.stamp <= stored) {
            return None;
        }
        Some(match self.content {
            // At its exact expiry a key still exists.
            Content::String {
                expiry_ms: Some(expiry_ms),
                ..
            } if now_ms > expiry_ms => Content::Removed,
            content => content,
        })
    }

    fn encode(self) -> (Vec<u8>, &'r [u8]) {
        let form = match self.content {
            Content::Removed => TOMBSTONE,
            Content::String { .. } => DATA,
        };
        let mut out = vec![VERSION, form];
        out.extend_from_slice(&self.stamp.encode());
        let Content::String { expiry_ms, payload } = self.content else {
            return (out, &[]);
        };
        match expiry_ms {
            None => out.push(TYPE_STRING),
            Some(expiry) => {
                out.push(TYPE_STRING | HAS_EXPIRY);
                out.extend_from_slice(&expiry.to_le_bytes());
            }
        }
        (out, payload)
    }

    pub(crate) fn decode(bytes: &[u8], payload: &'r [u8]) -> Result<Incoming<'r>, BadIncoming> {
        let found = bytes.len();
        let short = |expected| BadIncoming::Short { found, expected };
        let head = 2 + Stamp::LEN;
        let &version = bytes.first().ok_or(short(head))?;
        if version != VERSION {
            return Err(BadIncoming::Version { found: version });
        }
        let (&[_, form], rest) = bytes.split_first_chunk().ok_or(short(head))?;
        if ![DATA, TOMBSTONE].contains(&form) {
            return Err(BadIncoming::Form { found: form });
        }
        let (stamp, rest) = rest.split_first_chunk().ok_or(short(head))?;
        let stamp = Stamp::decode(stamp);
        if form == TOMBSTONE {
            let content = Content::Removed;
            return match rest.len() + payload.len() {
                0 => Ok(Incoming { stamp, content }),
                more => Err(BadIncoming::Long {
                    found: head + more,
                    expected: head,
                }),
            };
        }
        let (&kind, rest) = rest.split_first().ok_or(short(head + 1))?;
        if kind & !HAS_EXPIRY != TYPE_STRING {
            return Err(BadIncoming::Type {
                found: kind & !HAS_EXPIRY,
            });
        }
        let (expiry_ms, expected) = match kind & HAS_EXPIRY != 0 {
            false => (None, head + 1),
            true => {
                let expiry = rest.first_chunk().ok_or(short(head + 9))?;
                (Some(u64::from_le_bytes(*expiry)), head + 9)
            }
        };
        if found > expected {
            return Err(BadIncoming::Long { found, expected });
        }
        let content = Content::String { expiry_ms, payload };
        Ok(Incoming { stamp, content })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::stamp::Tombstone;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "reads a fixture")]
    fn a_record_of_version_1_says_what_was_stored() {
        let stamp = Stamp {
            time: (1_700_000_000_123 << 16) + 2,
            origin: 0x0102_0304_0506_0708,
        };
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/merge-v1.bin");
        let bytes = std::fs::read(path).unwrap();
        let content = Content::String {
            expiry_ms: Some(1_800_000_000_000),
            payload: b"a value",
        };
        let decoded = Incoming::decode(&bytes, b"a value");
        assert_eq!(decoded, Ok(Incoming { stamp, content }));
        let stored = value::encode_stamped(Some(1_800_000_000_000), stamp, b"a value");
        let (header, payload) = (bytes, &b"a value"[..]);
        let expected = SentRow {
            stamp,
            header,
            payload,
        };
        assert_eq!(record(b"kkey", &stored, 5).unwrap(), expected);
        let tombstone = Tombstone { stamp, written_ms: 9 }.encode();
        let removed = record(b"dkey", &tombstone, 5).unwrap();
        assert_eq!((removed.stamp, removed.payload), (stamp, &b""[..]));
        assert_eq!((&removed.header[..2], removed.header.len()), (&b"\x01d"[..], 18));
        assert!(record(b"xkey", &stored, 5).is_err());
        assert!(record(b"dkey", &stored[..2], 5).is_err());
    }

    #[test]
    fn a_row_without_a_stamp_is_of_its_own_cluster() {
        let mut stored = Vec::new();
        value::encode(&mut stored, Some(7), value::Row::Inline(b"v"));
        let SentRow {
            stamp,
            header,
            payload,
        } = record(b"kkey", &stored, 5).unwrap();
        assert_eq!(stamp, Stamp { time: 0, origin: 5 });
        let content = Content::String {
            expiry_ms: Some(7),
            payload: b"v",
        };
        let decoded = Incoming::decode(&header, payload);
        assert_eq!(decoded, Ok(Incoming { stamp, content }));
    }

    #[test]
    fn what_is_no_record_is_refused_by_name() {
        let whole = |form: u8, kind: &[u8]| [&[1, form][..], &[1; 16], kind].concat();
        for (bytes, expected) in [
            (vec![], "0 bytes, expected 18 or more"),
            (
                vec![2],
                "format version 2, this server takes version 1: use a newer server",
            ),
            (whole(b'k', b""), "18 bytes, expected 19 or more"),
            (whole(b'k', b"\x80"), "19 bytes, expected 27 or more"),
            (whole(b'd', b"")[..17].to_vec(), "17 bytes, expected 18 or more"),
            (whole(b'd', b"x"), "19 bytes, expected 18"),
            (whole(b'k', b"\0x"), "20 bytes, expected 19"),
            (
                whole(b'x', b""),
                "'x', expected 'k' for a value or 'd' for a removed key",
            ),
            (
                whole(b'k', b"\x03"),
                "a value of type 3, this server knows type 0 (string): use a newer server",
            ),
        ] {
            let refused = Incoming::decode(&bytes, b"").unwrap_err();
            assert_eq!(refused.to_string(), expected, "{bytes:?}");
        }
        let refused = Incoming::decode(&whole(b'd', b""), b"xy").unwrap_err();
        assert_eq!(refused.to_string(), "20 bytes, expected 18");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            (time, origin) in any::<(u64, u64)>(),
            expiry_ms in any::<Option<u64>>(),
            payload in any::<Option<Vec<u8>>>(),
        ) {
            let stamp = Stamp { time, origin };
            let content = match &payload {
                None => Content::Removed,
                Some(payload) => Content::String { expiry_ms, payload },
            };
            let incoming = Incoming { stamp, content };
            let (header, payload) = incoming.encode();
            prop_assert_eq!(Incoming::decode(&header, payload), Ok(incoming));
        }

        #[test]
        fn other_bytes_are_refused_or_come_back(
            form in prop_oneof![Just(b'k'), Just(b'd')],
            rest in proptest::collection::vec(prop_oneof![Just(0_u8), Just(0x80), 0..4_u8], 0..32),
        ) {
            let bytes = [&[1, form][..], &rest].concat();
            if let Ok(incoming) = Incoming::decode(&bytes, b"") {
                prop_assert_eq!(incoming.encode(), (bytes, &b""[..]));
            }
        }
    }
}
