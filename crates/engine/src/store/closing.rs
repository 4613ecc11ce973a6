//! How a store closes, and what keeps it from closing under a call.

use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::store::Store;
use crate::{Error, Result};

/// As long as this lives, the directory is not given up to another opening.
pub(crate) type DirectoryUse<'a> = RwLockReadGuard<'a, ()>;

impl Store {
    /// For a call that writes to the directory on its caller's thread: `close` waits until the
    /// result is dropped. Fails where the store is closed.
    pub(crate) fn use_directory(&self) -> Result<DirectoryUse<'_>> {
        // First: a thread of the parent may have had the lock.
        self.check_process()?;
        let used = self.directory.read();
        self.check_open()?;
        Ok(used)
    }

    /// Whether nothing waits for the directory, or has it, to close the store.
    #[cfg(test)]
    pub(crate) fn is_directory_shared(&self) -> bool {
        self.directory.try_read().is_some()
    }

    /// Refuses calls from now on. Writers that are stalled, or wait for earlier commits, are woken,
    /// and compactions that run end early. Fails in a forked child, and where an earlier call
    /// closed the store.
    pub(crate) fn begin_close(&self) -> Result<()> {
        self.check_process()?;
        if !self.set_closed() {
            return Err(Error::Closed);
        }
        self.wake_stalled();
        self.visible.wake();
        // Relaxed: compactions read nothing on the strength of it.
        self.shared.stop.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until calls that write to the directory have returned and commits that were under way
    /// are applied. Later commits find no appender.
    pub(crate) fn wait_for_calls(&self) -> RwLockWriteGuard<'_, ()> {
        let alone = self.directory.write();
        self.appenders.clear();
        alone
    }

    /// Ends the background threads and closes the log; then releases what would outlive the last
    /// handle: memtables, tables, the directory's lock. What snapshots and iterators still pin
    /// keeps that lock until they are gone.
    pub(crate) fn finish_close(&self, threads: Vec<JoinHandle<()>>) -> Result<()> {
        self.queue.stop();
        self.queue.wait_for_running();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
        // The log waits for its workers.
        self.appenders.clear();
        drop(self.system.lock().take());
        let closed = self.sequencer.close();
        self.empty_families();
        drop(self.reclaim.lock().take());
        drop(self.lock.lock().take());
        closed
    }
}
