//! Proposals that wait at the same time go into one entry: what an entry costs in raft, in the log and
//! in the tables is paid once for all of them.

use std::sync::Arc;

use crate::proposals::{HEADER, Header, Proposal, Ticket};
use crate::raft::commands::{Commands, Submission, Waiter};
use crate::raft::types::EncodedEffects;
use crate::raftlog::Reserved;
use crate::replica_store::effects::EffectsBuf;

/// An entry takes no further proposal where its effects would have more bytes than this, or than the log
/// takes.
const BATCH_BYTES: usize = 256 << 10;
/// What an entry has beside its effects, at most.
pub(super) const BESIDE_EFFECTS: usize = HEADER + 1;

/// An entry to hand to raft.
pub(super) struct Batch {
    pub(super) header: Header,
    effects: EffectsBuf,
    /// Who waits for its proposals.
    pub(super) waiters: Vec<(Ticket, Waiter)>,
    /// Room that is reserved in the log for some of its proposals.
    reserved: Vec<Reserved>,
    /// Bytes of those that have none.
    pub(super) without_room: usize,
}

/// The entries of a replica, from what was submitted, in its order.
pub(super) struct Batches {
    commands: Arc<Commands>,
    /// Bytes of effects of an entry that has several proposals.
    most: usize,
    /// Did not go into the last one.
    next: Option<Proposal<Submission>>,
}

impl Batches {
    /// For a log that takes entries of so many bytes.
    pub(super) fn new(commands: Arc<Commands>, largest: usize) -> Self {
        Self {
            commands,
            most: BATCH_BYTES.min(largest.saturating_sub(BESIDE_EFFECTS)),
            next: None,
        }
    }

    /// The next entry: all that was submitted by now, as long as it is of one run and of no more
    /// bytes than an entry is to have.
    pub(super) fn next(&mut self) -> Option<Batch> {
        let first = self.take()?;
        let mut batch = Batch::new(first);
        while let Some(next) = self.take() {
            if let Some(not_joined) = batch.join(next, self.most) {
                self.next = Some(not_joined);
                break;
            }
        }
        Some(batch)
    }

    fn take(&mut self) -> Option<Proposal<Submission>> {
        let taken = self.next.take();
        taken.or_else(|| self.commands.leading.next_proposal())
    }
}

impl Batch {
    fn new(first: Proposal<Submission>) -> Self {
        let Proposal {
            header,
            payload:
                Submission {
                    effects,
                    waiter,
                    room,
                },
        } = first;
        let mut batch = Self {
            header,
            effects,
            waiters: Vec::new(),
            reserved: Vec::new(),
            without_room: 0,
        };
        batch.count(header.ticket, waiter, room);
        batch
    }

    fn count(&mut self, ticket: Ticket, waiter: Waiter, room: Option<Reserved>) {
        match room {
            Some(room) => self.reserved.push(room),
            None => self.without_room += waiter.bytes + BESIDE_EFFECTS,
        }
        self.waiters.push((ticket, waiter));
    }

    /// Returns the proposal where it does not fit.
    fn join(&mut self, next: Proposal<Submission>, most: usize) -> Option<Proposal<Submission>> {
        let more = &next.payload.effects;
        let mut header = self.header;
        let fits = self.effects.bytes().len() + more.bytes().len() <= most
            && header.join(&next.header)
            && self.effects.extend(more).is_ok();
        if !fits {
            return Some(next);
        }
        self.header = header;
        self.count(next.header.ticket, next.payload.waiter, next.payload.room);
        None
    }

    /// What the entry holds.
    fn payload(&self) -> Vec<u8> {
        [&self.header.encode()[..], self.effects.bytes()].concat()
    }

