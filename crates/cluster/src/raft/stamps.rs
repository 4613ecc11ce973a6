//! The stamps of rows, by which clusters that duplicate each other decide which version of a row is the newest: from
//! one entry of a group on, each row that it writes or removes has one. And what duplication reads of a replica.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use crate::proposals::{Answer, Header, Ticket};
use crate::raft::body;
use crate::raft::commands::Row;
use crate::raft::error::{CommandError, ReplicaError};
use crate::raft::replica::Replica;
use crate::replica_store::SentTo;
use crate::replica_store::effects::{self, Effect, EffectsBuf};

/// What entries have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedRows {
    /// There are no entries behind this one.
    None,
    /// The log has them no more.
    Gone,
    /// There are.
    Some {
        /// The rows, those of slots that are the group's.
        rows: BTreeSet<Row>,
        /// The last entry of them.
        through: u64,
    },
}

/// Parts of effects as they come in entries.
#[derive(Default)]
struct Parts {
    /// The last proposal of the last one's entry; none: none has come.
    last: Option<Ticket>,
    bytes: Vec<u8>,
}

impl Parts {
    fn are_begun(&self) -> bool {
        self.last.is_some()
    }

    /// Takes the next entry. Returns all parts, where it has them take place.
    fn take(&mut self, header: &Header, effects: &[Effect<'_>]) -> Option<Vec<u8>> {
        let (first, before) = (header.ticket, std::mem::take(self));
        let follows = before
            .last
            .is_some_and(|last| last.run == first.run && last.n.checked_add(1) == Some(first.n));
        let last = Some(header.last());
        match *effects {
            [Effect::Part { number: 0, bytes }] => {
                let bytes = bytes.to_vec();
                *self = Self { last, bytes };
                None
            }
            [Effect::Part { bytes, .. }] if follows => {
                *self = Self { last, ..before };
                self.bytes.extend_from_slice(bytes);
                None
            }
            [Effect::Parts { bytes, .. }] if follows && before.bytes.len() as u64 == bytes => {
                Some(before.bytes)
            }
            // Of a run that ended in between: they did not take place.
            _ => None,
        }
    }
}

impl Replica {
    /// The origin of the stamps that rows of the group get, as of the last entry that was applied here.
    #[must_use]
    pub fn stamps(&self) -> Option<u64> {
        self.running().ok()?.machine.stamps()
    }

    /// Has rows get stamps with this origin, on the replica that leads. Answers when that is applied here. Commands
    /// wait from its submission on.
    ///
    /// # Errors
    /// [`CommandError`]: they do not.
    pub async fn begin_stamps(&self, origin: u64) -> Result<Answer<()>, CommandError> {
        let running = self.running()?;
        running.wake().await;
        let mut effects = EffectsBuf::default();
        effects.push(Effect::Stamps(origin))?;
        self.propose_alone(&running, effects).await
    }

    /// The last entry that was applied here, or the one before changes of which a part is to come; 0: none.
    ///
    /// # Errors
    /// The replica does not run.
    pub fn applied_index(&self) -> Result<u64, CommandError> {
        Ok(self.running()?.machine.applied_whole().unwrap_or(0))
    }

    /// Changes whenever an entry was applied, while the replica leads.
    ///
    /// # Errors
    /// The replica does not run.
    pub fn progress(&self) -> Result<watch::Receiver<u64>, ReplicaError> {
        Ok(self.running()?.commands.progress())
    }

    /// The rows that entries behind this one have changed, of those that are applied; as many as have about so many
    /// bytes, and one at least. Blocks.
    ///
    /// # Errors
    /// The replica does not run; the log's.
    pub fn changed_behind(&self, index: u64, bytes: u64) -> Result<ChangedRows, CommandError> {
        let running = self.running()?;
        let (machine, log) = (&running.machine, running.machine.log());
        let Some(end) = machine.applied_whole().filter(|end| *end > index) else {
            return Ok(ChangedRows::None);
        };
        let slots = machine.slots();
        let (mut rows, mut parts, mut through) = (BTreeSet::new(), Parts::default(), index);
        while through < end && (through == index || parts.are_begun()) {
            let entries = log.read_up_to(through + 1..end + 1, bytes)?;
            let is_next = entries.first().is_some_and(|entry| entry.id.index == through + 1);
            let (true, Some(last)) = (is_next, entries.last()) else {
                return Ok(ChangedRows::Gone);
            };
            for entry in &entries {
                let Some(payload) = body::effects_of(&entry.payload) else {
                    continue;
                };
                // It was applied: it is well.
                let Ok((header, effects)) = Header::decode(payload) else {
                    continue;
                };
                let effects = effects::decode(effects)?;
                let joined = parts.take(&header, &effects);
                let effects = match &joined {
                    Some(joined) => effects::decode_parts(joined)?,
                    None => effects,
                };
                let changed = effects.iter().filter_map(Row::of);
                rows.extend(changed.filter(|row| slots.contains(&row.slot)));
            }
            through = last.id.index;
        }
        // Parts that are left were dropped: their last one is not behind them.
        Ok(ChangedRows::Some { rows, through })
    }

