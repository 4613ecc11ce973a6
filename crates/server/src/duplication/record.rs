//! The record of a row, by which another cluster takes it over: an argument of `COLLIE.MERGE`.
//!
//! ```text
//! version u8 = 1 | 'k' | time u64 | origin u64 | kind u8 | expiry u64 (where kind says so) | payload
//! version u8 = 1 | 'd' | time u64 | origin u64
//! ```
//!
//! The first is of a value, the second of a removed key. Time and origin are the stamp's; the lower
//! seven bits of the kind are the type, 0 for a string, and its top bit says that an expiry follows. Integers are
//! little-endian.

use super::{BadRow, Stamp, Wrong, stamp_of};
use crate::data::stamp::TOMBSTONE;
use crate::data::value::{self, DATA};

const VERSION: u8 = 1;
const TYPE_STRING: u8 = 0;
const HAS_EXPIRY: u8 = 0x80;

/// What `COLLIE.MERGE` takes for a stored row of this cluster, and the stamp that is in it.
///
/// # Errors
/// [`BadRow`], also of a row that is neither that of a value nor a tombstone.
pub fn record(row: &[u8], stored: &[u8], own_origin: u64) -> Result<(Stamp, Vec<u8>), BadRow> {
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
    Ok((stamp, Incoming { stamp, content }.encode()))
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

impl Incoming<'_> {
    fn encode(self) -> Vec<u8> {
        let form = match self.content {
            Content::Removed => TOMBSTONE,
            Content::String { .. } => DATA,
        };
        let mut out = vec![VERSION, form];
        out.extend_from_slice(&self.stamp.encode());
        if let Content::String { expiry_ms, payload } = self.content {
            out.reserve(9 + payload.len());
            match expiry_ms {
                None => out.push(TYPE_STRING),
                Some(expiry) => {
                    out.push(TYPE_STRING | HAS_EXPIRY);
                    out.extend_from_slice(&expiry.to_le_bytes());
                }
            }
            out.extend_from_slice(payload);
        }
        out
    }
}
