//! Why a replica cannot do what it is asked, and why a command is not executed.

use crate::ids::ReplicaId;
use crate::proposals::{NotOpen, NotSubmitted, Stale};
use crate::raftlog::StoreError;
use crate::replica_store::{FieldError, MachineError};

/// A replica cannot be opened, or does not run.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// Its state machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Raft refuses, or has ended.
    #[error("replica {replica}: {problem}")]
    Raft {
        /// The replica.
        replica: ReplicaId,
        /// Why.
        problem: String,
    },
    /// It is being opened, or was closed.
    #[error("replica {replica} does not run at the moment")]
    NotRunning {
        /// The replica.
        replica: ReplicaId,
    },
    /// It failed too often.
    #[error(
        "replica {replica} has failed too often and is opened no more ({problem}); remove the cause, and start the node \
         again"
    )]
    Quarantined {
        /// The replica.
        replica: ReplicaId,
        /// Its last failure.
        problem: String,
    },
}

/// A command that was not submitted: it has no effect, and never will.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The replica does not lead, or cannot take commands yet.
    #[error(transparent)]
    NotOpen(#[from] NotOpen),
    /// What it was evaluated on does not hold any more. It is evaluated anew.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// Too many proposals wait.
    #[error(transparent)]
    NotSubmitted(NotSubmitted),
    /// The log is full.
    #[error(transparent)]
    Log(#[from] StoreError),
    /// So many replicas take no entries, as their disks are full or their logs, that none can be committed.
    #[error(
        "BUSY the disks or the logs of so many replicas of this partition are full that nothing can be committed: \
         `collie cluster status` says which; make room on full disks, and the writes go on by themselves"
    )]
    MostFull {
        /// Whether it has been so for seconds: until then it is worth a wait.
        lasts: bool,
    },
    /// The table cannot be read.
    #[error(transparent)]
    Table(#[from] collie_db::Error),
    /// It changes more than an entry has room for, and older nodes know no others.
    #[error(
        "ERR the changes of this command have {bytes} bytes, and at feature level {level} have {limit} at most: run \
         `collie cluster finalize` once all nodes run this version"
    )]
    NotInParts {
        /// The bytes of its changes.
        bytes: u64,
        /// The cluster's feature level.
        level: u32,
        /// So many there may be.
        limit: u64,
    },
    /// It changes more than a log takes at once.
    #[error(
        "ERR the changes of this command have {bytes} bytes; {limit} are taken here: a third of the limit of the log of \
         their partition (--log-limit), and 513 MiB"
    )]
    TooLarge {
        /// The bytes of its changes.
        bytes: u64,
        /// So many there may be.
        limit: u64,
    },
    /// Its effects are too many, or no effects.
    #[error("the effects of a command: {0}")]
    Effects(#[from] FieldError),
    /// The group cannot be split so.
    #[error("the group cannot be split: {problem}")]
    Split {
        /// Why.
        problem: String,
    },
    /// The replica does not run.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

impl From<NotSubmitted> for CommandError {
    fn from(error: NotSubmitted) -> Self {
        match error {
            NotSubmitted::Stale(stale) => Self::Stale(stale),
            NotSubmitted::Full => Self::NotSubmitted(error),
        }
    }
}
