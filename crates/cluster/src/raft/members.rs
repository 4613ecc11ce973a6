//! The members of a group, and how they are changed; what a replica has applied, and when that
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use collie_db::{Db, Family, Snapshot};
use openraft::LogIdOptionExt;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{InitializeError, RaftError};
use tokio::time::sleep;

use crate::ids::ReplicaId;
use crate::raft::commands::{Row, Stored, Value};
use crate::raft::elections::ElectionCause;
use crate::raft::replica::{Replica, ReplicaError, ReplicaState};
use crate::raft::running::{Running, elected};
use crate::raft::tasks::Raft;
use crate::raft::types::Member;

/// How often a replica that begins a group asks for votes before it waits as any other does.
const FIRST_ELECTIONS: usize = 10;
/// A member that lacks no more entries than this has nearly all.
const NEARLY: u64 = 64;

/// The members of a group, as its leader knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// Those that vote. Of a change that is half done: those that will vote.
    pub voters: BTreeSet<ReplicaId>,
    /// All, voters included.
    pub all: BTreeMap<ReplicaId, Member>,
    /// Whether a change of voters is half done.
    pub is_joint: bool,
    /// The index of the leader's last entry.
    pub last: u64,
    /// The index of the last entry that each member has; empty where this replica does not lead.
    pub matched: BTreeMap<ReplicaId, u64>,
}

impl Members {
    /// Whether a member has nearly all entries, as the leader knows; elsewhere that is not known.
    #[must_use]
    pub fn has_nearly_all(&self, id: ReplicaId) -> bool {
        let has = self.matched.get(&id).copied().unwrap_or(0);
        has > 0 && has.saturating_add(NEARLY) >= self.last
    }
}

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
    pub(super) fn stored(&self, key: Vec<u8>) -> collie_db::Result<Option<Stored>> {
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
    /// majority would. While a leader may have been heard lately, or where it does not
    /// [stand](Self::set_stands), it does nothing.
    ///
    /// # Errors
    /// Raft's.
    pub async fn elect(&self) -> Result<(), ReplicaError> {
        let running = self.running()?;
        if !self.stands() {
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
        let changed = running.raft.change_membership(voters, true).await;
        changed.map(drop).map_err(|error| self.refused(&error))
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
