//! The errors, and what to do about each.

pub(crate) mod table;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use collie_log::{LogError, LogId};

use crate::Key;
pub use crate::error::table::TableError;

/// The result of most calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Cheap to clone: many waiters may get the same failure.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's mistake: keys have at least one byte.
    #[error("the key is empty; a key has 1 to {limit} bytes", limit = crate::MAX_KEY_BYTES)]
    EmptyKey,
    /// The caller's mistake: the key is longer than tables can hold.
    #[error("the key has {len} bytes, the limit is {limit}")]
    KeyTooLong {
        /// The key's length in bytes.
        len: usize,
        /// The longest key that is accepted.
        limit: usize,
    },
    /// A commit is larger than [`Options::max_commit_bytes`](crate::Options::max_commit_bytes), or a
    /// transaction than its own limit. Nothing was written; split it.
    #[error("the commit has {size} bytes, the limit is {limit}; split it or raise max_commit_bytes")]
    BatchTooLarge {
        /// The commit's encoded size in bytes.
        size: u64,
        /// The largest commit that is accepted.
        limit: u64,
    },
    /// No space on the device. Nothing was lost and nothing is poisoned; writes succeed again when
    /// there is room. Meanwhile deletes, batches of deletes only,
    /// [`Db::drop_family`](crate::Db::drop_family), flushes and compactions use room that is kept
    /// back for them, [`Options::reserve_bytes`](crate::Options::reserve_bytes).
    #[error("no space left for {path}: {needed}; free some space and write again")]
    StorageFull {
        /// What could not be written.
        needed: String,
        /// Where it was to be written.
        path: PathBuf,
    },
    /// The log could not prepare room for further commits, for another reason than a full device.
    /// Nothing was written and nothing is poisoned; the log tries again, and writes succeed when
    /// the cause is removed.
    #[error(
        "the log has no room prepared for another commit: {path}: {cause}; the log tries again, and so may the caller"
    )]
    Unprepared {
        /// The log's directory.
        path: PathBuf,
        /// What failed, and on which file.
        cause: String,
    },
    /// A write or sync of the log failed earlier, and what is not durable by now may or may not
    /// survive. Keys that are not [in doubt](Error::InDoubt) can be read; only reopening the store
    /// makes it writable again.
    #[error("the log is poisoned by an earlier failure: {cause}; reopen the store")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// The last write of the key may or may not survive: the log failed before it was durable, and
    /// only reopening the store decides it. Neither its value nor the one before it is returned,
    /// for a restart could revoke either.
    #[error("{} of the family {family:?} is in doubt: its last write may or may not survive an earlier failure ({cause}); \
             reopen the store to know", key.as_ref().map_or_else(|| "a key".to_owned(), |key| format!("the key {key:?}")))]
    InDoubt {
        /// The family's name.
        family: String,
        /// The key; `None` where the read was of the whole family, or nothing is certain.
        key: Option<Key>,
        /// The first failure.
        cause: String,
    },
    /// A flush or compaction failed in a way that must not be repeated. Reads still work; reopen
    /// the store.
    #[error("background work failed: {cause}; writes are refused until the store is reopened")]
    Background {
        /// The first failure.
        cause: String,
    },
    /// A step of an iterator has passed over as many entries as
    /// [`Iter::set_max_skippable_internal_keys`](crate::Iter::set_max_skippable_internal_keys) allows.
    /// The iterator has not ended: its next step goes on. Another one goes on behind the key, or
    /// before it where it goes backwards. (RocksDB: `Status::Incomplete`.)
    #[error(
        "passed over removed entries up to {at:?}, as many as one step may; take the next step, or go on there"
    )]
    Incomplete {
        /// Up to this key, in the iterator's direction, nothing is left to return.
        at: Key,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// This process was forked from the one that has the store open. Only that one may use it.
    #[error(
        "{path} was opened by process {opener}, and this is a child that was forked from it; open the store after the \
         fork, in the process that uses it"
    )]
    Forked {
        /// The store's or its log's directory.
        path: PathBuf,
        /// The process that opened it.
        opener: u32,
    },
    /// Another process, or another handle in this one, has the store open.
    #[error("{path} is in use by {}; close it there first", holder(*pid))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The holder, where the lock file names one.
        pid: Option<u32>,
    },
    /// The directory holds something that is not a store of ours. It was left untouched.
    #[error("{path} is not a Collie store: found {found}; it was left untouched")]
    WrongDirectory {
        /// The directory.
        path: PathBuf,
        /// What was found there.
        found: String,
    },
    /// There is no store, and the options say not to create one.
    #[error("there is no store at {path}; set `create_if_missing` to create one")]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// The store was written by another version of Collie.
    #[error("{path} has format version {found}, this program reads version {supported}")]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that it states.
        found: u32,
        /// The version that this program reads.
        supported: u32,
    },
    /// A later version of Collie gave a family an option that this program does not know, and marked
    /// it as one without which the family must not be used. Open the store with that version.
    #[error(
        "{path}: the family {family:?} has the option {option}, which this version does not know and must not pass over"
    )]
    UnknownOption {
        /// The manifest.
        path: PathBuf,
        /// The family's name.
        family: String,
        /// The option's name.
        option: String,
    },
    /// The log's directory holds the log of another store. It was left untouched.
    #[error(
        "the store in {path} has the log {expected}, but {log} holds the log {found} of another store; give each \
         store a `wal_dir` of its own"
    )]
    LogIdMismatch {
        /// The store's directory.
        path: PathBuf,
        /// The log's directory.
        log: PathBuf,
        /// The id of the store's log.
        expected: LogId,
        /// The id of the log that is there.
        found: LogId,
    },
    /// Stored bytes are not what was written.
    #[error(
        "{path} is damaged at byte {offset}: expected {expected}, found {found}; restore it from a backup"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The byte where the damage shows.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// There is a family of that name already.
    #[error("there is a family named {name:?} already")]
    FamilyExists {
        /// The name.
        name: String,
    },
    /// The family was dropped.
    #[error("the family {name:?} was dropped")]
    FamilyDropped {
        /// Its name.
        name: String,
    },
    /// The family was created after the snapshot, or the transaction's, was taken. Take a newer
    /// one.
    #[error("the family {name:?} was created after the snapshot was taken; take a newer one")]
    FamilyTooNew {
        /// Its name.
        name: String,
    },
    /// The name cannot be a family's.
    #[error("{name:?} cannot be a family's name: {reason}")]
    FamilyName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Another commit wrote what the transaction depends on, since its snapshot. Roll it back and
    /// run it again.
    #[error("{} of the family {family:?} was written by another commit since this transaction's snapshot; roll it back and \
             run it again", what(key.as_ref()))]
    Conflict {
        /// The family's name.
        family: String,
        /// The key; `None` where the transaction read a range.
        key: Option<Key>,
    },
    /// Waiting for this lock would never end: each of these transactions, or owners of row locks,
    /// waits for the next, and the last for the first, which was rolled back and has released its
    /// locks. Run it again.
    #[error("deadlock: {}; the first was rolled back, run it again", ring(cycle))]
    Deadlock {
        /// The cycle, from the transaction that got this error on.
        cycle: Vec<DeadlockLink>,
    },
    /// A request for a row lock timed out: a transaction, a write or [`RowLocks`](crate::RowLocks)
    /// held it. A transaction that gets this stays open; try again, or roll it back.
    #[error("timed out after {waited_ms} ms waiting for a lock on {} of the family {family:?}; try again, or see \
             `Db::transactions` for which transactions hold locks", what(key.as_ref()))]
    LockTimeout {
        /// The family's name.
        family: String,
        /// The key; `None` where the request was for a range.
        key: Option<Key>,
        /// How long the request waited, in milliseconds.
        waited_ms: u64,
    },
    /// The table of row locks is full. Commit or roll back what is open, lock fewer rows at once,
    /// or raise [`Options::max_row_locks`](crate::Options::max_row_locks).
    #[error(
        "no room for another row lock, the limit is {limit}; lock fewer rows at once or raise `max_row_locks`"
    )]
    TooManyLocks {
        /// The limit for all together.
        limit: usize,
    },
    /// The transaction was aborted earlier. Begin another one.
    #[error("the transaction was aborted earlier ({cause}); begin another one")]
    TransactionAborted {
        /// Why it was aborted.
        cause: String,
    },
    /// The transaction has no savepoint.
    #[error("the transaction has no savepoint")]
    NoSavepoint,
    /// A family was used with a store or a batch that it does not belong to.
    #[error("the family {name:?} belongs to another store")]
    ForeignFamily {
        /// The family's name.
        name: String,
    },
    /// An option has a value that cannot work.
    #[error("the option {option} is {value}: {reason}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why that cannot work.
        reason: String,
    },
    /// The store's commits come from another log ([`Options::journal`](crate::Options::journal)),
    /// only by [`Db::apply`](crate::Db::apply), and it has one family. Nothing was written.
    #[error("this store's commits come from an external journal, only by `apply`: {refused} is refused")]
    ExternalJournal {
        /// What was refused.
        refused: &'static str,
    },
    /// Writes are delayed or stopped until background work has caught up ([`Stall`](crate::Stall)), and
    /// the call does not wait: [`Db::try_apply`](crate::Db::try_apply). Nothing was changed.
    #[error("writes wait for background work at the moment, and this call does not wait")]
    Stalled,
    /// The call is for stores with an [external journal](crate::Journal::External), and this one
    /// has a log of its own, or none.
    #[error("`{refused}` is for stores that are opened with an external journal, and this one is not")]
    OwnJournal {
        /// The call.
        refused: &'static str,
    },
    /// The sequence number of a commit, or of all staged tables, is not above what was applied
    /// before, or it is 2⁶² or more. Nothing was changed.
    #[error("the sequence number {seq} is out of order: the next is at least {next} and less than 2^62")]
    SeqOutOfOrder {
        /// The sequence number.
        seq: collie_log::Lsn,
        /// The least that would be accepted.
        next: collie_log::Lsn,
    },
    /// A file of the store could not be read or written.
    #[error("cannot {op} {path}: {source}")]
    Io {
        /// The operation that failed.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The table library failed.
    #[error("cannot {op} the tables in {path}: {source}")]
    Table {
        /// The operation that failed.
        op: &'static str,
        /// The family's directory.
        path: PathBuf,
        /// What it answered, and what to do.
        source: TableError,
    },
    /// The log failed in another way.
    #[error(transparent)]
    Log(LogError),
}

