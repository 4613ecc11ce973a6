//! Whether the store takes writes, and what of it can be read; how it closes, and what keeps it from
//! closing under a call.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use collie_io::Opener;
use collie_log::Room;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::manifest::file::ManifestError;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::tables::Unwritten;
use crate::{Error, Result};

/// What an open store may come to, until it is opened again. A failure includes those before it, and
/// is independent of closing. A forked child has only a copy: every check asks for that first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    /// Writes are refused.
    Failed,
    /// A commit has its LSN and will never be applied: the visible boundary does not pass it.
    Unapplied,
    /// A thread panicked in the middle of a commit: the memtables may have a part of it.
    HalfApplied,
    /// All calls are refused.
    Closed,
}

/// Why no content of the memtables is certain.
pub(super) const HALF_APPLIED: &str = "a thread panicked in mid-commit";

/// Whether the store takes writes, and what of it can be read.
pub(super) struct StoreHealth {
    /// The process that opened the store: a child that it forks has only copies.
    opener: Opener,
    /// Why it has come to each [`Health`], if it has. The first cause stays.
    causes: [OnceLock<Error>; Health::Closed as usize + 1],
    /// Held for reading by calls that write to the directory on their caller's thread, and for
    /// writing by `close`: once that has it, nothing of this store touches the directory any more.
    directory: RwLock<()>,
}

impl StoreHealth {
    /// That of a store that this process opens.
    pub(super) fn new() -> Self {
        Self {
            opener: Opener::here(),
            causes: Default::default(),
            directory: RwLock::new(()),
        }
    }

    /// Why the store has come to this, if it has.
    pub(super) fn cause(&self, of: Health) -> Option<&Error> {
        self.causes[of as usize].get()
    }
}

impl Store {
    /// Fails in a child of the process that opened the store.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.health.opener.is_here() {
            return Ok(());
        }
        Err(Error::Forked {
            path: self.path.clone(),
            opener: self.health.opener.pid(),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.health.cause(Health::Closed).is_some()
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        self.health.cause(Health::Closed).cloned().map_or(Ok(()), Err)
    }

    /// Why writes are refused, if they are.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let closed = self.check_open().err();
        closed.or_else(|| self.failed())
    }

    /// Why writes were refused before any closing, if they were.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.health.cause(Health::Failed).cloned()
    }

    /// As [`Store::refusal`], or why the log takes no more writes.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.refusal().or_else(|| self.sequencer().poisoned())
    }

    /// Why the visible boundary will never pass some commit, if so.
    pub(crate) fn unapplied(&self) -> Option<Error> {
        self.health.cause(Health::Unapplied).cloned()
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
    pub(crate) fn admit(&self, room: Room) -> Result<()> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        self.sequencer().check_own("a write")?;
        match room {
            Room::Commit => self
                .room
                .reserve
                .admit(self.sequencer())
                .inspect_err(|_| self.request_room()),
            Room::Relief | Room::Mark => Ok(()),
        }
    }

    /// Refuses writes from now on. The first cause stays.
    pub(crate) fn fail(&self, cause: Error) {
        self.come_to(Health::Failed, cause);
    }

    /// A commit that has its LSN will never be applied.
    pub(crate) fn leave_unapplied(&self, cause: Error) {
        self.come_to(Health::Unapplied, cause);
    }

    /// A thread panicked before its commit was applied completely.
    pub(crate) fn leave_half_applied(&self) {
        let cause = HALF_APPLIED.into();
        self.come_to(Health::HalfApplied, Error::Background { cause });
    }

    fn come_to(&self, failure: Health, cause: Error) {
        // The last of them first: who sees that writes are refused sees why.
        for health in [Health::HalfApplied, Health::Unapplied, Health::Failed] {
            let is_first =
                health <= failure && self.health.causes[health as usize].set(cause.clone()).is_ok();
            if is_first && health == Health::Failed {
                tracing::error!(path = %self.path.display(), %cause, "writes are refused from now on");
                self.events().refuse(&cause);
            }
        }
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
        self.health.causes[Health::Closed as usize].set(Error::Closed)?;
        self.wake_stalled();
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
