//! A commit's payload in the log: its operations, one after the other.
//!
//! An operation is a tag (one byte: put or delete), the family's id, the key's length and the key,
//! and for a put the value's length and the value. Numbers are LEB128. docs/design/formats/engine.md draws
//! it.
//!
//! # Large commits
//!
//! Its frames are its parts, and the last one, with which they count. A part names the commit by
//! the LSN of its first part, so that two commits whose parts alternate in the log are kept apart,
//! and has a piece of the operations, cut anywhere. The last frame says how many parts and bytes
//! there must be, and which families they write. docs/design/formats/engine.md draws both.

#[cfg(test)]
mod fuzz;

use std::collections::BTreeSet;

use collie_log::Lsn;

use crate::memtable::Write;

/// Frame kind: a commit, with a payload.
pub(crate) const KIND_COMMIT: u8 = 0;
/// Frame kind: a position in the order for a rotation or the creation of a family; no payload.
pub(crate) const KIND_MARK: u8 = 1;
/// Frame kind: the position of a commit that is not in the log; no payload.
pub(crate) const KIND_UNLOGGED: u8 = 2;

const TAG_PUT: u8 = 1;
const TAG_DELETE: u8 = 2;

/// One decoded operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    pub(crate) family: u32,
    pub(crate) key: &'a [u8],
    pub(crate) write: Write<'a>,
}

impl Op<'_> {
    /// Bytes of the operation in a payload.
    pub(crate) fn encoded_len(self) -> usize {
        let value = match self.write {
            Write::Put(value) => number_len(value.len() as u64) + value.len(),
            Write::Delete => 0,
        };
        1 + number_len(u64::from(self.family)) + number_len(self.key.len() as u64) + self.key.len() + value
    }
}

/// A payload that does not decode although the frame's checksum is right: it was written like that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Bytes into the payload.
    pub(crate) offset: usize,
    pub(crate) expected: &'static str,
    pub(crate) found: String,
}

/// Fails where a key has no byte, or more than tables can hold.
pub(crate) fn check_key(key: &[u8]) -> crate::Result<()> {
    match key.len() {
        0 => Err(crate::Error::EmptyKey),
        len if len > crate::MAX_KEY_BYTES => Err(crate::Error::KeyTooLong {
            len,
            limit: crate::MAX_KEY_BYTES,
        }),
        _ => Ok(()),
    }
}

pub(crate) fn encode(out: &mut Vec<u8>, op: Op<'_>) {
    out.push(match op.write {
        Write::Put(_) => TAG_PUT,
        Write::Delete => TAG_DELETE,
    });
    number(out, u64::from(op.family));
    number(out, op.key.len() as u64);
    out.extend_from_slice(op.key);
    if let Write::Put(value) = op.write {
        number(out, value.len() as u64);
        out.extend_from_slice(value);
    }
}

pub(crate) fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes of a number: seven bits in each.
fn number_len(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Reads a payload's numbers one after the other.
pub(crate) struct Numbers<'a> {
    payload: &'a [u8],
    at: usize,
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { payload, at: 0 }
    }

    pub(crate) fn malformed(&self, expected: &'static str, found: impl Into<String>) -> Malformed {
        Malformed {
            offset: self.at,
            expected,
            found: found.into(),
        }
    }

    /// Bytes that are not read yet.
    pub(crate) fn rest(&self) -> usize {
        self.payload.len() - self.at
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self
            .payload
            .get(self.at)
            .ok_or_else(|| self.malformed("another byte", "the payload's end"))?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn next(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte & 0x7f > 1 {
                return Err(self.malformed("a number below 2^64", "a larger one"));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed("a number of at most ten bytes", "a longer one"))
    }
}

/// Iterates over a payload's operations. Ends after the first malformed one.
pub(crate) struct Ops<'a> {
    numbers: Numbers<'a>,
}

impl<'a> Ops<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self {
            numbers: Numbers::new(payload),
        }
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.numbers.next()?;
        let rest = &self.numbers.payload[self.numbers.at..];
        let Some(bytes) = usize::try_from(len).ok().and_then(|len| rest.get(..len)) else {
            return Err(self.numbers.malformed(
                "bytes as long as announced",
                format!("{len} announced, {} left", rest.len()),
            ));
        };
        self.numbers.at += bytes.len();
        Ok(bytes)
    }

    fn op(&mut self) -> Result<Op<'a>, Malformed> {
        let tag = self.numbers.byte()?;
        let family = self.numbers.next()?;
        let family = u32::try_from(family).map_err(|_| {
            self.numbers
                .malformed("a family id below 2^32", family.to_string())
        })?;
        let key = self.bytes()?;
        if key.is_empty() || key.len() > crate::MAX_KEY_BYTES {
            return Err(self
                .numbers
                .malformed("a key of 1 to 65,535 bytes", format!("{} bytes", key.len())));
        }
        let write = match tag {
            TAG_PUT => Write::Put(self.bytes()?),
            TAG_DELETE => Write::Delete,
            other => {
                return Err(self
                    .numbers
                    .malformed("a put (1) or a delete (2)", format!("tag {other}")));
            }
        };
        Ok(Op { family, key, write })
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.numbers.at >= self.numbers.payload.len() {
            return None;
        }
        let op = self.op();
        if op.is_err() {
            self.numbers.at = self.numbers.payload.len();
        }
        Some(op)
    }
}

/// What a commit takes in the order with the log off: a frame's header.
pub(crate) const VIRTUAL_FRAME: Lsn = collie_log::FRAME_HEADER as Lsn;

/// Frame kind: a piece of a large commit.
pub(crate) const KIND_PART: u8 = 3;
/// Frame kind: a large commit, whose parts count from here on.
pub(crate) const KIND_LAST: u8 = 4;

