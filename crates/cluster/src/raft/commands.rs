//! The commands of a replica that leads: what they read and write, and how they learn what became of it. Nothing
//! here is openraft's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::ids::{EntryId, LeaderId, ReplicaId};
use crate::proposals::{
    Answer, Attempt, Decision, Effects, Evaluated, Header, Leading, NotSubmitted, Outcome, PendingReply,
    Recorded, Skip, Standing, Ticket, Todo,
};
use crate::raft::leases::Leases;
use crate::raftlog::Reserved;
use crate::replica_store::effects::{Effect, EffectsBuf, decode};
use crate::replica_store::{ApplyOutcome, FieldError, data_key};

/// What the effect on a row has beside its key and value, in bytes.
const BESIDE_ROW: usize = 1 + 2 + 4 + 4;
/// Bytes of effects without an outcome, of one replica; the overlay has about as many again. One entry
/// is always let in.
const PENDING_BYTES: usize = 64 << 20;

/// A row: a key in its slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// The slot.
    pub slot: u16,
    /// The key.
    pub key: Vec<u8>,
}

/// What a row holds.
pub type Value = Vec<u8>;

/// What a row holds, as it is shared with the table.
pub(super) type StoredValue = collie_db::Value;

/// Who waits for a confirmation of who leads.
pub(super) type Reader = oneshot::Sender<Option<LeaderId>>;

/// What the tasks of a replica share of its commands. Who waits for a command has this and nothing
/// else of the replica: it keeps no file open.
pub(super) struct Commands {
    replica: ReplicaId,
    pub(super) leading: Leading<Row, StoredValue, Submission>,
    /// Woken when an entry was submitted.
    pub(super) submitted: Notify,
    /// Counts what may settle a read.
    progress: watch::Sender<u64>,
    readers: mpsc::UnboundedSender<Reader>,
    /// Of the node: counts what may let commands begin, here or elsewhere.
    changes: watch::Sender<u64>,
    /// What was counted last.
    standing: Mutex<Standing>,
    /// A command was refused that may be taken when entries are decided.
    refused: AtomicBool,
    /// Who leads, as raft says.
    leader: Mutex<Option<ReplicaId>>,
    /// Bytes of effects that were submitted and have no outcome yet.
    pending_bytes: AtomicUsize,
    /// Raft says that the replica leads, but no majority has answered it for long.
    alone: AtomicBool,
    /// The replica is being closed.
    closing: AtomicBool,
    /// Since when apply waits for room on the disk of the tables, in milliseconds after `begun`; 0: it does
    /// not.
    waits_for_tables: AtomicU64,
    /// Apply waits for that room, and not what takes tables of other replicas over.
    apply_waits: AtomicBool,
    begun: Instant,
    /// Nothing could be committed when time was to be raised: it stands still.
    time_stands: AtomicBool,
    leases: Arc<Leases>,
}

/// What goes with an entry from its submission on.
pub(super) struct Submission {
    pub(super) effects: EffectsBuf,
    pub(super) waiter: Waiter,
    /// Room that is reserved for it in the log.
    pub(super) room: Option<Reserved>,
}

impl Submission {
    fn new(
        effects: EffectsBuf,
        room: Option<Reserved>,
        in_parts: Option<Reserved>,
    ) -> (Self, oneshot::Receiver<Outcome>) {
        let bytes = effects.bytes().len();
        let (sender, outcome) = oneshot::channel();
        let waiter = Waiter {
            bytes,
            sender,
            in_parts,
        };
        let submission = Self {
            effects,
            waiter,
            room,
        };
        (submission, outcome)
    }
}

/// Who waits for a proposal.
pub(super) struct Waiter {
    /// The bytes of its effects.
    pub(super) bytes: usize,
    /// Learns what became of it, unless it waits no longer.
    sender: oneshot::Sender<Outcome>,
    /// What is reserved for it and all other parts.
    in_parts: Option<Reserved>,
}

/// A command that was evaluated, and what says what became of its effects.
pub(super) struct Submitted {
    pub(super) evaluated: Evaluated,
    pub(super) outcome: oneshot::Receiver<Outcome>,
}

/// The changes of a command as entries have them.
#[derive(Default)]
pub(super) struct Admitted {
    /// The parts, where the last entry has no room for all.
    pub(super) parts: Vec<EffectsBuf>,
    pub(super) last: EffectsBuf,
    /// Room that is reserved in the log.
    pub(super) room: Option<Reserved>,
    /// What is reserved for all parts until the last has an outcome.
    pub(super) in_parts: Option<Reserved>,
}

/// What a command changes.
#[derive(Debug, Default)]
pub(super) struct RowChanges {
    pub(super) rows: Effects<Row, StoredValue>,
    /// A slot, and by how much the number of its keys changes. The table adds it up, in the order of
    /// the log: no command reads it, and it locks no row.
    pub(super) keys: Option<(u16, i64)>,
}

