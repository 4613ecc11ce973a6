//! What a failure puts at stake.
//!
//! A log that went on after a failed write or sync of frames could acknowledge what is lost: that
//! is final. Nothing is lost by what fails before a reservation and in housekeeping, where a
//! segment is prepared, archived or removed: it is refused or put off, and tried again, and passes
//! when its cause is gone. Only a [`Fatal`] stops the log
//! ([`Core::poison`](crate::shared::Core::poison)), and only what is here makes one: no other error
//! ever becomes one.

use crate::error::LogError;

/// Why the log stops for good.
#[derive(Debug)]
pub(crate) struct Fatal(String);

impl Fatal {
    /// A write or sync of frames failed, or of a file that may hold some.
    pub(crate) fn frames(error: &LogError) -> Self {
        Self(error.to_string())
    }

    /// There is no segment to write frames to, although admission let them in.
    pub(crate) fn no_segment(lsn: crate::Lsn) -> Self {
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
