//! Running commands in the partition that their keys are in.
//!
//! A command that cannot run is tried again here where that may help at once. Otherwise it waits in
//! its connection, which sends the replies before it first ([`Flow::Later`]).

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{Cluster, Endpoint, Leadership, Partition, Refused, Route, slot_of};
use crate::cost::Aside;
use crate::data::value;
use crate::exec::{Exec, Flow, Later, Noted, Outcome, Transaction};
use crate::failure::{Failure, text};
use crate::partitions::transaction::PartitionTransaction;

/// How often a command is tried at once. Each try fails only because something has changed.
const TRIES: u32 = 16;
/// How long a command waits for a slot that has no leader.
const LEADER_WAIT: Duration = Duration::from_secs(2);
/// How long a command waits for a partition that takes no commands at the moment.
const BUSY_WAIT: Duration = Duration::from_secs(10);
/// How long a command waits for a row that another one has locked, on a thread that may block.
/// Commands hold rows for as long as they compute, and never while they wait.
pub(crate) const ROW_WAIT: Duration = Duration::from_secs(30);

/// The keys of a command, or of the commands of an `EXEC`.
#[derive(Debug)]
pub(crate) struct CommandKeys {
    slot: u16,
    /// In the engine's form, sorted.
    rows: Arc<[Vec<u8>]>,
    /// Whether the commands change nothing.
    only_reads: bool,
}

impl CommandKeys {
    /// The keys; `None` if there are none.
    ///
    /// # Errors
    /// They are not all in one slot.
    pub(crate) fn of<'k>(
        keys: impl Iterator<Item = &'k [u8]>,
        only_reads: bool,
    ) -> Result<Option<CommandKeys>, Failure> {
        let mut slot = None;
        let mut rows = Vec::new();
        for key in keys {
            let own = slot_of(key);
            if *slot.get_or_insert(own) != own {
                return Err(text::CROSS_SLOT.into());
            }
            let mut row = Vec::with_capacity(key.len() + 1);
            value::data_key(&mut row, key);
            rows.push(row);
        }
        rows.sort_unstable();
        rows.dedup();
        Ok(slot.map(|slot| CommandKeys {
            slot,
            rows: rows.into(),
            only_reads,
        }))
    }
}

impl CommandKeys {
    /// Further rows of the same slot, which are no users' keys.
    pub(crate) fn and(self, more: impl IntoIterator<Item = Vec<u8>>) -> CommandKeys {
        let mut rows = self.rows.to_vec();
        rows.extend(more);
        rows.sort_unstable();
        rows.dedup();
        CommandKeys {
            rows: rows.into(),
            ..self
        }
    }
}

/// Why a command did not run.
enum Halt {
    NoLeader,
    Refused(Refused),
}

impl From<Refused> for Halt {
    fn from(refused: Refused) -> Halt {
        Halt::Refused(refused)
    }
}

/// Runs a command in the partition of its keys. `work` may run several times, and what it encodes
/// and changes counts once. What the reply waits for is in the session's `unsettled` then.
pub(crate) fn evaluate<'a>(
    exec: &mut Exec<'a>,
    keys: &CommandKeys,
    mut work: impl FnMut(&mut Exec<'a>) -> Outcome,
) -> Outcome {
    let shared = exec.shared;
    let Some(partitions) = &shared.partitions else {
        return Err("ERR internal error: there is no cluster".into());
    };
    let mut is_first = true;
    retried(exec, &*partitions.cluster, keys.slot, |exec| {
        let is_first = std::mem::take(&mut is_first);
        attempt(exec, &*partitions.cluster, (keys, is_first), &mut work)
    })
}

/// Checks that a command on these keys could begin here: what `MULTI` checks of a command before it
/// is queued.
pub(crate) fn check(exec: &mut Exec<'_>, keys: &CommandKeys) -> Outcome {
    let shared = exec.shared;
    let Some(partitions) = &shared.partitions else {
        return Err("ERR internal error: there is no cluster".into());
    };
    retried(exec, &*partitions.cluster, keys.slot, |exec| {
        match partitions.cluster.route(keys.slot) {
            Route::Here(_) => Ok(Ok(Flow::Next)),
            _ if is_replica_enough(exec, &*partitions.cluster, keys) => Ok(Ok(Flow::Next)),
            Route::At(to) => Ok(Err(moved(keys.slot, &to))),
            Route::Nowhere => Err(Halt::NoLeader),
        }
    })
}

