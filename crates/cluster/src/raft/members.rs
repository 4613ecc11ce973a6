//! The members of a group: how they are changed, what a replica has applied, and when that changes. Leadership is
//! handed over where there is no room, and what is wrong with a replica is reported.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use collie_db::{Db, Family, Snapshot};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{InitializeError, RaftError};
use openraft::{ChangeMembers, LogIdOptionExt};
use tokio::time::{Instant, sleep};

use crate::ids::ReplicaId;
use crate::raft::commands::{Row, StoredValue, Value};
use crate::raft::elections::{ElectionCause, elected};
use crate::raft::error::ReplicaError;
use crate::raft::machine::Raft;
use crate::raft::replica::{Handing, Replica};
use crate::raft::running::Running;
use crate::raft::types::{Member, Members, ReplicaState};
use crate::raftlog::StoreError;

/// How often a replica that begins a group asks for votes before it waits as any other does.
const FIRST_ELECTIONS: usize = 10;

/// The rows of a replica at one moment, as they are applied there, however old that is: of each entry
/// all or nothing.
pub struct AppliedRows {
    family: Family,
    snapshot: Snapshot,
}

impl AppliedRows {
    fn new(db: &Db) -> Self {
        Self {
            family: db.default_family(),
            snapshot: db.snapshot(),
        }
    }

    /// What a row holds. Blocks.
    ///
    /// # Errors
    /// The table's.
    pub fn get(&self, row: &Row) -> collie_db::Result<Option<Value>> {
        let value = self.stored(row.table_key())?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// What the table has at a key.
    pub(super) fn stored(&self, key: Vec<u8>) -> collie_db::Result<Option<StoredValue>> {
        self.snapshot.get(&self.family, key)
    }
}

/// Has a group that begins elect its first leader. The other replicas may be made some moments later
/// than this one, and raft would ask them again only after the time for an election.
async fn elect(raft: Raft, pause: Duration) {
    for _ in 0..FIRST_ELECTIONS {
        sleep(pause).await;
        let is_led = {
            let metrics = raft.server_metrics();
            let now = metrics.borrow_watched();
            elected(now.current_leader, &now.vote).is_some()
        };
        if is_led || raft.trigger().elect(true).await.is_err() {
            return;
        }
    }
}

impl Running {
    /// The members, as this replica knows them.
    pub(super) fn members(&self) -> Members {
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched();
        let membership = now.membership_config.membership();
        let configs = membership.get_joint_config();
        let matched = now.replication.iter().flatten();
        Members {
            voters: configs.last().cloned().unwrap_or_default(),
            all: membership
                .nodes()
                .map(|(id, member)| (*id, member.clone()))
                .collect(),
            is_joint: configs.len() > 1,
            is_applied: now.membership_config.log_id().index() <= now.last_applied.index(),
            last: now.last_log_index.unwrap_or(0),
            matched: matched.map(|(id, log)| (*id, log.index().unwrap_or(0))).collect(),
        }
    }
}

impl Replica {
    /// The members, as this replica knows them.
    ///
    /// # Errors
    /// [`ReplicaError::NotRunning`], [`ReplicaError::Quarantined`].
    pub fn members(&self) -> Result<Members, ReplicaError> {
        Ok(self.running()?.members())
    }

    /// The members, if this replica leads and there are not these alone.
    pub(crate) fn leads_others_than(&self, done: Option<&BTreeSet<ReplicaId>>) -> Option<Members> {
        let running = self.running().ok()?;
        let is_to_be_looked_at = {
            let metrics = running.raft.metrics();
            let now = metrics.borrow_watched();
            let membership = now.membership_config.membership();
            let are = |done: &BTreeSet<_>| {
                membership.get_joint_config().as_slice() == std::slice::from_ref(done)
                    && membership.nodes().count() == done.len()
            };
            now.state.is_leader() && !done.is_some_and(are)
        };
        is_to_be_looked_at.then(|| running.members())
    }

    /// Whether a member has nearly all entries, on a replica that leads.
    #[must_use]
    pub fn has_nearly_all(&self, id: ReplicaId) -> bool {
        self.members().is_ok_and(|members| members.has_nearly_all(id))
    }