/// One member of a cycle of transactions that wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadlockLink {
    /// The number of the transaction, or of the [`RowOwner`](crate::RowOwner).
    pub transaction: u64,
    /// The name that its options gave it, or [`Db::row_owner`](crate::Db::row_owner).
    pub name: String,
    /// The family of the row that it waits for.
    pub family: String,
    /// That row's key; empty where it waits for a range of the family, or for all of it.
    pub key: Key,
}

fn what(key: Option<&Key>) -> String {
    key.map_or_else(|| "a key in a range".to_owned(), |key| format!("the key {key:?}"))
}

fn ring(cycle: &[DeadlockLink]) -> String {
    let link = |link: &DeadlockLink| {
        let DeadlockLink {
            transaction,
            name,
            family,
            key,
        } = link;
        let name = if name.is_empty() {
            String::new()
        } else {
            format!(" ({name})")
        };
        let row = if key.is_empty() {
            "a range".to_owned()
        } else {
            format!("{key:?}")
        };
        format!("transaction {transaction}{name} waits for {row} of the family {family:?}")
    };
    cycle.iter().map(link).collect::<Vec<_>>().join(", ")
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}

impl Error {
    pub(crate) fn invalid_option(option: &'static str, value: impl ToString, reason: &str) -> Self {
        Self::InvalidOption {
            option,
            value: value.to_string(),
            reason: reason.into(),
        }
    }

