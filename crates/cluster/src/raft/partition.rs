//! A replica as a server sees it, a partition of the slots: a command, from the locks of its rows to the
//! submission of what it changes, and the rows, one after the other.

use std::future::ready;
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, vec};

use collie_db::{OwnedRowLocks, Value};
use collie_server::cluster::{
    Applied, Evaluation, Leadership, Partition, Refused, Rows, Settled, Settling, StoredRow, Walked,
};
use collie_server::duplication::stamp_changes;
use tokio::time::{Instant, timeout_at};

use crate::ids::LeaderId;
use crate::proposals::{Answer, Attempt, NotOpen, Stale, Standing};
use crate::raft::commands::{Row, RowChanges, Submitted, answer};
use crate::raft::error::{CommandError, ReplicaError};
use crate::raft::members::AppliedRows;
use crate::raft::replica::Replica;
use crate::raft::running::Running;
use crate::raftlog::StoreError;
use crate::replica_store::{DataPart, DataRow, GroupSlots, data_key};

/// The replica of a partition. It keeps the replica from being dropped, and not from being closed.
#[derive(Clone)]
struct ReplicaPartition {
    replica: Arc<Replica>,
    slots: RangeInclusive<u16>,
}

impl Replica {
    /// This replica as that of a partition of these slots. Cheap: it holds the replica and nothing
    /// else, and one is as good as another. It goes on working when the replica is opened again.
    #[must_use]
    pub fn partition(self: &Arc<Self>, slots: RangeInclusive<u16>) -> Arc<dyn Partition> {
        Arc::new(ReplicaPartition {
            replica: Arc::clone(self),
            slots,
        })
    }
}

impl fmt::Debug for ReplicaPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("group", &self.replica.group())
            .field("replica", &self.replica.id())
            .field("slots", &self.slots)
            .finish()
    }
}

impl ReplicaPartition {
    fn check(&self, slot: u16) -> Result<(), Refused> {
        if self.slots.contains(&slot) {
            return Ok(());
        }
        let (group, first, last) = (self.replica.group(), self.slots.start(), self.slots.end());
        let text = format!("ERR slot {slot} is not in partition {group}, which has slots {first} to {last}");
        Err(Refused::Text(text))
    }
}

/// What a partition has applied.
struct AppliedPartition {
    rows: AppliedRows,
    slots: ReplicaPartition,
    own: GroupSlots,
}

impl Applied for AppliedPartition {
    fn get(&self, slot: u16, row: &[u8]) -> Result<Option<Value>, Refused> {
        self.slots.check(slot)?;
        let read = self.rows.stored(data_key(slot, row));
        // Another group has the slot, and this one's rows of it may be gone.
        if !self.own.get().contains(&slot) {
            return Err(Refused::NotNow);
        }
        read.map_err(|error| text_of(error.into()))
    }
}

impl Partition for ReplicaPartition {
    fn group(&self) -> u64 {
        self.replica.group()
    }

    fn slots(&self) -> RangeInclusive<u16> {
        self.slots.clone()
    }

    fn begin(&self, slot: u16, rows: &[&[u8]], patience: Duration) -> Result<Box<dyn Evaluation>, Refused> {
        self.check(slot)?;
        let options = &self.replica.options;
        let running = self.replica.running();
        let running = running.map_err(|error| text_of(error.into()))?;
        let within = options.times.command;
        let clock_ms = options.clock.wall_ms();
        match Command::begin(Arc::clone(&running), within, clock_ms, (slot, rows), patience) {
            // In the run that it has begun in, no split is applied: that is the last entry of a run.
            Ok(_) if !running.machine.slots().contains(&slot) => Err(Refused::NotNow),
            Ok(command) => Ok(Box::new(command)),
            Err(error) => Err(refused(&running, error)),
        }
    }

    fn rows_after(&self, after: Option<(u16, &[u8])>) -> Result<Rows, Refused> {
        let scan = Scan::new(&self.replica, self.slots.clone(), after);
        Ok(Box::new(scan))
    }

    fn applied(&self) -> Result<Box<dyn Applied>, Refused> {
        let running = self.replica.running();
        let own = running
            .map_err(|error| text_of(error.into()))?
            .machine
            .group_slots();
        let rows = self.replica.applied_rows();
        Ok(Box::new(AppliedPartition {
            rows: rows.map_err(|error| text_of(error.into()))?,
            slots: self.clone(),
            own,
        }))
    }

