//! What can go wrong, each with where, what was expected and what was found.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Lsn;
use crate::format::LogId;

/// Why [`Worker::append_then`](crate::Worker::append_then) failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// Nothing was appended.
    #[error(transparent)]
    Rejected(LogError),
    /// The frame has its place in the order, and is not applied. The applied boundary stays below it.
    #[error("the frame has its place and is not applied: {0}")]
    Unapplied(#[source] LogError),
}

impl From<AppendError> for LogError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Rejected(error) | AppendError::Unapplied(error) => error,
        }
    }
}

/// An error of the log. Cheap to clone: a poisoned log gives every caller its first cause.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Another process, or another `Log` in this one, has the directory open.
    #[error(
        "the log in {} is in use{}; close it there first",
        path.display(),
        pid.map(|p| format!(" by process {p}")).unwrap_or_default()
    )]
    Locked {
        /// The log's directory.
        path: PathBuf,
        /// The holder, where its lock file names it.
        pid: Option<u32>,
    },
    /// A frame above the limit. Nothing was written.
    #[error(
        "a frame of {len} bytes is larger than the limit of {limit} (half the ring); split it, or open the log with a larger ring"
    )]
    TooLarge {
        /// The payload's length in bytes.
        len: u64,
        /// The largest payload in bytes.
        limit: u64,
    },
    /// No room for a further segment. Nothing was written; appends go on when there is room again.
    #[error("no space left for the log in {}: {needed} more bytes were needed; nothing was written, free some space and try again", path.display())]
    StorageFull {
        /// The log's directory.
        path: PathBuf,
        /// Bytes that the append needed.
        needed: u64,
    },
    /// Room for a frame could not be prepared, for another reason than a full device: say that no
    /// further file can be opened. Nothing was written, and nothing is at stake; appends go on when
    /// the cause is gone.
    #[error(
        "the log in {} could not prepare room for {needed} more bytes: {cause}; nothing was written, remove the cause and \
         try again",
        path.display()
    )]
    Unprepared {
        /// The log's directory.
        path: PathBuf,
        /// Bytes that the append needed.
        needed: u64,
        /// What failed, and on which file.
        cause: Box<LogError>,
    },
    /// An earlier write or sync of frames failed, or a worker panicked in mid-append. Final until
    /// the log is reopened.
    #[error("the log stopped for good after an earlier failure, reopen it to recover: {cause}")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// [`Worker::try_append`](crate::Worker::try_append) would have to wait for room in the ring, or
    /// on the device. Nothing was appended.
    #[error(
        "the log has no room for the frame at this moment; await `Log::room`, or append with a call that waits"
    )]
    WouldBlock,
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// This process was forked from the one that has the log open. Only that one may use it.
    #[error(
        "the log in {} was opened by process {opener}, and this is a child that was forked from it; open the log after \
         the fork, in the process that uses it",
        path.display()
    )]
    Forked {
        /// The log's directory.
        path: PathBuf,
        /// The process that opened it.
        opener: u32,
    },
    /// The media hold something else than what was durably written.
    #[error(
        "corruption in {} at byte {offset} (LSN {lsn}): expected {expected}, found {found}; restore the file from a \
         backup, or truncate the log there with `collie log repair`, which loses what follows",
        path.display()
    )]
    Corrupt {
        /// The segment.
        path: PathBuf,
        /// Byte offset in that file.
        offset: u64,
        /// The same place as an LSN.
        lsn: Lsn,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The oldest segment begins in the middle of a frame, and nothing says where its first frame
    /// begins. What stands there may be anything that was ever appended, so it is not searched for
    /// one.
    #[error(
        "{} begins in the middle of a frame, and it is not known where its first one begins (LSN {lsn} or above): {why}; \
         nothing was changed; bring back what is missing, or open the log with `resume_at`",
        path.display()
    )]
    BeginningUnknown {
        /// The oldest segment that can be read.
        path: PathBuf,
        /// The LSN of its first byte.
        lsn: Lsn,
        /// Why it is not known.
        why: String,
    },
    /// A format that this version does not know.
    #[error("{} has format version {found}, this version of Collie reads versions up to {supported}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that is read here.
        supported: u32,
    },
    /// The directory holds something that no log puts there. It was left untouched.
    #[error("{} is not a log directory: it holds {found}; nothing was changed", path.display())]
    WrongDirectory {
        /// The directory.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The log does not reach to where its caller wants to resume. Archived segments count as far
    /// as readers go: back to the first gap.
    #[error("the log in {} holds LSN {oldest} to {end}, but {wanted} is needed: part of it is missing", path.display())]
    Missing {
        /// The log's directory.
        path: PathBuf,
        /// Where the caller wants to read from.
        wanted: Lsn,
        /// The first LSN that is there.
        oldest: Lsn,
        /// The end of what is there.
        end: Lsn,
    },
    /// The directory holds another log than the one that is wanted. It was left untouched.
    #[error("{} holds the log {found}, but {expected} is wanted; nothing was changed", path.display())]
    LogIdMismatch {
        /// The directory.
        path: PathBuf,
        /// The log that is wanted, [`LogOptions::log_id`](crate::LogOptions::log_id).
        expected: LogId,
        /// The log that is there.
        found: LogId,
    },
    /// A frame was appended to be applied, and never will be: its thread panicked, or the log failed
    /// meanwhile. The log itself may go on; what is applied beyond that frame is not to be relied on.
    #[error("an earlier append ended before it was applied; reopen the log to apply what it holds")]
    Unapplied,
    /// All worker slots are taken.
    #[error("all {limit} worker slots are taken; drop a worker or raise `max_workers`")]
    TooManyWorkers {
        /// The limit, [`LogOptions::max_workers`](crate::LogOptions::max_workers).
        limit: usize,
    },
    /// An option is out of its range.
    #[error("{option} is {value}: {reason}")]
    Options {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why that cannot work.
        reason: String,
    },
    /// The file system refused.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

/// Why a log stopped for good, and what of it is certain.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Failure {
    /// The first failure.
    pub cause: Arc<str>,
    /// Frames below are durable. Those from here on are in doubt: reopening finds some of them, or
    /// none. It does not move any more.
    pub durable: Lsn,
}