    /// Begins the group with these members, unless it has begun: asked for again, it changes nothing.
    ///
    /// # Errors
    /// Raft's.
    pub async fn begin(&self, members: BTreeMap<ReplicaId, Member>) -> Result<(), ReplicaError> {
        let running = self.running()?;
        match running.raft.initialize(members).await {
            Ok(()) => {
                let pause = self.options.times.heartbeat / 2;
                tokio::spawn(elect(running.raft.clone(), pause));
                Ok(())
            }
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(self.refused(&error)),
        }
    }

    /// Asks the other replicas whether they would vote for this one, and stands for election if a
    /// majority would. While a leader may have been heard lately, before it was opened too, or where it does not
    /// [stand](Self::set_stands), it does nothing.
    ///
    /// # Errors
    /// Raft's.
    pub async fn elect(&self) -> Result<(), ReplicaError> {
        let running = self.running()?;
        let may_stand = self.stands() && self.options.losses.may_stand(self.id());
        if !may_stand || running.promises.is_silent() {
            return Ok(());
        }
        if let Err(full) = self.options.log.check_vote() {
            return Err(self.refused(&full));
        }
        self.elections.asked(ElectionCause::Suspicion);
        let asked = running.raft.trigger().elect(true).await;
        asked.map_err(|error| self.refused(&error))
    }

    /// Adds a member without a vote, or does nothing where it is a member. Answers when the entry is
    /// committed; the new member may have nothing by then.
    ///
    /// # Errors
    /// Raft's: the entry may be committed all the same.
    pub async fn add_learner(&self, id: ReplicaId, member: Member) -> Result<(), ReplicaError> {
        let running = self.running()?;
        running.wake().await;
        let added = running.raft.add_learner(id, member, false).await;
        added.map(drop).map_err(|error| self.refused(&error))
    }

    /// Gives the votes to these members. Those that had one stay members without. Answers when both
    /// steps are committed.
    ///
    /// # Errors
    /// Raft's: the first step, or both, may be committed all the same. The same call completes them.
    pub async fn change_voters(&self, voters: BTreeSet<ReplicaId>) -> Result<(), ReplicaError> {
        let running = self.running()?;
        running.wake().await;
        let changed = running.raft.change_membership(voters, true).await;
        changed.map(drop).map_err(|error| self.refused(&error))
    }

    /// Gives the votes to these members, and removes all others from the group. Answers when that is
    /// committed.
    ///
    /// # Errors
    /// Raft's: the first step, or both, may be committed all the same. The same call completes them.
    pub async fn change_members(&self, voters: BTreeSet<ReplicaId>) -> Result<(), ReplicaError> {
        let running = self.running()?;
        running.wake().await;
        let changed = running.raft.change_membership(voters, false).await;
        changed.map_err(|error| self.refused(&error))?;
        let left = self.members()?;
        let others = left.all.keys().copied().filter(|id| !left.voters.contains(id));
        self.remove_learners(others.collect()).await
    }

    /// Removes members that have no vote.
    ///
    /// # Errors
    /// Raft's: the entry may be committed all the same.
    pub async fn remove_learners(&self, learners: BTreeSet<ReplicaId>) -> Result<(), ReplicaError> {
        if learners.is_empty() {
            return Ok(());
        }
        let running = self.running()?;
        running.wake().await;
        let removed = running
            .raft
            .change_membership(ChangeMembers::RemoveNodes(learners), true)
            .await;
        removed.map(drop).map_err(|error| self.refused(&error))
    }

    /// The rows as they are applied here now.
    ///
    /// # Errors
    /// [`ReplicaError::NotRunning`], [`ReplicaError::Quarantined`].
    pub fn applied_rows(&self) -> Result<AppliedRows, ReplicaError> {
        Ok(AppliedRows::new(self.running()?.machine.db()))
    }

    /// Waits until what raft knows of the replica is something else than `known`.
    ///
    /// # Errors
    /// [`ReplicaError::NotRunning`] once it is closed, [`ReplicaError::Quarantined`].
    pub async fn state_other_than(&self, known: Option<&ReplicaState>) -> Result<ReplicaState, ReplicaError> {
        loop {
            self.opened().await?;
            let Ok(running) = self.running() else { continue };
            let mut metrics = running.raft.metrics();
            loop {
                drop(metrics.borrow_and_update());
                let state = running.state();
                if known != Some(&state) {
                    return Ok(state);
                }
                if metrics.changed().await.is_err() {
                    // Raft has ended: the replica is opened again, or is not.
                    break;
                }
            }
            drop(metrics);
            self.reopened(&running).await?;
        }
    }