    fn key_count(&self, slots: RangeInclusive<u16>) -> Result<u64, Refused> {
        let running = self.replica.running();
        let running = running.map_err(|error| text_of(error.into()))?;
        let counted = running.machine.keys_in_slots(&slots);
        counted.map_err(|error| Refused::Text(format!("ERR {error}")))
    }

    fn forgets_before_ms(&self) -> u64 {
        self.replica.forgets_before_ms()
    }

    fn leadership(&self) -> Option<Leadership> {
        let running = self.replica.running().ok()?;
        match running.commands.leading.standing() {
            Standing::Open(run) | Standing::Ending(run) => Some(leadership(run.leader)),
            Standing::Following => None,
        }
    }

    fn now_ms(&self) -> u64 {
        let options = &self.replica.options;
        let clock_ms = options.clock.wall_ms();
        match self.replica.running() {
            Ok(running) => now_ms(&running, clock_ms),
            Err(_) => clock_ms,
        }
    }

    fn confirm(&self, since: Leadership, slots: RangeInclusive<u16>, expired_ms: Option<u64>) -> Settling {
        let Ok(running) = self.replica.running() else {
            return Box::pin(ready(Settled::TryAgain));
        };
        let options = &self.replica.options;
        let deadline = Instant::now() + options.times.command;
        let raised = expired_ms.map(|expiry_ms| {
            let times = (expiry_ms.saturating_add(1), self.now_ms());
            raise(&running, times, deadline)
        });
        let (commands, own) = (Arc::clone(&running.commands), running.machine.group_slots());
        Box::pin(async move {
            let has_come = match raised {
                None => true,
                Some(None) => false,
                Some(Some(raised)) => raised.await == Settled::Holds,
            };
            let confirmed = timeout_at(deadline, commands.confirm()).await;
            // All that was committed before this was asked is applied: a split, too, behind which another group has
            // the slots, and may have changed them.
            let own = own.get();
            let are_own = own.contains(slots.start()) && own.contains(slots.end());
            match confirmed {
                Ok(Some(leader)) if has_come && are_own && leadership(leader) == since => Settled::Holds,
                _ => Settled::TryAgain,
            }
        })
    }
}

/// What becomes of large changes is waited for longer, by so many bytes a millisecond.
const BYTES_PER_MS: u64 = 4 << 10;

/// A command under way. Dropped, it changes nothing.
pub(super) struct Command {
    running: Arc<Running>,
    /// How long is waited for what becomes of it.
    within: Duration,
    slot: u16,
    evaluation: Attempt,
    now_ms: u64,
    rows: OwnedRowLocks,
}

impl Command {
    /// Locks the rows, each within `patience`, and notes who leads and in which run.
    pub(super) fn begin(
        running: Arc<Running>,
        within: Duration,
        clock_ms: u64,
        (slot, rows): (u16, &[&[u8]]),
        patience: Duration,
    ) -> Result<Self, CommandError> {
        let db = running.machine.db();
        let family = db.default_family();
        let keys: Vec<_> = rows.iter().map(|row| data_key(slot, row)).collect();
        let mut owner = db.row_owner("a command");
        let named = keys.iter().map(|key| (&family, &**key));
        let rows = db.lock_rows_owned(&mut owner, named, patience)?;
        let evaluation = running.begin(&family)?;
        let now_ms = evaluation.now_ms(moving(&running, clock_ms));
        Ok(Self {
            running,
            within,
            slot,
            evaluation,
            now_ms,
            rows,
        })
    }

    fn submit(self, changes: RowChanges) -> Result<Submitted, CommandError> {
        let submitted = submit(&self.running, self.evaluation, changes, self.now_ms);
        // Only now may others lock them: what they read is in the overlay.
        drop(self.rows);
        submitted
    }
}

/// Submits what a command changes, or the time that its reply needs, if that is in no entry yet.
fn submit(
    running: &Running,
    evaluation: Attempt,
    changes: RowChanges,
    now_ms: u64,
) -> Result<Submitted, CommandError> {
    let admitted = running.admit(&changes)?;
    if changes.rows.is_empty() && running.commands.leading.has_to_raise(&evaluation) && !commits(running) {
        // Evaluated anew by the time that stands still, it needs no entry.
        running.commands.set_time_stands(true);
        return Err(Stale.into());
    }
    Ok(running.commands.finish(evaluation, changes, admitted, now_ms)?)
}

