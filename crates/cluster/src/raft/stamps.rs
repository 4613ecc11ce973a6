//! The stamps of rows, by which clusters that duplicate each other decide which version of a row is the newest: from
//! one entry of a group on, each row that it writes or removes has one. And what duplication reads of a replica.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use crate::proposals::{Answer, Header};
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

    /// The last entry that was applied here; 0: none.
    ///
    /// # Errors
    /// The replica does not run.
    pub fn applied_index(&self) -> Result<u64, CommandError> {
        let applied = self.running()?.machine.applied();
        Ok(applied.map_or(0, |id| id.index))
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
        let Some(applied) = machine.applied().filter(|applied| applied.index > index) else {
            return Ok(ChangedRows::None);
        };
        let entries = log.read_up_to(index + 1..applied.index + 1, bytes)?;
        let is_next = entries.first().is_some_and(|entry| entry.id.index == index + 1);
        let (true, Some(last)) = (is_next, entries.last()) else {
            return Ok(ChangedRows::Gone);
        };
        let slots = machine.slots();
        let mut rows = BTreeSet::new();
        for entry in &entries {
            let Some(payload) = body::effects_of(&entry.payload) else {
                continue;
            };
            // It was applied: it is well.
            let Ok((_, effects)) = Header::decode(payload) else {
                continue;
            };
            for effect in effects::decode(effects)? {
                let (Effect::Put { slot, key, .. } | Effect::Delete { slot, key }) = effect else {
                    continue;
                };
                if slots.contains(&slot) {
                    let key = key.to_vec();
                    rows.insert(Row { slot, key });
                }
            }
        }
        let through = last.id.index;
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
