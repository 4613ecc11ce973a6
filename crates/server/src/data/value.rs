//! The encoding of keys and values in the engine.
//!
//! A database is one column family. Its keys start with a tag: [`DATA`] for the users' keys,
//! [`EXPIRY`] for the index that finds keys that are due, and [`PIECE`] for the pieces of large
//! values. With all of them in the same family, one batch changes them together, and one drop
//! removes them. docs/design/formats/values.md draws them.
//!
//! In a cluster that is duplicated values have [stamps](Stamp), which only duplication reads.
//!
//! A large value lies in pieces of one size, in rows of their own. So its expiry and its length
//! are read and written without it, and a part of it without the rest.

use std::ops::Range;

use thiserror::Error;

use super::stamp::Stamp;

/// Tag of the users' keys.
pub(crate) const DATA: u8 = b'k';
/// Behind this row come the users' keys of a slot. Tombstones are before it.
pub(crate) const BEFORE_DATA: &[u8] = &[DATA - 1, u8::MAX];
/// Tag of the pieces of large values.
pub(crate) const PIECE: u8 = b'v';
/// Tag of the index by expiry.
pub(crate) const EXPIRY: u8 = b'x';
/// The version of a value that stands in its row, first byte of it.
const VERSION: u8 = 1;
/// The version of a value in pieces.
const VERSION_IN_PIECES: u8 = 2;
const TYPE_STRING: u8 = 0;
const HAS_EXPIRY: u8 = 0x80;
/// Of a value of [`VERSION`] alone.
const HAS_STAMP: u8 = 0x40;
const PLAIN_HEADER: usize = 2;
const EXPIRY_LEN: usize = 8;
/// Size of a piece, as an exponent of two, number and length of the value.
const PIECES_LEN: usize = 17;
/// The exponents of two that are sizes of pieces.
const PIECE_LOG2: std::ops::RangeInclusive<u8> = 4..=20;
/// What stands before the key in an index entry.
const EXPIRY_KEY_HEAD: usize = 9;

/// The longest key of a user, in bytes, where rows have at most so many: it must fit into the index by
/// expiry.
pub(crate) const fn key_max(row_max: usize) -> usize {
    row_max - EXPIRY_KEY_HEAD
}

/// A value that this version of the server cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BadValue {
    #[error(
        "the value has format version {found}, this server reads versions {VERSION} and {VERSION_IN_PIECES}: use a \
         newer server"
    )]
    Version { found: u8 },
    #[error("the value has type {found}, this server knows type {TYPE_STRING} (string): use a newer server")]
    Type { found: u8 },
    #[error("the value is {found} bytes long, its header alone takes {expected}: the store is damaged")]
    Short { found: usize, expected: usize },
    #[error("the value has pieces of 2^{found} bytes, expected 2^4 to 2^20: the store is damaged")]
    PieceSize { found: u8 },
    #[error("the value has {found} bytes, more than this machine can address: the store is damaged")]
    Length { found: u64 },
    #[error("the value is in pieces, expected it in its row, as all of a cluster: the store is damaged")]
    InPieces,
}

/// The header of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// When the key expires, in milliseconds since the Unix epoch.
    pub(crate) expiry_ms: Option<u64>,
    pub(crate) body: Body,
}

/// Where the user's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the same row, from there on.
    Inline { start: usize },
    /// In rows of its own.
    Pieces(Pieces),
}

/// A value in pieces. What is missing of a piece, or all of it, counts as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pieces {
    /// The number of the value, which no other one of the family has.
    pub(crate) id: u64,
    /// The size of a piece as an exponent of two.
    pub(crate) size_log2: u8,
    /// The length of the value, in bytes.
    pub(crate) len: usize,
}

impl Pieces {
    /// The size of a piece, in bytes.
    pub(crate) fn size(&self) -> usize {
        1 << self.size_log2
    }

    /// The numbers of all pieces.
    pub(crate) fn all(&self) -> Range<usize> {
        self.of(0..self.len)
    }

    /// The numbers of the pieces that a part of the value lies in.
    pub(crate) fn of(&self, part: Range<usize>) -> Range<usize> {
        if part.is_empty() {
            return 0..0;
        }
        part.start >> self.size_log2..((part.end - 1) >> self.size_log2) + 1
    }
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
    if ![VERSION, VERSION_IN_PIECES].contains(&version) {
        return Err(BadValue::Version { found: version });
    }
    let found = match version {
        VERSION => kind & !(HAS_EXPIRY | HAS_STAMP),
        _ => kind & !HAS_EXPIRY,
    };
    if found != TYPE_STRING {
        return Err(BadValue::Type { found });
    }
    let has_expiry = kind & HAS_EXPIRY != 0;
    let stamp_len = if kind & HAS_STAMP != 0 { Stamp::LEN } else { 0 };
    let start = PLAIN_HEADER + if has_expiry { EXPIRY_LEN } else { 0 } + stamp_len;
    let expected = start + if version == VERSION { 0 } else { PIECES_LEN };
    let short = BadValue::Short {
        found: value.len(),
        expected,
    };
    if value.len() < expected {
        return Err(short);
    }
    let number = |at: usize| {
        let bytes = value.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().map(u64::from_le_bytes).ok_or(short)
    };
    let expiry_ms = has_expiry.then(|| number(PLAIN_HEADER)).transpose()?;
    if version == VERSION {
        let body = Body::Inline { start };
        return Ok(Header { expiry_ms, body });
    }
    let size_log2 = *value.get(start).ok_or(short)?;
    if !PIECE_LOG2.contains(&size_log2) {
        return Err(BadValue::PieceSize { found: size_log2 });
    }
    let found = number(start + 9)?;
    let len = usize::try_from(found)
        .ok()
        .filter(|len| isize::try_from(*len).is_ok());
    let body = Body::Pieces(Pieces {
        id: number(start + 1)?,
        size_log2,
        len: len.ok_or(BadValue::Length { found })?,
    });
    Ok(Header { expiry_ms, body })
}

