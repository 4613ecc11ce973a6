//! Effects that come in parts, one entry each: rows beside the data keep them until the last one has come. Then all
//! take place at once, by one batch.
//!
//! The entries of a command's parts follow each other in one run of proposals, so nothing is taken between them. What
//! a run has left that ended before the last part is removed with the next effects that are taken, or by the entry
//! with which the next leader begins.

use crate::ids::EntryId;
use crate::replica_store::commit::Commit;
use crate::replica_store::effects::{Effect, MAX_IN_PARTS};
use crate::replica_store::error::{FieldError, MachineError};
use crate::replica_store::keys::{PARTS, PartsSoFar, part_key};
use crate::replica_store::store::Machine;

impl Commit {
    /// Keeps a part.
    pub(super) fn keep_part(
        &mut self,
        so_far: Option<PartsSoFar>,
        (number, bytes): (u32, &[u8]),
    ) -> Result<PartsSoFar, MachineError> {
        let before = match number {
            0 => {
                self.drop_parts(so_far)?;
                PartsSoFar {
                    count: 0,
                    bytes: 0,
                    first: self.id.index,
                }
            }
            _ => so_far.ok_or_else(|| self.unexpected(number, 0))?,
        };
        if before.count != number {
            return Err(self.unexpected(number, before.count));
        }
        let now = PartsSoFar {
            count: number + 1,
            bytes: before.bytes + bytes.len() as u64,
            ..before
        };
        self.put(part_key(number), bytes)?;
        self.put(PARTS, now.encode())?;
        Ok(now)
    }

    /// Removes what has come.
    pub(super) fn drop_parts(&mut self, so_far: Option<PartsSoFar>) -> Result<(), MachineError> {
        let Some(so_far) = so_far else { return Ok(()) };
        for number in 0..so_far.count {
            self.batch.delete(&self.family, part_key(number))?;
        }
        Ok(self.batch.delete(&self.family, PARTS)?)
    }

    fn unexpected(&self, found: u32, expected: u32) -> MachineError {
        self.wrong(FieldError {
            at: 0,
            expected: "the next part of effects",
            found: format!("part {found} behind {expected} of them"),
        })
    }
}

impl Machine {
    /// The bytes of all parts, of which an entry says how many there are. Reads from tables.
    pub(super) fn joined_parts(
        &self,
        id: EntryId,
        so_far: Option<PartsSoFar>,
        (count, bytes): (u32, u64),
    ) -> Result<Vec<u8>, MachineError> {
        let found = so_far.map_or((0, 0), |so_far| (so_far.count, so_far.bytes));
        let wrong = |found| MachineError::Entry {
            id,
            error: FieldError {
                at: 0,
                expected: "as many parts of effects as have come",
                found,
            },
        };
        if found != (count, bytes) || bytes > MAX_IN_PARTS as u64 {
            return Err(wrong(format!(
                "{count} of {bytes} bytes, behind {} of {}",
                found.0, found.1
            )));
        }
        let mut joined = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
        for number in 0..count {
            let part = self.0.db.get(part_key(number))?;
            joined.extend_from_slice(part.as_deref().unwrap_or_default());
        }
        match joined.len() as u64 == bytes {
            true => Ok(joined),
            false => Err(wrong(format!("{} bytes in the tables", joined.len()))),
        }
    }

    /// The last entry that was applied, or the one before the first part of effects of which the last part has not
    /// come: what those change is not known yet. Waits for an entry that is being applied.
    pub(crate) fn applied_whole(&self) -> Option<u64> {
        let applying = self.0.applying.lock();
        let applied = self.applied()?.index;
        let before = |parts: PartsSoFar| parts.first.saturating_sub(1);
        Some(applying.parts.map_or(applied, before))
    }
}

/// The parts that an entry has, or that it has take place.
pub(super) fn of_parts<'e>(effects: &[Effect<'e>]) -> Option<Effect<'e>> {
    match effects {
        [part @ (Effect::Part { .. } | Effect::Parts { .. })] => Some(*part),
        _ => None,
    }
}
