//! A replica from one opening to its end, and opening it again when it has failed.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use collie_db::Family;
use collie_server::cluster::Reads;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, LogIdOptionExt};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::beat::Beat;
use crate::blocking::blocking;
use crate::proposals::{Attempt, NotSubmitted, Stale};
use crate::raft::batching::BESIDE_EFFECTS;
use crate::raft::commands::{Admitted, Commands, RowChanges, count as changed};
use crate::raft::elections::{Elections, Quorum, elected};
use crate::raft::error::{CommandError, ReplicaError};
use crate::raft::followers::Followers;
use crate::raft::leases::{LEVEL_OF_LEASES, Leases, Promises};
use crate::raft::links::ReplicaLinks;
use crate::raft::machine::{Raft, Served, open_machine};
use crate::raft::options::{ReplicaOptions, config};
use crate::raft::parking::Parking;
use crate::raft::regaining::{Regaining, last_entry, regain};
use crate::raft::snapshots::{self, Receiving};
use crate::raft::tasks;
use crate::raft::tasks::purge;
use crate::raft::ticks::{Heard, Ticking, tick};
use crate::raft::types::{ReplicaState, from_leader, from_log_id};
use crate::raftlog::{Holding, PATIENCE, Purpose};
use crate::replica_store::Machine;
use crate::replica_store::effects::{MAX_BYTES, MAX_IN_PARTS, in_parts};
use crate::transport::wire::{Append, HandOver, Refusal, Request, Response, Room, TransferLeader};
use crate::transport::{Incoming, Reply};

/// That tables were refused is shown for so long: they are offered again within that time.
const SHOWN: Duration = Duration::from_secs(10);

/// From this level on a command may change more than one entry has room for.
const LEVEL_OF_PARTS: u32 = 5;
/// A command changes at most this part of what its log may have.
const OF_LOG_LIMIT: u64 = 3;
/// What an entry has beside its effects on rows.
const BESIDE_CHANGES: u64 = 32;