impl LogError {
    /// Whether it says that there is no such file.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether it says that the device is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_full(source))
    }
}

/// ENOSPC, or a quota that is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Says what was tried where, for errors of the seam.
pub(crate) trait At<T> {
    fn at(self, op: &'static str, path: &Path) -> Result<T, LogError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, op: &'static str, path: &Path) -> Result<T, LogError> {
        self.map_err(|source| LogError::Io {
            op,
            path: path.to_owned(),
            source: Arc::new(source),
        })
    }
}

/// Damage in a file.
pub(crate) fn corrupt_at(
    path: &Path,
    offset: u64,
    lsn: Lsn,
    expected: impl Into<String>,
    found: impl fmt::Display,
) -> LogError {
    LogError::Corrupt {
        path: path.to_owned(),
        offset,
        lsn,
        expected: expected.into(),
        found: found.to_string(),
    }
}

/// Why the log stops for good: only this stops it ([`Core::poison`](crate::core::Core::poison)), and
/// only what is here makes one. No other error ever becomes one.
///
/// A log that went on after a failed write or sync of frames could acknowledge what is lost: that
/// is final. Nothing is lost by what fails before a reservation and in housekeeping, where a
/// segment is prepared, archived or removed: it is refused or put off, and tried again, and passes
/// when its cause is gone.
#[derive(Debug)]
pub(crate) struct Fatal(String);

impl Fatal {
    /// A write or sync of frames failed, or of a file that may hold some.
    pub(crate) fn frames(error: &LogError) -> Self {
        Self(error.to_string())
    }

    /// There is no segment to write frames to, although admission let them in.
    pub(crate) fn no_segment(lsn: Lsn) -> Self {
        Self(format!("no segment was prepared for LSN {lsn}"))
    }

    /// A thread ended in the middle of what must not be left half done.
    pub(crate) fn unfinished(what: &str) -> Self {
        Self(what.to_owned())
    }

    /// No later process will find what is written.
    pub(crate) fn not_to_be_found(what: String) -> Self {
        Self(what)
    }

    pub(crate) fn cause(&self) -> &str {
        &self.0
    }
}

/// Why room could not be prepared, or a segment not be released.
#[derive(Debug)]
pub(crate) enum HousekeepingError {
    /// Frames are at stake.
    Fatal(Fatal),
    /// Nothing is: another attempt may succeed.
    Setback(LogError),
}

impl From<LogError> for HousekeepingError {
    fn from(error: LogError) -> Self {
        Self::Setback(error)
    }
}
