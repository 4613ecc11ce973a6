//! Reading the data in its order, a part at a time: nothing is held from one part to the next.

use std::ops::{Bound, RangeInclusive};

use collie_db::{Error as DbError, Value};

use crate::replica_store::error::MachineError;
use crate::replica_store::keys::{count_key, data_key, of_data_key};
use crate::replica_store::meta::decode_count;
use crate::replica_store::store::Machine;

/// A part ends behind the row that brings it to so many bytes.
const PART_BYTES: usize = 256 << 10;
/// A part ends when it has passed over so many entries of removed rows.
const PART_REMOVED: u64 = 1024;

/// A key of the data, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRow {
    /// The slot.
    pub slot: u16,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Value,
}

/// A part of the data.
#[derive(Debug, Default)]
pub struct DataPart {
    /// Its rows.
    pub rows: Vec<DataRow>,
    /// Entries of removed rows that were passed over.
    pub removed: u64,
    /// The slot and key behind which the next part begins; `None` where nothing follows.
    pub next: Option<(u16, Vec<u8>)>,
}

impl Machine {
    /// The next rows of these slots behind `after`, or the first ones: `most` at most, and no more
    /// once they have 256 KiB, or many removed ones were passed over.
    ///
    /// # Errors
    /// The store's.
    pub fn rows_after(
        &self,
        after: Option<(u16, &[u8])>,
        slots: &RangeInclusive<u16>,
        most: usize,
    ) -> Result<DataPart, MachineError> {
        let (first, last) = (*slots.start(), *slots.end());
        let from = match after.filter(|(slot, _)| *slot >= first) {
            Some((slot, key)) => Bound::Excluded(data_key(slot, key)),
            None => Bound::Included(data_key(first, b"")),
        };
        let to = Bound::Excluded(data_key(last.saturating_add(1), b""));
        // After an adoption an older handle is of the old content.
        let family = self.db().default_family();
        let mut part = DataPart::default();
        let mut bytes = 0;
        let mut found = family.range((from, to))?;
        found.set_max_skippable_internal_keys(PART_REMOVED);
        while let Some(row) = found.next() {
            let full = match row {
                Err(DbError::Incomplete { at }) => at,
                row => {
                    let (full, value) = row?;
                    let Some((slot, key)) = of_data_key(&full) else {
                        continue;
                    };
                    bytes += full.len() + value.len();
                    let key = key.to_vec();
                    part.rows.push(DataRow { slot, key, value });
                    full
                }
            };
            let is_passed = found.internal_keys_skipped() >= PART_REMOVED;
            if part.rows.len() >= most || bytes >= PART_BYTES || is_passed {
                part.next = of_data_key(&full).map(|(slot, key)| (slot, key.to_vec()));
                break;
            }
        }
        part.removed = found.internal_keys_skipped();
        Ok(part)
    }

    /// How many keys these slots have, as the entries counted them.
    ///
    /// # Errors
    /// The store's, and [`MachineError::Meta`].
    pub fn keys_in_slots(&self, slots: &RangeInclusive<u16>) -> Result<u64, MachineError> {
        let family = self.db().default_family();
        let counts = count_key(*slots.start())..=count_key(*slots.end());
        let mut sum: u64 = 0;
        for found in family.range(counts)? {
            let (_, bytes) = found?;
            let count = decode_count(Some(&bytes));
            let count = count.map_err(|error| self.meta("the count of a slot", error))?;
            sum = sum.saturating_add(count);
        }
        Ok(sum)
    }
}