/// Whether entries of this replica can be committed, as far as room goes.
fn commits(running: &Running) -> bool {
    running.machine.log().admit().is_ok() && running.most_are_full().is_none()
}

/// The clock's time, or none where time stands still.
fn moving(running: &Running, clock_ms: u64) -> u64 {
    if !running.commands.time_stands() {
        return clock_ms;
    }
    let moves = commits(running);
    running.commands.set_time_stands(!moves);
    if moves { clock_ms } else { 0 }
}

/// The time by which commands of a replica run now.
pub(super) fn now_ms(running: &Running, clock_ms: u64) -> u64 {
    let clock_ms = moving(running, clock_ms);
    running.commands.leading.now_ms(clock_ms)
}

/// Has time come to `needed_ms`, for what was read without a command by that time. None where an
/// attempt failed.
pub(super) fn raise(
    running: &Arc<Running>,
    (needed_ms, now_ms): (u64, u64),
    deadline: Instant,
) -> Option<Settling> {
    let mut evaluation = running.commands.leading.begin().ok()?;
    evaluation.needs(needed_ms);
    let submitted = submit(running, evaluation, RowChanges::default(), now_ms).ok()?;
    Some(settling(running, submitted, deadline, Submits::Time))
}

impl Evaluation for Command {
    fn leadership(&self) -> Leadership {
        leadership(self.evaluation.leader())
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn expired(&mut self, expiry_ms: u64) {
        self.evaluation.needs(expiry_ms.saturating_add(1));
    }

    fn get(&mut self, row: &[u8]) -> Result<Option<Value>, Refused> {
        let row = Row {
            slot: self.slot,
            key: row.to_vec(),
        };
        let Self {
            running, evaluation, ..
        } = self;
        let value = running.commands.leading.get(evaluation, &row, || {
            Ok::<_, CommandError>(running.machine.db().get(row.table_key())?)
        });
        value.map_err(|error| refused(running, error))
    }

    fn stamps(&self) -> Option<u64> {
        // It does not change in the run that it has begun in: stamps begin with the last entry of a run.
        self.running.machine.stamps()
    }

    fn finish(
        mut self: Box<Self>,
        mut changes: Vec<(Vec<u8>, Option<Value>)>,
        keys: i64,
    ) -> Result<Settling, Refused> {
        if let Some(origin) = self.stamps() {
            let now_ms = self.now_ms;
            stamp_changes(&mut changes, |row| self.get(row), now_ms, origin)?;
        }
        if changes.is_empty() && keys != 0 {
            let text =
                format!("ERR a command that changes no row has {keys} keys more; report this as a bug");
            return Err(Refused::Text(text));
        }
        let slot = self.slot;
        let submits = match changes.is_empty() {
            true => Submits::Time,
            false => Submits::Changes,
        };
        let row = |(key, value)| (Row { slot, key }, value);
        let changes = RowChanges {
            rows: changes.into_iter().map(row).collect(),
            keys: (keys != 0).then_some((slot, keys)),
        };
        let running = Arc::clone(&self.running);
        let of_bytes = Duration::from_millis(changes.bytes() / BYTES_PER_MS);
        let deadline = Instant::now() + self.within + of_bytes;
        match self.submit(changes) {
            Ok(submitted) => Ok(settling(&running, submitted, deadline, submits)),
            Err(error) => Err(refused(&running, error)),
        }
    }
}

/// A leader, as a server knows it.
pub(super) fn leadership(leader: LeaderId) -> Leadership {
    Leadership {
        term: leader.term,
        replica: leader.replica,
    }
}

/// What the entry of a command has, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Submits {
    Changes,
    /// Nothing but the time: to send the command again does no harm, whatever became of the entry.
    Time,
}

fn settling(running: &Running, submitted: Submitted, deadline: Instant, submits: Submits) -> Settling {
    let commands = Arc::clone(&running.commands);
    Box::pin(async move {
        match (answer(&commands, submitted, (), deadline).await, submits) {
            (Answer::Reply(()), _) => Settled::Holds,
            (Answer::TryAgain, _) | (Answer::Unknown, Submits::Time) => Settled::TryAgain,
            (Answer::Unknown, Submits::Changes) => Settled::Unknown,
        }
    })
}

