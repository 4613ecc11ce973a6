//! Commands that are evaluated as a server does it: by the trait objects that it sees.

use std::sync::Arc;
use std::time::Duration;

use collie_cluster::testing::{Replica, Row};
use collie_db::Value;
use collie_server::cluster::{Evaluation, Partition, Refused, Settled, Settling};
use tokio::sync::watch;

use crate::cluster::{CAP, Cluster, Place, replica_on};

/// The slots of the partition.
pub(crate) const LAST_SLOT: u16 = 99;

/// What a command changes, the keys that it adds, and its reply.
pub(crate) type Changed<T> = Result<(Vec<(Vec<u8>, Option<Value>)>, i64, T), Refused>;

pub(crate) fn number(value: Option<Value>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes((*value).try_into().unwrap()))
}

pub(crate) fn value(number: u64) -> Option<Value> {
    Some(Value::from(&number.to_le_bytes()[..]))
}

/// INCR, which counts the key where it is new.
pub(crate) fn incr(row: &[u8]) -> impl Fn(&mut dyn Evaluation) -> Changed<u64> {
    move |rows| {
        let before = rows.get(row)?;
        let keys = i64::from(before.is_none());
        let next = number(before) + 1;
        Ok((vec![(row.to_vec(), value(next))], keys, next))
    }
}

/// GET.
pub(crate) fn get(row: &[u8]) -> impl Fn(&mut dyn Evaluation) -> Changed<u64> {
    move |rows| Ok((Vec::new(), 0, number(rows.get(row)?)))
}

/// Evaluates a command, once.
pub(crate) fn evaluate<T>(
    partition: &dyn Partition,
    slot: u16,
    rows: &[&[u8]],
    patience: Duration,
    command: impl Fn(&mut dyn Evaluation) -> Changed<T>,
) -> Result<(Settling, T), Refused> {
    let mut evaluation = partition.begin(slot, rows, patience)?;
    let (changes, keys, reply) = command(&mut *evaluation)?;
    Ok((evaluation.finish(changes, keys)?, reply))
}

/// A lone GET: what the replica that leads has applied. `None` unless it has led without a break since then.
pub(crate) async fn read_applied(replica: &Arc<Replica>, row: &Row) -> Option<Option<Value>> {
    let partition = replica.partition(row.slot..=row.slot);
    let leadership = partition.leadership()?;
    let value = partition.applied().ok()?.get(row.slot, &row.key).ok()?;
    let settled = partition.confirm(leadership, partition.slots(), None).await;
    (settled == Settled::Holds).then_some(value)
}

impl Place {
    pub(crate) fn partition(&self) -> Option<Arc<dyn Partition>> {
        Some(self.replica()?.partition(0..=LAST_SLOT))
    }

    /// Whether its replica takes commands, or will soon.
    pub(crate) fn takes_commands(&self) -> bool {
        self.replica()
            .is_some_and(|replica| replica.leader() == Some(replica_on(self.id)))
    }
}

impl Cluster {
    /// The partition where it is led, and the changes of that node.
    pub(crate) fn led(&self) -> Option<(Arc<dyn Partition>, watch::Receiver<u64>)> {
        let place = self.places.iter().find(|place| place.takes_commands())?;
        // In this order: what changes behind this is not missed.
        let changes = place.changes()?;
        Some((place.partition()?, changes))
    }

    /// Evaluates a command wherever the partition is led, and waits until it settles: `Holds` or
    /// `Unknown`, and what it replied. Refusals are counted by `refused`.
    pub(crate) async fn command_noting<T>(
        &self,
        slot: u16,
        rows: &[&[u8]],
        refused: &mut impl FnMut(&Refused),
        command: impl Fn(&mut dyn Evaluation) -> Changed<T>,
    ) -> (Settled, T) {
        let asked = tokio::time::timeout(CAP, async {
            loop {
                let Some((partition, mut changes)) = self.led() else {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                };
                match evaluate(&*partition, slot, rows, Duration::ZERO, &command) {
                    Ok((settling, reply)) => match settling.await {
                        Settled::TryAgain => {}
                        settled => return (settled, reply),
                    },
                    Err(why) => {
                        refused(&why);
                        match why {
                            // An error: the node has ended.
                            Refused::NotNow => drop(changes.changed().await),
                            Refused::Locked | Refused::NotHere | Refused::Stale => {
                                tokio::task::yield_now().await;
                            }
                            Refused::Text(text) => panic!("a command is refused: {text}"),
                        }
                    }
                }
            }
        });
        asked.await.unwrap_or_else(|_| {
            let states: Vec<_> = self.places.iter().map(Place::state).collect();
            panic!("a command is not executed: {states:#?}")
        })
    }

    /// As [`Cluster::command_noting`], whatever refuses it.
    pub(crate) async fn command<T>(
        &self,
        slot: u16,
        rows: &[&[u8]],
        command: impl Fn(&mut dyn Evaluation) -> Changed<T>,
    ) -> (Settled, T) {
        self.command_noting(slot, rows, &mut |_| {}, command).await
    }

    /// The same of one row, for a thread that may wait.
    pub(crate) fn run<T>(
        &self,
        slot: u16,
        row: &[u8],
        command: impl Fn(&mut dyn Evaluation) -> Changed<T>,
    ) -> (Settled, T) {
        self.runtime.block_on(self.command(slot, &[row], command))
    }
}