    fn refused(&self, error: &dyn std::fmt::Display) -> ReplicaError {
        ReplicaError::Raft {
            replica: self.id(),
            problem: error.to_string(),
        }
    }
}

/// From one attempt to hand leadership over to the next: so many times the longest time for an
/// election.
const PAUSE: u32 = 3;

/// What serves waits for so long behind entries that most followers have no room for, before these are
/// withdrawn: there may be room.
const WITHDRAWN_AFTER: Duration = Duration::from_secs(2);

impl Replica {
    /// Hands leadership over to a member that has room, where this replica leads: it has none. Does nothing
    /// where that was tried a moment ago, or where no other member says that it has room. Answers whom it
    /// asked to lead; whether that one does shows later.
    ///
    /// From then on raft takes no proposals here, also when there is room again: call this until the
    /// replica does not lead.
    pub(crate) async fn hand_over(&self) -> Option<ReplicaId> {
        let state = self.state().ok().filter(|state| state.leads)?;
        let pause = self.options.times.election_max * PAUSE;
        let before = {
            let mut handing = self.handing.lock();
            let same = handing.as_ref().filter(|last| last.leader == state.vote);
            if handing.as_ref().is_some_and(|last| last.at.elapsed() < pause) {
                return None;
            }
            let before = same.and_then(|last| last.to);
            *handing = Some(Handing {
                at: Instant::now(),
                leader: state.vote,
                to: before,
            });
            before
        };
        let (members, own) = (self.members().ok()?, self.id());
        let running = self.running().ok()?;
        let mut others = self.others(&members, before);
        // Raft would wait for those that lack what this replica has, and for good where they have no room for
        // it.
        others.retain(|id| members.has_nearly_all(*id) && !running.followers.refuses(*id));
        for to in others {
            if let Err(problem) = self.transfer_to(to).await {
                tracing::debug!(%problem, replica = own, to, "leadership cannot be handed over");
                continue;
            }
            if let Some(handing) = &mut *self.handing.lock() {
                handing.to = Some(to);
            }
            tracing::warn!(
                replica = own,
                group = self.group(),
                to,
                "there is no room for its log or its tables: leadership is handed over"
            );
            return Some(to);
        }
        None
    }

    /// Withdraws entries that most followers have no room for, where what serves has waited behind them for
    /// a while: removals, the first entry of a leader, before which it answers nothing, or all commands, of
    /// which no more may begin before those entries have an outcome. They are not
    /// committed: a follower without them that becomes the leader removes them.
    pub(crate) async fn withdraw_what_has_no_room(&self) -> Option<ReplicaId> {
        let running = self.running().ok()?;
        // All members of a parked group have all entries.
        if running.parking.is_parked() || !running.state().leads {
            return None;
        }
        if !running.commands.takes_effects() {
            running.followers.most_refuse_removals(|| running.members());
        }
        let times = running.followers.removals_are_refused_for(WITHDRAWN_AFTER)?;
        let members = self.members().ok()?;
        let refuse = running.followers.most_that_refuse(&members);
        let mut able = self.others(&members, None);
        able.retain(|id| refuse.contains(id));
        // One that stands may lack what another one has, and is not elected: the next time it is its turn.
        let turn = times % able.len().max(1);
        able.rotate_left(turn);
        for to in able {
            if let Err(problem) = running.give_way_to(to).await {
                tracing::debug!(%problem, replica = self.id(), to, "entries without room are not withdrawn");
                continue;
            }
            tracing::warn!(
                replica = self.id(),
                group = self.group(),
                to,
                "the disks of so many followers are full that entries cannot be committed, and what removes waits behind \
                 them: a replica without these entries is to lead"
            );
            return Some(to);
        }
        None
    }

    /// The other members that vote: those that have most of the log first, and the one that was asked
    /// before, `late`, last.
    fn others(&self, members: &Members, late: Option<ReplicaId>) -> Vec<ReplicaId> {
        let own = self.id();
        let mut others: Vec<_> = members.voters.iter().copied().filter(|id| *id != own).collect();
        others.sort_by_key(|id| (Some(*id) == late, Reverse(members.matched.get(id).copied())));
        others
    }

