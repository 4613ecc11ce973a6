//! A replica of a group, which is opened again when it fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::blocking::blocking;
use crate::ids::{GroupId, LeaderId, ReplicaId, Vote};
use crate::proposals::{Answer, Attempt, Effects, NotOpen};
use crate::raft::commands::{Row, RowChanges, StoredValue, Submitted, Value, answer};
use crate::raft::elections::Elections;
use crate::raft::error::{CommandError, ReplicaError};
use crate::raft::options::ReplicaOptions;
use crate::raft::running::{Failures, Now, Running, supervise};
use crate::raft::types::{Member, ReplicaState};
use crate::raftlog::Patience;
use crate::transport::wire::{Refusal, Request, Response};
use crate::transport::{Incoming, LedByNode, NodeStates, Reply};

/// A member of a group on this node. It runs until it is [closed](Self::close) or dropped.
pub struct Replica {
    group: GroupId,
    id: ReplicaId,
    pub(super) options: ReplicaOptions,
    now: watch::Receiver<Now>,
    stop: watch::Sender<bool>,
    pub(super) failures: Arc<Failures>,
    pub(super) elections: Arc<Elections>,
    /// The last attempt to hand leadership over.
    pub(super) handing: Mutex<Option<Handing>>,
    /// Whether it stands for election.
    stands: AtomicBool,
    has_room_for_vote: AtomicBool,
    /// Marks of removed rows that were made before may go.
    pub(super) forgets_before_ms: AtomicU64,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

/// The rows as a command finds them.
pub struct Rows<'a> {
    running: &'a Running,
    evaluation: &'a mut Attempt,
}

impl Rows<'_> {
    /// What a row holds: by what is submitted and not applied yet, or else in the table.
    ///
    /// # Errors
    /// [`CommandError::Stale`], which the command hands on, and the table's.
    pub fn get(&mut self, row: &Row) -> Result<Option<Value>, CommandError> {
        let Self { running, evaluation } = self;
        let value = running.commands.leading.get(evaluation, row, || {
            Ok::<_, CommandError>(running.machine.db().get(row.table_key())?)
        });
        Ok(value?.map(|value| value.to_vec()))
    }
}

/// What a command changes, and its reply.
pub type Executed<T> = Result<(Effects<Row, Value>, T), CommandError>;

impl Replica {
    /// Opens the replica, in the background, and keeps it open. To be called on a tokio runtime.
    #[must_use]
    pub fn start(mut options: ReplicaOptions) -> Self {
        let (group, id) = (options.log.group(), options.log.replica());
        let (sender, now) = watch::channel(Now::Opening);
        let stop = watch::Sender::new(false);
        options.log = options.log.waiting(Patience::until(stop.subscribe()));
        let failures = Arc::new(Failures::new(options.times.failures));
        let elections = Arc::<Elections>::default();
        let supervisor = tokio::spawn(supervise(
            options.clone(),
            (Arc::clone(&failures), Arc::clone(&elections)),
            sender,
            stop.subscribe(),
        ));
        Self {
            group,
            id,
            options,
            now,
            stop,
            failures,
            elections,
            handing: Mutex::default(),
            stands: AtomicBool::new(true),
            has_room_for_vote: AtomicBool::new(true),
            forgets_before_ms: AtomicU64::new(0),
            supervisor: Mutex::new(Some(supervisor)),
        }
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        self.id
    }

    /// Why it cannot be opened before there is room on a disk.
    pub(super) fn no_room(&self) -> Option<String> {
        match &*self.now.borrow() {
            Now::NoRoom(problem) => Some(problem.clone()),
            _ => None,
        }
    }

    pub(super) fn running(&self) -> Result<Arc<Running>, ReplicaError> {
        let replica = self.id;
        match &*self.now.borrow() {
            Now::Running(running) => Ok(Arc::clone(running)),
            Now::Quarantined(problem) => Err(ReplicaError::Quarantined {
                replica,
                problem: problem.clone(),
            }),
            Now::Opening | Now::NoRoom(_) | Now::Closed => Err(ReplicaError::NotRunning { replica }),
        }
    }

    /// Waits until it runs, or will not run any more.
    ///
    /// # Errors
    /// [`ReplicaError::Quarantined`], or [`ReplicaError::NotRunning`] where it was closed, or waits
    /// for room on its disk.
    pub async fn opened(&self) -> Result<(), ReplicaError> {
        let mut now = self.now.clone();
        // An error: its task has ended, and what it said last holds.
        let _ended = now.wait_for(|now| !matches!(now, Now::Opening)).await;
        self.running().map(drop)
    }

