//! Reading the data in its order, a part at a time: nothing is held from one part to the next.

use std::ops::{Bound, RangeInclusive};

use collie_db::Value;

use crate::machine::error::MachineError;
use crate::machine::keys::{count_key, data_key, of_data_key};
use crate::machine::meta::decode_count;
use crate::machine::store::Machine;

/// A part ends behind the row that brings it to so many bytes.
const PART_BYTES: usize = 256 << 10;

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

impl Machine {
    /// The next rows of these slots behind `after`, or the first ones; `most` at most, and no more
    /// once they have 256 KiB. None if there are none.
    ///
    /// # Errors
    /// The store's.
    pub fn rows_after(
        &self,
        after: Option<(u16, &[u8])>,
        slots: &RangeInclusive<u16>,
        most: usize,
    ) -> Result<Vec<DataRow>, MachineError> {
        let (first, last) = (*slots.start(), *slots.end());
        let from = match after.filter(|(slot, _)| *slot >= first) {
            Some((slot, key)) => Bound::Excluded(data_key(slot, key)),
            None => Bound::Included(data_key(first, b"")),
        };
        let to = Bound::Excluded(data_key(last.saturating_add(1), b""));
        // After an adoption an older handle is of the old content.
        let family = self.db().default_family();
        let mut rows = Vec::new();
        let mut bytes = 0;
        for found in family.range((from, to))? {
            let (full, value) = found?;
            let Some((slot, key)) = of_data_key(&full) else {
                continue;
            };
            bytes += full.len() + value.len();
            let key = key.to_vec();
            rows.push(DataRow { slot, key, value });
            if rows.len() >= most || bytes >= PART_BYTES {
                break;
            }
        }
        Ok(rows)
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