/// A value that stands in its row, as all do in a cluster: its header and the user's bytes.
pub(crate) fn read_inline(value: &[u8]) -> Result<(Header, &[u8]), BadValue> {
    let header = read_header(value)?;
    match header.body {
        Body::Inline { start } => Ok((header, value.get(start..).unwrap_or_default())),
        Body::Pieces(_) => Err(BadValue::InPieces),
    }
}

/// The stamp of a value, if it has one.
pub(crate) fn read_stamp(value: &[u8]) -> Result<Option<Stamp>, BadValue> {
    let header = read_header(value)?;
    let kind = value.get(1).copied().unwrap_or_default();
    let Body::Inline { start } = header.body else {
        return Ok(None);
    };
    if kind & HAS_STAMP == 0 {
        return Ok(None);
    }
    // The header was as long as its kind says, so that the stamp is there.
    let bytes = value
        .get(start - Stamp::LEN..)
        .and_then(|rest| rest.first_chunk());
    Ok(bytes.map(Stamp::decode))
}

/// What is written to a key's row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Row<'v> {
    Inline(&'v [u8]),
    Pieces(Pieces),
}

/// Writes a value's row into `out`, replacing its contents.
pub(crate) fn encode(out: &mut Vec<u8>, expiry_ms: Option<u64>, row: Row<'_>) {
    out.clear();
    let (version, len) = match row {
        Row::Inline(payload) => (VERSION, payload.len()),
        Row::Pieces(_) => (VERSION_IN_PIECES, PIECES_LEN),
    };
    out.reserve(PLAIN_HEADER + EXPIRY_LEN + len);
    out.push(version);
    match expiry_ms {
        None => out.push(TYPE_STRING),
        Some(expiry) => {
            out.push(TYPE_STRING | HAS_EXPIRY);
            out.extend_from_slice(&expiry.to_le_bytes());
        }
    }
    match row {
        Row::Inline(payload) => out.extend_from_slice(payload),
        Row::Pieces(pieces) => {
            out.push(pieces.size_log2);
            out.extend_from_slice(&pieces.id.to_le_bytes());
            out.extend_from_slice(&(pieces.len as u64).to_le_bytes());
        }
    }
}

/// A value of a cluster with this stamp.
pub(crate) fn encode_stamped(expiry_ms: Option<u64>, stamp: Stamp, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PLAIN_HEADER + EXPIRY_LEN + Stamp::LEN + payload.len());
    let kind = TYPE_STRING | HAS_STAMP;
    match expiry_ms {
        None => out.extend_from_slice(&[VERSION, kind]),
        Some(expiry) => {
            out.extend_from_slice(&[VERSION, kind | HAS_EXPIRY]);
            out.extend_from_slice(&expiry.to_le_bytes());
        }
    }
    out.extend_from_slice(&stamp.encode());
    out.extend_from_slice(payload);
    out
}

/// Writes the engine's key of a piece into `out`.
pub(crate) fn piece_key(out: &mut Vec<u8>, id: u64, number: usize) {
    out.clear();
    out.push(PIECE);
    out.extend_from_slice(&id.to_be_bytes());
    // A value has at most as many bytes as fit into a commit, so that its pieces are fewer.
    out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
}

