//! The handle of a state machine: its options, the replica's log as its journal, and what it says without
//! changing anything.
//!
//! Data is read in its order, a part at a time: nothing is held from one part to the next.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{fmt, io};

use collie_db::{Db, Error as DbError, ExternalJournal, Options, Value};
use collie_io::Device;
use collie_log::Lsn;
use parking_lot::{Mutex, MutexGuard};

use crate::ids::{EntryId, ReplicaId};
use crate::raftlog::{Holding, ReplicaLog};
use crate::replica_store::error::MachineError;
use crate::replica_store::keys::{
    PartsSoFar, SLOTS, count_key, data_key, decode_count, encode_bounds, index_of, last_of, of_data_key,
    slot_of_key,
};
use crate::replica_store::positions::{Position, Positions};
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
pub struct Machine(pub(super) Arc<MachineInner>);

pub(super) struct MachineInner {
    pub(super) db: Db,
    pub(super) log: ReplicaLog,
    pub(super) journal: Arc<LogJournal>,
    pub(super) dir: PathBuf,
    pub(super) options: MachineOptions,
    /// One caller at a time applies or adopts.
    pub(super) applying: Mutex<Applying>,
    pub(super) slots: GroupSlots,
    /// The origin of the stamps that rows get; 0: they get none.
    pub(super) stamps: AtomicU64,
}

impl MachineInner {
    pub(super) fn set_stamps(&self, origin: Option<u64>) {
        // Release pairs with the Acquire in `Machine::stamps`.
        self.stamps.store(origin.unwrap_or(0), Ordering::Release);
    }
}

/// The slots of a group, as of the last entry that was applied. Clones say the same; none keeps the replica.
#[derive(Debug, Clone)]
pub(crate) struct GroupSlots(Arc<AtomicU32>);

impl Default for GroupSlots {
    fn default() -> Self {
        let all = encode_bounds(&(0..=SLOTS - 1));
        Self(Arc::new(AtomicU32::new(u32::from_le_bytes(all))))
    }
}

impl GroupSlots {
    pub(crate) fn get(&self) -> RangeInclusive<u16> {
        // Acquire pairs with the Release in `set`.
        let [first_low, first_high, last_low, last_high] = self.0.load(Ordering::Acquire).to_le_bytes();
        let (first, last) = ([first_low, first_high], [last_low, last_high]);
        u16::from_le_bytes(first)..=u16::from_le_bytes(last)
    }

    pub(super) fn set(&self, slots: &RangeInclusive<u16>) {
        let packed = u32::from_le_bytes(encode_bounds(slots));
        // Release pairs with the Acquire in `get`.
        self.0.store(packed, Ordering::Release);
    }
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

    /// The slots of the group, as of the last entry that was applied: entries with effects on others are not taken.
    /// Does not block.
    #[must_use]
    pub fn slots(&self) -> RangeInclusive<u16> {
        self.0.slots.get()
    }

    /// The same for who must not keep the replica.
    pub(crate) fn group_slots(&self) -> GroupSlots {
        self.0.slots.clone()
    }

