//! What a daemon does for a volume besides its users' calls.

use std::path::Path;
use std::sync::Arc;

use super::{AT_ONCE, DRAINED_AT_ONCE, Volume};
use crate::FrontError;
use crate::file::{PageFile, Scope};

/// What is written out at once: as much as a sync of something else may have to wait for.
const PIECE: u64 = 512 << 10;

impl Volume {
    /// Waits, where files of this name or below it were removed, until that is durable: before
    /// something that is no file of the volume gets the name, for at a recovery their paths must not
    /// lead to it. Does nothing else.
    ///
    /// # Errors
    /// What a sync or the log fails with: [`FrontError::Io`], [`FrontError::Log`].
    pub fn free_name(&self, path: &Path) -> Result<(), FrontError> {
        self.check_path(path)?;
        let _claim = self.names.claim(&[path]);
        self.forget_below(path)
    }

    /// Removes an empty directory, once the removal of the files that were in it is recorded: one with
    /// mapped files that is missing is none that was removed.
    ///
    /// # Errors
    /// What a sync or the log fails with: [`FrontError::Io`], [`FrontError::Log`]; and
    /// [`FrontError::Io`] where it cannot be removed.
    pub fn remove_dir(&self, path: &Path) -> Result<(), FrontError> {
        self.check_path(path)?;
        let _claim = self.names.claim(&[path]);
        self.forget_below(path)?;
        let full = self.path(path);
        let removed = self.shared.device.remove_dir(&full);
        removed.map_err(FrontError::io("remove", &full))
    }

    /// Brings about `pages` displaced pages home, of those at rest, and commits that; in pieces, which
    /// take turns with what users wait for.
    ///
    /// # Errors
    /// As [`Volume::sync`], of the first file that fails.
    pub fn drain_some(&self, pages: usize) -> Result<(), FrontError> {
        let mut rest = pages;
        for file in self.open_files().iter().filter_map(|file| self.if_open(file)) {
            let (displaced, _) = file.counts();
            let mut from = (displaced > 0).then_some(0);
            while let Some(page) = from.filter(|_| rest > 0) {
                let _turn = self.scheduler.background();
                from = self.with_log(|| file.drain(page, DRAINED_AT_ONCE))?;
                rest = rest.saturating_sub(DRAINED_AT_ONCE.min(displaced));
            }
        }
        Ok(())
    }

    /// Commits files of which the log knows no more than where they ended before they grew, and that
    /// nobody has written to since this was called last: those that nobody has open, or all. They are
    /// plain files then. Takes turns with what users wait for.
    ///
    /// # Errors
    /// As [`Volume::sync`], of the first file that fails.
    pub fn settle_grown(&self, of_all: bool) -> Result<(), FrontError> {
        let mut files = self.open_files();
        files.retain(|file| {
            // One of them is this one, the other one the volume's.
            let is_wanted = |file: &Arc<PageFile>| of_all || Arc::strong_count(file) == 2;
            self.if_open(file)
                .is_some_and(|file| file.is_quiet() && is_wanted(&file))
        });
        let mut done = Ok(());
        for some in files.chunks(AT_ONCE) {
            let _turn = self.scheduler.background();
            done = done.and(self.each(some, |file| {
                self.commit(file, Scope::All)?;
                self.drain_file(file)
            }));
        }
        done
    }

    /// Writes out what is in the cache of the device's files, a piece at a time, so that a sync finds
    /// little to do and never much at once. Pieces take turns with what users wait for. Called in the
    /// background, until there is nothing; nothing is durable by it. Returns whether anything was written.
    ///
    /// # Errors
    /// [`FrontError::Io`]: the device failed. That is as final as a failed sync.
    pub fn write_out(&self) -> Result<bool, FrontError> {
        self.shared.check()?;
        let turn = self.scheduler.background();
        let shadow = self.shared.shadow.write_out(PIECE);
        drop(turn);
        let mut bytes = shadow.map_err(|e| self.shared.poison(e))?;
        for file in self.open_files().iter().filter_map(|file| self.if_open(file)) {
            if file.is_written_out() {
                continue;
            }
            let _turn = self.scheduler.background();
            bytes += file.write_out(PIECE)?;
        }
        Ok(bytes > 0)
    }

    /// Closes the files that nobody has open and of which nothing is lost by that. Those with
    /// displaced pages stay open. Returns how many were closed.
    pub fn close_idle(&self) -> usize {
        let mut files = self.files.lock();
        let before = files.open.len();
        files.open.retain(|_, file| {
            let is_idle = file
                .committer_if_free()
                .is_some_and(|committer| file.is_idle(&committer));
            // With `files` locked no one else can come by it.
            !is_idle || Arc::strong_count(file) > 1
        });
        before - files.open.len()
    }

    /// Reads every displaced page and compares it with its checksum. Returns one error for each
    /// that is damaged.
    ///
    /// # Errors
    /// [`FrontError::Io`] where the shadow file cannot be read.
    pub fn check(&self) -> Result<Vec<FrontError>, FrontError> {
        let mut damaged = Vec::new();
        for file in self.open_files().iter().filter_map(|file| self.if_open(file)) {
            file.verify(&mut damaged)?;
        }
        Ok(damaged)
    }
}
