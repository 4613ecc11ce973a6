//! The rows of a partition, one after the other.

use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::vec;

use collie_server::cluster::{Refused, StoredRow, Walked};

use crate::raft::evaluation::text_of;
use crate::raft::replica::Replica;
use crate::replica_store::{DataPart, DataRow};

/// Rows that are read at once: at first, then four times as many, and so on up to the last.
const FIRST_PART: usize = 16;
const PART_GROWTH: usize = 4;
const LARGEST_PART: usize = 1024;

/// Rows as they are applied. They are read a part at a time, and between two parts nothing is held:
/// neither memory nor files of the store, nor the replica, which may be closed meanwhile.
pub(super) struct Scan {
    replica: Weak<Replica>,
    slots: RangeInclusive<u16>,
    /// Where the next part begins.
    after: Option<(u16, Vec<u8>)>,
    part: vec::IntoIter<DataRow>,
    /// Entries that were passed over, and that it has not said so of.
    removed: u64,
    most: usize,
    /// Nothing is behind the part.
    is_last: bool,
}

impl Scan {
    pub(super) fn new(
        replica: &Arc<Replica>,
        slots: RangeInclusive<u16>,
        after: Option<(u16, &[u8])>,
    ) -> Self {
        Self {
            replica: Arc::downgrade(replica),
            slots,
            after: after.map(|(slot, key)| (slot, key.to_vec())),
            part: Vec::new().into_iter(),
            removed: 0,
            most: FIRST_PART,
            is_last: false,
        }
    }

    fn read(&mut self) -> Result<(), Refused> {
        let replica = self.replica.upgrade().ok_or(Refused::NotHere)?;
        let running = replica.running();
        let running = running.map_err(|error| text_of(error.into()))?;
        let after = self.after.as_ref().map(|(slot, key)| (*slot, &**key));
        let part = running.machine.rows_after(after, &self.slots, self.most);
        let DataPart { rows, removed, next } = part.map_err(|error| Refused::Text(format!("ERR {error}")))?;
        self.most = (self.most * PART_GROWTH).min(LARGEST_PART);
        self.is_last = next.is_none();
        // Behind all rows of the slot.
        self.after = next.or_else(|| Some((*self.slots.end(), vec![u8::MAX])));
        self.removed += removed;
        self.part = rows.into_iter();
        Ok(())
    }

    /// What was passed over, once all rows of the part were taken.
    fn removed(&mut self) -> Option<Walked> {
        let entries = std::mem::take(&mut self.removed);
        let (slot, row) = self.after.clone().filter(|_| entries > 0)?;
        Some(Walked::Removed { slot, row, entries })
    }
}

impl Iterator for Scan {
    type Item = Result<Walked, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(DataRow { slot, key, value }) = self.part.next() {
                let row = StoredRow {
                    slot,
                    row: key,
                    value,
                };
                return Some(Ok(Walked::Row(row)));
            }
            if let Some(removed) = self.removed() {
                return Some(Ok(removed));
            }
            if self.is_last {
                return None;
            }
            if let Err(refused) = self.read() {
                self.is_last = true;
                return Some(Err(refused));
            }
        }
    }
}
