//! Serialises the writers of a tree's next version: flushes and compactions.
//!
//! The table library has a lock of its own for them, and releases it before its caller learns
//! whether the version was written. A write that failed may have left `current` naming a file that
//! the next write fills again. So a flush and a compaction take this lock first. After a failure
//! they keep it until the leftover file is removed. Where that is impossible they poison it, and no
//! version is written until the store is reopened; so does a panic while it is held.
//!
//! A compaction holds it while it chooses tables, releases it during its merge, and takes it again
//! to write the version. A compaction that only moves tables to another level holds it throughout.
//!
//! # Orphaned tables
//!
//! Files of failed flushes and compactions, which no version names, are removed.
//!
//! The table library numbers files as it creates them and does not report which of them a failed
//! call created. A flush and a compaction may run at once, so a number that was given out meanwhile
//! may belong to either. So as long as any writer of a family's tables runs, the numbers that
//! versions name are only collected. When none runs, the numbers that no version named are orphans.
//! (A version that a snapshot pins may name tables that the newest one does not, so the newest one
//! alone does not decide it.)

use std::collections::BTreeSet;
use std::panic::RefUnwindSafe;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The lock for writing a version. Unlike a mutex it can be taken and released in different calls
/// of the compaction filter, and poisoned.
#[derive(Default)]
pub(crate) struct VersionLock {
    state: Mutex<VersionLockState>,
    free: Condvar,
}

/// A state is stored whole, and nothing can panic while it is changed.
impl RefUnwindSafe for VersionLock {}

#[derive(Default)]
enum VersionLockState {
    #[default]
    Free,
    Taken,
    Compaction,
    Poisoned(Poisoned),
}

/// The failure since which the tree's manifest on disk may name any version, so that no other is
/// written.
#[derive(Debug, Clone)]
pub(crate) struct Poisoned {
    pub(crate) cause: String,
}

impl Poisoned {
    /// A panic: the version may be written in part.
    pub(crate) fn panicked() -> Self {
        Self {
            cause: "a thread panicked while it wrote a version of the tables".into(),
        }
    }
}

impl VersionLock {
    /// Waits for the lock; fails where it is poisoned.
    pub(crate) fn lock(&self) -> Result<VersionGuard<'_>, Poisoned> {
        self.take(VersionLockState::Taken)?;
        Ok(VersionGuard { of: self })
    }

    /// Takes the lock for a compaction, until [`VersionLock::unlock_for_merge`] or
    /// [`VersionLock::take_compaction_guard`]: these are called from different places of the table
    /// library.
    pub(crate) fn lock_for_compaction(&self) -> Result<(), Poisoned> {
        self.take(VersionLockState::Compaction)
    }

    /// Releases a compaction's lock: it begins to merge, which writes no version.
    pub(crate) fn unlock_for_merge(&self) {
        drop(self.take_compaction_guard());
    }

    /// A guard for the lock that a compaction has, if it has it.
    pub(crate) fn take_compaction_guard(&self) -> Option<VersionGuard<'_>> {
        matches!(*self.state.lock(), VersionLockState::Compaction).then(|| VersionGuard { of: self })
    }

    fn take(&self, by: VersionLockState) -> Result<(), Poisoned> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                VersionLockState::Free => break,
                VersionLockState::Poisoned(poisoned) => return Err(poisoned.clone()),
                VersionLockState::Taken | VersionLockState::Compaction => self.free.wait(&mut state),
            }
        }
        *state = by;
        Ok(())
    }

    fn give(&self, next: VersionLockState) {
        *self.state.lock() = next;
        self.free.notify_all();
    }
}

/// The exclusive right to write the next version. Dropping it releases the lock, or poisons it
/// during a panic.
pub(crate) struct VersionGuard<'a> {
    of: &'a VersionLock,
}

impl VersionGuard<'_> {
    /// No version is written from now on.
    pub(crate) fn poison(self, cause: String) {
        self.of.give(VersionLockState::Poisoned(Poisoned { cause }));
        std::mem::forget(self);
    }
}

impl Drop for VersionGuard<'_> {
    fn drop(&mut self) {
        self.of.give(if std::thread::panicking() {
            VersionLockState::Poisoned(Poisoned::panicked())
        } else {
            VersionLockState::Free
        });
    }
}

/// The numbers that were given out since the first of the current writers began.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<WritersState>);

#[derive(Default)]
struct WritersState {
    /// Flushes and compactions that run.
    writing: usize,
    /// The first number that was given out since one runs.
    first: u64,
    /// Numbers from `first` on that were in a version.
    named: BTreeSet<u64>,
    /// One of them failed.
    failed: bool,
    /// The tree's manifest on disk may name any table: nothing is removed any more.
    in_doubt: bool,
}

impl Orphans {
    /// A writer begins; the next table will have the number `next`.
    pub(crate) fn begin(&self, next: u64) {
        let mut state = self.0.lock();
        if state.writing == 0 {
            state.first = next;
        }
        state.writing += 1;
    }

    /// A version names these numbers, or did.
    pub(crate) fn name(&self, tables: impl Iterator<Item = u64>) {
        let mut state = self.0.lock();
        let first = state.first;
        state.named.extend(tables.filter(|number| *number >= first));
    }

