//! The keys of a replica's store, the sequence numbers of its commits, and the records beside the data. Their
//! fields are little-endian, and each is checked: every byte is accounted for.

use std::ops::RangeInclusive;
use std::sync::Arc;

use collie_log::Lsn;

use crate::ids::{EntryId, LeaderId, ReplicaId};
use crate::replica_store::error::{FieldError, MachineError};
use crate::replica_store::positions::Membership;

/// Slots of a cluster; a key is in one of them.
pub const SLOTS: u16 = 16_384;

/// What is not data begins with this.
const META: u8 = 0;
/// Data begins with this.
const DATA: u8 = 1;
/// What stands before a key of the data.
pub(super) const DATA_HEAD: usize = 3;

/// The id of the last entry that was applied.
pub(super) const APPLIED: [u8; 2] = [META, b'a'];
/// The members of the group, and the entry that said so.
pub(super) const MEMBERSHIP: [u8; 2] = [META, b'm'];
/// What [`Proposals`](crate::replica_store::Proposals) records.
pub(super) const RECORDED: [u8; 2] = [META, b'p'];

/// The slots of the replica's group; all where there is none.
pub(super) const BOUNDS: [u8; 2] = [META, b'b'];

/// The origin of the stamps that rows get; missing: they get none.
pub(super) const STAMPS: [u8; 2] = [META, b's'];

/// The parts of effects that have come so far: how many, their bytes, and the entry of the first one; missing: none.
pub(super) const PARTS: [u8; 2] = [META, b'e'];

/// Where a part of effects is.
pub(super) fn part_key(number: u32) -> Vec<u8> {
    [&PARTS[..], &number.to_be_bytes()].concat()
}

/// Sequence numbers begin here: `collie-db` takes none below.
const FIRST: Lsn = 1 << 32;
/// Sequence numbers of an entry, as a power of two: its own, and local marks behind it.
const PER_ENTRY: u32 = 16;
/// `collie-db` takes no sequence number from here on.
const END: Lsn = 1 << 62;
/// The last index that has sequence numbers.
const LAST_INDEX: u64 = ((END - FIRST) >> PER_ENTRY) - 1;

/// Where a key of the data is.
#[must_use]
pub fn data_key(slot: u16, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(DATA_HEAD + key.len());
    full.push(DATA);
    full.extend_from_slice(&slot.to_be_bytes());
    full.extend_from_slice(key);
    full
}

/// The slot and the key of what [`data_key`] made.
pub(super) fn of_data_key(full: &[u8]) -> Option<(u16, &[u8])> {
    let (head, key) = full.split_first_chunk::<DATA_HEAD>()?;
    let [DATA, high, low] = *head else { return None };
    Some((u16::from_be_bytes([high, low]), key))
}

