//! Opening a state machine: what its tables hold, and whether the log goes with them. And taking over what
//! another replica transferred, which brings the log to where the tables are.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use collie_db::{Db, Journal};
use parking_lot::Mutex;

use crate::raftlog::ReplicaLog;
use crate::replica_store::error::MachineError;
use crate::replica_store::keys::{
    APPLIED, BOUNDS, MEMBERSHIP, PARTS, PartsSoFar, RECORDED, STAMPS, decode_applied, decode_bounds,
    decode_membership, decode_stamps, index_of,
};
use crate::replica_store::positions::Position;
use crate::replica_store::staging::{self, Staged};
use crate::replica_store::store::{
    Applying, GroupSlots, LogJournal, Machine, MachineInner, MachineOptions, remove, staged, transfers,
};

impl Machine {
    /// Opens the state machine in `dir` of the replica whose log this is, or makes an empty one. It
    /// is at what its tables hold: entries behind are to be applied again, from the log.
    ///
    /// # Errors
    /// The store's; [`MachineError::Meta`]; [`MachineError::Apart`] where the log lacks entries that
    /// the tables have or need. [`MachineError::Io`] where leftovers of transfers cannot be removed.
    pub fn open(
        dir: impl AsRef<Path>,
        log: ReplicaLog,
        options: MachineOptions,
    ) -> Result<Unsettled, MachineError> {
        let dir = dir.as_ref();
        let device = options.db.device.clone();
        remove(&*device, &transfers(dir))?;
        let journal = LogJournal::new(log.clone(), options.on_flush.clone());
        let mut db = options.db.clone();
        db.journal = Journal::External(journal.clone());
        let (transfer, reserve) = (staged(dir), options.db.disk_reserve.clone());
        let staged = staging::completed(&*device, &transfer)?;
        // What is there and was not taken over. Before the store is opened, which may lack this room.
        let relieve = || staging::relieve(&*device, &transfer, reserve.as_ref());
        if staged.is_none() {
            relieve();
        }
        let store = dir.join("store");
        device
            .create_dir_all(&store)
            .map_err(|error| MachineError::io("create", &store, error))?;
        let machine = Self(
            MachineInner {
                db: Db::open(&store, db)?,
                log,
                journal,
                dir: dir.to_owned(),
                options,
                applying: Mutex::default(),
                slots: GroupSlots::default(),
                stamps: AtomicU64::new(0),
            }
            .into(),
        );
        let position = machine.load(&mut machine.0.applying.lock())?;
        let gap = machine.check_log(position.as_ref(), staged.as_ref())?;
        if !gap {
            machine.tidy()?;
            if staged.is_some() {
                relieve();
            }
        }
        Ok(Unsettled::new(machine, gap))
    }

    /// Reads from the tables how far they are, and goes on from there.
    pub(super) fn load(&self, applying: &mut Applying) -> Result<Option<Position>, MachineError> {
        let db = &self.0.db;
        let applied = db.get(APPLIED)?;
        let applied = applied.as_deref().map(decode_applied).transpose();
        let applied = applied.map_err(|error| self.meta("the last entry that was applied", error))?;
        let membership = db.get(MEMBERSHIP)?;
        let membership = membership.as_deref().map(decode_membership).transpose();
        let membership = membership.map_err(|error| self.meta("the members of the group", error))?;
        // The sequence numbers say it too: two witnesses.
        let flushed = index_of(db.flushed());
        if applied.map(|id| id.index) != flushed {
            return Err(self.apart(format!(
                "its tables are flushed to entry {flushed:?}, and say {applied:?}"
            )));
        }
        let position = applied.map(|applied| Position { applied, membership });
        let slots = decode_bounds(db.get(BOUNDS)?.as_deref());
        let slots = slots.map_err(|error| self.meta("the slots of the group", error))?;
        self.0.journal.keep(&slots);
        self.0.slots.set(&slots);
        let stamps = decode_stamps(db.get(STAMPS)?.as_deref());
        self.0
            .set_stamps(stamps.map_err(|error| self.meta("the origin of stamps", error))?);
        applying.recorded = db.get(RECORDED)?.map(|recorded| recorded.to_vec());
        applying.counts.clear();
        let parts = PartsSoFar::decode(db.get(PARTS)?.as_deref());
        applying.parts = parts.map_err(|error| self.meta("the parts of effects", error))?;
        self.0.journal.positions().reset(position.as_ref());
        Ok(position)
    }

