//! Reading little-endian fields, each checked; every byte is accounted for.

use crate::ids::{EntryId, LeaderId};
use crate::replica_store::error::FieldError;

/// Bytes, and how far they were read.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn wrong(&self, at: usize, expected: &'static str, found: impl ToString) -> FieldError {
        FieldError {
            at,
            expected,
            found: found.to_string(),
        }
    }

    pub(super) fn take(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], FieldError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(found) = rest.get(..len) else {
            return Err(self.wrong(self.at, expected, format!("{} bytes", rest.len())));
        };
        self.at += len;
        Ok(found)
    }

    fn array<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], FieldError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, expected)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, expected: &'static str) -> Result<u8, FieldError> {
        self.array(expected).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, expected: &'static str) -> Result<u16, FieldError> {
        self.array(expected).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, expected: &'static str) -> Result<u32, FieldError> {
        self.array(expected).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, expected: &'static str) -> Result<u64, FieldError> {
        self.array(expected).map(u64::from_le_bytes)
    }

    /// Bytes behind their length (u32), which is from `least` to `most`.
    pub(super) fn bytes(
        &mut self,
        (least, most): (usize, usize),
        expected: &'static str,
    ) -> Result<&'a [u8], FieldError> {
        let at = self.at;
        let len = self.u32(expected)? as usize;
        if !(least..=most).contains(&len) {
            return Err(self.wrong(at, expected, format!("a length of {len}")));
        }
        self.take(len, expected)
    }

    pub(super) fn entry_id(&mut self) -> Result<EntryId, FieldError> {
        Ok(EntryId {
            leader: LeaderId {
                term: self.u64("a term")?,
                replica: self.u64("a replica")?,
            },
            index: self.u64("an index")?,
        })
    }

    pub(super) fn end(&self) -> Result<(), FieldError> {
        match self.left() {
            0 => Ok(()),
            more => Err(self.wrong(self.at, "the end", format!("{more} more bytes"))),
        }
    }
}

/// Writes bytes behind their length. What the callers encode is shorter than 4 GiB.
pub(super) fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    to.extend_from_slice(bytes);
}

pub(super) fn put_entry_id(to: &mut Vec<u8>, id: EntryId) {
    for field in [id.leader.term, id.leader.replica, id.index] {
        to.extend_from_slice(&field.to_le_bytes());
    }
}
