//! A commit's way through the order: it gets an appender and its position, and is waited for until it
//! is visible.

use std::sync::atomic::Ordering;

use collie_io::{Clock, RealClock};
use collie_log::{AppendError, Level, Lsn, Room, Span};
use parking_lot::MutexGuard;

use crate::events::FlushCause;
use crate::memtable::At;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::View;
use crate::write::appenders::{Appender, Record};
use crate::write::encoding::{self, KIND_MARK, KIND_PART};
use crate::write::order::{STREAM, SequencerWorker};
use crate::{Error, Result};

/// Waits that are shorter, in nanoseconds, are not counted: most end before the waiter sleeps, and all writers
/// would write the same word for nearly every commit.
const COUNTED_NS: u64 = 10_000;
/// A staging buffer that grew beyond this for one commit is freed.
const STAGING_KEPT: usize = 1 << 20;

impl Store {
    /// Waits until everything below `end` is in its memtables. Neither a failure nor closing ends
    /// the wait by itself: commits that are under way are applied all the same.
    pub(crate) fn wait_visible(&self, end: Lsn) -> Result<()> {
        if self.visible_boundary() >= end {
            return Ok(());
        }
        #[cfg(test)]
        self.pipeline.waiters.fetch_add(1, Ordering::Relaxed);
        let started = RealClock.monotonic();
        let reached = self.sequencer().wait_visible(end);
        let waited = RealClock.monotonic().saturating_sub(started);
        if waited >= COUNTED_NS {
            self.pipeline.apply_wait_ns.fetch_add(waited, Ordering::Relaxed);
        }
        #[cfg(test)]
        self.pipeline.waiters.fetch_sub(1, Ordering::Relaxed);
        // The cause, where the thread that failed has said it by now.
        reached.map_err(|error| self.unapplied().unwrap_or(error))
    }

    /// Everything below this LSN is in its memtables.
    pub(crate) fn visible_boundary(&self) -> Lsn {
        self.sequencer().visible()
    }

    /// Every commit that starts below this LSN is in its memtables, and durable.
    pub(crate) fn settled(&self) -> Lsn {
        let durable = self.sequencer().durable().unwrap_or(Lsn::MAX);
        self.visible_boundary().min(durable)
    }

    #[cfg(test)]
    pub(crate) fn has_visibility_waiters(&self) -> bool {
        self.pipeline.waiters.load(Ordering::Relaxed) > 0
    }

    /// The tables hold everything below `lsn`, or are about to: it is visible, and what an external
    /// journal brings goes on there. A log goes on where it ends.
    pub(crate) fn go_on_at(&self, lsn: Lsn) -> Result<()> {
        let Some(external) = self.sequencer().external() else {
            return Ok(());
        };
        external.go_on_at(lsn);
        // The visible boundary follows.
        self.mark().map(drop)
    }

    /// Reserves a position in the order for something that is no commit.
    pub(crate) fn mark(&self) -> Result<At> {
        self.mark_in(Room::Relief)
    }

    /// As [`Store::mark`], and waits until recovery would find its frame. Returns its start.
    pub(crate) fn durable_mark(&self) -> Result<Lsn> {
        let mark = self.mark()?;
        self.sequencer().wait(mark.end, Level::Disk)?;
        Ok(mark.start)
    }

    fn mark_in(&self, room: Room) -> Result<At> {
        let system = HeldAppender {
            store: self,
            held: self.pipeline.system.lock(),
        };
        system.commit(KIND_MARK, Record::Empty, room, |_| ())
    }

    /// An appender for a commit. `None` where row locks must be taken first and the caller has
    /// none.
    pub(crate) fn appender(&self, has_locks: bool) -> Result<Option<HeldAppender<'_>>> {
        self.sequencer().check_own("a commit")?;
        self.appender_for(has_locks)
    }

    /// An appender for a commit that an external journal's owner applies.
    pub(crate) fn applier(&self) -> Result<HeldAppender<'_>> {
        self.appender_for(true)?.ok_or(Error::Closed)
    }

    fn appender_for(&self, has_locks: bool) -> Result<Option<HeldAppender<'_>>> {
        let mut held = self.pipeline.appenders.take();
        // Checked with the appender taken: `use_locks` takes every appender once after it has set
        // this.
        if !has_locks && self.locks().in_use() {
            return Ok(None);
        }
        if held.is_none() {
            self.check_open()?;
            *held = Some(Appender::new(self.sequencer())?);
        }
        Ok(Some(HeldAppender { store: self, held }))
    }

    /// From now on writes outside of transactions take row locks. On return all that took none are
    /// applied.
    pub(crate) fn use_locks(&self) {
        self.locks()
            .enable(|| self.pipeline.appenders.wait_until_applied());
    }

    /// Seals the family's active memtable at an LSN of its own; later commits go to a new one.
    /// Returns the LSN, below which the family's commits are in sealed memtables or tables.
    ///
    /// `only_if` decides while no other rotation runs.
    pub(crate) fn rotate(
        &self,
        family: &FamilyState,
        cause: FlushCause,
        only_if: impl FnOnce(&View) -> bool,
    ) -> Result<Option<At>> {
        let mem = |from| self.new_mem(from, family);
        family.rotate(cause, only_if, || self.mark_in(Room::Mark), mem)
    }
}