impl Row {
    /// The row that an effect writes or removes.
    pub(super) fn of(effect: &Effect<'_>) -> Option<Self> {
        let (slot, key) = effect.row()?;
        let key = key.to_vec();
        Some(Self { slot, key })
    }

    /// Where it is in the table.
    pub(super) fn table_key(&self) -> Vec<u8> {
        data_key(self.slot, &self.key)
    }
}

impl Commands {
    pub(super) fn new(
        replica: ReplicaId,
        pending: usize,
        readers: mpsc::UnboundedSender<Reader>,
        changes: watch::Sender<u64>,
        leases: Arc<Leases>,
    ) -> Self {
        Self {
            replica,
            leading: Leading::new(pending),
            submitted: Notify::new(),
            progress: watch::Sender::new(0),
            readers,
            changes,
            standing: Mutex::new(Standing::Following),
            refused: AtomicBool::new(false),
            leader: Mutex::new(None),
            pending_bytes: AtomicUsize::new(0),
            alone: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            waits_for_tables: AtomicU64::new(0),
            apply_waits: AtomicBool::new(false),
            begun: Instant::now(),
            time_stands: AtomicBool::new(false),
            leases,
        }
    }

    /// The receiver is woken whenever something became of an entry.
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }

    /// Submits what a command changes, if it changes anything, or the time that its reply needs. Its
    /// rows are locked until this returns.
    pub(super) fn finish(
        &self,
        evaluation: Attempt,
        changes: RowChanges,
        admitted: Admitted,
        stamp_ms: u64,
    ) -> Result<Submitted, NotSubmitted> {
        // Several threads may pass at once: by an entry each, this is exceeded.
        if !changes.rows.is_empty() && !self.has_room() {
            return Err(NotSubmitted::Full);
        }
        let Admitted {
            parts,
            last,
            room,
            in_parts,
        } = admitted;
        let (last, outcome) = Submission::new(last, room, in_parts);
        // Nothing waits for what becomes of a part: nothing of the command takes place without the last one.
        let parts: Vec<_> = parts
            .into_iter()
            .map(|part| Submission::new(part, None, None).0)
            .collect();
        let bytes = last.waiter.bytes + parts.iter().map(|part| part.waiter.bytes).sum::<usize>();
        // Before an entry can have an outcome. Relaxed, here and below: the lock of `leading` orders
        // what must be.
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        let evaluated = match parts.is_empty() {
            true => self.leading.finish(evaluation, changes.rows, last, stamp_ms),
            false => self
                .leading
                .finish_in_parts(&evaluation, changes.rows, (parts, last), stamp_ms),
        };
        match &evaluated {
            Ok(Evaluated::Submitted(_)) => self.submitted.notify_one(),
            // No entry: it has no outcome.
            Ok(Evaluated::Read { .. }) | Err(_) => _ = self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed),
        }
        let evaluated = evaluated?;
        Ok(Submitted { evaluated, outcome })
    }

    /// Submits an entry without rows, with which the run ends.
    pub(super) fn finish_run(
        &self,
        evaluation: &Attempt,
        effects: EffectsBuf,
        stamp_ms: u64,
    ) -> Result<Submitted, NotSubmitted> {
        let bytes = effects.bytes().len();
        let (submission, outcome) = Submission::new(effects, None, None);
        // Before it can have an outcome. Relaxed: as in `finish`.
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        let evaluated = self.leading.finish_run(evaluation, submission, stamp_ms);
        let evaluated =
            evaluated.inspect_err(|_| _ = self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed))?;
        self.submitted.notify_one();
        self.has_changed();
        Ok(Submitted { evaluated, outcome })
    }

    /// Who leads, confirmed after this is called; what was acknowledged by then is applied, and so is a split that was
    /// committed.
    pub(super) async fn confirm(&self) -> Option<LeaderId> {
        // What this leader has acknowledged was applied here before, and no other leader has acknowledged anything. A split
        // that it has submitted ends the run until it is decided: others may apply it sooner.
        if let Standing::Open(run) = self.leading.standing()
            && self.leases.holds(run.leader)
        {
            return Some(run.leader);
        }
        let (sender, receiver) = oneshot::channel();
        self.readers.send(sender).ok()?;
        receiver.await.ok().flatten()
    }

    /// Raft says, or will never say, what became of an entry. Apply has spoken before.
    pub(super) fn outcome(&self, ticket: Ticket, outcome: Outcome, waiter: Waiter) {
        // Before the lock of `leading`, for `refused`.
        self.pending_bytes.fetch_sub(waiter.bytes, Ordering::Relaxed);
        self.leading.outcome(&ticket, outcome);
        // Who waits may send another one at once.
        drop(waiter.in_parts);
        // An error: it waits no longer.
        let _gone = waiter.sender.send(outcome);
        match outcome {
            // What waits for it by `progress` knew when it was applied.
            Outcome::Taken | Outcome::Skipped => self.has_changed(),
            _ => self.changed(),
        }
    }

    /// The replica is being closed, or learns by a snapshot what others decided.
    pub(super) fn follow(&self) {
        self.leading.follow();
        self.changed();
    }

    /// Raft says whom the replica has voted for, and who leads.
    pub(super) fn learned(&self, voted: LeaderId, leader: Option<ReplicaId>) {
        self.leading.voted(voted);
        let is_new = std::mem::replace(&mut *self.leader.lock(), leader) != leader;
        if is_new {
            count(&self.changes);
        }
        self.changed();
    }

    /// Whether a majority has answered nothing for long, though the replica leads.
    pub(super) fn set_alone(&self, is_alone: bool) {
        // Relaxed, here and in `leader`: who looks behind the count finds it by the lock of `changes`.
        if self.alone.swap(is_alone, Ordering::Relaxed) != is_alone {
            count(&self.changes);
        }
    }

    /// Who leads, as far as is known: this replica only while it takes commands or will soon, and raft
    /// says so, too. While no majority answers it, that is not known.
    pub(super) fn leader(&self) -> Option<ReplicaId> {
        let leader = (*self.leader.lock())?;
        let leads = || self.leading.standing().leads() && !self.alone.load(Ordering::Relaxed);
        (leader != self.replica || leads()).then_some(leader)
    }

    /// A command is refused that may be taken once more is decided: it waits for the node's changes.
    pub(super) fn refused(&self) {
        // Relaxed: the lock of `leading` comes between this and a look at it. Either apply has it
        // after this was stored, and finds it there, or before, and then this finds room.
        self.refused.store(true, Ordering::Relaxed);
        if self.takes_effects() || !self.leading.standing().leads() {
            self.changed();
        }
    }

    /// Whether a command with effects can begin, where the replica leads.
    pub(super) fn takes_effects(&self) -> bool {
        self.leading.takes_effects() && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.pending_bytes.load(Ordering::Relaxed) < PENDING_BYTES
    }

    /// The replica is being closed: what waits for room waits no longer.
    pub(super) fn close(&self) {
        // Relaxed: it is looked at again and again.
        self.closing.store(true, Ordering::Relaxed);
        self.follow();
    }

    /// The disk of the tables is full. Says whether apply is to wait for room.
    pub(super) fn no_room_for_tables(&self) -> bool {
        // Relaxed, here and below: it is looked at again and again.
        let begun = self.ms();
        // An error: it has waited before.
        _ = self
            .waits_for_tables
            .compare_exchange(0, begun, Ordering::Relaxed, Ordering::Relaxed);
        !self.closing.load(Ordering::Relaxed)
    }

    /// The same where apply is to wait.
    pub(super) fn apply_has_no_room(&self) -> bool {
        self.apply_waits.store(true, Ordering::Relaxed);
        self.no_room_for_tables()
    }

    /// Whether apply waits for room: raft would have what takes tables over wait behind it, and votes and
    /// entries behind that.
    pub(super) fn apply_waits(&self) -> bool {
        self.apply_waits.load(Ordering::Relaxed)
    }

    /// How long apply has waited for room on the disk of the tables, if it does.
    pub(super) fn waits_for_tables(&self) -> Option<Duration> {
        let begun = self.waits_for_tables.load(Ordering::Relaxed);
        (begun > 0).then(|| Duration::from_millis(self.ms().saturating_sub(begun)))
    }

    /// Milliseconds since this was made, and one more.
    fn ms(&self) -> u64 {
        1 + u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// Whether time stands still, or stood when it was last asked to go on: see
    /// [`set_time_stands`](Self::set_time_stands).
    pub(super) fn time_stands(&self) -> bool {
        // Relaxed, here and below: a command that sees it late is refused, and begins anew.
        self.time_stands.load(Ordering::Relaxed)
    }

    /// While nothing can be committed, keys do not expire: a reply that says so would need an entry
    /// that carries the time. Reads go on, by the time that all replicas have.
    pub(super) fn set_time_stands(&self, stands: bool) {
        self.time_stands.store(stands, Ordering::Relaxed);
    }

    /// An entry was applied.
    pub(super) fn has_applied(&self) {
        self.apply_waits.store(false, Ordering::Relaxed);
        self.takes_tables();
    }

    /// A replica whose tables are taken over has sent some.
    pub(super) fn takes_tables(&self) {
        self.waits_for_tables.store(0, Ordering::Relaxed);
    }

    /// A read may be settled.
    fn changed(&self) {
        count(&self.progress);
        self.has_changed();
    }

    /// Commands may begin that could not, or may not that could.
    fn has_changed(&self) {
        let is_new = {
            let mut counted = self.standing.lock();
            let now = self.leading.standing();
            std::mem::replace(&mut *counted, now) != now
        };
        // Relaxed: see `refused`.
        if self.refused.swap(false, Ordering::Relaxed) || is_new {
            count(&self.changes);
        }
    }

    /// This replica has applied the blank entry with which a leader begins.
    pub(super) fn began(&self, id: EntryId, recorded: Option<&[u8]>) -> io::Result<()> {
        if id.leader.replica == self.replica {
            let recorded = recorded
                .map(Recorded::decode)
                .transpose()
                .map_err(io::Error::other)?;
            self.leading.lead(id.leader, recorded.as_ref());
            self.changed();
        }
        Ok(())
    }

    /// This replica has applied an entry with effects.
    pub(super) fn applied(&self, id: EntryId, payload: &[u8], outcome: ApplyOutcome) -> io::Result<()> {
        let (header, effects) = Header::decode(payload).map_err(io::Error::other)?;
        let decision = match outcome {
            ApplyOutcome::Taken => Decision::Taken(Recorded {
                ticket: header.ticket,
                index: id.index,
                stamp_ms: header.stamp_ms,
            }),
            // Why it was skipped makes no difference here.
            ApplyOutcome::Skipped => Decision::Skipped(Skip::Order),
        };
        // The rows matter to who submitted them.
        let rows = match id.leader.replica == self.replica {
            true => rows(effects).map_err(io::Error::other)?,
            false => Vec::new(),
        };
        self.leading.applied(&id, &header, &decision, rows.iter());
        self.changed();
        Ok(())
    }
}

