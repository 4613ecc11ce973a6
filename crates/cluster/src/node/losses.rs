//! Which replicas of a node may have lost entries that they had acknowledged, found when its logs are opened.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::identity::LossRecord;
use crate::ids::ReplicaId;
use crate::map::MAP_GROUP;
use crate::node::error::NodeError;
use crate::node::options::{LossOptions, NoteLossRecord};
use crate::raft::{Losses, NoteLosses};
use crate::raftlog::{EntryDurability, NodeStore, NoteLostRing};

/// What a node has stored of entries that it may have lost, while it opens its logs and afterwards.
pub(super) struct LossStore {
    record: Mutex<LossRecord>,
    note: Option<NoteLossRecord>,
    /// The logs were opened, but for those that count as if they had lost their rings.
    are_open: AtomicBool,
}

impl LossStore {
    pub(super) fn new(options: LossOptions) -> Arc<Self> {
        Arc::new(Self {
            record: Mutex::new(options.record),
            note: options.note,
            are_open: AtomicBool::new(false),
        })
    }

    fn change(&self, change: impl FnOnce(&mut LossRecord)) -> Result<(), NodeError> {
        let mut record = self.record.lock();
        let mut next = record.clone();
        change(&mut next);
        if next == *record {
            return Ok(());
        }
        let noted = match &self.note {
            Some(note) => note(&next),
            None => Err("there is no place for that".to_owned()),
        };
        noted.map_err(|problem| NodeError::Losses { problem })?;
        *record = next;
        Ok(())
    }

    /// What is called where a log has lost its ring: it may have had entries that did not wait for the disk.
    pub(super) fn on_lost_ring(self: &Arc<Self>) -> Option<NoteLostRing> {
        let was_used = self.record.lock().entries == EntryDurability::Process;
        let this = Arc::clone(self);
        was_used.then(|| {
            let note: NoteLostRing = Arc::new(move |at| {
                // Relaxed: one thread opens the logs, and sets this.
                if this.are_open.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let noted = this.change(|record| record.logs.extend([at]));
                noted.map_err(std::io::Error::other)
            });
            note
        })
    }

    /// The logs are open, and from now on `entries` is what entries wait for. Blocks.
    pub(super) fn opened(
        self: Arc<Self>,
        entries: EntryDurability,
        store: &NodeStore,
    ) -> Result<Arc<Losses>, NodeError> {
        // Entries of the map always wait for the disk.
        let here = store
            .replicas()
            .into_iter()
            .filter(|log| log.group() != MAP_GROUP);
        let unopened = store.unopened().into_iter().map(|(replica, _)| replica);
        let here: BTreeSet<ReplicaId> = here.map(|log| log.replica()).chain(unopened).collect();
        self.change(|record| {
            if record.entries == EntryDurability::Process {
                record.replicas.extend(store.replicas_in(&record.logs));
            }
            record.replicas.retain(|replica| here.contains(replica));
            record.logs.clear();
            record.entries = entries;
        })?;
        self.are_open.store(true, Ordering::Relaxed);
        let replicas = self.record.lock().replicas.clone();
        if !replicas.is_empty() {
            tracing::warn!(
                replicas = replicas.len(),
                "replicas may have lost entries that they had acknowledged, and vote again once they have caught up"
            );
        }
        let note: NoteLosses = Arc::new(move |left| {
            let noted = self.change(|record| record.replicas.clone_from(left));
            noted.map_err(|error| error.to_string())
        });
        Ok(Losses::new(replicas, Some(note)))
    }
}
