//! Taking over what another replica transferred, and bringing the log to where the tables are.

use crate::replica_store::error::MachineError;
use crate::replica_store::keys::index_of;
use crate::replica_store::open::remove;
use crate::replica_store::staging::{self, Staged};
use crate::replica_store::store::Machine;

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

    /// Whether the log has yet to be purged.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
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