/// Wakes those who watch it.
pub(crate) fn count(watched: &watch::Sender<u64>) {
    watched.send_modify(|count| *count += 1);
}

fn rows(effects: &[u8]) -> Result<Vec<Row>, FieldError> {
    let effects = decode(effects)?;
    Ok(effects.iter().filter_map(Row::of).collect())
}

impl RowChanges {
    /// About how many bytes of effects they are.
    pub(super) fn bytes(&self) -> u64 {
        let row = |(row, value): (&Row, &Option<StoredValue>)| {
            BESIDE_ROW + row.key.len() + value.as_ref().map_or(0, |value| value.len())
        };
        self.rows.iter().map(|of| row(of) as u64).sum()
    }

    /// As an entry has them.
    pub(super) fn encode(&self) -> Result<EffectsBuf, FieldError> {
        let mut encoded = EffectsBuf::default();
        for effect in self.effects() {
            encoded.push(effect)?;
        }
        Ok(encoded)
    }

    pub(super) fn effects(&self) -> impl Iterator<Item = Effect<'_>> {
        let rows = self.rows.iter().map(|(Row { slot, key }, value)| match value {
            Some(value) => Effect::Put {
                slot: *slot,
                key,
                value,
            },
            None => Effect::Delete { slot: *slot, key },
        });
        let count = self.keys.map(|(slot, delta)| Effect::Count { slot, delta });
        rows.chain(count)
    }
}