    /// Whether the same transaction, or the same write, may succeed when it is run again from its
    /// beginning: [`Conflict`](Self::Conflict), [`Deadlock`](Self::Deadlock),
    /// [`LockTimeout`](Self::LockTimeout) and [`TransactionAborted`](Self::TransactionAborted).
    /// Nothing of it was written. [`Db::transact`](crate::Db::transact) does that.
    ///
    /// Not among them is what a later attempt meets again ([`TooManyLocks`](Self::TooManyLocks),
    /// [`StorageFull`](Self::StorageFull)), and what leaves open whether the commit survives
    /// ([`Poisoned`](Self::Poisoned), [`Background`](Self::Background), [`Log`](Self::Log)): to run
    /// it again could do it twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Conflict { .. }
                | Self::Deadlock { .. }
                | Self::LockTimeout { .. }
                | Self::TransactionAborted { .. }
        )
    }

    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        if is_full(&source) {
            return Self::StorageFull {
                needed: format!("cannot {op}"),
                path,
            };
        }
        Self::Io {
            op,
            path,
            source: Arc::new(source),
        }
    }

    pub(crate) fn table(op: &'static str, path: impl Into<PathBuf>, source: lsm_tree::Error) -> Self {
        let path = path.into();
        match source {
            lsm_tree::Error::Io(e) if is_full(&e) => Self::StorageFull {
                needed: format!("cannot {op} the tables"),
                path,
            },
            source => Self::Table {
                op,
                path,
                source: TableError::new(source),
            },
        }
    }
}

/// The device has no space, or a quota is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl AsRef<Self> for Error {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::TooLarge { len, limit } => Self::BatchTooLarge { size: len, limit },
            LogError::Options {
                option,
                value,
                reason,
            } => Self::InvalidOption {
                option,
                value,
                reason,
            },
            LogError::Poisoned { cause } => Self::Poisoned { cause },
            LogError::Unapplied => Self::Background {
                cause: LogError::Unapplied.to_string(),
            },
            LogError::Forked { path, opener } => Self::Forked { path, opener },
            LogError::Unprepared { path, cause, .. } => Self::Unprepared {
                path,
                cause: cause.to_string(),
            },
            LogError::StorageFull { needed, path } => Self::StorageFull {
                needed: format!("the log needs {needed} bytes"),
                path,
            },
            LogError::Io { op, path, source } if is_full(&source) => Self::StorageFull {
                needed: format!("cannot {op}"),
                path,
            },
            other => Self::Log(other),
        }
    }
}
