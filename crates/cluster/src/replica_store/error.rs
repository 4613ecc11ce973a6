//! What can go wrong, each with where, what was expected and what was found.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ids::{EntryId, ReplicaId};
use crate::raftlog::StoreError;

/// An error of a state machine.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The store of the tables refused, or failed.
    #[error(transparent)]
    Db(#[from] collie_db::Error),
    /// The replica's log refused, or failed.
    #[error(transparent)]
    Log(#[from] StoreError),
    /// A file of a transfer could not be read or written.
    #[error("cannot {op} {path}: {source}")]
    Io {
        /// The operation that failed.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// An entry does not say what its kind should. It is committed, so all replicas meet this.
    #[error("{id}: {error}; open the replica with the version that proposed the entry")]
    Entry {
        /// The entry.
        id: EntryId,
        /// What is wrong with it.
        error: FieldError,
    },
    /// What the tables hold beside the data is damaged, or a later version wrote it.
    #[error("replica {replica}: its tables hold {what} that cannot be read: {error}")]
    Meta {
        /// The replica.
        replica: ReplicaId,
        /// Which record.
        what: &'static str,
        /// What is wrong with it.
        error: FieldError,
    },
    /// Entries are applied in their order, each once. Nothing was applied.
    #[error("{id} cannot be applied: the last one was {last}")]
    Order {
        /// The entry.
        id: EntryId,
        /// What was applied last.
        last: String,
    },
    /// The log and the tables do not belong together: the replica must be replaced.
    #[error("replica {replica}: {problem}: have `collie cluster drain` move it, or remove the node")]
    Apart {
        /// The replica.
        replica: ReplicaId,
        /// What does not fit.
        problem: String,
    },
    /// There is nothing to transfer: no entry was applied.
    #[error("replica {replica} has applied no entry: it has nothing to transfer")]
    Empty {
        /// The replica.
        replica: ReplicaId,
    },
    /// A description of a transfer that cannot be followed.
    #[error("the description of a transfer: {0}")]
    Description(FieldError),
    /// A part of a transfer that was not asked for.
    #[error("{path}: expected the bytes from {expected} on, got {found}")]
    Piece {
        /// The file.
        path: PathBuf,
        /// Where the next part begins.
        expected: u64,
        /// What came.
        found: String,
    },
    /// A file came that is not the one described. It was removed, and is to be fetched again.
    #[error("{path}: expected {expected}, found {found}; fetch it again")]
    Checksum {
        /// The file.
        path: PathBuf,
        /// As it is described.
        expected: String,
        /// As it is.
        found: String,
    },
    /// What was adopted is not what was described.
    #[error("replica {replica}: the tables that it adopted are at {found}, described was {expected}")]
    Adopted {
        /// The replica.
        replica: ReplicaId,
        /// As it was described.
        expected: String,
        /// As it is.
        found: String,
    },
}

/// Bytes that nothing was ever encoded to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: expected {expected}, found {found}")]
pub struct FieldError {
    /// Where.
    pub at: usize,
    /// What should be there.
    pub expected: &'static str,
    /// What is there.
    pub found: String,
}

impl MachineError {
    /// Whether it says that a disk is full: it goes on when there is room.
    #[must_use]
    pub fn is_no_room(&self) -> bool {
        match self {
            Self::Db(error) => matches!(error, collie_db::Error::StorageFull { .. }),
            Self::Log(error) => error.is_no_room(),
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            _ => false,
        }
    }

    pub(super) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            op,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}
