//! Splitting a group: the tables of the replica that a split puts beside this one.
//!
//! They are made before the split is applied, of all that was applied before it: a store that links this one's
//! tables, with the records of the new group. So the rows of both groups are on the disk once, and each replica
//! hides those that are not in its slots, until a merge of all its tables removes them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use collie_db::{Batch, Db, ExternalJournal, Journal};
use collie_log::Lsn;

use crate::ids::{EntryId, GroupId, ReplicaId};
use crate::replica_store::effects::{self, Split};
use crate::replica_store::error::{FieldError, MachineError};
use crate::replica_store::keys::{
    APPLIED, BOUNDS, MEMBERSHIP, RECORDED, SLOTS, data_key, encode_applied, encode_bounds, encode_membership,
    last_of, sequence_number,
};
use crate::replica_store::positions::Membership;
use crate::replica_store::proposals::Verdict;
use crate::replica_store::store::{Machine, remove};

/// The replica that a split puts beside another one. Its group begins with this entry, which is purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// Its group.
    pub group: GroupId,
    /// Its id.
    pub replica: ReplicaId,
    /// The entry of the split.
    pub id: EntryId,
    /// The directory of its state machine, on the same disk.
    pub dir: PathBuf,
}

/// All that its tables get was committed.
#[derive(Debug)]
struct Committed;

impl ExternalJournal for Committed {
    fn durable(&self) -> Lsn {
        last_of(u64::MAX)
    }

    fn wait_durable(&self, _: Lsn) -> io::Result<()> {
        Ok(())
    }

    fn flushed(&self, _: Lsn) {}
}

impl Machine {
    /// The replica that an entry puts beside this one, if it is a split that would be applied now. The other one is
    /// to be made before it is.
    ///
    /// # Errors
    /// [`MachineError::Entry`].
    pub fn beside(&self, id: EntryId, payload: &[u8]) -> Result<Option<Beside>, MachineError> {
        let Some((split, _)) = self.split(id, payload)? else {
            return Ok(None);
        };
        Ok(split.beside(self.replica()).map(|replica| Beside {
            group: split.group,
            replica,
            id,
            dir: self.0.dir.with_file_name(replica.to_string()),
        }))
    }

    /// The split that an entry is, if it would be applied now, and what it records.
    fn split<'e>(
        &self,
        id: EntryId,
        payload: &'e [u8],
    ) -> Result<Option<(Split<'e>, Vec<u8>)>, MachineError> {
        let wrong = |error| MachineError::Entry { id, error };
        let header = |found| FieldError {
            at: 0,
            expected: "the header of a proposal",
            found,
        };
        let judged = {
            let applying = self.0.applying.lock();
            let proposals = &self.0.options.proposals;
            proposals.judge(applying.recorded.as_deref(), id, payload)
        };
        match judged.map_err(|found| wrong(header(found)))? {
            Verdict::Take { effects, record } => {
                let split = effects::split_of(effects).map_err(wrong)?;
                Ok(split
                    .filter(|split| self.can_split(split))
                    .map(|split| (split, record)))
            }
            Verdict::Skip => Ok(None),
        }
    }

    /// Whether a split leaves slots to both groups.
    pub(super) fn can_split(&self, split: &Split<'_>) -> bool {
        let slots = self.slots();
        *slots.start() < split.first && slots.contains(&split.first)
    }

    /// Makes the tables of the other replica, which is not here: what a stop has left of them goes first. They are
    /// durable when this returns. Everything before the split is applied, and nothing is meanwhile.
    ///
    /// # Errors
    /// The store's, and [`MachineError::Io`]. Called again, it begins anew.
    pub fn make_tables(&self, payload: &[u8], beside: &Beside) -> Result<(), MachineError> {
        let id = beside.id;
        let Some((split, record)) = self.split(id, payload)? else {
            return Ok(());
        };
        let device = &*self.0.options.db.device;
        let store = beside.dir.join("store");
        remove(device, &beside.dir)?;
        device
            .create_dir_all(&beside.dir)
            .map_err(|error| MachineError::io("create", &beside.dir, error))?;
        self.0.db.links(&store)?;
        let mut options = self.0.options.db.clone();
        options.journal = Journal::External(Arc::new(Committed));
        let db = Db::open(&store, options)?;
        let family = db.default_family();
        let mut batch = Batch::new();
        let membership = Membership {
            id,
            members: Arc::from(split.members),
        };
        batch.put(
            &family,
            BOUNDS,
            encode_bounds(&(split.first..=*self.slots().end())),
        )?;
        batch.put(&family, APPLIED, encode_applied(id))?;
        batch.put(&family, MEMBERSHIP, encode_membership(&membership))?;
        // Its first leader goes on behind this entry, and its time is not before this one's.
        batch.put(&family, RECORDED, record)?;
        db.apply(&batch, sequence_number(beside.replica, id.index)?)?;
        db.flush()?;
        db.close()?;
        Ok(())
    }

    /// Removes the rows that are in no slot of the group any more, which a split has left, by a merge of all tables;
    /// says whether there were any. Blocks for long, and reads and writes about as much as the tables have.
    ///
    /// # Errors
    /// The store's: it may be tried again.
    pub fn drop_hidden(&self) -> Result<bool, MachineError> {
        let slots = self.slots();
        let family = self.0.db.default_family();
        let below = data_key(0, b"")..data_key(*slots.start(), b"");
        let above = data_key(slots.end().saturating_add(1), b"")..data_key(SLOTS, b"");
        let mut any = false;
        for range in [below, above] {
            if !any && range.start < range.end {
                any = family.range(range)?.next().transpose()?.is_some();
            }
        }
        if any {
            // It flushes first: what merges keep follows the tables.
            family.compact()?;
        }
        Ok(any)
    }
}