/// A replica that runs.
pub(super) struct Running {
    pub(super) raft: Raft,
    pub(super) machine: Machine,
    pub(super) commands: Arc<Commands>,
    pub(super) followers: Arc<Followers>,
    pub(super) links: ReplicaLinks,
    /// No more than the node takes of its peers.
    appends: mpsc::UnboundedSender<(Append, Reply)>,
    receiving: tokio::sync::Mutex<Option<Receiving>>,
    /// When tables were last refused that it was to begin with.
    without_room: Mutex<Option<Instant>>,
    pub(super) heard: Arc<Heard>,
    pub(super) parking: Arc<Parking>,
    pub(super) promises: Arc<Promises>,
    beat: Beat,
    pub(super) elections: Arc<Elections>,
    pub(super) stop: watch::Sender<bool>,
    proposer: Mutex<JoinSet<()>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Running {
    /// Opens the replica from what is durable of it.
    pub(super) async fn open(
        options: &ReplicaOptions,
        elections: &Arc<Elections>,
    ) -> Result<Arc<Self>, ReplicaError> {
        let flushed = Arc::new(Notify::new());
        let mut machine_options = options.machine.clone();
        let told = Arc::clone(&flushed);
        machine_options.on_flush = Some(Arc::new(move |_| told.notify_one()));
        let log = options.log.clone();
        let (group, replica) = (log.group(), log.replica());
        let promises = Arc::new(Promises::new(log.vote(), &options.times));
        let machine = open_machine(options.dir.clone(), log.clone(), machine_options).await?;
        let (readers, waiting_readers) = mpsc::unbounded_channel();
        let (pending, changes) = (options.limits.pending, options.changes.clone());
        let (heard, parking) = (Arc::<Heard>::default(), Arc::<Parking>::default());
        // Commands that wait have the leases, and are not to keep the node open.
        let (reads, peers) = (options.reads, Arc::downgrade(&options.peers));
        let leases = Arc::new(Leases::new(
            replica,
            move || {
                let level = || peers.upgrade().map_or(0, |peers| peers.level());
                reads == Reads::Lease && level() >= LEVEL_OF_LEASES
            },
            &options.times,
            Arc::clone(&options.clock),
            Arc::clone(&parking),
        ));
        let commands = Commands::new(replica, pending, readers, changes, Arc::clone(&leases));
        let commands = Arc::new(commands);
        let (anew, waiting_anew) = mpsc::unbounded_channel();
        let followers = Arc::new(Followers::new(Arc::clone(&options.full), anew));
        let links = ReplicaLinks {
            peers: Arc::clone(&options.peers),
            group,
            replica,
            purged: Arc::new(log.purged_later()),
            times: options.times.clone(),
            followers: Arc::clone(&followers),
            leases: Arc::clone(&leases),
            snapshots: Arc::new(AtomicU64::new(1)),
            transfers: Arc::clone(&options.transfers),
        };
        let raft_failed = |error: &dyn std::fmt::Display| ReplicaError::Raft {
            replica,
            problem: error.to_string(),
        };
        let stands = options.losses.may_stand(replica);
        let config = config(&options.times, stands)
            .validate()
            .map_err(|error| raft_failed(&error))?;
        let is_split = Arc::<Notify>::default();
        let served = Served {
            machine: machine.clone(),
            commands: Arc::clone(&commands),
            splits: Arc::clone(&options.splits),
            is_split: Arc::clone(&is_split),
        };
        let raft = Raft::new(replica, Arc::new(config), links.clone(), log.clone(), served)
            .await
            .map_err(|error| raft_failed(&error))?;
        leases.follow(raft.server_metrics());
        let (appends, waiting_appends) = mpsc::unbounded_channel();
        let stop = watch::Sender::new(false);
        let mut proposer = JoinSet::new();
        proposer.spawn(tasks::propose(
            raft.clone(),
            Arc::clone(&commands),
            log.clone(),
            Arc::clone(&parking),
            stop.subscribe(),
        ));
        let mut all = JoinSet::new();
        all.spawn(tasks::confirm_reads(
            raft.clone(),
            Arc::clone(&parking),
            waiting_readers,
        ));
        all.spawn(tasks::append(
            raft.clone(),
            log.clone(),
            (Arc::clone(&heard), Arc::clone(&parking), Arc::clone(&promises)),
            waiting_appends,
        ));
        let ticking = Ticking {
            raft: raft.clone(),
            heard: Arc::clone(&heard),
            parking: Arc::clone(&parking),
            links: links.clone(),
        };
        all.spawn(tick(ticking, options.beat.every(options.times.heartbeat)));
        if !stands {
            all.spawn(regain(Regaining {
                raft: raft.clone(),
                log: log.clone(),
                links: links.clone(),
                losses: Arc::clone(&options.losses),
            }));
        }
        all.spawn(tasks::drop_hidden(
            machine.clone(),
            is_split,
            Arc::clone(&options.merging),
        ));
        all.spawn(tasks::send_anew(raft.clone(), waiting_anew));
        // What an opening finds in tables is a snapshot as well.
        flushed.notify_one();
        all.spawn(purge(
            raft.clone(),
            machine.clone(),
            flushed,
            Arc::clone(&followers),
            links.clone(),
        ));
        Ok(Arc::new(Self {
            raft,
            machine,
            commands,
            followers,
            links,
            appends,
            receiving: tokio::sync::Mutex::default(),
            without_room: Mutex::default(),
            heard,
            parking,
            promises,
            beat: options.beat,
            elections: Arc::clone(elections),
            stop,
            proposer: Mutex::new(proposer),
            tasks: Mutex::new(all),
        }))
    }

    /// Follows who leads, until raft ends by itself; says why.
    /// `quorum` says when a leader has lost its majority.
    pub(super) async fn ended(&self, mut quorum: Quorum) -> String {
        // These change with who leads; all others do with each entry.
        let mut metrics = self.raft.server_metrics();
        let mut all = self.raft.data_metrics();
        let mut beats = self.beat.every(self.links.times.heartbeat);
        let mut parking = self.parking.changes();
        let mut led = None;
        loop {
            // The nodes of a majority answer, or it is parked no longer.
            let is_parked = parking.borrow_and_update().is_some();
            let lost_at = {
                let now = metrics.borrow_and_update();
                let leader = elected(now.current_leader, &now.vote);
                let leads = now.state.is_leader() && leader.is_some();
                let term = leads.then_some(now.vote.leader_id.term);
                if leads && led != term {
                    self.elections.won();
                }
                led = term.or(led);
                self.commands.learned(from_leader(&now.vote.leader_id), leader);
                let acked = all.borrow_and_update().last_quorum_acked;
                let acked = acked.map(|acked| Instant::now() - acked.elapsed());
                match is_parked {
                    true => quorum.rests(),
                    false => quorum.lost_at(&now, acked),
                }
            };
            let is_alone = lost_at.is_some_and(|at| at <= Instant::now());
            self.commands.set_alone(is_alone);
            let changed = tokio::select! {
                biased;
                changed = metrics.changed() => changed,
                // An error: the sender is in `self`.
                _ = parking.changed() => Ok(()),
                // Until a majority may have answered again, or may be lost.
                changed = all.changed(), if is_alone => changed,
                () = look_at(lost_at.filter(|_| !is_alone)) => Ok(()),
                // By then it has answered, as a rule, and there is one moment to look for all groups.
                _ = beats.tick(), if lost_at.is_some() => Ok(()),
            };
            if changed.is_err() {
                let last = self.raft.metrics();
                let last = last.borrow_watched();
                let fatal = last.running_state.as_ref().err();
                return fatal.map_or_else(|| "raft has ended".to_owned(), ToString::to_string);
            }
        }
    }

    /// Ends everything, and closes the store. Who waits for a command learns that its outcome is not
    /// known, unless it is.
    pub(super) async fn close(&self) -> Result<(), ReplicaError> {
        self.commands.close();
        self.stop.send_replace(true);
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "a task of raft has panicked");
        }
        let mut proposer = std::mem::take(&mut *self.proposer.lock());
        while proposer.join_next().await.is_some() {}
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        self.machine.log().note_holding(Holding::NotRun);
        let receiving = self.receiving.lock().await.take();
        let machine = self.machine.clone();
        blocking(move || {
            drop(receiving);
            machine.close()
        })
        .await?;
        Ok(())
    }

    /// Begins the evaluation of a command that has locked its rows, in this family.
    pub(super) fn begin(&self, locked: &Family) -> Result<Attempt, CommandError> {
        let evaluation = self.commands.leading.begin()?;
        // What was learned by a snapshot is another family, whose locks are others. If that happens
        // from here on, the evaluation is stale: the replica follows before it adopts anything.
        if self.machine.db().default_family().id() != locked.id() {
            return Err(Stale.into());
        }
        Ok(evaluation)
    }

    /// Encodes what a command changes, if it changes anything and that may be proposed now; and the room
    /// that is reserved for it until it has an outcome.
    pub(super) fn admit(&self, changes: &RowChanges) -> Result<Admitted, CommandError> {
        if changes.rows.is_empty() {
            return Ok(<_>::default());
        }
        let log = self.machine.log();
        let largest = log.largest_entry().saturating_sub(BESIDE_EFFECTS);
        let is_in_parts = changes.bytes() + BESIDE_CHANGES > MAX_BYTES.min(largest) as u64;
        // Parts are kept in tables until the last one has come, of removals too.
        let removes = !is_in_parts && changes.rows.values().all(Option::is_none);
        match removes {
            true => log.admit_removal()?,
            false => log.admit()?,
        }
        let are_full = match removes {
            true => self.followers.most_refuse_removals(|| self.members()),
            false => self.most_are_full(),
        };
        if let Some(time) = are_full {
            log.note_refusal();
            let lasts = time >= PATIENCE;
            return Err(CommandError::MostFull { lasts });
        }
        // What is too large is refused while that can still be said.
        if is_in_parts {
            return self.in_parts(changes, largest);
        }
        let effects = changes.encode()?;
        let bytes = effects.bytes().len() + BESIDE_EFFECTS;
        let room = removes
            .then(|| log.reserve(bytes as u64, Purpose::Remove))
            .transpose()?;
        Ok(Admitted {
            last: effects,
            room,
            ..Admitted::default()
        })
    }

    fn in_parts(&self, changes: &RowChanges, largest: usize) -> Result<Admitted, CommandError> {
        let (bytes, level) = (changes.bytes(), self.links.peers.level());
        if level < LEVEL_OF_PARTS {
            let limit = MAX_BYTES.min(largest) as u64;
            return Err(CommandError::NotInParts { bytes, level, limit });
        }
        let of_log = self.machine.log().limit() / OF_LOG_LIMIT;
        let limit = of_log.min(MAX_IN_PARTS as u64);
        if bytes > limit {
            return Err(CommandError::TooLarge { bytes, limit });
        }
        // Evaluated anew when there is room, and then encoded.
        if !self.commands.takes_effects() {
            return Err(NotSubmitted::Full.into());
        }
        // Of several partitions at once each would take its third of the log.
        let reserved = self.machine.log().reserve_parts(bytes, limit)?;
        let mut parts = in_parts(changes.effects(), largest)?;
        let last = parts.pop().unwrap_or_default();
        Ok(Admitted {
            parts,
            last,
            in_parts: Some(reserved),
            ..Admitted::default()
        })
    }

    /// How long so many replicas have had no room for entries that none can be committed, if that is so.
    pub(super) fn most_are_full(&self) -> Option<Duration> {
        self.followers.most_are_full(|| self.members())
    }

    /// What an operator is to know of the followers of a replica that leads.
    pub(super) fn followers_problem(&self) -> Option<String> {
        let lasts = || self.most_are_full().is_some_and(|time| time >= PATIENCE);
        if self.state().leads && lasts() {
            let text = "takes no writes, since the disks or the logs of so many of its followers are full that nothing \
                        can be committed: make room on full disks";
            return Some(text.to_owned());
        }
        let (follower, index) = self.followers.reverted().into_iter().next()?;
        let members = self.members();
        let node = members.all.get(&follower).map_or(0, |member| member.node);
        Some(format!(
            "replica {follower} on node {node} has lost entry {index}, which it had acknowledged, and gets all that it \
             lacks: if an older copy was put in the place of that node's directory, never do that again, as what it had \
             voted is lost as well"
        ))
    }

    pub(super) fn state(&self) -> ReplicaState {
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched();
        let leader = elected(now.current_leader, &now.vote);
        ReplicaState {
            leader,
            leads: now.state.is_leader() && leader.is_some(),
            vote: from_leader(&now.vote.leader_id),
            last: now.last_log_index,
            applied: now.last_applied.as_ref().map(from_log_id),
            snapshot: now.snapshot.index(),
            purged: now.purged.index(),
        }
    }

    /// Whether it has nothing yet.
    fn is_new(&self) -> bool {
        self.machine.position().is_none()
    }

    /// Whether it has nothing, and no room for what it is to get.
    pub(super) fn waits_to_begin(&self) -> bool {
        let refused = *self.without_room.lock();
        self.is_new() && refused.is_some_and(|at| at.elapsed() < SHOWN)
    }

    /// Gives up a transfer of which nothing comes any more, on a full disk.
    pub(super) async fn give_up_transfer(&self) {
        let Ok(mut receiving) = self.receiving.try_lock() else {
            return;
        };
        let late = receiving.take_if(|now| now.is_silent_for(self.links.times.piece));
        if late.is_some() {
            blocking(move || late.map(Receiving::give_up)).await;
        }
    }

    /// Takes a request of another replica of the group.
    pub(super) fn handle(self: Arc<Self>, incoming: Incoming, reply: Reply) {
        if let Request::Append(append) = incoming.request {
            if let Err(error) = append.entries.iter().try_for_each(|entry| {
                let bytes = entry.payload.0.len();
                self.machine.log().check_size(bytes)
            }) {
                // Raft would take it for the end of the replica.
                return reply.send(Response::Refusal(Refusal::failed(error.to_string())));
            }
            // An error: the replica is ending, and the reply says that there is no answer.
            let _ending = self.appends.send((append, reply));
            return;
        }
        let asks_for_vote = matches!(incoming.request, Request::Vote(_) | Request::PreVote(_));
        if asks_for_vote && self.promises.is_silent() {
            return self.vote_later(incoming, reply);
        }
        let is_of_tables = matches!(
            incoming.request,
            Request::Offer(_) | Request::Piece(_) | Request::SnapshotEnd(_)
        );
        tokio::spawn(async move {
            let answer = self.answer(incoming).await;
            match &answer {
                Response::Refusal(Refusal::NoRoom) if is_of_tables => {
                    self.commands.no_room_for_tables();
                }
                Response::Stored(_) | Response::Installed(_) => self.commands.takes_tables(),
                _ => {}
            }
            reply.send(answer);
        });
    }

    async fn answer(&self, incoming: Incoming) -> Response {
        let from = incoming.from;
        let failed = |error: &dyn std::fmt::Display| Response::Refusal(Refusal::failed(error.to_string()));
        let log = self.machine.log();
        match incoming.request {
            // It follows the leader that hands over, which is to count on that no longer.
            Request::Transfer(transfer) if transfer.to != log.replica() => self.transfer(transfer).await,
            Request::Transfer(_) | Request::MayLead if self.promises.is_silent() => {
                failed(&"it was opened a moment ago, and may have followed another leader")
            }
            // A vote counts once it is on the device.
            Request::Vote(_) | Request::PreVote(_) | Request::Transfer(_) if log.check_vote().is_err() => {
                Response::Refusal(Refusal::NoRoom)
            }
            // What begins a term has to be appended, too, and would be withdrawn as what it is to withdraw.
            Request::Transfer(TransferLeader { last: None, .. }) if log.check_first_entry().is_err() => {
                Response::Refusal(Refusal::NoRoom)
            }
            // It would be one more on a disk that has no room for more.
            Request::Room(Room { bytes }) if self.is_new() && !self.machine.has_room_for_more(bytes) => {
                *self.without_room.lock() = Some(Instant::now());
                Response::Refusal(Refusal::NoRoom)
            }
            Request::Room(_) | Request::Offer(_) | Request::SnapshotEnd(_) if self.commands.apply_waits() => {
                Response::Refusal(Refusal::NoRoom)
            }
            Request::Room(Room { bytes })
                if (log.shortage().is_none() && self.machine.has_room_for(bytes))
                    || self.machine.is_relieved_by(bytes) =>
            {
                Response::HasRoom
            }
            Request::MayLead if log.may_take_over() && self.commands.waits_for_tables().is_none() => {
                Response::Ready
            }
            Request::Room(_) | Request::MayLead => Response::Refusal(Refusal::NoRoom),
            Request::Park(park) => match self.park(incoming.node, park) {
                Ok(()) => Response::Parked,
                Err(problem) => failed(&problem),
            },
            Request::Vote(request) => self.vote(request).await,
            // It has heard its leader, in a way, and votes for no other then.
            Request::PreVote(_) if self.parking.now().is_some_and(|parked| !parked.leads) => {
                // The one that asks hears no leader: it is to hear it, too.
                self.wake_leader();
                failed(&"the node of its leader answers, and says that it leads")
            }
            Request::Wake if self.state().leads => {
                self.wake().await;
                Response::Awake
            }
            Request::Wake => failed(&"it does not lead"),
            Request::LastEntry => Response::LastEntry(last_entry(log, || self.state())),
            Request::PreVote(request) => self.pre_vote(request).await,
            Request::Transfer(transfer) => self.transfer(transfer).await,
            Request::Offer(offer) => {
                let mut receiving = self.receiving.lock().await;
                snapshots::offered(&self.machine, &mut receiving, from, offer).await
            }
            Request::Piece(piece)
                if self.is_new() && !self.machine.stays_free(piece.bytes.0.len() as u64) =>
            {
                *self.without_room.lock() = Some(Instant::now());
                Response::Refusal(Refusal::NoRoom)
            }
            Request::Piece(piece) => {
                let mut receiving = self.receiving.lock().await;
                snapshots::piece(&mut receiving, from, piece).await
            }
            Request::SnapshotEnd(end) => {
                let mut receiving = self.receiving.lock().await;
                snapshots::ended(&self.raft, &self.machine, &mut receiving, from, end).await
            }
            Request::HandOver(HandOver { to }) => match self.hand_over(to).await {
                Ok(()) => Response::HandingOver,
                Err(problem) => failed(&problem),
            },
            Request::ChangeMap(_) => failed(&"only the leader of group 0 changes the map"),
            Request::Append(_) => failed(&"appends are answered in their order"),
        }
    }
}

