//! Applying entries, each by one batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use collie_db::{Batch, Family};
use serde::{Deserialize, Serialize};

use crate::ids::EntryId;
use crate::machine::effects::{self, Effect};
use crate::machine::error::{FieldError, MachineError};
use crate::machine::keys::{
    APPLIED, MEMBERSHIP, RECORDED, count_key, data_key, sequence_number, session_key,
};
use crate::machine::meta::{encode_applied, encode_membership};
use crate::machine::positions::Membership;
use crate::machine::proposals::Verdict;
use crate::machine::store::Machine;

/// What an entry does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Nothing: a leader begins.
    Blank,
    /// The members of the group are these, encoded by who proposed them.
    Members(&'a [u8]),
    /// Effects behind a header, if [`Proposals`](crate::machine::Proposals) takes them.
    Effects(&'a [u8]),
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It took effect.
    Taken,
    /// It has effects, which were not taken.
    Skipped,
}

/// What applying goes on from.
#[derive(Debug, Default)]
pub(super) struct Applying {
    /// As the tables have it.
    pub(super) recorded: Option<Vec<u8>>,
}

impl Machine {
    /// Applies an entry: its effects and its id, all at once. It is visible to reads when this
    /// returns. The entry is in the replica's log. Waits where flushes lag behind, and so for the
    /// log's device: not for threads of a runtime.
    ///
    /// # Errors
    /// [`MachineError::Order`] where the entry is not behind the last one; [`MachineError::Entry`]; the
    /// store's. Nothing was applied. That no entry is left out is the caller's to see to.
    pub fn apply(&self, id: EntryId, change: Change<'_>) -> Result<Outcome, MachineError> {
        let inner = &*self.0;
        let mut applying = inner.applying.lock();
        if let Some(last) = self.applied().filter(|last| last.index >= id.index) {
            return Err(MachineError::Order {
                id,
                last: last.to_string(),
            });
        }
        let seq = sequence_number(self.replica(), id.index)?;
        let mut commit = Commit {
            machine: self,
            id,
            family: inner.db.default_family(),
            batch: Batch::new(),
        };
        let mut membership = None;
        let mut record = None;
        let mut outcome = Outcome::Taken;
        match change {
            Change::Blank => {}
            Change::Members(members) => {
                let members = Arc::from(members);
                let new = membership.insert(Membership { id, members });
                commit.put(MEMBERSHIP, encode_membership(new))?;
            }
            Change::Effects(payload) => {
                let judged = inner
                    .options
                    .proposals
                    .judge(applying.recorded.as_deref(), id, payload);
                match judged.map_err(|found| commit.refused(found))? {
                    Verdict::Take { effects, record: new } => {
                        commit.effects(effects)?;
                        commit.put(RECORDED, &new)?;
                        record = Some(new);
                    }
                    Verdict::Skip => outcome = Outcome::Skipped,
                }
            }
        }
        // In the same batch: what the tables call applied is what they hold.
        commit.put(APPLIED, encode_applied(id))?;
        inner.journal.positions().announce(id, membership.as_ref());
        inner.db.apply(&commit.batch, seq)?;
        inner.journal.positions().applied(id);
        if record.is_some() {
            applying.recorded = record;
        }
        Ok(outcome)
    }
}

/// The batch of an entry.
struct Commit<'a> {
    machine: &'a Machine,
    id: EntryId,
    family: Family,
    batch: Batch,
}

impl Commit<'_> {
    fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), MachineError> {
        Ok(self.batch.put(&self.family, key, value)?)
    }

    fn refused(&self, found: String) -> MachineError {
        self.wrong(FieldError {
            at: 0,
            expected: "the header of a proposal",
            found,
        })
    }

    fn wrong(&self, error: FieldError) -> MachineError {
        MachineError::Entry { id: self.id, error }
    }

    fn effects(&mut self, bytes: &[u8]) -> Result<(), MachineError> {
        let effects = effects::decode(bytes).map_err(|error| self.wrong(error))?;
        let mut deltas = BTreeMap::<u16, i64>::new();
        for effect in effects {
            match effect {
                Effect::Put { slot, key, value } => self.put(data_key(slot, key), value)?,
                Effect::Delete { slot, key } => self.batch.delete(&self.family, data_key(slot, key))?,
                Effect::Session {
                    slot,
                    client,
                    number,
                    at_ms,
                    reply,
                } => {
                    let value = [&at_ms.to_le_bytes(), reply].concat();
                    self.put(session_key(slot, client, number), value)?;
                }
                Effect::Forget { slot, client, number } => {
                    let key = session_key(slot, client, number);
                    self.batch.delete(&self.family, key)?;
                }
                Effect::Count { slot, delta } => {
                    let sum = deltas.entry(slot).or_default();
                    *sum = sum.saturating_add(delta);
                }
            }
        }
        deltas
            .into_iter()
            .try_for_each(|(slot, delta)| self.count(slot, delta))
    }

    fn count(&mut self, slot: u16, delta: i64) -> Result<(), MachineError> {
        let before = self.machine.keys_in_slot(slot)?;
        let after = before.checked_add_signed(delta).unwrap_or_else(|| {
            // The same on all replicas. The data is right, so the group goes on.
            tracing::error!(id = %self.id, slot, before, delta, "a slot has less than no keys");
            0
        });
        self.put(count_key(slot), after.to_le_bytes())
    }
}
