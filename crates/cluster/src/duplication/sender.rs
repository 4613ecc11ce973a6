//! What the leader of a partition sends to a target: first all rows, and then those that entries change.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_server::cluster::{Partition, Refused, Settled, Walked};
use collie_server::duplication::{key_of, record, rows_of};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::blocking::blocking;
use crate::duplication::target::{MergeRow, TargetCluster};
use crate::ids::{GroupId, ReplicaId};
use crate::raft::{ChangedRows, Replica, Row};
use crate::replica_store::{SentTo, sent_key};

/// Entries are read in parts of about so many bytes, and so are rows.
const PART_BYTES: u64 = 1 << 20;
const PART_ROWS: usize = 1000;
/// How far it is, is noted so often, at most.
const NOTED: Duration = Duration::from_secs(1);
/// Entries with nothing to be sent are noted when there are so many.
const UNNOTED: u64 = 1000;
/// Where no entry comes, it is looked whether the replica leads.
const LOOK: Duration = Duration::from_secs(30);
/// How long is waited for the row that says how far it is: only this task has it.
const ROW_WAIT: Duration = Duration::from_secs(1);
/// After a failure it is tried again after so long, and after each further one after twice the time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What sends one partition to one target, while this node leads it.
pub(crate) struct Sender {
    pub(crate) replica: Arc<Replica>,
    pub(crate) target: Arc<TargetCluster>,
    /// The number of the target.
    pub(crate) number: u64,
    /// The origin of the target's own stamps.
    pub(crate) theirs: u64,
    /// Of this cluster's.
    pub(crate) own: u64,
    /// An operator has it send nothing.
    pub(crate) is_paused: bool,
    pub(crate) state: Arc<SenderState>,
}

/// How far a sender is.
#[derive(Debug, Default)]
pub(crate) struct SenderState {
    now: Mutex<Option<SentTo>>,
    /// Rows that the target has taken, or had.
    pub(crate) rows: AtomicU64,
    problem: Mutex<Option<(Instant, String)>>,
}

impl SenderState {
    /// How far it is; none before it knows.
    pub(crate) fn now(&self) -> Option<SentTo> {
        self.now.lock().clone()
    }

    /// What keeps it from going on, and since when.
    pub(crate) fn problem(&self) -> Option<(Duration, String)> {
        let problem = self.problem.lock();
        problem
            .as_ref()
            .map(|(since, text)| (since.elapsed(), text.clone()))
    }

    fn set_problem(&self, text: Option<String>) {
        let mut problem = self.problem.lock();
        let since = problem.take().map(|(since, _)| since);
        *problem = text.map(|text| (since.unwrap_or_else(Instant::now), text));
    }
}