/// Tries until it succeeds, or until trying at once does not help.
fn retried<'a>(
    exec: &mut Exec<'a>,
    cluster: &dyn Cluster,
    slot: u16,
    mut attempt: impl FnMut(&mut Exec<'a>) -> Result<Outcome, Halt>,
) -> Outcome {
    let start = exec.reply.len();
    let mut changes = None;
    let mut latest = Halt::NoLeader;
    for _ in 0..TRIES {
        let halt = match attempt(exec) {
            Ok(outcome) => return outcome,
            Err(halt) => halt,
        };
        exec.reply.truncate(start);
        exec.noted = Noted::default();
        match halt {
            Halt::Refused(Refused::Locked) if !exec.may_block => return Ok(Flow::Aside(Aside::Waits)),
            Halt::Refused(Refused::Locked) => {
                return Err("TRYAGAIN other commands have worked on the same key for too long".into());
            }
            Halt::Refused(Refused::Text(text)) => return Err(text.into()),
            Halt::Refused(Refused::Stale | Refused::NotHere) => {}
            // It was tried with changes that count as seen: only a newer one helps.
            Halt::NoLeader | Halt::Refused(Refused::NotNow) if changes.is_some() => {
                latest = halt;
                break;
            }
            Halt::NoLeader | Halt::Refused(Refused::NotNow) => {}
        }
        latest = halt;
        if changes.is_none() {
            // What changes from here on wakes the command, so it is tried once more before it waits.
            let mut seen = cluster.changes();
            seen.borrow_and_update();
            changes = Some(seen);
        }
    }
    let (failure, limit) = match latest {
        Halt::NoLeader => (text::no_leader(is_assigned(cluster, slot)), LEADER_WAIT),
        Halt::Refused(_) => (text::BUSY, BUSY_WAIT),
    };
    match changes {
        Some(changes) if exec.may_wait => Ok(Flow::Later(Later::Change { changes, limit })),
        Some(_) | None => Err(failure.into()),
    }
}

fn attempt<'a>(
    exec: &mut Exec<'a>,
    cluster: &dyn Cluster,
    (keys, is_first): (&CommandKeys, bool),
    work: &mut impl FnMut(&mut Exec<'a>) -> Outcome,
) -> Result<Outcome, Halt> {
    let rows = Arc::clone(&keys.rows);
    let transaction = match cluster.route(keys.slot) {
        Route::Here(partition) => match reads_alone(exec, keys, &*partition).filter(|_| is_first) {
            Some(leadership) => {
                let applied = partition.applied()?;
                PartitionTransaction::applied((partition, leadership), applied, keys.slot, rows)
            }
            None => {
                let patience = if exec.may_block { ROW_WAIT } else { Duration::ZERO };
                let locked: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
                let evaluation = partition.begin(keys.slot, &locked, patience)?;
                PartitionTransaction::leading(evaluation, keys.slot, rows)
            }
        },
        elsewhere => {
            let replica = Some(keys.slot).filter(|_| is_replica_enough(exec, cluster, keys));
            match (replica.and_then(|slot| cluster.replica(slot)), elsewhere) {
                (Some(partition), _) => {
                    let applied = partition.applied()?;
                    PartitionTransaction::lagging(applied, keys.slot, exec.shared.now_ms(), rows)
                }
                (None, Route::At(to)) => return Ok(Err(moved(keys.slot, &to))),
                (None, _) => return Err(Halt::NoLeader),
            }
        }
    };
    exec.now_ms = transaction.now_ms();
    exec.transaction = Some(Transaction::Partition(Box::new(transaction)));
    let done = work(exec);
    let Some(Transaction::Partition(transaction)) = exec.transaction.take() else {
        return Ok(Err("ERR internal error: the transaction was lost".into()));
    };
    match done {
        Ok(Flow::Aside(_) | Flow::Later(_)) | Err(Failure::Aside(_)) => return Ok(done),
        Err(Failure::Refused(refused)) => return Err(refused.into()),
        Ok(_) | Err(_) => {}
    }
    // The reply of a command that failed depends on what it read, too.
    let settling = transaction.finish(exec.shared, done.is_ok())?;
    exec.session.unsettled.add(settling);
    exec.count_noted();
    Ok(done)
}

/// Who leads, where a command reads what its leader has applied, without locks: one that changes nothing, and
/// has no command of its connection before it whose reply waits. All that was answered is applied, so that
/// it sees that. Where that is not enough, as a key was found expired, it is evaluated at the second attempt.
fn reads_alone(exec: &Exec<'_>, keys: &CommandKeys, partition: &dyn Partition) -> Option<Leadership> {
    let is_alone = keys.only_reads && exec.session.unsettled.is_empty();
    is_alone.then(|| partition.leadership())?
}

/// Whether the client allows reads from replicas (`READONLY`), and this node has one.
fn is_replica_enough(exec: &Exec<'_>, cluster: &dyn Cluster, keys: &CommandKeys) -> bool {
    keys.only_reads && exec.session.reads_replicas && cluster.replica(keys.slot).is_some()
}

fn moved(slot: u16, to: &Endpoint) -> Failure {
    // Redis writes the address of IPv6 without brackets, and clients split at the last colon.
    format!("MOVED {slot} {}:{}", to.host(), to.address.port()).into()
}

fn is_assigned(cluster: &dyn Cluster, slot: u16) -> bool {
    let topology = cluster.topology();
    topology
        .partitions
        .iter()
        .any(|partition| partition.slots.contains(&slot))
}