/// The slot that a row is of, of the data or beside it.
pub(super) fn slot_of_key(key: &[u8]) -> Option<u16> {
    match *key {
        [DATA, high, low, ..] | [META, b'c', high, low] => Some(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

/// Where the number of keys in a slot is.
pub(super) fn count_key(slot: u16) -> [u8; 4] {
    let [high, low] = slot.to_be_bytes();
    [META, b'c', high, low]
}

/// The sequence number of an entry's commit, on every replica the same.
///
/// # Errors
/// [`MachineError::Apart`] for an index that has none, 2⁴⁶ or more.
pub fn sequence_number(replica: ReplicaId, index: u64) -> Result<Lsn, MachineError> {
    if index > LAST_INDEX {
        return Err(MachineError::Apart {
            replica,
            problem: format!("entry {index} has no sequence number; the last that has is {LAST_INDEX}"),
        });
    }
    Ok(FIRST + (index << PER_ENTRY))
}

/// The entry of a sequence number; none below the first.
pub(super) fn index_of(seq: Lsn) -> Option<u64> {
    seq.checked_sub(FIRST).map(|behind| behind >> PER_ENTRY)
}

/// The last sequence number of an entry; of an index that has none, the last of all.
pub(super) fn last_of(index: u64) -> Lsn {
    FIRST + ((index.min(LAST_INDEX) + 1) << PER_ENTRY) - 1
}

pub(super) fn encode_applied(id: EntryId) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_entry_id(&mut bytes, id);
    bytes
}

pub(super) fn decode_applied(bytes: &[u8]) -> Result<EntryId, FieldError> {
    let mut fields = Fields::new(bytes);
    let id = fields.entry_id()?;
    fields.end()?;
    Ok(id)
}

pub(super) fn encode_membership(membership: &Membership) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_entry_id(&mut bytes, membership.id);
    bytes.extend_from_slice(&membership.members);
    bytes
}

pub(super) fn decode_membership(bytes: &[u8]) -> Result<Membership, FieldError> {
    let mut fields = Fields::new(bytes);
    let id = fields.entry_id()?;
    let members = Arc::from(fields.take(fields.left(), "the members")?);
    Ok(Membership { id, members })
}

pub(super) fn encode_bounds(slots: &RangeInclusive<u16>) -> [u8; 4] {
    let mut bytes = [0; 4];
    let (first, last) = bytes.split_at_mut(2);
    first.copy_from_slice(&slots.start().to_le_bytes());
    last.copy_from_slice(&slots.end().to_le_bytes());
    bytes
}

/// The slots of a group; all where nothing is recorded.
pub(super) fn decode_bounds(bytes: Option<&[u8]>) -> Result<RangeInclusive<u16>, FieldError> {
    let Some(bytes) = bytes else {
        return Ok(0..=SLOTS - 1);
    };
    let mut fields = Fields::new(bytes);
    let (first, last) = (fields.u16("a slot")?, fields.u16("a slot")?);
    fields.end()?;
    match first <= last && last < SLOTS {
        true => Ok(first..=last),
        false => Err(fields.wrong(
            0,
            "slots below 16384, the first one first",
            format!("{first} to {last}"),
        )),
    }
}

/// The origin of stamps; none where nothing is recorded.
pub(super) fn decode_stamps(bytes: Option<&[u8]>) -> Result<Option<u64>, FieldError> {
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    let mut fields = Fields::new(bytes);
    let origin = fields.u64("an origin")?;
    fields.end()?;
    match origin {
        0 => Err(fields.wrong(0, "an origin above 0", 0)),
        origin => Ok(Some(origin)),
    }
}

/// The number of keys in a slot; 0 where nothing is recorded.
pub(super) fn decode_count(bytes: Option<&[u8]>) -> Result<u64, FieldError> {
    let Some(bytes) = bytes else {
        return Ok(0);
    };
    let mut fields = Fields::new(bytes);
    let count = fields.u64("a number of keys")?;
    fields.end()?;
    Ok(count)
}

/// The parts of effects that have come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartsSoFar {
    pub(super) count: u32,
    pub(super) bytes: u64,
    /// The entry of the first one.
    pub(super) first: u64,
}

impl PartsSoFar {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.count.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.first.to_le_bytes());
        bytes
    }

    /// None where nothing is recorded.
    pub(super) fn decode(bytes: Option<&[u8]>) -> Result<Option<Self>, FieldError> {
        let Some(bytes) = bytes else { return Ok(None) };
        let mut fields = Fields::new(bytes);
        let so_far = Self {
            count: fields.u32("a number of parts")?,
            bytes: fields.u64("their bytes")?,
            first: fields.u64("an index")?,
        };
        fields.end()?;
        Ok(Some(so_far))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_has_numbers_of_its_own() {
        for index in [0, 1, 77, LAST_INDEX] {
            let seq = sequence_number(1, index).unwrap();
            assert!((FIRST..END).contains(&seq));
            assert_eq!(index_of(seq), Some(index));
            assert_eq!(index_of(last_of(index)), Some(index));
            assert_eq!(last_of(index) - seq, (1 << PER_ENTRY) - 1);
        }
        assert_eq!(index_of(FIRST - 1), None);
        assert!(sequence_number(1, LAST_INDEX + 1).is_err());
        assert_eq!(last_of(u64::MAX), last_of(LAST_INDEX));
    }

    #[test]
    fn keys_of_different_things_differ() {
        assert!(data_key(0, b"")[..] > count_key(SLOTS)[..]);
        assert!(data_key(255, b"\xff") < data_key(256, b""));
        assert_eq!(of_data_key(&data_key(258, b"key")), Some((258, &b"key"[..])));
        assert_eq!(of_data_key(&data_key(258, b"key")[..2]), None);
        assert_eq!(of_data_key(&count_key(258)), None);
        for key in [&data_key(258, b"")[..], &data_key(258, b"key"), &count_key(258)] {
            assert_eq!(slot_of_key(key), Some(258));
        }
        for key in [&APPLIED, &BOUNDS, &MEMBERSHIP, &RECORDED] {
            assert_eq!(slot_of_key(key), None);
        }
    }

    #[test]
    fn bounds_come_back_and_are_all_slots_where_there_are_none() {
        for slots in [0..=0, 5..=700, 0..=SLOTS - 1, SLOTS - 1..=SLOTS - 1] {
            assert_eq!(decode_bounds(Some(&encode_bounds(&slots))), Ok(slots));
        }
        assert_eq!(decode_bounds(None), Ok(0..=SLOTS - 1));
        for wrong in [&b""[..], b"\x01\0\0\0", b"\0\0\0\x40", b"\0\0\x01\0\0"] {
            assert!(decode_bounds(Some(wrong)).is_err(), "{wrong:?}");
        }
    }
}
