//! What a daemon does for a volume besides its users' calls.

use std::sync::Arc;

use super::{AT_ONCE, DRAINED_AT_ONCE, Volume};
use crate::FrontError;
use crate::file::{PageFile, Scope};

/// What is written out at once: as much as a sync of something else may have to wait for.
const PIECE: u64 = 512 << 10;

impl Volume {
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

    /// Commits files of which the log has nothing but where they ended before they grew, and that were not
    /// written to since the last call: those that no user has open, or all. They are plain files then.
    /// Takes turns with what users wait for.
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