/// Bytes of a part before its piece.
pub(crate) const PART_HEAD: usize = 8;

/// A part of a large commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    /// The start of the commit's first part; `None` in that part itself.
    pub(crate) first: Option<Lsn>,
    pub(crate) piece: &'a [u8],
}

impl<'a> Part<'a> {
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        // No frame starts at 0.
        out.extend_from_slice(&self.first.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(self.piece);
    }

    pub(crate) fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        let Some((first, piece)) = payload.split_first_chunk::<PART_HEAD>() else {
            return Err(Malformed {
                offset: payload.len(),
                expected: "eight bytes with the LSN of the first part",
                found: format!("{} bytes", payload.len()),
            });
        };
        let first = Lsn::from_le_bytes(*first);
        Ok(Self {
            first: (first != 0).then_some(first),
            piece,
        })
    }
}

/// What the last frame of a large commit says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Last {
    /// Where the first part starts.
    pub(crate) first: Lsn,
    pub(crate) parts: u64,
    /// Bytes of all pieces.
    pub(crate) bytes: u64,
    /// The families that it writes.
    pub(crate) families: BTreeSet<u32>,
}

impl Last {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let families = self.families.iter().map(|id| u64::from(*id));
        let count = self.families.len() as u64;
        for value in [self.first, self.parts, self.bytes, count]
            .into_iter()
            .chain(families)
        {
            number(&mut out, value);
        }
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut numbers = Numbers::new(payload);
        let [first, parts, bytes, count] =
            [numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?];
        let mut families = BTreeSet::new();
        for _ in 0..count {
            let id = numbers.next()?;
            let id =
                u32::try_from(id).map_err(|_| numbers.malformed("a family id below 2^32", id.to_string()))?;
            if families.last().is_some_and(|last| *last >= id) {
                return Err(numbers.malformed("a family id above the one before", id.to_string()));
            }
            families.insert(id);
        }
        if numbers.rest() > 0 {
            let found = format!("{} more bytes", numbers.rest());
            return Err(numbers.malformed("the payload's end behind the family ids", found));
        }
        Ok(Self {
            first,
            parts,
            bytes,
            families,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_back_and_cuts_are_found() {
        let value = vec![9; 300];
        let ops = [
            Op {
                family: 0,
                key: b"a",
                write: Write::Put(b""),
            },
            Op {
                family: 300,
                key: &[0xff; 200],
                write: Write::Put(&value),
            },
            Op {
                family: u32::MAX,
                key: b"gone",
                write: Write::Delete,
            },
        ];
        let mut payload = Vec::new();
        let mut ends = vec![0];
        for op in ops {
            let before = payload.len();
            encode(&mut payload, op);
            assert_eq!(payload.len() - before, op.encoded_len());
            ends.push(payload.len());
        }
        let back: Vec<_> = Ops::new(&payload).map(Result::unwrap).collect();
        assert_eq!(back, ops);
        for cut in 0..payload.len() {
            let read: Result<Vec<_>, _> = Ops::new(&payload[..cut]).collect();
            assert_eq!(read.is_ok(), ends.contains(&cut), "cut at {cut}");
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused_and_not_cut() {
        let mut payload = vec![TAG_DELETE];
        payload.extend([0x80; 9]);
        payload.extend([2, 1, b'k']);
        let malformed = Ops::new(&payload).next().unwrap().unwrap_err();
        assert_eq!(
            (malformed.offset, malformed.expected),
            (11, "a number below 2^64")
        );
    }

    #[test]
    fn an_unknown_tag_is_refused_with_its_place() {
        let malformed = Ops::new(&[7, 0, 1, b'k']).next().unwrap().unwrap_err();
        assert_eq!(malformed.found, "tag 7");
    }

    fn last() -> Last {
        Last {
            first: (1 << 40) + 8,
            parts: 300,
            bytes: 1 << 33,
            families: [0, 7, 128, u32::MAX].into(),
        }
    }

    #[test]
    fn parts_come_back_and_a_cut_head_is_found() {
        for first in [None, Some(8), Some(u64::MAX)] {
            let part = Part { first, piece: b"abc" };
            let mut payload = Vec::new();
            part.encode(&mut payload);
            assert_eq!(Part::decode(&payload).unwrap(), part);
            for cut in 0..PART_HEAD {
                let malformed = Part::decode(&payload[..cut]).unwrap_err();
                assert_eq!((malformed.offset, malformed.found), (cut, format!("{cut} bytes")));
            }
        }
    }

    #[test]
    fn the_last_frame_comes_back_and_cuts_and_additions_are_found() {
        let payload = last().encode();
        assert_eq!(Last::decode(&payload).unwrap(), last());
        for cut in 0..payload.len() {
            let malformed = Last::decode(&payload[..cut]).unwrap_err();
            assert_eq!(malformed.found, "the payload's end", "cut at {cut}");
        }
        let more = [&payload[..], &[0]].concat();
        let malformed = Last::decode(&more).unwrap_err();
        assert_eq!(
            (malformed.offset, &*malformed.found),
            (payload.len(), "1 more bytes")
        );
    }

    #[test]
    fn family_ids_out_of_order_or_range_are_refused() {
        let refused = |ids: &[u64]| {
            let mut payload = Vec::new();
            for value in [8, 1, 1, ids.len() as u64].iter().chain(ids) {
                number(&mut payload, *value);
            }
            Last::decode(&payload).unwrap_err().expected
        };
        assert_eq!(refused(&[3, 3]), "a family id above the one before");
        assert_eq!(refused(&[1 << 32]), "a family id below 2^32");
    }
}