impl Sender {
    /// Sends while the replica leads. It may be dropped at any time: the next one goes on.
    pub(crate) async fn run(self) {
        let mut pause = FIRST_PAUSE;
        while self.replica.leads_in().is_some() {
            let before = self.state.rows.load(Ordering::Relaxed);
            let done = match self.is_paused {
                true => self.stand().await,
                false => self.send().await,
            };
            let Err(problem) = done else { return };
            // Relaxed, here and above: this task alone counts.
            if self.state.rows.load(Ordering::Relaxed) != before {
                pause = FIRST_PAUSE;
            }
            tracing::debug!(group = self.replica.group(), problem, "rows are not sent yet");
            self.state.set_problem(Some(problem));
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Sends nothing until it is ended, and shows how far the target is: entries behind that are kept for it.
    async fn stand(&self) -> Result<(), String> {
        let noted = self.noted().await?;
        *self.state.now.lock() = noted;
        self.state.set_problem(None);
        pending().await
    }

    /// Sends until the replica leads no more.
    async fn send(&self) -> Result<(), String> {
        let mut now = match self.noted().await? {
            Some(noted) => noted,
            None => self.copy_anew().await?,
        };
        let mut noted = (Instant::now(), now.needed());
        // What was sent is.
        let mut is_noted = true;
        let mut progress = self.replica.progress().map_err(|error| error.to_string())?;
        while let Some(term) = self.replica.leads_in() {
            *self.state.now.lock() = Some(now.clone());
            // Before the entries are looked at: one that comes behind them wakes this.
            drop(progress.borrow_and_update());
            let next = match now.clone() {
                SentTo::Copy { from, after } => self.copy(from, after).await?,
                SentTo::Tail(index) => match self.tail(index).await? {
                    Some(next) => next,
                    None => SentPart {
                        now: self.copy_anew().await?,
                        sent: 0,
                    },
                },
            };
            self.state.set_problem(None);
            let is_idle = next.sent == 0 && next.now == now;
            is_noted &= next.sent == 0 && next.now.is_copy() == now.is_copy();
            now = next.now;
            // An entry that notes it changes nothing to be sent, and is not noted itself.
            let is_far = now.needed() > noted.1 + UNNOTED;
            if is_far || !is_noted && (noted.0.elapsed() >= NOTED || is_idle) {
                self.note(&now).await?;
                is_noted = true;
                noted = (Instant::now(), now.needed());
            }
            if is_idle && self.replica.leads_in() == Some(term) {
                // An error: it ends, or is opened anew.
                drop(timeout(LOOK, progress.changed()).await);
            }
        }
        Ok(())
    }

    /// How far the leaders before this one have noted it to be.
    async fn noted(&self) -> Result<Option<SentTo>, String> {
        let replica = Arc::clone(&self.replica);
        let sent = blocking(move || replica.sent_to()).await;
        let sent = sent.map_err(|error| error.to_string())?;
        let own = sent.into_iter().find(|(number, _)| *number == self.number);
        Ok(own.map(|(_, sent)| sent))
    }

    /// All rows are to be sent, and then what is written from now on. That is noted before the first is, so that the
    /// log keeps what is written.
    async fn copy_anew(&self) -> Result<SentTo, String> {
        let from = self.replica.applied_index().map_err(|error| error.to_string())?;
        let now = SentTo::Copy { from, after: None };
        self.note(&now).await?;
        Ok(now)
    }

    async fn note(&self, now: &SentTo) -> Result<(), String> {
        note(&self.replica, self.number, Some(now)).await
    }

    /// Sends the next part of all rows.
    async fn copy(&self, from: u64, after: Option<(u16, Vec<u8>)>) -> Result<SentPart, String> {
        let (partition, own) = (partition(&self.replica)?, self.own);
        let read = blocking(move || read_part(&*partition, after, own));
        let Part { rows, next } = read.await.map_err(|refused| refused.to_string())?;
        let sent = self.merge(rows).await?;
        let now = match next {
            None => SentTo::Tail(from),
            after => SentTo::Copy { from, after },
        };
        Ok(SentPart { now, sent })
    }

    /// Sends what the next entries have changed. None where the log has them no more.
    async fn tail(&self, index: u64) -> Result<Option<SentPart>, String> {
        let replica = Arc::clone(&self.replica);
        let changed = blocking(move || replica.changed_behind(index, PART_BYTES)).await;
        let (rows, through) = match changed.map_err(|error| error.to_string())? {
            ChangedRows::None => (BTreeSet::new(), index),
            ChangedRows::Gone => return Ok(None),
            ChangedRows::Some { rows, through } => (rows, through),
        };
        let keys = rows.into_iter();
        let keys: BTreeSet<_> = keys
            .filter_map(|row| Some((row.slot, key_of(&row.key)?.to_vec())))
            .collect();
        let mut keys: Vec<_> = keys.into_iter().collect();
        let mut sent = 0;
        while !keys.is_empty() {
            let (replica, own) = (Arc::clone(&self.replica), self.own);
            let read = blocking(move || {
                let rows = states(&replica, &mut keys, own)?;
                Ok::<_, String>((rows, keys))
            });
            let (rows, left) = read.await?;
            keys = left;
            sent += self.merge(rows).await?;
        }
        let now = SentTo::Tail(through);
        Ok(Some(SentPart { now, sent }))
    }

    /// Has the target take rows, but those that it wrote itself. Returns how many that are.
    async fn merge(&self, rows: Vec<(u64, MergeRow)>) -> Result<u64, String> {
        let theirs = rows.into_iter().filter(|(origin, _)| *origin != self.theirs);
        let rows: Vec<_> = theirs.map(|(_, row)| row).collect();
        let count = rows.len() as u64;
        if count > 0 {
            self.target.merge(rows).await?;
            // Relaxed: it is shown.
            self.state.rows.fetch_add(count, Ordering::Relaxed);
        }
        Ok(count)
    }
}

/// What a sender sends: which replica, to which target.
pub(crate) type Which = (ReplicaId, u64);

/// The senders of this node.
#[derive(Default)]
pub(crate) struct Senders(pub(crate) BTreeMap<Which, RunningSender>);

/// A sender that runs.
pub(crate) struct RunningSender {
    pub(crate) group: GroupId,
    pub(crate) is_paused: bool,
    pub(crate) state: Arc<SenderState>,
    pub(crate) task: AbortHandle,
}

impl Senders {
    /// Ends those of which this is true.
    pub(crate) fn end(&mut self, ends: impl Fn(&Which, &RunningSender) -> bool) {
        self.0.retain(|which, running| {
            let ends = ends(which, running);
            if ends {
                running.task.abort();
            }
            !ends
        });
    }

    /// Those of a target.
    pub(crate) fn of(&self, target: u64) -> impl Iterator<Item = (&Which, &RunningSender)> {
        self.0.iter().filter(move |((_, number), _)| *number == target)
    }
}

fn partition(replica: &Arc<Replica>) -> Result<Arc<dyn Partition>, String> {
    let slots = replica.slots().ok_or("the replica does not run")?;
    Ok(replica.partition(slots))
}

/// Notes in a partition how far a target is; none: that it is no target any more.
pub(crate) async fn note(replica: &Arc<Replica>, target: u64, now: Option<&SentTo>) -> Result<(), String> {
    let partition = partition(replica)?;
    let (key, value) = (sent_key(target), now.map(SentTo::encode));
    let settling = blocking(move || {
        let slot = *partition.slots().start();
        let evaluation = partition.begin(slot, &[&key], ROW_WAIT)?;
        evaluation.finish(vec![(key, value.map(|value| value.as_slice().into()))], 0)
    });
    let settling = settling.await.map_err(|refused| refused.to_string())?;
    match settling.await {
        Settled::Holds => Ok(()),
        Settled::TryAgain | Settled::Unknown => Err("how far it is, is not noted yet".to_owned()),
    }
}

impl SentTo {
    fn is_copy(&self) -> bool {
        matches!(self, Self::Copy { .. })
    }
}

/// What was sent, and how far that brings the target.
struct SentPart {
    now: SentTo,
    sent: u64,
}

/// Rows with their origins, and the row behind which the next ones are; none: these are the last.
struct Part {
    rows: Vec<(u64, MergeRow)>,
    next: Option<(u16, Vec<u8>)>,
}

fn read_part(partition: &dyn Partition, after: Option<(u16, Vec<u8>)>, own: u64) -> Result<Part, Refused> {
    let behind = after.as_ref().map(|(slot, key)| (*slot, &**key));
    let mut rows = Vec::new();
    let (mut bytes, mut walked) = (0, 0);
    for found in partition.rows_after(behind)? {
        let (slot, key) = match found? {
            Walked::Row(stored) => {
                bytes += (stored.row.len() + stored.value.len()) as u64;
                rows.extend(state(stored.slot, &stored.row, &stored.value, own)?);
                (stored.slot, stored.row)
            }
            Walked::Removed { slot, row, .. } => (slot, row),
        };
        walked += 1;
        if walked >= PART_ROWS || bytes >= PART_BYTES {
            let next = Some((slot, key));
            return Ok(Part { rows, next });
        }
    }
    Ok(Part { rows, next: None })
}

/// The states of keys, which are taken off; as many as have about [`PART_BYTES`], and one at least.
fn states(
    replica: &Replica,
    keys: &mut Vec<(u16, Vec<u8>)>,
    own: u64,
) -> Result<Vec<(u64, MergeRow)>, String> {
    let applied = replica.applied_rows().map_err(|error| error.to_string())?;
    let (mut states, mut bytes) = (Vec::new(), 0);
    while bytes < PART_BYTES
        && let Some((slot, key)) = keys.pop()
    {
        for key in rows_of(&key) {
            let row = Row { slot, key };
            let stored = applied.get(&row).map_err(|error| error.to_string())?;
            if let Some(stored) = stored {
                bytes += (row.key.len() + stored.len()) as u64;
                states.extend(state(slot, &row.key, &stored, own).map_err(|error| error.to_string())?);
                break;
            }
        }
    }
    Ok(states)
}

/// What a row says of its key, if it is one of a key.
fn state(slot: u16, row: &[u8], stored: &[u8], own: u64) -> Result<Option<(u64, MergeRow)>, Refused> {
    let Some(key) = key_of(row) else {
        return Ok(None);
    };
    let record = record(row, stored, own)?;
    let row = MergeRow {
        slot,
        key: key.to_vec(),
        header: record.header,
        payload: record.payload.to_vec(),
    };
    Ok(Some((record.stamp.origin, row)))
}
