//! Segments are prepared ahead of need, and released when no holder retains them.

use crate::core::Core;
use crate::error::{HousekeepingError, LogError};
use crate::lockfree::limit::Room;
use crate::lockfree::sync::lock;

impl Core {
    /// How many bytes are kept prepared: what can come while a chunk is zeroed and synced.
    pub(crate) fn ahead(&self) -> u64 {
        self.options.segment_bytes.min(self.ring.capacity() / 2)
    }

    /// Prepares segments until [`Core::ahead`] bytes are ready beyond what is reserved, or as many
    /// as a task waits for.
    pub(crate) fn prepare_ahead(&self) -> Result<(), LogError> {
        let awaited = self.waiting.longest_without_room().unwrap_or(0);
        let enough = || self.space.is_ahead(self.appended(), self.ahead().max(awaited));
        while !enough() && self.check().is_ok() {
            self.weigh(self.space.extend_unless(&self.segments, Room::Commit, enough))?;
        }
        Ok(())
    }

    /// For tasks that wait for room: whether there is some now, or will not be for a while.
    pub(crate) fn note_prepared(&self, prepared: &Result<(), LogError>) {
        *lock(&self.setback) = prepared.as_ref().err().cloned();
        if self.waiting.longest_without_room().is_some() {
            self.flusher.call();
        }
    }

    /// The error of an append for whose `len` bytes no room could be prepared.
    pub(crate) fn refusal(&self, error: LogError, len: u64) -> LogError {
        let path = self.dir.clone();
        match error {
            full if full.is_full() => LogError::StorageFull { path, needed: len },
            error @ (LogError::Closed | LogError::Poisoned { .. } | LogError::Forked { .. }) => error,
            error => LogError::Unprepared {
                path,
                needed: len,
                cause: Box::new(error),
            },
        }
    }

    /// Stops the log where frames are at stake. All else the caller reports, or tries again.
    pub(crate) fn weigh<T>(&self, prepared: Result<T, HousekeepingError>) -> Result<T, LogError> {
        prepared.map_err(|failure| match failure {
            HousekeepingError::Setback(error) => error,
            HousekeepingError::Fatal(fatal) => {
                self.poison(&fatal);
                let cause = fatal.cause().to_owned();
                self.poisoned().unwrap_or(LogError::Poisoned { cause })
            }
        })
    }

    /// Releases the segments that are durable and below what every holder retains. The one that is
    /// the oldest then records where its first frame begins, durably, before the others go: what
    /// follows there need not be durable, for recovery begins at that LSN and searches for nothing.
    pub(crate) fn release(&self) -> Result<(), LogError> {
        // A log that has stopped leaves everything as it is.
        self.check()?;
        self.weigh(self.segments.release(|| {
            let holders = lock(&self.holders);
            let retained = holders.lowest()?;
            Some((holders, retained.min(self.durable())))
        }))?;
        self.segments.purge_archive()
    }
}
