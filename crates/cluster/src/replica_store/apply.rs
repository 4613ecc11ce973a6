//! Applying entries, each by one batch.

use std::ops::RangeInclusive;
use std::sync::Arc;

use collie_db::Batch;
use serde::{Deserialize, Serialize};

use crate::ids::EntryId;
use crate::replica_store::commit::Commit;
use crate::replica_store::effects::{self, Effect};
use crate::replica_store::error::MachineError;
use crate::replica_store::keys::{
    APPLIED, BOUNDS, MEMBERSHIP, RECORDED, STAMPS, encode_applied, encode_bounds, encode_membership,
    sequence_number,
};
use crate::replica_store::parts::of_parts;
use crate::replica_store::positions::Membership;
use crate::replica_store::proposals::Verdict;
use crate::replica_store::store::{Applying, Machine};

/// What an entry does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Nothing: a leader begins.
    Blank,
    /// The members of the group are these, encoded by who proposed them.
    Members(&'a [u8]),
    /// Effects behind a header, if [`Proposals`](crate::replica_store::Proposals) takes them.
    Effects(&'a [u8]),
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyOutcome {
    /// It took effect.
    Taken,
    /// It has effects, which were not taken.
    Skipped,
}

/// Whether a call may wait for background work, and read from tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MayWait {
    /// It may.
    Waits,
    /// It says [`collie_db::Error::Stalled`] instead.
    Never,
}

impl Machine {
    /// Applies an entry: its effects and its id, all at once. It is visible to reads when this
    /// returns. The entry is in the replica's log. Waits where flushes lag behind, and so for the
    /// log's device, and reads from tables: not for threads of a runtime.
    ///
    /// # Errors
    /// [`MachineError::Order`] where the entry is not behind the last one; [`MachineError::Entry`]; the
    /// store's. Nothing was applied. That no entry is left out is the caller's to see to.
    pub fn apply(&self, id: EntryId, change: Change<'_>) -> Result<ApplyOutcome, MachineError> {
        self.apply_by(&mut self.0.applying.lock(), id, change, MayWait::Waits)
    }

    /// As [`apply`](Self::apply), for a thread of a runtime: applies nothing, and returns none, where
    /// that would wait for anything or read from tables.
    ///
    /// # Errors
    /// As `apply`.
    pub fn try_apply(&self, id: EntryId, change: Change<'_>) -> Result<Option<ApplyOutcome>, MachineError> {
        let Some(mut applying) = self.0.applying.try_lock() else {
            return Ok(None);
        };
        match self.apply_by(&mut applying, id, change, MayWait::Never) {
            Ok(outcome) => Ok(Some(outcome)),
            Err(MachineError::Db(collie_db::Error::Stalled)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn apply_by(
        &self,
        applying: &mut Applying,
        id: EntryId,
        change: Change<'_>,
        patience: MayWait,
    ) -> Result<ApplyOutcome, MachineError> {
        let inner = &*self.0;
        if let Some(last) = self.applied().filter(|last| last.index >= id.index) {
            return Err(MachineError::Order {
                id,
                last: last.to_string(),
            });
        }
        let seq = sequence_number(self.replica(), id.index)?;
        let joined;
        let mut parts = applying.parts;
        let mut commit = Commit {
            id,
            family: inner.db.default_family(),
            batch: Batch::new(),
        };
        let mut membership = None;
        let mut record = None;
        let mut counts = Vec::new();
        let mut slots = None;
        let mut stamps = None;
        let mut outcome = ApplyOutcome::Taken;
        match change {
            // What the leader before has left of parts.
            Change::Blank => commit.drop_parts(parts.take())?,
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
                        let mut effects = effects::decode(effects).map_err(|error| commit.wrong(error))?;
                        match of_parts(&effects) {
                            Some(Effect::Part { number, bytes }) => {
                                parts = Some(commit.keep_part(parts, (number, bytes))?);
                            }
                            Some(Effect::Parts { .. }) if patience == MayWait::Never => {
                                return Err(collie_db::Error::Stalled.into());
                            }
                            Some(Effect::Parts { count, bytes }) => {
                                joined = self.joined_parts(id, parts, (count, bytes))?;
                                effects =
                                    effects::decode_parts(&joined).map_err(|error| commit.wrong(error))?;
                                commit.drop_parts(parts.take())?;
                            }
                            _ => commit.drop_parts(parts.take())?,
                        }
                        if effects.iter().all(|effect| self.is_of_group(effect)) {
                            slots = self.slots_behind(&effects);
                            stamps = stamps_of(&effects);
                            let count = |slot| match applying.counts.get(&slot) {
                                Some(count) => Ok(*count),
                                None if patience == MayWait::Waits => self.keys_in_slot(slot),
                                None => Err(collie_db::Error::Stalled.into()),
                            };
                            counts = commit.effects(effects, count)?;
                            commit.put(RECORDED, &new)?;
                            record = Some(new);
                        } else {
                            outcome = ApplyOutcome::Skipped;
                        }
                    }
                    Verdict::Skip => outcome = ApplyOutcome::Skipped,
                }
            }
        }
        if let Some(slots) = &slots {
            commit.put(BOUNDS, encode_bounds(slots))?;
        }
        if let Some(origin) = stamps {
            commit.put(STAMPS, origin.to_le_bytes())?;
        }
        // In the same batch: what the tables call applied is what they hold.
        commit.put(APPLIED, encode_applied(id))?;
        inner.journal.positions().announce(id, membership.as_ref());
        // Before a flush can have it.
        if let Some(slots) = &slots {
            inner.journal.keep_from(id.index, slots);
        }
        match patience {
            MayWait::Waits => inner.db.apply(&commit.batch, seq)?,
            MayWait::Never => inner.db.try_apply(&commit.batch, seq)?,
        }
        // Before who waits for this entry looks at them.
        if let Some(slots) = &slots {
            inner.slots.set(slots);
        }
        if let Some(origin) = stamps {
            inner.set_stamps(Some(origin));
        }
        inner.journal.positions().applied(id);
        if record.is_some() {
            applying.recorded = record;
        }
        applying.parts = parts;
        applying.counts.extend(counts);
        Ok(outcome)
    }

    /// Whether an effect is on slots of the group: since a split, some are another group's.
    fn is_of_group(&self, effect: &Effect<'_>) -> bool {
        match effect {
            Effect::Put { slot, .. } | Effect::Delete { slot, .. } | Effect::Count { slot, .. } => {
                self.slots().contains(slot)
            }
            Effect::Split(split) => self.can_split(split),
            Effect::Stamps(_) | Effect::Part { .. } | Effect::Parts { .. } => true,
        }
    }

    /// The slots of the group behind a split.
    fn slots_behind(&self, effects: &[Effect<'_>]) -> Option<RangeInclusive<u16>> {
        effects.iter().find_map(|effect| match effect {
            Effect::Split(split) => Some(*self.slots().start()..=split.first - 1),
            _ => None,
        })
    }
}

/// The origin of the stamps that begin.
fn stamps_of(effects: &[Effect<'_>]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Stamps(origin) => Some(*origin),
        _ => None,
    })
}