    /// About as many bytes as its tables have; 0 while it does not run.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.running().map_or(0, |running| running.machine.bytes())
    }

    /// Whether its tables are below this directory.
    pub(crate) fn is_in(&self, dir: &Path) -> bool {
        self.options.dir.starts_with(dir)
    }

    /// Has the store of its tables make room on its disk, as far as that can be.
    pub(crate) async fn look_for_room(&self) {
        if let Ok(running) = self.running() {
            running.give_up_transfer().await;
            running.machine.db().look_for_room();
        }
    }

    /// Looks whether a vote could be saved now: a replica that could not save its own does not stand.
    pub(crate) fn look_for_room_for_vote(&self) {
        self.set_has_room_for_vote(self.options.log.check_vote().is_ok());
    }

    /// Whether apply has waited so long for room for tables.
    pub(crate) fn waits_for_tables(&self, time: Duration) -> bool {
        let waited = self
            .running()
            .ok()
            .and_then(|running| running.commands.waits_for_tables());
        waited.is_some_and(|waited| waited >= time)
    }

    /// Whether another replica was asked to lead, and this one still does.
    pub(crate) fn is_handing_over(&self) -> bool {
        let handing = self.handing.lock();
        let asked = handing.as_ref().filter(|last| last.to.is_some());
        asked.is_some_and(|last| {
            let state = self.state().ok();
            state.is_some_and(|state| state.leads && state.vote == last.leader)
        })
    }

    /// How many elections it has won since it was started, of this cause.
    #[must_use]
    pub fn elections(&self, cause: ElectionCause) -> u64 {
        self.elections.count(cause)
    }

    /// Whether it has failed too often, and is opened no more.
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        matches!(self.running(), Err(ReplicaError::Quarantined { .. }))
    }

    /// What an operator is to know of this replica and to do about it: why it does not run, what it
    /// waits for, and that it has failed lately.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if let Err(ReplicaError::Quarantined { problem, .. }) = self.running() {
            return Some(format!(
                "has failed too often, and is opened no more ({problem}): remove the cause, and start the node again"
            ));
        }
        if let Some(problem) = self.no_room() {
            return Some(format!(
                "cannot be opened until there is room on its disk ({problem}): make room"
            ));
        }
        let log = &self.options.log;
        if log.is_waiting() {
            return Some("waits until there is room for its log: make room on its disk".to_owned());
        }
        if log.shortage().is_some() {
            return Some("takes no writes, since the disk of its log is full: make room on it".to_owned());
        }
        if let Some(StoreError::Full {
            used,
            limit,
            holder,
            held,
            why,
            lasts: true,
        }) = log.full()
        {
            let why = why.map_or_else(String::new, |why| format!(" of it, for {why}"));
            return Some(format!(
                "takes no writes, since its log has {used} of {limit} bytes: {holder} holds {held} bytes{why}"
            ));
        }
        if self.options.losses.is_open(self.id()) {
            return Some(
                "may have lost what it had acknowledged (`--durability process`), as its machine was restarted or the ring \
                 of its log is gone, and votes again once it has all that its leader has. Where all nodes run and none \
                 leads: `collie cluster accept-loss`"
                    .to_owned(),
            );
        }
        if self.running().is_ok_and(|running| running.waits_to_begin()) {
            return Some(
                "is to begin on a disk that has no room for its tables, as a twentieth is to stay free: make room there; it \
                 goes on by itself"
                    .to_owned(),
            );
        }
        if self
            .running()
            .is_ok_and(|running| running.commands.waits_for_tables().is_some())
        {
            return Some("waits until there is room for its tables: make room on their disk".to_owned());
        }
        if let Some(problem) = self
            .running()
            .ok()
            .and_then(|running| running.followers_problem())
        {
            return Some(problem);
        }
        match self.failures.last() {
            (0, _) => None,
            (count, last) => {
                let (minutes, limit) = (
                    self.options.times.failures.as_secs() / 60,
                    self.options.limits.failures,
                );
                Some(format!(
                    "has failed {count} times within {minutes} minutes, and is opened no more after {limit}; the last \
                     time for: {last}"
                ))
            }
        }
    }
}
