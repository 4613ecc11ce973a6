//! Files are closed where descriptors run out: a volume keeps files open that no user has open.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use collie_io::{Device, File, OpenMode, is_out_of_descriptors};

use super::Volume;
use crate::file::{PageFile, Scope};

/// So many files with displaced pages are brought home for the sake of one that is opened.
const CLOSED_AT_ONCE: usize = 32;

impl Volume {
    /// Opens a file for a user that is none of the volume's, by its path on `device`.
    pub(crate) fn open_plain(
        &self,
        device: &dyn Device,
        path: &Path,
        mode: OpenMode,
    ) -> io::Result<Arc<dyn File>> {
        self.with_descriptors(is_out_of_descriptors, || device.open_for_user(path, mode))
    }

    /// Does what opens a file. Where descriptors run out, closes files that no user has open and does
    /// it once more. No name is claimed.
    pub(super) fn with_descriptors<T, E>(
        &self,
        is_out: impl Fn(&E) -> bool,
        work: impl Fn() -> Result<T, E>,
    ) -> Result<T, E> {
        match work() {
            Err(error) if is_out(&error) => {
                self.close_unused();
                work()
            }
            done => done,
        }
    }

    /// Closes files that no user has open: those of which nothing is lost by that, or else some of the
    /// others, once all of them is at home and synced.
    fn close_unused(&self) {
        let _closing = self.closing.lock();
        if self.close_idle() > 0 {
            return;
        }
        // The user that opens a file waits for it.
        let _urgent = self.scheduler.urgent();
        // A failure here is reported to the users of these files by their next sync.
        let forgotten = self.forget_removed();
        let done = self.each(&self.unused_files(), |file| {
            self.commit(file, Scope::All)?;
            self.drain_file(file)
        });
        if let Err(error) = forgotten.and(done) {
            tracing::warn!(%error, "too many files are open, and one that is not used cannot be closed");
        }
        self.close_idle();
    }

    /// Closes the files that no user has open and of which nothing is lost by that. Those with
    /// displaced pages stay open. Returns how many were closed.
    pub fn close_idle(&self) -> usize {
        let mut files = self.files.lock();
        let before = files.open.len();
        files.open.retain(|_, file| {
            let is_idle = file
                .committer_if_free()
                .is_some_and(|committer| file.is_idle(&committer));
            // With `files` locked no other thread can get it.
            !is_idle || Arc::strong_count(file) > 1
        });
        before - files.open.len()
    }

    fn unused_files(&self) -> Vec<Weak<PageFile>> {
        let files = self.files.lock();
        let unused = files.open.values().filter(|file| Arc::strong_count(file) == 1);
        unused.take(CLOSED_AT_ONCE).map(Arc::downgrade).collect()
    }
}