/// Why a command cannot go on. One that is to wait is woken when it may begin.
pub(super) fn refused(running: &Running, error: CommandError) -> Refused {
    // What waits for the log is woken by who watches its room.
    let waits_for_log = matches!(error, CommandError::Log(_) | CommandError::MostFull { .. });
    let refused = text_of(error);
    if refused == Refused::NotNow && !waits_for_log {
        running.commands.refused();
    }
    refused
}

/// The same of one that has not come to a replica that runs.
pub(super) fn text_of(error: CommandError) -> Refused {
    match error {
        CommandError::Stale(_)
        // A snapshot was installed meanwhile.
        | CommandError::Table(
            collie_db::Error::FamilyDropped { .. } | collie_db::Error::FamilyTooNew { .. },
        ) => Refused::Stale,
        CommandError::NotOpen(NotOpen::Ending)
        | CommandError::NotSubmitted(_)
        // It is being made shorter.
        | CommandError::Log(StoreError::Full { lasts: false, .. })
        | CommandError::MostFull { lasts: false } => Refused::NotNow,
        CommandError::NotOpen(NotOpen::Following)
        | CommandError::Replica(ReplicaError::NotRunning { .. })
        // The replica is being closed.
        | CommandError::Table(collie_db::Error::Closed) => Refused::NotHere,
        CommandError::Table(collie_db::Error::LockTimeout { .. } | collie_db::Error::Deadlock { .. }) => {
            Refused::Locked
        }
        // Their texts have the code: BUSY.
        CommandError::Log(_)
        | CommandError::MostFull { .. }
        | CommandError::NotInParts { .. }
        | CommandError::TooLarge { .. } => Refused::Text(error.to_string()),
        error => Refused::Text(format!("ERR {error}")),
    }
}

/// Rows that are read at once: at first, then four times as many, and so on up to the last.
const FIRST_PART: usize = 16;
const PART_GROWTH: usize = 4;
const LARGEST_PART: usize = 1024;

/// Rows as they are applied. They are read a part at a time, and between two parts nothing is held:
/// neither memory nor files of the store, nor the replica, which may be closed meanwhile.
pub(super) struct Scan {
    replica: Weak<Replica>,
    slots: RangeInclusive<u16>,
    /// Where the next part begins.
    after: Option<(u16, Vec<u8>)>,
    part: vec::IntoIter<DataRow>,
    /// Entries that were passed over, and that it has not said so of.
    removed: u64,
    most: usize,
    /// Nothing is behind the part.
    is_last: bool,
}

impl Scan {
    pub(super) fn new(
        replica: &Arc<Replica>,
        slots: RangeInclusive<u16>,
        after: Option<(u16, &[u8])>,
    ) -> Self {
        Self {
            replica: Arc::downgrade(replica),
            slots,
            after: after.map(|(slot, key)| (slot, key.to_vec())),
            part: Vec::new().into_iter(),
            removed: 0,
            most: FIRST_PART,
            is_last: false,
        }
    }

    fn read(&mut self) -> Result<(), Refused> {
        let replica = self.replica.upgrade().ok_or(Refused::NotHere)?;
        let running = replica.running();
        let running = running.map_err(|error| text_of(error.into()))?;
        let after = self.after.as_ref().map(|(slot, key)| (*slot, &**key));
        let part = running.machine.rows_after(after, &self.slots, self.most);
        let DataPart { rows, removed, next } = part.map_err(|error| Refused::Text(format!("ERR {error}")))?;
        self.most = (self.most * PART_GROWTH).min(LARGEST_PART);
        self.is_last = next.is_none();
        // Behind all rows of the slot.
        self.after = next.or_else(|| Some((*self.slots.end(), vec![u8::MAX])));
        self.removed += removed;
        self.part = rows.into_iter();
        Ok(())
    }

    /// What was passed over, once all rows of the part were taken.
    fn removed(&mut self) -> Option<Walked> {
        let entries = std::mem::take(&mut self.removed);
        let (slot, row) = self.after.clone().filter(|_| entries > 0)?;
        Some(Walked::Removed { slot, row, entries })
    }
}

impl Iterator for Scan {
    type Item = Result<Walked, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(DataRow { slot, key, value }) = self.part.next() {
                let row = StoredRow {
                    slot,
                    row: key,
                    value,
                };
                return Some(Ok(Walked::Row(row)));
            }
            if let Some(removed) = self.removed() {
                return Some(Ok(removed));
            }
            if self.is_last {
                return None;
            }
            if let Err(refused) = self.read() {
                self.is_last = true;
                return Some(Err(refused));
            }
        }
    }
}
