//! The batch of an entry: what it changes in the tables, all at once.

use std::collections::BTreeMap;

use collie_db::{Batch, Family};

use crate::ids::EntryId;
use crate::replica_store::effects::Effect;
use crate::replica_store::error::{FieldError, MachineError};
use crate::replica_store::keys::{count_key, data_key};

/// The batch of an entry.
pub(super) struct Commit {
    pub(super) id: EntryId,
    pub(super) family: Family,
    pub(super) batch: Batch,
}

impl Commit {
    pub(super) fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), MachineError> {
        Ok(self.batch.put(&self.family, key, value)?)
    }

    pub(super) fn refused(&self, found: String) -> MachineError {
        self.wrong(FieldError {
            at: 0,
            expected: "the header of a proposal",
            found,
        })
    }

    pub(super) fn wrong(&self, error: FieldError) -> MachineError {
        MachineError::Entry { id: self.id, error }
    }

    /// Adds effects. Returns how many keys slots have with them, where that has changed; `count` is how
    /// many they have had.
    pub(super) fn effects(
        &mut self,
        effects: Vec<Effect<'_>>,
        count: impl Fn(u16) -> Result<u64, MachineError>,
    ) -> Result<Vec<(u16, u64)>, MachineError> {
        let mut deltas = BTreeMap::<u16, i64>::new();
        for effect in effects {
            match effect {
                Effect::Put { slot, key, value } => self.put(data_key(slot, key), value)?,
                Effect::Delete { slot, key } => self.batch.delete(&self.family, data_key(slot, key))?,
                Effect::Count { slot, delta } => {
                    let sum = deltas.entry(slot).or_default();
                    *sum = sum.saturating_add(delta);
                }
                // They change no row of the data.
                Effect::Split(_) | Effect::Stamps(_) | Effect::Part { .. } | Effect::Parts { .. } => {}
            }
        }
        let mut counts = Vec::with_capacity(deltas.len());
        for (slot, delta) in deltas {
            let before = count(slot)?;
            let after = before.checked_add_signed(delta).unwrap_or_else(|| {
                // The same on all replicas. The data is right, so the group goes on.
                tracing::error!(id = %self.id, slot, before, delta, "a slot has less than no keys");
                0
            });
            self.put(count_key(slot), after.to_le_bytes())?;
            counts.push((slot, after));
        }
        Ok(counts)
    }
}