/// The number of the value that a piece belongs to, by the piece's key.
pub(crate) fn piece_owner(row: &[u8]) -> Option<u64> {
    let id = row.strip_prefix(&[PIECE])?.first_chunk()?;
    Some(u64::from_be_bytes(*id))
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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stamp_is_read_and_passed_over(
            expiry: Option<u64>,
            time: u64,
            origin: u64,
            payload: Vec<u8>,
        ) {
            let stamp = Stamp { time, origin };
            let stored = encode_stamped(expiry, stamp, &payload);
            let (header, read) = read_inline(&stored).unwrap();
            prop_assert_eq!((header.expiry_ms, read), (expiry, &payload[..]));
            prop_assert_eq!(read_stamp(&stored), Ok(Some(stamp)));
            let head = stored.len() - payload.len();
            for found in 0..head {
                let is_short = matches!(read_stamp(&stored[..found]), Err(BadValue::Short { .. }));
                prop_assert!(is_short);
            }
            let mut plain = Vec::new();
            encode(&mut plain, expiry, Row::Inline(&payload));
            prop_assert_eq!(read_stamp(&plain), Ok(None));
            prop_assert_eq!(plain.len() + Stamp::LEN, stored.len());
        }
    }

    #[test]
    fn a_stamp_stands_before_the_payload() {
        let stamp = Stamp {
            time: 0x0102,
            origin: 0x0304,
        };
        let bytes = [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, b'v'];
        let plain = encode_stamped(None, stamp, b"v");
        assert_eq!(plain, [&[1, 0x40][..], &bytes].concat());
        let expiring = encode_stamped(Some(0x0506), stamp, b"v");
        let expiry = [6, 5, 0, 0, 0, 0, 0, 0];
        assert_eq!(expiring, [&[1, 0xc0][..], &expiry, &bytes].concat());
    }

    #[test]
    fn a_value_in_pieces_has_no_stamp() {
        let pieces = Pieces {
            id: 1,
            size_log2: 15,
            len: 9,
        };
        let mut stored = Vec::new();
        encode(&mut stored, None, Row::Pieces(pieces));
        assert_eq!(read_stamp(&stored), Ok(None));
        assert_eq!(read_inline(&stored), Err(BadValue::InPieces));
        stored[1] |= HAS_STAMP;
        assert_eq!(read_header(&stored), Err(BadValue::Type { found: HAS_STAMP }));
    }

    #[test]
    fn values_come_back_with_their_expiry() {
        let mut out = b"left over".to_vec();
        for expiry in [None, Some(0), Some(1_700_000_000_123), Some(u64::MAX)] {
            encode(&mut out, expiry, Row::Inline(b"payload"));
            let header = read_header(&out).unwrap();
            assert_eq!(header.expiry_ms, expiry);
            let Body::Inline { start } = header.body else {
                panic!("{header:?}");
            };
            assert_eq!(&out[start..], b"payload");
            let pieces = Pieces {
                id: 7,
                size_log2: 15,
                len: 100_000,
            };
            encode(&mut out, expiry, Row::Pieces(pieces));
            let header = read_header(&out).unwrap();
            assert_eq!((header.expiry_ms, header.body), (expiry, Body::Pieces(pieces)));
        }
    }

    #[test]
    fn the_layout_is_what_the_documentation_draws() {
        let mut out = Vec::new();
        encode(&mut out, None, Row::Inline(b"v"));
        assert_eq!(out, [1, 0, b'v']);
        encode(&mut out, Some(0x0102), Row::Inline(b"v"));
        assert_eq!(out, [1, 0x80, 2, 1, 0, 0, 0, 0, 0, 0, b'v']);
        expiry_key(&mut out, 0x0102, b"key");
        assert_eq!(out, [b'x', 0, 0, 0, 0, 0, 0, 1, 2, b'k', b'e', b'y']);
        assert_eq!(read_expiry_key(&out), Some((0x0102, &b"key"[..])));
        data_key(&mut out, b"key");
        assert_eq!(out, b"kkey");
        let pieces = Pieces {
            id: 0x0304,
            size_log2: 15,
            len: 0x0506,
        };
        encode(&mut out, Some(0x0102), Row::Pieces(pieces));
        let id = [4, 3, 0, 0, 0, 0, 0, 0];
        let len = [6, 5, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            out,
            [&[2, 0x80, 2, 1, 0, 0, 0, 0, 0, 0, 15][..], &id, &len].concat()
        );
        piece_key(&mut out, 0x0304, 0x0102);
        assert_eq!(out, [b'v', 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 1, 2]);
        assert_eq!(piece_owner(&out), Some(0x0304));
        data_key(&mut out, b"key");
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
        assert_eq!(read_header(&[3, 0]), Err(BadValue::Version { found: 3 }));
        let mut cut = Vec::new();
        let pieces = Pieces {
            id: 1,
            size_log2: 3,
            len: 9,
        };
        encode(&mut cut, None, Row::Pieces(pieces));
        assert_eq!(read_header(&cut), Err(BadValue::PieceSize { found: 3 }));
        assert_eq!(
            read_header(&cut[..18]),
            Err(BadValue::Short {
                found: 18,
                expected: 19
            })
        );
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
            body: Body::Inline { start: 10 },
        };
        assert!(!header.is_expired(1_000));
        assert!(header.is_expired(1_001));
    }

    #[test]
    fn a_part_lies_in_the_pieces_that_it_touches() {
        let pieces = Pieces {
            id: 1,
            size_log2: 4,
            len: 33,
        };
        assert_eq!(pieces.all(), 0..3);
        assert_eq!(pieces.of(0..16), 0..1);
        assert_eq!(pieces.of(15..17), 0..2);
        assert_eq!(pieces.of(16..33), 1..3);
        assert_eq!(pieces.of(20..20), 0..0);
    }
}
