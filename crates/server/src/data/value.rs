//! The encoding of keys and values in the engine.
//!
//! A database is one column family. Its keys start with a tag: [`DATA`] for the users' keys,
//! [`EXPIRY`] for the index that finds keys that are due. With the index in the same family, one
//! batch changes both, and one drop removes both.
//!
//! ```text
//! data    key    'k' | the user's key
//!         value  version (1 byte, 1) | type and flags (1 byte) | expiry (8 bytes, only with the flag) | payload
//! expiry  key    'x' | expiry (8 bytes, big-endian) | the user's key        value  empty
//! ```
//!
//! The expiry is in milliseconds since the Unix epoch, little-endian in a value, big-endian in the
//! index so that the index is in the order of time. The lower seven bits of the second byte are the
//! type (0: string); its top bit says that an expiry follows.

use thiserror::Error;

/// Tag of the users' keys.
pub(crate) const DATA: u8 = b'k';
/// Tag of the index by expiry.
pub(crate) const EXPIRY: u8 = b'x';
/// The version of the layout above, first byte of every value.
const VERSION: u8 = 1;
const TYPE_STRING: u8 = 0;
const HAS_EXPIRY: u8 = 0x80;
const PLAIN_HEADER: usize = 2;
const EXPIRY_HEADER: usize = 10;

/// A value that this version of the server cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BadValue {
    #[error("the value has format version {found}, this server reads version {VERSION}: use a newer server")]
    Version { found: u8 },
    #[error("the value has type {found}, this server knows type {TYPE_STRING} (string): use a newer server")]
    Type { found: u8 },
    #[error("the value is {found} bytes long, its header alone takes {expected}: the store is damaged")]
    Short { found: usize, expected: usize },
}

/// What a value's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// When the key expires, in milliseconds since the Unix epoch.
    pub(crate) expiry_ms: Option<u64>,
    /// Where the payload starts.
    pub(crate) payload: usize,
}

impl Header {
    /// Whether the key has expired at `now_ms`. At its exact expiry it still exists, as in Redis.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expiry_ms.is_some_and(|expiry| now_ms > expiry)
    }
}

/// Reads the header of a stored value.
pub(crate) fn read_header(value: &[u8]) -> Result<Header, BadValue> {
    let (version, kind) = match value {
        [version, kind, ..] => (*version, *kind),
        _ => {
            return Err(BadValue::Short {
                found: value.len(),
                expected: PLAIN_HEADER,
            });
        }
    };
    if version != VERSION {
        return Err(BadValue::Version { found: version });
    }
    if kind & !HAS_EXPIRY != TYPE_STRING {
        return Err(BadValue::Type {
            found: kind & !HAS_EXPIRY,
        });
    }
    if kind & HAS_EXPIRY == 0 {
        return Ok(Header {
            expiry_ms: None,
            payload: PLAIN_HEADER,
        });
    }
    let short = BadValue::Short {
        found: value.len(),
        expected: EXPIRY_HEADER,
    };
    let expiry: &[u8; 8] = value
        .get(PLAIN_HEADER..)
        .and_then(|v| v.first_chunk())
        .ok_or(short)?;
    Ok(Header {
        expiry_ms: Some(u64::from_le_bytes(*expiry)),
        payload: EXPIRY_HEADER,
    })
}

/// Writes a header and `payload` into `out`, replacing its contents.
pub(crate) fn encode(out: &mut Vec<u8>, expiry_ms: Option<u64>, payload: &[u8]) {
    out.clear();
    out.reserve(EXPIRY_HEADER + payload.len());
    out.push(VERSION);
    match expiry_ms {
        None => out.push(TYPE_STRING),
        Some(expiry) => {
            out.push(TYPE_STRING | HAS_EXPIRY);
            out.extend_from_slice(&expiry.to_le_bytes());
        }
    }
    out.extend_from_slice(payload);
}

/// Writes the engine's key for the user's `key` into `out`.
pub(crate) fn data_key(out: &mut Vec<u8>, key: &[u8]) {
    out.clear();
    out.push(DATA);
    out.extend_from_slice(key);
}

/// Writes the index entry for `key` into `out`.
pub(crate) fn expiry_key(out: &mut Vec<u8>, expiry_ms: u64, key: &[u8]) {
    out.clear();
    out.push(EXPIRY);
    out.extend_from_slice(&expiry_ms.to_be_bytes());
    out.extend_from_slice(key);
}

/// Splits an index entry into expiry and user's key; `None` if it is not one.
pub(crate) fn read_expiry_key(entry: &[u8]) -> Option<(u64, &[u8])> {
    let rest = entry.strip_prefix(&[EXPIRY])?;
    let (expiry, key) = rest.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*expiry), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_with_their_expiry() {
        let mut out = b"left over".to_vec();
        for expiry in [None, Some(0), Some(1_700_000_000_123), Some(u64::MAX)] {
            encode(&mut out, expiry, b"payload");
            let header = read_header(&out).unwrap();
            assert_eq!(header.expiry_ms, expiry);
            assert_eq!(&out[header.payload..], b"payload");
        }
    }

    #[test]
    fn the_layout_is_what_the_documentation_draws() {
        let mut out = Vec::new();
        encode(&mut out, None, b"v");
        assert_eq!(out, [1, 0, b'v']);
        encode(&mut out, Some(0x0102), b"v");
        assert_eq!(out, [1, 0x80, 2, 1, 0, 0, 0, 0, 0, 0, b'v']);
        expiry_key(&mut out, 0x0102, b"key");
        assert_eq!(out, [b'x', 0, 0, 0, 0, 0, 0, 1, 2, b'k', b'e', b'y']);
        assert_eq!(read_expiry_key(&out), Some((0x0102, &b"key"[..])));
        data_key(&mut out, b"key");
        assert_eq!(out, b"kkey");
        assert_eq!(read_expiry_key(&out), None);
    }

    #[test]
    fn unknown_and_damaged_values_are_refused_by_name() {
        assert_eq!(
            read_header(&[]),
            Err(BadValue::Short {
                found: 0,
                expected: 2
            })
        );
        assert_eq!(read_header(&[2, 0]), Err(BadValue::Version { found: 2 }));
        assert_eq!(read_header(&[1, 5]), Err(BadValue::Type { found: 5 }));
        assert_eq!(
            read_header(&[1, 0x80, 1, 2]),
            Err(BadValue::Short {
                found: 4,
                expected: 10
            })
        );
    }

    #[test]
    fn a_key_is_there_up_to_its_expiry_and_not_a_millisecond_longer() {
        let header = Header {
            expiry_ms: Some(1_000),
            payload: 10,
        };
        assert!(!header.is_expired(1_000));
        assert!(header.is_expired(1_001));
    }
}