    /// Who leads, as far as this replica knows: itself only where commands can begin here, or will
    /// soon. Cheap, and does not block: [`ReplicaOptions::changes`] moves with it.
    #[must_use]
    pub fn leader(&self) -> Option<ReplicaId> {
        self.running().ok()?.commands.leader()
    }

    /// The term in which it leads, where commands can begin here, or will soon.
    #[must_use]
    pub fn leads_in(&self) -> Option<u64> {
        let running = self.running().ok()?;
        let leads = running.commands.leader() == Some(self.id);
        leads.then(|| running.commands.leading.standing().term())?
    }

    /// The term of its last vote; 0 where it does not run.
    pub(crate) fn voted_term(&self) -> u64 {
        self.running().map_or(0, |running| running.state().vote.term)
    }

    /// Waits until what runs is not `ended` any more, or the replica does not run.
    ///
    /// # Errors
    /// As [`opened`](Self::opened).
    pub(super) async fn reopened(&self, ended: &Arc<Running>) -> Result<(), ReplicaError> {
        let mut now = self.now.clone();
        let other = |now: &Now| !matches!(now, Now::Running(running) if Arc::ptr_eq(running, ended));
        // An error: its task has ended, and what it said last holds.
        drop(now.wait_for(other).await);
        self.opened().await
    }

    /// What raft knows.
    ///
    /// # Errors
    /// [`ReplicaError::NotRunning`], [`ReplicaError::Quarantined`].
    pub fn state(&self) -> Result<ReplicaState, ReplicaError> {
        Ok(self.running()?.state())
    }

    /// Asks another replica to lead in place of this one. Whether it does shows later.
    ///
    /// # Errors
    /// Raft's, or that replica does not say within a second that it stands and that its log has room.
    pub async fn transfer_to(&self, to: ReplicaId) -> Result<(), ReplicaError> {
        let asked = self.running()?.transfer_to(to).await;
        asked.map_err(|problem| ReplicaError::Raft {
            replica: self.id,
            problem,
        })
    }

    /// Whether it stands for election, and takes over where another one hands over to it. To be said
    /// again and again: a replica that is opened anew stands.
    pub fn set_stands(&self, stands: bool) {
        // Relaxed: it is looked at again and again.
        self.stands.store(stands, Ordering::Relaxed);
        self.say_whether_it_stands();
    }

    /// Whether its log has room for its own vote. To be said again and again, as whether it stands.
    pub(crate) fn set_has_room_for_vote(&self, has_room: bool) {
        // Relaxed: as whether it stands.
        self.has_room_for_vote.store(has_room, Ordering::Relaxed);
        self.say_whether_it_stands();
    }

    fn say_whether_it_stands(&self) {
        if let Ok(running) = self.running() {
            let stands = self.stands()
                && self.has_room_for_vote.load(Ordering::Relaxed)
                && self.options.losses.may_stand(self.id);
            running.raft.runtime_config().elect(stands);
        }
    }

