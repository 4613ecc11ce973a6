//! The handle of a state machine, and what it says without changing anything.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{Db, Options};
use parking_lot::Mutex;

use crate::ids::{EntryId, ReplicaId};
use crate::raftlog::{Holding, ReplicaLog};
use crate::replica_store::apply::Applying;
use crate::replica_store::error::MachineError;
use crate::replica_store::journal::LogJournal;
use crate::replica_store::keys::count_key;
use crate::replica_store::meta::decode_count;
use crate::replica_store::positions::{Membership, Position};
use crate::replica_store::proposals::Proposals;
use crate::transport::wire::NodeId;

/// Called with the index that the tables reach, each time that this rises: on the thread that
/// flushed. It must neither block nor flush.
pub type OnFlush = Arc<dyn Fn(u64) + Send + Sync>;

/// How a state machine is opened.
#[derive(Clone)]
pub struct MachineOptions {
    /// The options of its store. Its journal is always the replica's log. The device is also that of
    /// transfers.
    pub db: Options,
    /// Which entries are taken.
    pub proposals: Arc<dyn Proposals>,
    /// Called after each flush. Default: none.
    pub on_flush: Option<OnFlush>,
}

impl MachineOptions {
    /// The default options of a store, and these rules.
    #[must_use]
    pub fn new(proposals: Arc<dyn Proposals>) -> Self {
        Self {
            db: Options::default(),
            proposals,
            on_flush: None,
        }
    }
}

impl fmt::Debug for MachineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineOptions")
            .field("db", &self.db)
            .field("proposals", &self.proposals)
            .finish_non_exhaustive()
    }
}

/// The state machine of one replica. Clones are handles to the same.
#[derive(Clone)]
pub struct Machine(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) db: Db,
    pub(super) log: ReplicaLog,
    pub(super) journal: Arc<LogJournal>,
    pub(super) dir: PathBuf,
    pub(super) options: MachineOptions,
    /// One caller at a time applies or adopts.
    pub(super) applying: Mutex<Applying>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("log", &self.0.log)
            .field("dir", &self.0.dir)
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// The last entry that was applied. Does not block.
    #[must_use]
    pub fn applied(&self) -> Option<EntryId> {
        self.0.journal.positions().last()
    }

    /// The members of the group, as of the last entry that was applied. Does not block.
    #[must_use]
    pub fn membership(&self) -> Option<Membership> {
        self.position()?.membership
    }

    /// How far it is: the last entry that was applied, and the members as of then. Does not block.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.0.journal.positions().now()
    }

    /// The snapshot: what is in tables, which is what an opening would find. Costs nothing, and does
    /// not block: the files are linked by [`Machine::transfer`].
    #[must_use]
    pub fn snapshot(&self) -> Option<Position> {
        self.0.journal.positions().in_tables()
    }

    /// What [`Proposals`] recorded of the last entry that was taken, as of the last entry that was
    /// applied.
    #[must_use]
    pub fn recorded(&self) -> Option<Vec<u8>> {
        self.0.applying.lock().recorded.clone()
    }

    /// Brings everything that is applied into tables, once the log is durable up to there.
    ///
    /// # Errors
    /// The store's.
    pub fn flush(&self) -> Result<(), MachineError> {
        Ok(self.0.db.flush()?)
    }

    /// The log may be purged up to this index, if there is anything to purge: everything that goes is
    /// in tables, and the log does not [keep](crate::Retention) it, for transfers and `needed` longer than
    /// for others; each of `needed` is the last index that a follower or another reader of the log has.
    /// Does not block.
    #[must_use]
    pub fn purge_limit(&self, needed: impl IntoIterator<Item = u64>) -> Option<u64> {
        let (unasked, beyond) = self.0.log.dispensable();
        self.purge_within(needed, unasked, beyond)
    }

    /// The same where a follower is to get tables instead of entries: the log keeps none but those that
    /// others lack.
    pub(crate) fn purge_limit_for_tables(&self, needed: impl IntoIterator<Item = u64>) -> Option<u64> {
        let (_, beyond) = self.0.log.dispensable();
        self.purge_within(needed, Some(u64::MAX), beyond)
    }

    fn purge_within(
        &self,
        needed: impl IntoIterator<Item = u64>,
        unasked: Option<u64>,
        beyond: Option<u64>,
    ) -> Option<u64> {
        let (flushed, held) = {
            let positions = self.0.journal.positions();
            (positions.flushed()?, positions.held())
        };
        let wanted = needed.into_iter().chain(held).chain([unasked?]).min();
        let limit = wanted.max(beyond)?.min(flushed);
        let purged = self.0.log.bounds().purged.map(|purged| purged.index);
        (purged < Some(limit)).then_some(limit)
    }

    /// Why the log has entries that are applied here, of which these followers are so far.
    pub(crate) fn holding(&self, followers: &[(ReplicaId, NodeId, u64)]) -> Holding {
        let purged = self.0.log.bounds().purged.map(|purged| purged.index);
        let positions = self.0.journal.positions();
        let (flushed, held) = (positions.flushed(), positions.held());
        let behind = followers.iter().min_by_key(|(_, _, last)| *last);
        match behind {
            _ if flushed <= purged => Holding::Tables,
            _ if held.is_some_and(|held| Some(held) <= purged) => Holding::Transfer,
            Some(&(replica, node, last)) if Some(last) < flushed && Some(last) <= purged => {
                Holding::Follower { replica, node }
            }
            _ => Holding::Margin,
        }
    }

    /// The store, for reads. After [`Machine::adopt`] its handles of families are of the old content.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.0.db
    }

    /// The replica's log.
    #[must_use]
    pub fn log(&self) -> &ReplicaLog {
        &self.0.log
    }

    /// How many keys a slot has, as the entries counted them.
    ///
    /// # Errors
    /// The store's, and [`MachineError::Meta`].
    pub fn keys_in_slot(&self, slot: u16) -> Result<u64, MachineError> {
        let bytes = self.0.db.get(count_key(slot))?;
        decode_count(bytes.as_deref()).map_err(|error| self.meta("the count of a slot", error))
    }

    /// Closes the store. What is not in tables is in the log.
    ///
    /// # Errors
    /// The store's.
    pub fn close(self) -> Result<(), MachineError> {
        Ok(self.0.db.clone().close()?)
    }

    pub(super) fn replica(&self) -> ReplicaId {
        self.0.log.replica()
    }

    pub(super) fn meta(&self, what: &'static str, error: crate::replica_store::FieldError) -> MachineError {
        MachineError::Meta {
            replica: self.replica(),
            what,
            error,
        }
    }

    /// Where transfers to others have their files.
    pub(super) fn transfers(&self) -> PathBuf {
        transfers(&self.0.dir)
    }

    /// Where a transfer from another has its files.
    pub(super) fn staged(&self) -> PathBuf {
        staged(&self.0.dir)
    }
}

/// Where transfers to others have their files.
pub(super) fn transfers(dir: &Path) -> PathBuf {
    dir.join("transfers")
}

/// Where a transfer from another has its files.
pub(super) fn staged(dir: &Path) -> PathBuf {
    dir.join("staged")
}