    /// The entry, with what is reserved for it, `room` too; and who waits.
    pub(super) fn into_entry(mut self, room: Reserved) -> (EncodedEffects, Vec<(Ticket, Waiter)>) {
        self.reserved.push(room);
        (EncodedEffects::new(self.payload(), self.reserved), self.waiters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LeaderId;
    use crate::proposals::Outcome;
    use crate::raft::commands::{Admitted, Row, RowChanges, StoredValue};
    use crate::raft::leases::Leases;
    use crate::replica_store::effects::{Effect, decode};
    use tokio::sync::{mpsc, watch};

    fn leader() -> Arc<Commands> {
        let (readers, _) = mpsc::unbounded_channel();
        let commands = Commands::new(7, 100, readers, watch::Sender::new(0), Leases::never());
        commands.leading.lead(LeaderId { term: 1, replica: 7 }, None);
        Arc::new(commands)
    }

    fn submit(commands: &Commands, key: &[u8], bytes: usize) -> Ticket {
        let (row, value) = (
            Row {
                slot: 1,
                key: key.into(),
            },
            vec![7; bytes],
        );
        let changes = RowChanges {
            rows: [(row, Some(StoredValue::from(&*value)))].into(),
            keys: None,
        };
        let admitted = Admitted {
            last: changes.encode().unwrap(),
            ..Admitted::default()
        };
        let evaluation = commands.leading.begin().unwrap();
        let submitted = commands.finish(evaluation, changes, admitted, 5).unwrap();
        let crate::proposals::Evaluated::Submitted(ticket) = submitted.evaluated else {
            panic!("it has effects");
        };
        ticket
    }

    fn tickets(batch: &Batch) -> Vec<Ticket> {
        batch.waiters.iter().map(|(ticket, _)| *ticket).collect()
    }

    #[test]
    fn what_was_submitted_by_now_goes_into_one_entry() {
        let commands = leader();
        let mut batches = Batches::new(Arc::clone(&commands), 1 << 20);
        let submitted = [b"a", b"b", b"b"].map(|key| submit(&commands, key, 10));
        let batch = batches.next().unwrap();
        assert_eq!(tickets(&batch), submitted);
        let payload = batch.payload();
        let (header, effects) = Header::decode(&payload).unwrap();
        assert_eq!((header.ticket, header.last()), (submitted[0], submitted[2]));
        let keys: Vec<_> = decode(effects)
            .unwrap()
            .into_iter()
            .map(|effect| match effect {
                Effect::Put { key, .. } => key,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(keys, [b"a", b"b", b"b"], "in their order");
        assert!(batches.next().is_none());
    }

    #[test]
    fn an_entry_is_of_one_run_and_not_larger_than_it_is_to_be() {
        let commands = leader();
        let mut batches = Batches::new(Arc::clone(&commands), 1 << 20);
        let sizes = [10, BATCH_BYTES - 60, 10, 2 * BATCH_BYTES, 10];
        let submitted = sizes.map(|bytes| submit(&commands, b"a", bytes));
        // The run ends, and its entries are refused: the next one begins.
        for ticket in submitted {
            commands.leading.outcome(&ticket, Outcome::Refused);
        }
        let next = submit(&commands, b"a", 10);
        assert_ne!(next.run, submitted[0].run);
        let found: Vec<_> = std::iter::from_fn(|| batches.next())
            .map(|batch| tickets(&batch))
            .collect();
        let [a, b, c, d, e] = submitted;
        assert_eq!(found, [vec![a, b], vec![c], vec![d], vec![e], vec![next]]);
    }
    /// Of a small ring, for example: raft would take the refusal of the append for the end of the replica.
    #[test]
    fn an_entry_of_several_proposals_is_one_that_the_log_takes() {
        const LARGEST: usize = 1_000;
        let commands = leader();
        let mut batches = Batches::new(Arc::clone(&commands), LARGEST);
        (0..20).for_each(|_| _ = submit(&commands, b"a", 150));
        let entries: Vec<_> = std::iter::from_fn(|| batches.next()).collect();
        let bytes = entries.iter().map(|batch| batch.payload().len() + 1);
        assert!(
            bytes.clone().all(|bytes| bytes <= LARGEST),
            "{:?}",
            bytes.collect::<Vec<_>>()
        );
        assert!(entries.len() < 8, "{} entries", entries.len());
    }
}
