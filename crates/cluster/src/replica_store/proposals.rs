//! Which entries with effects are taken.

use std::fmt;

use crate::ids::EntryId;
use crate::proposals::{Decision, Header, Recorded, decide};

/// Decides which entries with effects are taken, and owns the header that stands before the effects.
///
/// The decision is the same on every replica: it depends on what is recorded, which is in the tables,
/// and on the entry, and on nothing else.
pub trait Proposals: fmt::Debug + Send + Sync {
    /// Judges an entry. `recorded` is what the last entry that was taken left; none before the first.
    ///
    /// # Errors
    /// What is wrong with the entry's header. No replica gets past such an entry.
    fn judge<'e>(
        &self,
        recorded: Option<&[u8]>,
        id: EntryId,
        payload: &'e [u8],
    ) -> Result<Verdict<'e>, String>;
}

/// What becomes of an entry with effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<'e> {
    /// It takes effect.
    Take {
        /// The [`effects`](crate::replica_store::effects), behind the header.
        effects: &'e [u8],
        /// What is recorded from now on.
        record: Vec<u8>,
    },
    /// It has no effect: it does not continue what was taken before.
    Skip,
}

/// The rules of [`crate::proposals`]: entries are taken that continue their leader's run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Runs;

impl Proposals for Runs {
    fn judge<'e>(
        &self,
        recorded: Option<&[u8]>,
        id: EntryId,
        payload: &'e [u8],
    ) -> Result<Verdict<'e>, String> {
        let recorded = recorded.map(Recorded::decode).transpose();
        let recorded = recorded.map_err(|error| error.to_string())?;
        let (header, effects) = Header::decode(payload).map_err(|error| error.to_string())?;
        Ok(match decide(recorded.as_ref(), &id, &header) {
            Decision::Taken(record) => Verdict::Take {
                effects,
                record: record.encode().to_vec(),
            },
            Decision::Skipped(_) => Verdict::Skip,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LeaderId;
    use crate::proposals::{RunId, Ticket};

    #[test]
    fn a_run_is_taken_from_its_first_entry_on_and_each_entry_once() {
        let leader = LeaderId { term: 3, replica: 2 };
        let payload = |n, base| {
            let run = RunId { leader, run: 1 };
            let ticket = Ticket { run, n };
            let header = Header::of(ticket, base, 5);
            [&header.encode()[..], b"effects"].concat()
        };
        let mut recorded: Option<Vec<u8>> = None;
        let cases = [
            (2, 0, false),
            (1, 9, false),
            (1, 0, true),
            (1, 0, false),
            (2, 0, true),
            (4, 0, false),
        ];
        for (index, (n, base, taken)) in cases.into_iter().enumerate() {
            let index = index as u64 + 10;
            let payload = payload(n, base);
            match Runs
                .judge(recorded.as_deref(), EntryId { leader, index }, &payload)
                .unwrap()
            {
                Verdict::Take { effects, record } => {
                    assert!(taken, "{n} behind {base}");
                    assert_eq!(effects, b"effects");
                    recorded = Some(record);
                }
                Verdict::Skip => assert!(!taken, "{n} behind {base}"),
            }
        }
        let id = EntryId { leader, index: 30 };
        assert!(Runs.judge(None, id, &payload(1, 0)[..20]).is_err());
        assert!(Runs.judge(Some(b"?"), id, &payload(1, 0)).is_err());
    }
}