    /// A writer failed; no version on disk names what it wrote.
    pub(crate) fn failed(&self) {
        self.0.lock().failed = true;
    }

    /// A writer failed, and the tree's manifest on disk may name what it wrote.
    pub(crate) fn doubt(&self) {
        self.0.lock().in_doubt = true;
    }

    /// A writer has ended. Where it was the last, returns the numbers below `next` that are
    /// orphans; no writer begins while the result lives.
    pub(crate) fn end(&self, next: impl FnOnce() -> u64) -> Option<Unnamed<'_>> {
        let mut state = self.0.lock();
        state.writing -= 1;
        if state.writing > 0 {
            return None;
        }
        let named = std::mem::take(&mut state.named);
        let failed = std::mem::take(&mut state.failed);
        if !failed || state.in_doubt {
            return None;
        }
        let numbers = (state.first..next()).filter(|number| !named.contains(number));
        Some(Unnamed {
            numbers: numbers.collect(),
            _nothing_writes: state,
        })
    }
}

/// Numbers of files that are to be removed.
pub(crate) struct Unnamed<'a> {
    pub(crate) numbers: Vec<u64>,
    _nothing_writes: MutexGuard<'a, WritersState>,
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::disallowed_methods,
        reason = "tests read files behind the store's back"
    )]

    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::background::compaction;
    use crate::test::failures::with_two_tables;
    use crate::test::hold;
    use crate::test::interleavings::put;
    use crate::{Db, Error};

    /// The files of the tree's directory with their content.
    fn on_disk(db: &Db) -> Vec<(String, Vec<u8>)> {
        let dir = db.path().join("families/0");
        let read = |path: &Path| (path.display().to_string(), std::fs::read(path).unwrap());
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .filter(|path| path.is_file())
            .map(|path| read(&path))
            .collect();
        files.sort();
        files
    }

    /// A compaction that waited for the table library's lock filled the version again that a flush
    /// had left in doubt. With a power cut in that moment, the store could not be opened any more.
    #[test]
    fn what_was_merged_becomes_no_version_after_one_in_doubt() {
        let (dir, db, family) = with_two_tables();
        put(&db.default_family(), "c", "v");
        let merged = {
            let (store, family) = (Arc::clone(db.store()), Arc::clone(&family));
            hold("tables are merged", move || {
                compaction::compact_all(&store, &family)
            })
            .at_point()
        };
        let before = on_disk(&db);
        let guard = family.tables().version_lock.lock().unwrap();
        guard.poison("a sync of the directory".into());
        match merged.finish() {
            Err(Error::Background { cause }) => assert_eq!(cause, "a sync of the directory"),
            other => panic!("{other:?}"),
        }
        assert_eq!(on_disk(&db), before);
        // A compaction without a merge is refused as well, and so is a flush.
        assert!(matches!(
            compaction::compact_all(db.store(), &family),
            Err(Error::Background { .. })
        ));
        assert!(matches!(db.put("d", "v"), Err(Error::Background { .. })));
        assert!(db.flush().is_err());
        assert_eq!(on_disk(&db), before);
        assert_eq!(db.iter().unwrap().count(), 3);
        drop((db, family));
        let db = Db::open(dir.path(), crate::Options::default()).unwrap();
        assert_eq!(db.iter().unwrap().count(), 3);
        db.compact().unwrap();
    }

    /// A flush does not wait for the merge of a compaction.
    #[test]
    fn a_flush_gets_the_version_lock_during_a_merge() {
        let (_dir, db, family) = with_two_tables();
        put(&db.default_family(), "c", "v");
        let merged = {
            let (store, family) = (Arc::clone(db.store()), Arc::clone(&family));
            hold("tables are merged", move || {
                compaction::compact_all(&store, &family)
            })
            .at_point()
        };
        db.flush().unwrap();
        merged.finish().unwrap();
        assert_eq!(family.tables().table_count(), 2);
        assert_eq!(db.iter().unwrap().count(), 3);
    }

    /// The version may be half written; a flush that waited would have filled the same file again.
    #[test]
    fn a_panic_with_the_version_lock_poisons_it() {
        let next = VersionLock::default();
        std::thread::scope(|threads| {
            let panicked = threads.spawn(|| {
                let _turn = next.lock().unwrap();
                panic!("on purpose");
            });
            assert!(panicked.join().is_err());
        });
        assert!(next.lock().is_err());
        assert!(next.lock_for_compaction().is_err());
    }

    /// Two writers never have the lock at the same time.
    #[test]
    fn one_writer_has_the_version_lock() {
        let (next, having) = (VersionLock::default(), AtomicU32::new(0));
        let alone = || {
            assert_eq!(having.fetch_add(1, Ordering::Relaxed), 0);
            std::thread::yield_now();
            having.fetch_sub(1, Ordering::Relaxed);
        };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for _ in 0..10_000 {
                    next.lock_for_compaction().unwrap();
                    alone();
                    drop(next.take_compaction_guard().unwrap());
                }
            });
            for _ in 0..2 {
                threads.spawn(|| {
                    for _ in 0..10_000 {
                        let guard = next.lock().unwrap();
                        assert!(next.take_compaction_guard().is_none());
                        alone();
                        drop(guard);
                    }
                });
            }
        });
    }
}