    /// Whether the log has all that the tables lack. Where it ends before the tables, because a stop
    /// came between their adoption and the purge, says so.
    fn check_log(
        &self,
        position: Option<&Position>,
        staged: Option<&Position>,
    ) -> Result<bool, MachineError> {
        let log = &self.0.log;
        let bounds = log.bounds();
        let applied = position.map(|position| position.applied);
        let index = applied.map(|applied| applied.index);
        if let Some(purged) = bounds.purged.filter(|purged| Some(purged.index) > index) {
            return Err(self.apart(format!(
                "its log was purged up to {purged}, and its tables end at {applied:?}"
            )));
        }
        let Some(applied) = applied else {
            return Ok(false);
        };
        if bounds.last.is_none_or(|last| last.index < applied.index) {
            if staged != position {
                return Err(self.apart(format!(
                    "its log ends at {:?}, and its tables at {applied}, which it did not learn",
                    bounds.last
                )));
            }
            return Ok(true);
        }
        match log.id(applied.index).filter(|id| *id != applied) {
            Some(other) => Err(self.apart(format!("its log has {other}, and its tables end at {applied}"))),
            None => Ok(false),
        }
    }

    fn apart(&self, problem: String) -> MachineError {
        MachineError::Apart {
            replica: self.replica(),
            problem,
        }
    }
}

/// A state machine whose tables may be ahead of its log. It goes on once the log says so.
#[derive(Debug)]
#[must_use = "the log must be purged before anything is appended or applied"]
pub struct Unsettled {
    machine: Machine,
    /// Whether the log is behind the tables.
    behind: bool,
}

impl Machine {
    /// Replaces everything by what was transferred. The order is: the files are durable, they become
    /// the content by one record of the store's manifest, and then the log is purged up to there, by
    /// [`Unsettled::settle`]. After a stop between the last two the tables are ahead of the log, and
    /// the next opening purges.
    ///
    /// # Errors
    /// [`MachineError::Order`] where more than that was applied meanwhile, and the store's: nothing
    /// was changed. [`MachineError::Adopted`] and [`MachineError::Meta`]: the store must be opened
    /// again.
    pub fn adopt(&self, staged: &Staged) -> Result<Unsettled, MachineError> {
        let inner = &*self.0;
        let mut applying = inner.applying.lock();
        let described = &staged.description.position;
        self.check_ahead(described)?;
        let seq = inner.db.adopt(staged.store())?;
        let found = self.load(&mut applying)?;
        let index = index_of(seq);
        if found.as_ref() != Some(described) || index != Some(described.applied.index) {
            let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
            return Err(MachineError::Adopted {
                replica: self.replica(),
                expected: described.to_string(),
                found: format!("{found}, by their numbers at entry {index:?}"),
            });
        }
        Ok(Unsettled::new(self.clone(), true))
    }
}

impl Machine {
    /// Removes what was staged and adopted, once the log is purged ([`Unsettled::settle`]): until then
    /// it says why the tables are ahead of the log. An opening does this too.
    ///
    /// # Errors
    /// [`MachineError::Io`].
    pub fn tidy(&self) -> Result<(), MachineError> {
        let device = &*self.0.options.db.device;
        let position = staging::completed(device, &self.staged())?;
        let applied = self.applied().map(|applied| applied.index);
        let last = self.0.log.bounds().last.map(|last| last.index);
        match position.map(|position| position.applied.index) {
            Some(index) if Some(index) <= applied && Some(index) <= last => remove(device, &self.staged()),
            _ => Ok(()),
        }
    }
}

impl Unsettled {
    pub(super) fn new(machine: Machine, behind: bool) -> Self {
        Self { machine, behind }
    }

    /// Purges the log up to where the tables are, if it is behind, and waits until that is durable.
    ///
    /// # Errors
    /// The log's.
    pub async fn settle(self) -> Result<Machine, MachineError> {
        let machine = self.machine;
        if self.behind
            && let Some(applied) = machine.applied()
        {
            machine.0.log.purge_durably(applied).await?;
        }
        Ok(machine)
    }
}

#[cfg(feature = "testing")]
impl Unsettled {
    /// Whether the log has yet to be purged.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
    }
}
