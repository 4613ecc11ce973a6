//! What a file's users see of it beside its bytes, and its room.
//!
//! A page that is displaced does not touch the file at home. So the time of such a write is kept,
//! and given to the file at home once the page is committed.

use collie_io::Stat;

use super::PageFile;
use super::commit::Writers;
use crate::FrontError;

/// When the file at home was changed last, and how often by users until then.
pub(super) struct HomeTime {
    mtime: i64,
    changes: u64,
}

impl PageFile {
    /// The file at home with the length, and the time of the last write, that readers see.
    pub(crate) fn stat(&self) -> Result<Stat, FrontError> {
        // Before the file at home is looked at: it may be given to that meanwhile.
        let written = self.pages.lock().displaced_at;
        let mut stat = self.stat_home()?;
        if let Some(written) = written {
            stat.mtime = stat.mtime.max(written);
            stat.ctime = stat.ctime.max(written);
        }
        stat.len = self.len();
        Ok(stat)
    }

    fn stat_home(&self) -> Result<Stat, FrontError> {
        self.home.stat().map_err(FrontError::io("stat", &self.path()))
    }

    /// How many names it has.
    pub(crate) fn links(&self) -> Result<u64, FrontError> {
        Ok(self.stat_home()?.links)
    }

    /// Sets its times, or one of them.
    pub(crate) fn set_times(&self, atime: Option<i64>, mtime: Option<i64>) -> Result<(), FrontError> {
        let _writing = self.writing.lock();
        self.home
            .set_times(atime, mtime)
            .map_err(FrontError::io("set the times of", &self.path()))?;
        let mut pages = self.pages.lock();
        pages.home_changes += 1;
        if mtime.is_some() {
            pages.displaced_at = None;
        }
        Ok(())
    }

    /// Sets its permission bits.
    pub(crate) fn set_mode(&self, mode: u32) -> Result<(), FrontError> {
        let set = self.home.set_mode(mode);
        set.map_err(FrontError::io("set the mode of", &self.path()))
    }

    /// Sets its owner, its group, or both.
    pub(crate) fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<(), FrontError> {
        let set = self.home.set_owner(uid, gid);
        set.map_err(FrontError::io("set the owner of", &self.path()))
    }

    /// Gives the time of the last displaced write to the file at home. Where that fails it is only
    /// known until the file is closed.
    pub(super) fn show_time(&self, writers: Writers<'_>) {
        let _writing = self.stop_writers(writers);
        let Some(written) = self.pages.lock().displaced_at else {
            return;
        };
        let is_shown = self.home.stat().is_ok_and(|stat| {
            let is_later = stat.mtime >= written;
            is_later || self.home.set_times(None, Some(written)).is_ok()
        });
        if is_shown {
            let mut pages = self.pages.lock();
            pages.displaced_at = None;
            pages.home_changes += 1;
        }
    }

    /// Before pages are brought home, which changes no byte that a user sees.
    pub(super) fn home_time(&self, writers: Writers<'_>) -> Option<HomeTime> {
        let _writing = self.stop_writers(writers);
        let mtime = self.home.stat().ok()?.mtime;
        let changes = self.pages.lock().home_changes;
        Some(HomeTime { mtime, changes })
    }

    /// After that; unless a user changed it as well.
    pub(super) fn keep_home_time(&self, time: HomeTime, writers: Writers<'_>) {
        let _writing = self.stop_writers(writers);
        if self.pages.lock().home_changes == time.changes {
            // As in `show_time`, a failure is not one of the caller.
            let _ = self.home.set_times(None, Some(time.mtime));
        }
    }

    /// Takes room for `len` bytes from `offset` on; grows with zeros where they reach beyond the
    /// end. Changes no byte. The room is at home.
    pub(crate) fn allocate(&self, offset: u64, len: u64) -> Result<(), FrontError> {
        let end = offset.saturating_add(len);
        self.check_end(end)?;
        let _writing = self.writing.lock();
        self.check()?;
        self.fill_gap(end)?;
        {
            // It may grow by a part where it fails.
            let mut pages = self.pages.lock();
            pages.home_len = pages.home_len.max(end);
        }
        let allocated = self.home.allocate_range(offset, len);
        let mut pages = self.pages.lock();
        pages.home_changed();
        if allocated.is_ok() {
            pages.len = pages.len.max(end);
        }
        drop(pages);
        allocated.map_err(FrontError::io("take room for", &self.path()))
    }
}
