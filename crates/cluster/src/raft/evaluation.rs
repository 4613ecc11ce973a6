//! A command of a server, from the locks of its rows to the submission of what it changes.

use std::sync::Arc;
use std::time::Duration;

use collie_db::{OwnedRowLocks, Value};
use collie_server::cluster::{self, Leadership, Refused, Settled, Settling};
use tokio::time::Instant;

use crate::ids::LeaderId;
use crate::proposals::{Answer, Evaluation, NotOpen, Stale};
use crate::raft::commands::{Changes, Row, Submitted};
use crate::raft::replica::{CommandError, ReplicaError};
use crate::raft::running::Running;
use crate::raft::settling::answer;
use crate::raftlog::StoreError;
use crate::replica_store::data_key;
use crate::replica_store::effects::MAX_BYTES;

/// A command under way. Dropped, it changes nothing.
pub(super) struct Command {
    running: Arc<Running>,
    /// How long is waited for what becomes of it.
    within: Duration,
    slot: u16,
    evaluation: Evaluation,
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

    fn submit(self, changes: Changes) -> Result<Submitted, CommandError> {
        let submitted = submit(&self.running, self.evaluation, changes, self.now_ms);
        // Only now may others lock them: what they read is in the overlay.
        drop(self.rows);
        submitted
    }
}

/// Submits what a command changes, or the time that its reply needs, if that is in no entry yet.
fn submit(
    running: &Running,
    evaluation: Evaluation,
    changes: Changes,
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
    running.machine.log().admit().is_ok() && !running.most_are_full()
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
    let submitted = submit(running, evaluation, Changes::default(), now_ms).ok()?;
    Some(settling(running, submitted, deadline, Submits::Time))
}

impl cluster::Evaluation for Command {
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

    fn finish(
        self: Box<Self>,
        changes: Vec<(Vec<u8>, Option<Value>)>,
        keys: i64,
    ) -> Result<Settling, Refused> {
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
        let changes = Changes {
            rows: changes.into_iter().map(row).collect(),
            keys: (keys != 0).then_some((slot, keys)),
        };
        let running = Arc::clone(&self.running);
        let deadline = Instant::now() + self.within;
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
    let waits_for_log = matches!(error, CommandError::Log(_));
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
        | CommandError::Log(StoreError::Full { lasts: false, .. }) => Refused::NotNow,
        CommandError::NotOpen(NotOpen::Following)
        | CommandError::Replica(ReplicaError::NotRunning { .. })
        // The replica is being closed.
        | CommandError::Table(collie_db::Error::Closed) => Refused::NotHere,
        CommandError::Table(collie_db::Error::LockTimeout { .. } | collie_db::Error::Deadlock { .. }) => {
            Refused::Locked
        }
        // Their texts have the code: BUSY.
        CommandError::Log(_) | CommandError::MostFull => Refused::Text(error.to_string()),
        CommandError::Effects(error) => Refused::Text(format!(
            "ERR the changes of this command do not fit into one entry of the log, which has at most {MAX_BYTES} \
             bytes of them ({error})"
        )),
        error => Refused::Text(format!("ERR {error}")),
    }
}
