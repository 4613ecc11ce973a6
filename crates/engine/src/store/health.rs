//! Whether the store takes writes, and what of it can be read; how it closes, and what keeps it from
//! closing under a call.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use collie_io::Opener;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::manifest::file::ManifestError;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::tables::Unwritten;
use crate::write::order::LogRoom;
use crate::{Error, Result};

/// Whether the store takes writes, and what of it can be read.
pub(super) struct Health {
    /// The process that opened the store: a child that it forks has only copies.
    opener: Opener,
    /// Set once, together with `cause`.
    failed: AtomicBool,
    cause: Mutex<Option<Error>>,
    /// A commit has its LSN and will never be applied: the visible boundary does not pass it.
    unapplied: OnceLock<Error>,
    /// A thread panicked in the middle of a commit: the memtables may have a part of it.
    half_applied: OnceLock<Arc<str>>,
    closed: AtomicBool,
    /// Held for reading by calls that write to the directory on their caller's thread, and for
    /// writing by `close`: once that has it, nothing of this store touches the directory any more.
    directory: RwLock<()>,
}

impl Health {
    /// The state of a store that this process opens.
    pub(super) fn new() -> Self {
        Self {
            opener: Opener::here(),
            failed: AtomicBool::new(false),
            cause: Mutex::new(None),
            unapplied: OnceLock::new(),
            half_applied: OnceLock::new(),
            closed: AtomicBool::new(false),
            directory: RwLock::new(()),
        }
    }

    /// Why no content of the memtables is certain, if so.
    pub(super) fn half_applied(&self) -> Option<&Arc<str>> {
        self.half_applied.get()
    }

    fn check_process(&self, path: &Path) -> Result<()> {
        if self.opener.is_here() {
            return Ok(());
        }
        Err(Error::Forked {
            path: path.into(),
            opener: self.opener.pid(),
        })
    }
}

impl Store {
    /// Why the visible boundary will never pass some commit, if so.
    pub(crate) fn unapplied(&self) -> Option<Error> {
        self.health.unapplied.get().cloned()
    }

    /// Why writes are refused, if they are.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if let Err(forked) = self.check_process() {
            return Some(forked);
        }
        // Relaxed: the cause is read under its lock.
        if self.health.closed.load(Ordering::Relaxed) {
            return Some(Error::Closed);
        }
        if self.health.failed.load(Ordering::Relaxed) {
            return self.health.cause.lock().clone();
        }
        None
    }

    /// As [`Store::refusal`], or why the log takes no more writes.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.refusal().or_else(|| self.sequencer().poisoned())
    }

    /// Fails where the family is of another open store, as in a batch that was filled for that one,
    /// or was dropped.
    pub(crate) fn check_family(&self, family: &FamilyState) -> Result<()> {
        if family.store_id() != self.id {
            return Err(Error::ForeignFamily {
                name: family.name().to_string(),
            });
        }
        family.check_not_dropped()
    }

    /// Admits a write: fails where writes are refused, and where it brings data while the reserve
    /// is missing.
    pub(crate) fn admit(&self, room: LogRoom) -> Result<()> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        self.sequencer().check_own("a write")?;
        match room {
            LogRoom::Commit => self
                .room
                .reserve
                .admit(self.sequencer())
                .inspect_err(|_| self.request_room()),
            LogRoom::Relief | LogRoom::Mark => Ok(()),
        }
    }

    /// Fails in a child of the process that opened the store.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.health.check_process(&self.path)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.health.closed.load(Ordering::Relaxed)
    }

    /// Returns whether this call closed it.
    pub(super) fn set_closed(&self) -> bool {
        !self.health.closed.swap(true, Ordering::Relaxed)
    }

    /// Refuses writes from now on. The first cause stays.
    pub(crate) fn fail(&self, cause: Error) {
        self.health.cause.lock().get_or_insert_with(|| {
            tracing::error!(path = %self.path.display(), %cause, "writes are refused from now on");
            cause
        });
        self.health.failed.store(true, Ordering::Relaxed);
        self.pipeline.visible.wake();
        self.wake_stalled();
    }

    /// The error of a change of the manifest. Where a later opening may find the change or not,
    /// nothing may rely on either, and writes are refused from now on.
    pub(crate) fn manifest_failed(&self, error: ManifestError) -> Error {
        if let ManifestError::InDoubt(error) = &error {
            self.fail(Error::Background {
                cause: error.to_string(),
            });
        }
        error.into()
    }

    /// The error of a version of tables that was not written. Where no other version may follow,
    /// writes are refused from now on.
    pub(crate) fn unwritten(&self, unwritten: Unwritten) -> Error {
        match unwritten {
            Unwritten::MayBeRepeated(error) => error,
            Unwritten::NoneAfterIt(error) => {
                let cause = match &error {
                    Error::Background { cause } => cause.clone(),
                    error => error.to_string(),
                };
                self.fail(Error::Background { cause });
                error
            }
        }
    }

    /// A commit that has its LSN will never be applied.
    pub(crate) fn leave_unapplied(&self, cause: Error) {
        // Before `fail` wakes the threads that wait for the commit, so that they see it.
        self.health.unapplied.get_or_init(|| cause.clone());
        self.fail(cause);
    }

    /// A thread panicked before its commit was applied completely.
    pub(crate) fn leave_half_applied(&self) {
        let cause = "a thread panicked in mid-commit";
        self.health.half_applied.get_or_init(|| cause.into());
        self.leave_unapplied(Error::Background { cause: cause.into() });
    }
}

/// As long as this lives, the directory is not given up to another opening.
pub(crate) type DirectoryUse<'a> = RwLockReadGuard<'a, ()>;

impl Store {
    /// For a call that writes to the directory on its caller's thread: `close` waits until the
    /// result is dropped. Fails where the store is closed.
    pub(crate) fn use_directory(&self) -> Result<DirectoryUse<'_>> {
        // First: a thread of the parent may have had the lock.
        self.check_process()?;
        let used = self.health.directory.read();
        self.check_open()?;
        Ok(used)
    }

    /// Whether nothing waits for the directory, or has it, to close the store.
    #[cfg(test)]
    pub(crate) fn is_directory_shared(&self) -> bool {
        self.health.directory.try_read().is_some()
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
        self.pipeline.visible.wake();
        // Relaxed: compactions read nothing on the strength of it.
        self.storage.trees.stop.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until calls that write to the directory have returned and commits that were under way
    /// are applied. Later commits find no appender.
    pub(crate) fn wait_for_calls(&self) -> RwLockWriteGuard<'_, ()> {
        let alone = self.health.directory.write();
        self.pipeline.appenders.clear();
        alone
    }

    /// Ends the background work and closes the log; then releases what would outlive the last
    /// handle: memtables, tables, the directory's lock. What snapshots and iterators still pin
    /// keeps that lock until they are gone.
    pub(crate) fn finish_close(&self) -> Result<()> {
        self.queue.stop();
        self.queue.wait_for_running();
        // The log waits for its workers.
        self.pipeline.appenders.clear();
        drop(self.pipeline.system.lock().take());
        let closed = self.sequencer().close();
        self.empty_families();
        drop(self.storage.reclaim.lock().take());
        drop(self.storage.lock.lock().take());
        closed
    }
}
