//! What can go wrong, each with where, what was expected and what was found.

use std::path::PathBuf;

use collie_log::{LogError, Lsn};

use crate::ids::{GroupId, ReplicaId};
use crate::raftlog::frames::FrameError;
use crate::raftlog::state::Holding;

/// An error of the log store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The log refused, or failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A frame of the log is none that this version appends, and its checksum is right.
    #[error("LSN {lsn} of the log, stream {stream}: {error}; open it with the version that wrote it")]
    Frame {
        /// The frame.
        lsn: Lsn,
        /// Its stream.
        stream: u32,
        /// What is wrong with it.
        error: FrameError,
    },
    /// The log is not where it should be read: another frame is there.
    #[error("replica {replica}: expected {expected} at LSN {lsn}, found {found}")]
    Misplaced {
        /// The replica.
        replica: ReplicaId,
        /// The frame.
        lsn: Lsn,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Entries, a truncation or a purge that do not fit what is there. Nothing was appended.
    #[error("replica {replica}: {problem}; nothing was appended")]
    Order {
        /// The replica.
        replica: ReplicaId,
        /// What does not fit.
        problem: String,
    },
    /// The replica was removed from this node, and ids are never used again.
    #[error("replica {replica} was removed from this node for good; take a new id")]
    Removed {
        /// The replica.
        replica: ReplicaId,
    },
    /// There is a replica of this id.
    #[error("replica {replica} of group {group} is there already")]
    Exists {
        /// The group.
        group: GroupId,
        /// The replica.
        replica: ReplicaId,
    },
    /// There is no replica of this id.
    #[error("there is no replica {replica} on this node")]
    Unknown {
        /// The replica.
        replica: ReplicaId,
    },
    /// Damage took frames of the replica. What is left of it is kept, and does not vote.
    #[error(
        "replica {replica} of group {group} has lost frames to damage ({lost}): check the disk, and remove the node"
    )]
    Quarantined {
        /// The group.
        group: GroupId,
        /// The replica.
        replica: ReplicaId,
        /// What is missing.
        lost: String,
    },
    /// The log is as long as it may be.
    #[error("BUSY log full ({used} of {limit} bytes), held by {holder} ({held} bytes{})", said(why.as_ref()))]
    Full {
        /// Bytes from its oldest segment on.
        used: u64,
        /// The limit.
        limit: u64,
        /// Who holds its oldest part.
        holder: String,
        /// How much that is, to the log's end.
        held: u64,
        /// Why, if that is known.
        why: Option<Holding>,
        /// Whether it has been so for seconds: until then it is worth a wait.
        lasts: bool,
    },
    /// The disk of the log is full. Nothing was appended, and nothing is at stake: it goes on by
    /// itself when there is room.
    #[error(
        "BUSY no space left for the log in {}: make room on this disk of the node, and writes go on by themselves",
        path.display()
    )]
    NoRoom {
        /// The log's directory.
        path: PathBuf,
    },
    /// A log of its own has no room on the disk, with what others there may take.
    #[error(
        "the disk of {} has {} MB left, and a log more there needs {}: make room, or have the logs elsewhere",
        path.display(), free >> 20, needed >> 20
    )]
    NoRoomForLog {
        /// The directory of the logs.
        path: PathBuf,
        /// What the disk has, in bytes.
        free: u64,
        /// What a log more needs, with what those that are there may still take.
        needed: u64,
    },
    /// An entry that no frame of the log takes. Nothing was appended.
    #[error("ERR an entry of {bytes} bytes is too large for the log of this node, which takes {limit}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// What the log takes.
        limit: usize,
    },
    /// All numbers of streams are in use.
    #[error("the log has all {limit} streams in use; remove replicas, or open another log")]
    Streams {
        /// How many there are.
        limit: u32,
    },
    /// A replica is in two logs: a directory was copied.
    #[error(
        "replica {replica} is in two logs, {} and {}; take away the one that was copied here",
        paths[0].display(),
        paths[1].display()
    )]
    TwoLogs {
        /// The replica.
        replica: ReplicaId,
        /// The logs' directories.
        paths: [PathBuf; 2],
    },
    /// Options that do not go together.
    #[error("option {option}: {problem}")]
    Options {
        /// Its name.
        option: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

fn said(why: Option<&Holding>) -> String {
    why.map_or_else(String::new, |why| format!(", for {why}"))
}

impl StoreError {
    /// Whether it says that the disk of the log is full: nothing was appended, and it goes on when
    /// there is room.
    #[must_use]
    pub fn is_no_room(&self) -> bool {
        matches!(
            self,
            Self::NoRoom { .. } | Self::Log(LogError::StorageFull { .. })
        )
    }

    /// Whether it says that a file could not be written as its disk is full, as where a log is opened.
    pub(crate) fn is_full_disk(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            Self::Log(LogError::Io { source, .. }) => matches!(source.kind(), StorageFull | QuotaExceeded),
            _ => self.is_no_room(),
        }
    }

    /// Whether it says that a log has been too long for seconds.
    pub(crate) fn lasts(&self) -> bool {
        matches!(self, Self::Full { lasts: true, .. })
    }
}
