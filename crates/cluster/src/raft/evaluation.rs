//! A command of a server, from the locks of its rows to the submission of what it changes.

use std::sync::Arc;
use std::time::Duration;

use collie_db::{OwnedRowLocks, Value};
use collie_server::cluster::{self, Leadership, Refused, Settled, Settling};
use tokio::time::Instant;

use crate::ids::LeaderId;
use crate::machine::data_key;
use crate::machine::effects::MAX_BYTES;
use crate::proposals::{Answer, Evaluation, NotOpen};
use crate::raft::commands::{Changes, Row, Submitted};
use crate::raft::replica::{CommandError, ReplicaError};
use crate::raft::running::Running;
use crate::raft::settling::answer;
use crate::store::StoreError;

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
        let now_ms = evaluation.now_ms(clock_ms);
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
        let Self {
            running,
            evaluation,
            now_ms,
            rows,
            ..
        } = self;
        let admitted = running.admit(&changes)?;
        let submitted = running.commands.finish(evaluation, changes, admitted, now_ms);
        // Only now may others lock them: what they read is in the overlay.
        drop(rows);
        Ok(submitted?)
    }
}

impl cluster::Evaluation for Command {
    fn leadership(&self) -> Leadership {
        leadership(self.evaluation.leader())
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
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
        let row = |(key, value)| (Row { slot, key }, value);
        let changes = Changes {
            rows: changes.into_iter().map(row).collect(),
            keys: (keys != 0).then_some((slot, keys)),
        };
        let running = Arc::clone(&self.running);
        let deadline = Instant::now() + self.within;
        match self.submit(changes) {
            Ok(submitted) => Ok(settling(&running, submitted, deadline)),
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

fn settling(running: &Running, submitted: Submitted, deadline: Instant) -> Settling {
    let commands = Arc::clone(&running.commands);
    Box::pin(async move {
        match answer(&commands, submitted, (), deadline).await {
            Answer::Reply(()) => Settled::Holds,
            Answer::TryAgain => Settled::TryAgain,
            Answer::Unknown => Settled::Unknown,
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