    /// Whether it stands for election.
    pub(super) fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }

    /// Brings what is applied into tables.
    ///
    /// # Errors
    /// The state machine's.
    pub async fn flush(&self) -> Result<(), ReplicaError> {
        let machine = self.running()?.machine.clone();
        Ok(blocking(move || machine.flush()).await?)
    }

    /// Takes a request of another node, for this replica. Does not block.
    pub fn handle(&self, incoming: Incoming, reply: Reply) {
        if let Some(vote) = vote_of(&incoming.request).filter(|vote| vote.leader.replica != incoming.from) {
            let text = format!("replica {} speaks for {}", incoming.from, vote.leader);
            return reply.send(Response::Refusal(Refusal::failed(text)));
        }
        let is_to_lead = match &incoming.request {
            Request::Transfer(transfer) => transfer.to == self.id,
            Request::MayLead => true,
            _ => false,
        };
        if is_to_lead && !self.stands() {
            let text = "it does not stand for election at the moment".to_owned();
            return reply.send(Response::Refusal(Refusal::failed(text)));
        }
        let gives_none = match &incoming.request {
            Request::Vote(asked) | Request::PreVote(asked) => {
                self.options.losses.refuses(self.id, asked.last)
            }
            _ => is_to_lead && self.options.losses.is_open(self.id),
        };
        if gives_none {
            let text = "it may have lost entries that it had acknowledged, and has not caught up".to_owned();
            return reply.send(Response::Refusal(Refusal::failed(text)));
        }
        match self.running() {
            Ok(running) => running.handle(incoming, reply),
            Err(error) => reply.send(Response::Refusal(Refusal::failed(error.to_string()))),
        }
    }

    /// Evaluates a command and has its effects replicated, if it has any; answers when it took
    /// effect. `command` may be called several times: what it was evaluated on may not hold any more.
    /// It must not block for long. It excludes all other commands of the replica, as it does not say
    /// which rows it touches.
    ///
    /// # Errors
    /// [`CommandError`]: it has no effect.
    pub async fn execute<T, F>(&self, command: F) -> Result<Answer<T>, CommandError>
    where
        T: Clone + Send + 'static,
        F: Fn(&mut Rows<'_>) -> Executed<T> + Send + Sync + 'static,
    {
        let command = Arc::new(command);
        let deadline = Instant::now() + self.options.times.command;
        loop {
            let running = self.running()?;
            let mut progress = running.commands.progress();
            let (evaluating, command) = (Arc::clone(&running), Arc::clone(&command));
            let (clock_ms, patience) = (self.options.clock.wall_ms(), self.options.times.command);
            let evaluated = blocking(move || evaluate(&evaluating, &*command, clock_ms, patience)).await;
            match evaluated {
                Ok((submitted, reply)) => {
                    let commands = Arc::clone(&running.commands);
                    drop(running);
                    return Ok(answer(&commands, submitted, reply, deadline).await);
                }
                // Of two that wait for each other's rows, one begins anew.
                Err(CommandError::Stale(_) | CommandError::Table(collie_db::Error::Deadlock { .. })) => {}
                Err(CommandError::NotOpen(NotOpen::Ending)) => {
                    if timeout_at(deadline, progress.changed()).await.is_err() {
                        return Ok(Answer::TryAgain);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether it is parked: it counts on other nodes instead of heartbeats.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.running().is_ok_and(|running| running.parking.is_parked())
    }

    /// Other nodes answer, or not, or have said what they lead.
    pub(crate) fn look_at(&self, states: &NodeStates, led: &LedByNode) {
        if let Ok(running) = self.running() {
            running.look_at(states, led);
        }
    }

    /// Whether it is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends the replica, and closes its store. What is not in tables is in its log.
    pub async fn close(&self) {
        self.stop.send_replace(true);
        let supervisor = self.supervisor.lock().take();
        if let Some(supervisor) = supervisor
            && let Err(error) = supervisor.await
        {
            tracing::warn!(%error, replica = self.id, "the task of a replica has panicked");
        }
    }
}

/// The vote of a leader, or of a candidate, that a request speaks for.
fn vote_of(request: &Request) -> Option<Vote> {
    match request {
        Request::Append(append) => Some(append.vote),
        Request::Vote(request) | Request::PreVote(request) => Some(request.vote),
        Request::Transfer(transfer) => Some(transfer.vote),
        Request::Offer(offer) => Some(offer.vote),
        Request::SnapshotEnd(end) => Some(end.vote),
        Request::Park(park) => Some(park.vote),
        Request::Piece(_)
        | Request::Room(_)
        | Request::MayLead
        | Request::Wake
        | Request::LastEntry
        | Request::HandOver(_)
        | Request::ChangeMap(_) => None,
    }
}

fn evaluate<T>(
    running: &Running,
    command: &impl Fn(&mut Rows<'_>) -> Executed<T>,
    clock_ms: u64,
    patience: Duration,
) -> Result<(Submitted, T), CommandError> {
    let db = running.machine.db();
    let family = db.default_family();
    let mut owner = db.row_owner("a command on any rows");
    // It has not said which rows it touches.
    let _rows = db.lock_families(&mut owner, [&family], patience)?;
    let mut evaluation = running.begin(&family)?;
    let stamp_ms = evaluation.now_ms(clock_ms);
    let (effects, reply) = command(&mut Rows {
        running,
        evaluation: &mut evaluation,
    })?;
    let stored = |(row, value): (Row, Option<Value>)| (row, value.map(|value| StoredValue::from(&*value)));
    let changes = RowChanges {
        rows: effects.into_iter().map(stored).collect(),
        keys: None,
    };
    let admitted = running.admit(&changes)?;
    let submitted = running.commands.finish(evaluation, changes, admitted, stamp_ms)?;
    Ok((submitted, reply))
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

#[cfg(feature = "testing")]
impl Replica {
    /// Begins the group with these members, on a replica that has no entry yet.
    ///
    /// # Errors
    /// Raft's.
    pub async fn initialize(&self, members: BTreeMap<ReplicaId, Member>) -> Result<(), ReplicaError> {
        let begun = self.running()?.raft.initialize(members).await;
        begun.map_err(|error| ReplicaError::Raft {
            replica: self.id,
            problem: error.to_string(),
        })
    }
}

/// An attempt to hand leadership over.
pub(super) struct Handing {
    pub(super) at: Instant,
    /// As whose leadership.
    pub(super) leader: LeaderId,
    /// To which replica, if one was found.
    pub(super) to: Option<ReplicaId>,
}
