//! The second stage, where writes go to the page cache: what was written is synced.
//!
//! One sync runs at a time, because the kernel reports a write-back error to one of two concurrent
//! syncs of a file only. The next write does not wait for it, so neither does a commit at
//! [`Level::Process`](crate::Level::Process), nor an append that needs room in the ring.

use crate::commit::write_group::WriteStage;
use crate::core::Core;
use crate::error::Fatal;
use crate::lockfree::group::{Announcement, GroupWriter};
use crate::stats::since;

/// `fdatasync` of what the write groups wrote.
pub(crate) struct SyncStage<'a>(pub(crate) &'a Core);

impl SyncStage<'_> {
    fn write_and_sync(&self, group: &mut Announcement<'_>) -> Result<(), Fatal> {
        let core = self.0;
        // What is complete by now goes along. That takes several write groups where it is more than
        // one buffer holds, but no more than the ring holds.
        let complete = core.boundary();
        let over = || core.failure().is_some();
        while core.written() < complete && core.writes.lead_next(&WriteStage::before_sync(core), over) {}
        let written = core.written();
        if written == core.durable() || core.failure().is_some() {
            return Ok(());
        }
        group.announce(written);
        let start = core.now();
        let under_way = core.foreground();
        core.unsynced.sync()?;
        drop(under_way);
        core.recorder.sync_ns.add(since(start, core.now()));
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