/// Waits until then, or for ever.
async fn look_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// The pause before a replica is opened again, for each of its failures.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause before it is looked again whether there is room for opening it.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// The failures of a replica that count together.
pub(super) struct Failures {
    within: Duration,
    known: Mutex<(VecDeque<Instant>, String)>,
}

impl Failures {
    /// None yet. Those within so long count together.
    pub(super) fn new(within: Duration) -> Self {
        Self {
            within,
            known: Mutex::default(),
        }
    }

    /// Adds one; says how many count.
    fn add(&self, problem: &str) -> usize {
        let mut known = self.known.lock();
        known.0.push_back(Instant::now());
        problem.clone_into(&mut known.1);
        drop(known);
        self.last().0
    }

    /// How many count now, and the last one.
    pub(super) fn last(&self) -> (usize, String) {
        let mut known = self.known.lock();
        let (times, _) = &mut *known;
        while times.front().is_some_and(|first| first.elapsed() > self.within) {
            times.pop_front();
        }
        (known.0.len(), known.1.clone())
    }
}

/// Runs a replica until `stop`. One that fails is opened again from what is durable of it; one that
/// fails too often is quarantined. One whose disk is full waits until it can be opened.
pub(super) async fn supervise(
    options: ReplicaOptions,
    (failures, elections): (Arc<Failures>, Arc<Elections>),
    now: watch::Sender<Now>,
    mut stop: watch::Receiver<bool>,
) {
    let replica = options.log.replica();
    let say = |next| {
        now.send_replace(next);
        changed(&options.changes);
    };
    loop {
        let failed = match Running::open(&options, &elections).await {
            Ok(running) => {
                say(Now::Running(running.clone()));
                let quorum = Quorum::new(replica, options.times.election_max);
                let ended = tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => None,
                    ended = running.ended(quorum) => Some(ended),
                };
                if ended.is_some() {
                    // It looks who is left.
                    running.wake_leader();
                }
                say(Now::Opening);
                if let Err(error) = running.close().await {
                    tracing::warn!(%error, replica, "the store of a replica cannot be closed");
                }
                ended
            }
            Err(ReplicaError::Machine(error)) if error.is_no_room() && !*stop.borrow() => {
                let problem = error.to_string();
                if !matches!(&*now.borrow(), Now::NoRoom(_)) {
                    tracing::error!(
                        replica,
                        problem,
                        "a replica is opened as soon as there is room on its disk"
                    );
                }
                say(Now::NoRoom(problem));
                pause(ROOM_PAUSE, &mut stop).await;
                continue;
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(problem) = failed.filter(|_| !*stop.borrow()) else {
            say(Now::Closed);
            return;
        };
        let count = failures.add(&problem);
        if count >= options.limits.failures {
            tracing::error!(
                replica,
                problem,
                "a replica has failed too often, and is opened no more: the others of its group go on; remove the cause, \
                 and start the node again"
            );
            say(Now::Quarantined(problem));
            return;
        }
        tracing::error!(replica, problem, "a replica has failed, and is opened again");
        // What it failed for, such as want of files, may pass.
        pause(PAUSE * u32::try_from(count).unwrap_or(u32::MAX), &mut stop).await;
    }
}

/// Ends with `stop` at the latest.
async fn pause(time: Duration, stop: &mut watch::Receiver<bool>) {
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => {}
        () = sleep(time) => {}
    }
}

/// What a replica is doing.
#[derive(Clone)]
pub(super) enum Now {
    Opening,
    /// It cannot be opened before there is room on a disk.
    NoRoom(String),
    Running(Arc<Running>),
    /// It failed too often, and is opened no more.
    Quarantined(String),
    Closed,
}