/// The right to make one commit.
pub(crate) struct HeldAppender<'a> {
    store: &'a Store,
    held: MutexGuard<'a, Option<Appender>>,
}

impl HeldAppender<'_> {
    /// Commits a record: reserves a position, copies the record there, and applies it with `apply`.
    /// On return it is in its memtables; it is visible when every earlier commit is. An error from
    /// before the reservation leaves nothing behind. After one from behind it, or a panic in `apply`,
    /// the visible boundary stays below the commit for good, and the store takes no more writes.
    ///
    /// What came before an earlier reservation comes before `apply`: a rotation with a smaller LSN has
    /// set its flag by then (`FamilyState::with_mem`).
    pub(crate) fn commit(
        mut self,
        kind: u8,
        record: Record<'_>,
        room: Room,
        apply: impl FnOnce(At),
    ) -> Result<At> {
        let Appender {
            worker,
            staging,
            commits,
            bytes,
        } = self.held.as_mut().ok_or(Error::Closed)?;
        let payload = match record {
            Record::One(op) => {
                staging.clear();
                encoding::encode(staging, op);
                &**staging
            }
            Record::Encoded(payload) => payload,
            Record::Empty | Record::Placed { .. } => &[],
        };
        let apply = |Span { start, end }| {
            reach!("appended");
            apply(At { start, end });
        };
        debug_assert!(
            !matches!(
                (&*worker, record),
                (SequencerWorker::Log(_), Record::Placed { .. })
            ),
            "a commit of a journal in a store with a log"
        );
        let unfinished = Unfinished(self.store);
        let committed = match (worker, record) {
            (SequencerWorker::Unlogged { worker, .. }, Record::Placed { seq, .. }) => {
                worker.place_then(seq, 1, apply).map_err(AppendError::Rejected)
            }
            (SequencerWorker::Unlogged { worker, step }, _) => {
                worker.take_then(*step, apply).map_err(AppendError::Rejected)
            }
            (SequencerWorker::Log(worker), _) => worker.append_then(room, STREAM, kind, payload, apply),
        };
        std::mem::forget(unfinished);
        if committed.is_ok() {
            *commits += u64::from(kind != KIND_PART);
            *bytes += match record {
                Record::Placed { bytes, .. } => bytes,
                _ => payload.len(),
            } as u64;
            if staging.capacity() > STAGING_KEPT {
                *staging = Vec::new();
            }
        }
        drop(self.held);
        let Span { start, end } = match committed {
            Ok((span, ())) => span,
            Err(error) => return Err(self.store.note_uncommitted(kind, error)),
        };
        match room {
            // A mark takes nothing.
            _ if kind == KIND_MARK => {}
            Room::Relief => self.store.note_removal(),
            Room::Commit | Room::Mark => self.store.note_taken(),
        }
        Ok(At { start, end })
    }
}

impl Store {
    /// What it says of the store that something was not committed.
    #[cold]
    fn note_uncommitted(&self, kind: u8, error: AppendError) -> Error {
        let error = match error {
            AppendError::Rejected(error) => Error::from(error),
            AppendError::Unapplied(error) => {
                let error = Error::from(error);
                self.leave_unapplied(error.clone());
                error
            }
        };
        // Those who place a mark make room themselves.
        if kind != KIND_MARK && matches!(error, Error::StorageFull { .. }) {
            self.request_room();
        }
        error
    }
}

/// Dropped only by a panic before the commit is applied completely. Its frame may be complete in
/// the log by then.
struct Unfinished<'a>(&'a Store);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.leave_half_applied();
    }
}
