//! A commit's way through the order: it gets an appender and its position, and is waited for until it
//! is visible.

use collie_log::{Level, Lsn};
use parking_lot::MutexGuard;

use crate::memtable::At;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::{FlushCause, View};
use crate::write::appenders::{Appender, Record};
use crate::write::encoding::KIND_MARK;
use crate::write::order::LogRoom;
use crate::{Error, Result};

impl Store {
    /// Waits until everything below `end` is in its memtables. Neither a failure nor closing ends
    /// the wait by itself: commits that are under way are applied all the same.
    pub(crate) fn wait_visible(&self, end: Lsn) -> Result<()> {
        self.pipeline
            .visible
            .wait(end, self.sequencer(), || self.unapplied())
    }

    /// Everything below this LSN is in its memtables.
    pub(crate) fn visible_boundary(&self) -> Lsn {
        self.pipeline.visible.boundary()
    }

    /// Every commit that starts below this LSN is in its memtables, and durable.
    pub(crate) fn settled(&self) -> Lsn {
        let durable = self.sequencer().durable().unwrap_or(Lsn::MAX);
        self.pipeline.visible.boundary().min(durable)
    }

    #[cfg(test)]
    pub(crate) fn has_visibility_waiters(&self) -> bool {
        self.pipeline.visible.has_waiters()
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
        self.mark_in(LogRoom::Relief)
    }

    /// As [`Store::mark`], and waits until recovery would find its frame. Returns its start.
    pub(crate) fn durable_mark(&self) -> Result<Lsn> {
        let mark = self.mark()?;
        self.sequencer().wait(mark.end, Level::Disk)?;
        Ok(mark.start)
    }

    fn mark_in(&self, room: LogRoom) -> Result<At> {
        let mut system = self.pipeline.system.lock();
        let appender = system.as_mut().ok_or(Error::Closed)?;
        let unfinished = Unfinished(self);
        let mark = appender.commit(
            self.sequencer(),
            &self.pipeline.visible,
            KIND_MARK,
            Record::Empty,
            room,
            |_| (),
        );
        std::mem::forget(unfinished);
        self.note_outcome(mark)
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
            *held = Some(Appender::new(self.sequencer(), &self.pipeline.visible)?);
        }
        Ok(Some(HeldAppender { store: self, held }))
    }

    /// From now on writes outside of transactions take row locks. On return all that took none are
    /// applied.
    pub(crate) fn use_locks(&self) {
        self.locks()
            .enable(|| self.pipeline.appenders.wait_until_applied());
    }

    fn note_outcome(&self, committed: std::result::Result<At, (Error, bool)>) -> Result<At> {
        committed.map_err(|(error, reserved)| {
            if reserved {
                self.leave_unapplied(error.clone());
            }
            error
        })
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
        family.rotate(cause, only_if, || self.mark_in(LogRoom::Mark), mem)
    }
}

/// The right to make one commit.
pub(crate) struct HeldAppender<'a> {
    store: &'a Store,
    held: MutexGuard<'a, Option<Appender>>,
}

impl HeldAppender<'_> {
    /// Commits a record. On return it is applied; it is visible when every earlier commit is.
    pub(crate) fn commit(
        mut self,
        kind: u8,
        record: Record<'_>,
        room: LogRoom,
        apply: impl FnOnce(At),
    ) -> Result<At> {
        let store = self.store;
        let appender = self.held.as_mut().ok_or(Error::Closed)?;
        let unfinished = Unfinished(store);
        let committed = appender.commit(
            store.sequencer(),
            &store.pipeline.visible,
            kind,
            record,
            room,
            apply,
        );
        std::mem::forget(unfinished);
        drop(self.held);
        match &committed {
            Err((Error::StorageFull { .. }, _)) => store.request_room(),
            Ok(_) if room == LogRoom::Relief => store.note_removal(),
            Ok(_) => store.note_taken(),
            Err(_) => {}
        }
        store.note_outcome(committed)
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
