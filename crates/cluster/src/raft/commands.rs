//! The commands of a replica that leads: what they read and write, and how they learn what became of
//! it. Nothing here is openraft's.

use std::collections::HashMap;
use std::io;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use crate::ids::{EntryId, ReplicaId};
use crate::machine::effects::{Effect, EffectsBuf, decode};
use crate::machine::{FieldError, Outcome as Applied, data_key};
use crate::proposals::{Decision, Effects, Header, Leading, Outcome, Proposal, Recorded, Skip, Ticket};

/// A row: a key in its slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// The slot.
    pub slot: u16,
    /// The key.
    pub key: Vec<u8>,
}

/// What a row holds.
pub type Value = Vec<u8>;

/// What the tasks of a replica share of its commands.
pub(super) struct Commands {
    replica: ReplicaId,
    pub(super) leading: Leading<Row, Value>,
    /// Woken when an entry was submitted.
    pub(super) submitted: Notify,
    /// Counts what may settle a read.
    progress: watch::Sender<u64>,
    outcomes: Mutex<HashMap<Ticket, Waiting>>,
}

/// Of one entry, whichever comes first: who waits, or what became of it.
enum Waiting {
    Client(oneshot::Sender<Outcome>),
    Known(Outcome),
}

impl Row {
    /// Where it is in the table.
    pub(super) fn table_key(&self) -> Vec<u8> {
        data_key(self.slot, &self.key)
    }
}

impl Commands {
    pub(super) fn new(replica: ReplicaId, pending: usize) -> Self {
        Self {
            replica,
            leading: Leading::new(pending),
            submitted: Notify::new(),
            progress: watch::Sender::new(0),
            outcomes: Mutex::default(),
        }
    }

    /// The receiver is woken whenever something became of an entry.
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }

    /// What will become of an entry that was just submitted. To be called once for each.
    pub(super) fn wait_for(&self, ticket: Ticket) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        let mut outcomes = self.outcomes.lock();
        match outcomes.remove(&ticket) {
            Some(Waiting::Known(outcome)) => {
                // An error: the receiver is right here.
                let _sent = sender.send(outcome);
            }
            _ => {
                outcomes.insert(ticket, Waiting::Client(sender));
            }
        }
        receiver
    }

    /// Raft says, or will never say, what became of an entry. Apply has spoken before.
    pub(super) fn outcome(&self, ticket: Ticket, outcome: Outcome) {
        self.leading.outcome(&ticket, outcome);
        let mut outcomes = self.outcomes.lock();
        match outcomes.remove(&ticket) {
            Some(Waiting::Client(client)) => {
                // It waits no longer.
                let _gone = client.send(outcome);
            }
            _ => {
                outcomes.insert(ticket, Waiting::Known(outcome));
            }
        }
        drop(outcomes);
        self.changed();
    }

    fn changed(&self) {
        self.progress.send_modify(|count| *count += 1);
    }

    /// This replica has applied the blank entry with which a leader begins.
    pub(super) fn began(&self, id: EntryId, recorded: Option<&[u8]>) -> io::Result<()> {
        if id.leader.replica == self.replica {
            let recorded = recorded
                .map(Recorded::decode)
                .transpose()
                .map_err(io::Error::other)?;
            self.leading.lead(id.leader, recorded.as_ref());
            self.changed();
        }
        Ok(())
    }

    /// This replica has applied an entry with effects.
    pub(super) fn applied(&self, id: EntryId, payload: &[u8], outcome: Applied) -> io::Result<()> {
        let (header, effects) = Header::decode(payload).map_err(io::Error::other)?;
        let decision = match outcome {
            Applied::Taken => Decision::Taken(Recorded {
                ticket: header.ticket,
                index: id.index,
            }),
            // Why it was skipped makes no difference here.
            Applied::Skipped => Decision::Skipped(Skip::Order),
        };
        // The rows matter to who submitted them.
        let rows = match id.leader.replica == self.replica {
            true => rows(effects).map_err(io::Error::other)?,
            false => Vec::new(),
        };
        self.leading.applied(&id, &header, &decision, rows.iter());
        self.changed();
        Ok(())
    }
}

fn rows(effects: &[u8]) -> Result<Vec<Row>, FieldError> {
    let row = |effect| match effect {
        Effect::Put { slot, key, .. } | Effect::Delete { slot, key } => Some(Row {
            slot,
            key: key.to_vec(),
        }),
        Effect::Session { .. } | Effect::Forget { .. } | Effect::Count { .. } => None,
    };
    Ok(decode(effects)?.into_iter().filter_map(row).collect())
}

/// The effects of a command, as an entry has them.
pub(super) fn encode_effects(effects: &Effects<Row, Value>) -> Result<EffectsBuf, FieldError> {
    let mut encoded = EffectsBuf::default();
    for (Row { slot, key }, value) in effects {
        let slot = *slot;
        encoded.push(match value {
            Some(value) => Effect::Put { slot, key, value },
            None => Effect::Delete { slot, key },
        })?;
    }
    Ok(encoded)
}

/// What an entry holds.
pub(super) fn encode_proposal(proposal: &Proposal<Row, Value>) -> Result<Vec<u8>, FieldError> {
    let effects = encode_effects(&proposal.effects)?;
    Ok([&proposal.header.encode()[..], effects.bytes()].concat())
}
