//! The two stages of a flush. A *write group* takes what is complete in the ring to the segments;
//! where writes go to the page cache, a *sync group* makes it durable.

use crate::core::Core;
use crate::error::Fatal;
use crate::flush::writer::{SegmentWriter, WriteBuffer, Written};
use crate::lockfree::group::{Announcement, GroupWriter};
use crate::lockfree::sync::Ordering;
use crate::stats::since;

/// The first stage: writes what is complete to the page cache, or past it and durably.
pub(crate) struct WriteStage<'a> {
    core: &'a Core,
    leader: Leader,
}

/// Who leads a write group. Wakers are foreign code, which may wait for the log itself: they run on
/// a thread that has nothing which the log needs to go on.
enum Leader {
    Waiter,
    /// Leads the sync group, too.
    BeforeSync,
    /// Is in mid-append: behind its frame nothing gets written before it is copied.
    InMidAppend,
}

impl<'a> WriteStage<'a> {
    pub(crate) fn of(core: &'a Core) -> Self {
        let leader = Leader::Waiter;
        Self { core, leader }
    }

    pub(super) fn before_sync(core: &'a Core) -> Self {
        let leader = Leader::BeforeSync;
        Self { core, leader }
    }

    pub(super) fn in_mid_append(core: &'a Core) -> Self {
        let leader = Leader::InMidAppend;
        Self { core, leader }
    }

    /// One write of at most a piece, and the watermarks.
    fn write_piece(&self, state: &mut SegmentWriter, group: &mut Announcement<'_>) -> Result<(), Fatal> {
        let core = self.core;
        let reach = core.reach(state);
        if !core.space.is_ahead(reach.to, core.ahead()) {
            core.threads.preparer.call();
        }
        // Where there is nothing to write, the awaited frame, or the block that is to be filled, is
        // in mid-copy, and the thread that copies it runs while this one stands by.
        let Some(buffer) = state.take(&core.ring, &core.segments, reach)? else {
            return Ok(());
        };
        group.announce(buffer.whole);
        let direct = core.segments.direct();
        let whole = buffer.whole;
        let written = self.write(buffer)?;
        if !direct {
            core.flush.unsynced.add(&written);
        }
        core.raise_written(whole);
        if direct {
            core.raise_durable(whole);
        }
        state.put_back(written);
        core.stats
            .recorder
            .bytes_written
            .store(state.device_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, buffer: WriteBuffer) -> Result<Written, Fatal> {
        let start = self.core.now();
        let under_way = self.core.foreground();
        let written = buffer.write()?;
        drop(under_way);
        self.core
            .stats
            .recorder
            .write_ns
            .add(since(start, self.core.now()));
        Ok(written)
    }
}

/// An error poisons the log.
impl GroupWriter for WriteStage<'_> {
    type LeaderState = SegmentWriter;

    fn write_group(&self, state: &mut SegmentWriter, group: &mut Announcement<'_>) {
        self.core.work(|| self.write_piece(state, group));
    }

    fn completed(&self) {
        let core = self.core;
        match self.leader {
            Leader::BeforeSync if core.tasks.waiting.any_for_written() => core.threads.writer.call(),
            Leader::BeforeSync => {}
            Leader::InMidAppend if core.options.threads => core.threads.flusher.call(),
            Leader::Waiter | Leader::InMidAppend => core.wake_tasks(),
        }
    }

    fn give_way(&self) -> bool {
        self.core.give_way()
    }
}

/// The second stage, where writes go to the page cache: `fdatasync` of what the write groups wrote.
///
/// One sync runs at a time, because the kernel reports a write-back error to one of two concurrent
/// syncs of a file only. The next write does not wait for it, so neither does a commit at
/// [`Level::Process`](crate::Level::Process), nor an append that needs room in the ring.
pub(crate) struct SyncStage<'a>(pub(crate) &'a Core);

impl SyncStage<'_> {
    fn write_and_sync(&self, group: &mut Announcement<'_>) -> Result<(), Fatal> {
        let core = self.0;
        // What is complete by now goes along. That takes several write groups where it is more than
        // one buffer holds, but no more than the ring holds.
        let complete = core.boundary();
        let over = || core.failure().is_some();
        while core.written() < complete && core.flush.writes.lead_next(&WriteStage::before_sync(core), over) {
        }
        let written = core.written();
        if written == core.durable() || core.failure().is_some() {
            return Ok(());
        }
        group.announce(written);
        let start = core.now();
        let under_way = core.foreground();
        core.flush.unsynced.sync()?;
        drop(under_way);
        core.stats.recorder.sync_ns.add(since(start, core.now()));
        core.raise_durable(written);
        Ok(())
    }
}

/// An error poisons the log.
impl GroupWriter for SyncStage<'_> {
    type LeaderState = ();

    fn write_group(&self, (): &mut (), group: &mut Announcement<'_>) {
        self.0.work(|| self.write_and_sync(group));
    }

    fn completed(&self) {
        self.0.wake_tasks();
    }

    fn give_way(&self) -> bool {
        self.0.give_way()
    }
}