    /// How far the partition has been sent to targets, by their numbers. Blocks.
    ///
    /// # Errors
    /// The replica does not run; the table's.
    pub(crate) fn sent_to(&self) -> Result<Vec<(u64, SentTo)>, ReplicaError> {
        Ok(self.running()?.machine.sent_to()?)
    }

    /// Marks of removed rows that were made before are needed no more, in milliseconds since 1970; 0: all may be.
    pub(crate) fn set_forgets_before_ms(&self, time_ms: u64) {
        // Relaxed, here and below: it is said again and again.
        self.forgets_before_ms.store(time_ms, Ordering::Relaxed);
    }

    pub(super) fn forgets_before_ms(&self) -> u64 {
        self.forgets_before_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LeaderId;
    use crate::proposals::RunId;

    fn ticket(run: u32, n: u32) -> Ticket {
        let leader = LeaderId { term: 1, replica: 1 };
        let run = RunId { leader, run };
        Ticket { run, n }
    }

    fn part(number: u32) -> [Effect<'static>; 1] {
        let bytes = &b"abcdef"[number as usize * 2..][..2];
        [Effect::Part { number, bytes }]
    }

    const ALL: [Effect<'_>; 1] = [Effect::Parts { count: 3, bytes: 6 }];

    #[test]
    fn parts_are_whole_only_where_each_follows_the_one_before() {
        let run = |entries: &[(Ticket, [Effect<'_>; 1])]| {
            let mut parts = Parts::default();
            let mut found = None;
            for (ticket, effects) in entries {
                found = parts.take(&Header::of(*ticket, 0, 0), effects);
            }
            (found, parts.are_begun())
        };
        let whole = [
            (ticket(1, 5), part(0)),
            (ticket(1, 6), part(1)),
            (ticket(1, 7), part(2)),
            (ticket(1, 8), ALL),
        ];
        assert_eq!(run(&whole), (Some(b"abcdef".to_vec()), false));
        for some in 1..4 {
            assert_eq!(run(&whole[..some]), (None, true), "{some} of them");
        }
        // From the middle, where a gap is, of another run, and behind something else.
        assert_eq!(run(&whole[1..]), (None, false));
        let mut gap = whole;
        gap[2].0 = ticket(1, 8);
        gap[3].0 = ticket(1, 9);
        assert_eq!(run(&gap), (None, false));
        let mut other = whole;
        other[3].0 = ticket(2, 8);
        assert_eq!(run(&other), (None, false));
        let mut between = whole;
        between[1].1 = [Effect::Count { slot: 1, delta: 1 }];
        assert_eq!(run(&between), (None, false));
        // Others begin.
        let again = [&whole[..2], &whole[..]].concat();
        let again: Vec<_> = (1..)
            .zip(again)
            .map(|(n, (_, effects))| (ticket(1, n), effects))
            .collect();
        assert_eq!(run(&again), (Some(b"abcdef".to_vec()), false));
        assert_eq!(run(&again[..3]), (None, true));
        // Another proposal is in the entry before a part.
        let mut parts = Parts::default();
        let mut joined = Header::of(ticket(1, 4), 0, 0);
        assert!(joined.join(&Header::of(ticket(1, 5), 0, 0)));
        assert_eq!(parts.take(&joined, &whole[0].1), None);
        for (ticket, effects) in &whole[1..3] {
            assert_eq!(parts.take(&Header::of(*ticket, 0, 0), effects), None);
        }
        assert!(parts.take(&Header::of(whole[3].0, 0, 0), &whole[3].1).is_some());
    }
}