/// The answer of a command, as soon as it is known; at the deadline in any case. It may be dropped:
/// its effects are then decided without it.
pub(super) async fn answer<T: Clone>(
    commands: &Commands,
    submitted: Submitted,
    reply: T,
    deadline: Instant,
) -> Answer<T> {
    let Submitted { evaluated, outcome } = submitted;
    let mut outcome = Some(outcome);
    let mut progress = None;
    let mut pending = PendingReply::new(evaluated, reply);
    loop {
        match pending.next(&commands.leading) {
            Todo::Answer(answer) => return answer,
            Todo::ReadIndex => {
                let confirmed = timeout_at(deadline, commands.confirm()).await;
                pending.confirmed(confirmed.unwrap_or(None));
            }
            Todo::Wait => match (evaluated, outcome.take()) {
                (Evaluated::Submitted(ticket), Some(outcome)) => {
                    let outcome = match timeout_at(deadline, outcome).await {
                        Ok(known) => known.unwrap_or(Outcome::Dropped),
                        Err(_) => Outcome::TimedOut,
                    };
                    pending.outcome(&ticket, outcome);
                }
                _ => {
                    // Looked at once more after the first time: what came before that is not seen.
                    let Some(progress) = &mut progress else {
                        progress = Some(commands.progress());
                        continue;
                    };
                    match timeout_at(deadline, progress.changed()).await {
                        Ok(Ok(())) => {}
                        _ => return pending.give_up(&commands.leading),
                    }
                }
            },
        }
    }
}
