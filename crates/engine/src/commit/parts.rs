//! The frames of a large commit: its parts, and the last one, with which they count.
//!
//! A part names the commit by the LSN of its first part, so that two commits whose parts alternate
//! in the log are told apart, and has a piece of the operations, cut anywhere. The last frame says
//! how many parts and bytes there must be, and which families they write. docs/design/formats/engine.md
//! draws both.

use std::collections::BTreeSet;

use collie_log::Lsn;

use crate::commit::codec::{Malformed, Numbers, number};

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
    fn the_last_frame_comes_back_and_every_cut_and_addition_is_found() {
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
