//! Waiting until what was appended is as safe as was asked for, and until the ring has room.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Lsn;
use crate::core::Core;
use crate::error::LogError;
use crate::flush::flush::{SyncStage, WriteStage};
use crate::lockfree::sync::lock;
use crate::options::Level;
use crate::stats::since;

impl Core {
    /// Whether `end` is safe at `level`, or never will be; `None` while it is worth waiting.
    pub(crate) fn reached(&self, end: Lsn, level: Level) -> Option<Result<(), LogError>> {
        let safe = match (level, self.failure()) {
            (Level::Buffered, _) => true,
            // After a failure the page cache need not have what was written to it.
            (Level::Disk, _) | (Level::Process, Some(_)) => self.durable() >= end,
            // A thread that knows the end of a frame knows that it is copied.
            (Level::Process, None) if self.ring_survives() => return Some(self.check_ring(end)),
            (Level::Process, None) => self.written() >= end,
        };
        if safe {
            Some(Ok(()))
        } else {
            self.check().err().map(Err)
        }
    }

    /// A copy in the shared ring counts as long as the ring does: after a close only what was
    /// flushed.
    fn check_ring(&self, end: Lsn) -> Result<(), LogError> {
        if self.written() >= end {
            Ok(())
        } else {
            self.check()
        }
    }

    /// Blocks until `end` is safe at `level`.
    pub(crate) fn wait(&self, end: Lsn, level: Level) -> Result<(), LogError> {
        self.check_process()?;
        if let Some(answer) = self.reached(end, level) {
            return answer;
        }
        self.check_appended(end)?;
        let done = || self.reached(end, level);
        match level {
            Level::Disk => self.wait_for_durable(end, done),
            Level::Buffered | Level::Process => self.flush.writes.wait(&WriteStage::of(self), end, done),
        }
    }

    /// Where a write past the page cache is durable there is no second stage.
    fn wait_for_durable<R>(&self, end: Lsn, done: impl FnMut() -> Option<R>) -> R {
        if self.segments.direct() {
            self.flush.writes.wait(&WriteStage::of(self), end, done)
        } else {
            self.flush.syncs.wait(&SyncStage(self), end, done)
        }
    }

    /// Refuses to wait for what was never appended: that would never end.
    pub(crate) fn check_appended(&self, end: Lsn) -> Result<(), LogError> {
        let appended = self.appended();
        if end <= appended {
            return Ok(());
        }
        Err(LogError::Options {
            option: "end",
            value: end.to_string(),
            reason: format!("the log ends at {appended}, so a wait would never end"),
        })
    }

    /// Waits until the ring has room up to `end`.
    pub(crate) fn wait_for_room(&self, end: Lsn) -> Result<(), LogError> {
        let start = self.now();
        let needed = end - self.ring.capacity();
        let answer = self
            .flush
            .writes
            .wait_for_room(&WriteStage::in_mid_append(self), || {
                if self.written() >= needed {
                    Some(Ok(()))
                } else if self.has_ended() {
                    Some(Err(LogError::Closed))
                } else {
                    self.poisoned().map(Err)
                }
            });
        self.stats.recorder.room_ns.add(since(start, self.now()));
        answer
    }

    /// Whether a frame of `len` bytes has room, or none can be made for it; `None` while it is worth
    /// waiting. Others may take the room.
    pub(crate) fn has_room(&self, len: u64) -> Option<Result<(), LogError>> {
        if let Err(stopped) = self.check() {
            return Some(Err(stopped));
        }
        let next = self.order.next.glance();
        if self.has_room_at(next, len) {
            return Some(Ok(()));
        }
        if self.space.admits_exactly(next, len) {
            // The ring is full, and that passes, whatever the device lacks.
            return None;
        }
        let setback = lock(&self.space.setback).clone();
        setback.map(|error| Err(self.refusal(error, len)))
    }

    /// Whether a frame of `len` bytes that is reserved exactly at `at` has room: prepared space, and
    /// a place in the ring.
    pub(crate) fn has_room_at(&self, at: Lsn, len: u64) -> bool {
        self.space.admits_exactly(at, len) && at + len <= self.written() + self.ring.capacity()
    }

    /// The last groups, until nothing is appended any more: a group may leave behind a part of a
    /// frame, and that must not be how the log ends.
    pub(crate) fn finish(&self) -> Result<(), LogError> {
        loop {
            let end = self.appended();
            self.wait_for_durable(end, || match (self.durable() >= end, self.poisoned()) {
                (true, _) => Some(Ok(())),
                (_, Some(error)) => Some(Err(error)),
                _ => None,
            })?;
            if self.appended() == end {
                return Ok(());
            }
        }
    }

    /// Wakes the tasks that have their answer.
    pub(crate) fn wake_tasks(&self) {
        let ready = self.tasks.waiting.take(
            |end, level| self.reached(end, level).is_some(),
            |end| self.durable() > end || self.ended().is_some(),
            |len| self.has_room(len).is_some(),
        );
        // Others took the space that was prepared for those that are left. They sleep, so no other
        // thread asks for more.
        if let Some(len) = self.tasks.waiting.longest_without_room()
            && !self.space.admits_exactly(self.order.next.glance(), len)
        {
            self.threads.preparer.call();
        }
        for waker in ready {
            // Foreign code: one that panics takes neither the wake-ups of the others along, nor the
            // log.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!(dir = %self.dir.display(), "a task's waker panicked");
            }
        }
    }
}