    /// The origin of the stamps that rows get, as of the last entry that was applied; none: they get none. Does not
    /// block.
    #[must_use]
    pub fn stamps(&self) -> Option<u64> {
        // Acquire pairs with the Release in `set_stamps`.
        Some(self.0.stamps.load(Ordering::Acquire)).filter(|origin| *origin > 0)
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
    /// `unsent`: what clusters that rows are duplicated to have.
    pub(crate) fn holding(&self, followers: &[(ReplicaId, NodeId, u64)], unsent: &[u64]) -> Holding {
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
            _ if unsent.iter().any(|has| Some(*has) <= purged) => Holding::Target,
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

/// A part ends behind the row that brings it to so many bytes.
const PART_BYTES: usize = 256 << 10;
/// A part ends when it has passed over so many entries of removed rows.
const PART_REMOVED: u64 = 1024;

/// A key of the data, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRow {
    /// The slot.
    pub slot: u16,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Value,
}

/// A part of the data.
#[derive(Debug, Default)]
pub struct DataPart {
    /// Its rows.
    pub rows: Vec<DataRow>,
    /// Entries of removed rows that were passed over.
    pub removed: u64,
    /// The slot and key behind which the next part begins; `None` where nothing follows.
    pub next: Option<(u16, Vec<u8>)>,
}

impl Machine {
    /// The next rows of these slots behind `after`, or the first ones: `most` at most, and no more
    /// once they have 256 KiB, or many removed ones were passed over.
    ///
    /// # Errors
    /// The store's.
    pub fn rows_after(
        &self,
        after: Option<(u16, &[u8])>,
        slots: &RangeInclusive<u16>,
        most: usize,
    ) -> Result<DataPart, MachineError> {
        let (first, last) = (*slots.start(), *slots.end());
        let from = match after.filter(|(slot, _)| *slot >= first) {
            Some((slot, key)) => Bound::Excluded(data_key(slot, key)),
            None => Bound::Included(data_key(first, b"")),
        };
        let to = Bound::Excluded(data_key(last.saturating_add(1), b""));
        // After an adoption an older handle is of the old content.
        let family = self.db().default_family();
        let mut part = DataPart::default();
        let mut bytes = 0;
        let mut found = family.range((from, to))?;
        found.set_max_skippable_internal_keys(PART_REMOVED);
        while let Some(row) = found.next() {
            let full = match row {
                Err(DbError::Incomplete { at }) => at,
                row => {
                    let (full, value) = row?;
                    let Some((slot, key)) = of_data_key(&full) else {
                        continue;
                    };
                    bytes += full.len() + value.len();
                    let key = key.to_vec();
                    part.rows.push(DataRow { slot, key, value });
                    full
                }
            };
            let is_passed = found.internal_keys_skipped() >= PART_REMOVED;
            if part.rows.len() >= most || bytes >= PART_BYTES || is_passed {
                part.next = of_data_key(&full).map(|(slot, key)| (slot, key.to_vec()));
                break;
            }
        }
        part.removed = found.internal_keys_skipped();
        Ok(part)
    }

    /// How many keys these slots have, as the entries counted them.
    ///
    /// # Errors
    /// The store's, and [`MachineError::Meta`].
    pub fn keys_in_slots(&self, slots: &RangeInclusive<u16>) -> Result<u64, MachineError> {
        let family = self.db().default_family();
        let counts = count_key(*slots.start())..=count_key(*slots.end());
        let mut sum: u64 = 0;
        for found in family.range(counts)? {
            let (_, bytes) = found?;
            let count = decode_count(Some(&bytes));
            let count = count.map_err(|error| self.meta("the count of a slot", error))?;
            sum = sum.saturating_add(count);
        }
        Ok(sum)
    }
}

/// What the store asks of the log, and what it reports.
pub(super) struct LogJournal {
    log: ReplicaLog,
    positions: Mutex<Positions>,
    /// The most that was ever called durable. A rewrite gives entries another place, which is not
    /// durable at once; the old one is kept until then.
    durable: AtomicU64,
    on_flush: Option<OnFlush>,
    /// The slots whose rows merges of tables keep: behind a split, once that is in tables.
    kept: Mutex<Kept>,
}

/// The slots of a group as the tables say, and behind entries that are in none yet.
#[derive(Debug)]
struct Kept {
    slots: RangeInclusive<u16>,
    /// The index of the last split, and the slots behind it.
    next: Option<(u64, RangeInclusive<u16>)>,
}

impl fmt::Debug for LogJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogJournal").field(&self.log).finish()
    }
}

impl LogJournal {
    pub(super) fn new(log: ReplicaLog, on_flush: Option<OnFlush>) -> Arc<Self> {
        Arc::new(Self {
            log,
            positions: Mutex::default(),
            durable: AtomicU64::new(0),
            on_flush,
            kept: Mutex::new(Kept {
                slots: 0..=SLOTS - 1,
                next: None,
            }),
        })
    }

    pub(super) fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock()
    }

    /// The tables say that these are the slots of the group.
    pub(super) fn keep(&self, slots: &RangeInclusive<u16>) {
        *self.kept.lock() = Kept {
            slots: slots.clone(),
            next: None,
        };
    }

    /// The same of an entry, which is not in tables before the next flush.
    pub(super) fn keep_from(&self, index: u64, slots: &RangeInclusive<u16>) {
        self.kept.lock().next = Some((index, slots.clone()));
    }
}

impl ExternalJournal for LogJournal {
    fn durable(&self) -> Lsn {
        let now = self.log.durable_through().map_or(0, last_of);
        self.durable.fetch_max(now, Ordering::Relaxed).max(now)
    }

    fn wait_durable(&self, seq: Lsn) -> io::Result<()> {
        match index_of(seq) {
            Some(index) => self.log.wait_durable(index).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    fn flushed(&self, seq: Lsn) {
        let Some(index) = index_of(seq) else {
            return;
        };
        self.positions.lock().flush(index);
        let mut kept = self.kept.lock();
        if let Some((_, slots)) = kept.next.take_if(|(split, _)| *split <= index) {
            kept.slots = slots;
        }
        drop(kept);
        if let Some(on_flush) = &self.on_flush {
            on_flush(index);
        }
    }

    fn keeps(&self, key: &[u8]) -> bool {
        slot_of_key(key).is_none_or(|slot| self.kept.lock().slots.contains(&slot))
    }
}

/// What applying goes on from.
#[derive(Debug, Default)]
pub(super) struct Applying {
    /// As the tables have it.
    pub(super) recorded: Option<Vec<u8>>,
    /// How many keys slots have, as far as that was asked for: at most one number for each slot.
    pub(super) counts: BTreeMap<u16, u64>,
    /// The parts of effects of which the last has not come.
    pub(super) parts: Option<PartsSoFar>,
}

/// Removes a directory, if it is there.
pub(super) fn remove(device: &dyn Device, dir: &Path) -> Result<(), MachineError> {
    match device.remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(MachineError::io("remove", dir, error))
        }
        _ => Ok(()),
    }
}
