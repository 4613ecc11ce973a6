//! The log, as the store sees it: when its size is checked, what was replayed, and for which large
//! commits it must be kept: those that are being written, and those that are not in tables yet.
//!
//! A family retains the log from where it is flushed, and for an ordinary commit that is enough. The
//! parts of a large commit lie before its last frame, which gives it its position, so each such
//! commit retains the log from its first part on by itself: from before that part is appended until
//! every family that it writes is flushed past the commit, or dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_log::Lsn;
use parking_lot::Mutex;

use crate::Result;
use crate::store::Store;
use crate::store::family::{Counter, FamilyState};

/// How long the log is, and what of it is kept, replayed and counted.
pub(super) struct WalState {
    /// The size of the file system that the log is on.
    pub(super) disk_bytes: u64,
    /// The log's end at which its size is checked again.
    look_at: AtomicU64,
    /// The warning about the log's limit was logged.
    warned: AtomicBool,
    large: LargeCommits,
    /// Flushes for the log's size.
    pub(super) size_flushes: Counter,
    /// See [`Store::replay`].
    replaying: AtomicBool,
    pub(super) replayed: Mutex<Replayed>,
}

impl WalState {
    pub(super) fn new(disk_bytes: u64) -> Self {
        Self {
            disk_bytes,
            look_at: AtomicU64::new(Lsn::MAX),
            warned: AtomicBool::new(false),
            large: LargeCommits::default(),
            size_flushes: Counter::default(),
            replaying: AtomicBool::new(false),
            replayed: Mutex::default(),
        }
    }
}

/// What opening the store replayed from the log.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Replayed {
    pub(crate) commits: u64,
    /// Bytes of log that they take.
    pub(crate) bytes: u64,
    pub(crate) ns: u64,
}

impl Store {
    /// The size of the file system that the log is on, in bytes.
    pub(crate) fn log_disk_bytes(&self) -> u64 {
        self.wal.disk_bytes
    }

    /// The first commit that ends at `end` or beyond queues the next check of the log's size.
    pub(crate) fn check_wal_size_at(&self, end: Lsn) {
        self.wal.look_at.store(end, Ordering::Relaxed);
    }

    /// A commit ended at `end`: queues a check where the log may have grown past its limit.
    pub(crate) fn check_wal_size(&self, end: Lsn) {
        // Relaxed: a hint. Of several threads one swaps the value, so the check is queued once.
        if end >= self.wal.look_at.load(Ordering::Relaxed)
            && self.wal.look_at.swap(Lsn::MAX, Ordering::Relaxed) != Lsn::MAX
        {
            self.queue.check_wal_size();
        }
    }

    /// Whether the caller is the first to warn that the log's limit is short.
    pub(crate) fn is_first_to_warn(&self) -> bool {
        // Relaxed: nothing is read on the strength of it.
        !self.wal.warned.swap(true, Ordering::Relaxed)
    }

    /// Families are flushed because the log has grown past its limit, or is full.
    pub(crate) fn count_wal_size_flush(&self) {
        self.wal.size_flushes.add(1);
    }

    /// The log was replayed; once, while the store is opened.
    pub(crate) fn note_replayed(&self, replayed: Replayed) {
        *self.wal.replayed.lock() = replayed;
    }

    /// Runs the replay of the log. Until it has succeeded, only replay itself seals memtables, at
    /// the frame that it has come to. A mark would be at the log's end and would count frames as
    /// flushed that replay has yet to reach.
    pub(crate) fn replay<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        // SeqCst, as the load in `is_replaying`: set before replay queues its first flush, cleared
        // when the last frame is in.
        self.wal.replaying.store(true, Ordering::SeqCst);
        let replayed = work()?;
        self.wal.replaying.store(false, Ordering::SeqCst);
        Ok(replayed)
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.wal.replaying.load(Ordering::SeqCst)
    }
}

/// The large commits whose parts the log must keep.
#[derive(Default)]
pub(super) struct LargeCommits(Mutex<RetainedCommits>);

#[derive(Default)]
struct RetainedCommits {
    next: u64,
    /// By the number that each got when it began.
    commits: BTreeMap<u64, LargeCommit>,
}

struct LargeCommit {
    /// No part starts below.
    first: Lsn,
    /// Its position, and the families that it writes; `None` while its parts are being written.
    linked: Option<(Lsn, Vec<Arc<FamilyState>>)>,
}

impl LargeCommit {
    /// Whether no recovery needs its parts any more.
    fn is_in_tables(&self) -> bool {
        self.linked.as_ref().is_some_and(|(at, families)| {
            families
                .iter()
                .all(|family| family.is_dropped() || family.flushed().get() > *at)
        })
    }
}

/// Retains the log for the parts of a commit; forgets it when dropped, unless it was linked.
pub(crate) struct RetainedParts<'a> {
    store: &'a Store,
    number: u64,
}

impl RetainedParts<'_> {
    /// The commit is at `at`: its parts are needed until the families are flushed past it. To be
    /// called before a flush can find its memtables.
    pub(crate) fn link(self, at: Lsn, families: Vec<Arc<FamilyState>>) {
        if let Some(commit) = self.store.wal.large.0.lock().commits.get_mut(&self.number) {
            commit.linked = Some((at, families));
        }
        std::mem::forget(self);
    }
}

impl Drop for RetainedParts<'_> {
    fn drop(&mut self) {
        self.store.wal.large.0.lock().commits.remove(&self.number);
        self.store.sequencer().release_parts(self.number);
    }
}

impl Store {
    /// Retains the log from `first` on for a large commit.
    pub(crate) fn retain_parts(&self, first: Lsn) -> RetainedParts<'_> {
        let mut registry = self.wal.large.0.lock();
        let number = registry.next;
        registry.next += 1;
        registry
            .commits
            .insert(number, LargeCommit { first, linked: None });
        drop(registry);
        self.sequencer().retain_parts(number, first);
        RetainedParts { store: self, number }
    }

    /// Families were flushed or dropped: releases the log for the commits that they kept back.
    pub(crate) fn release_parts(&self) {
        let mut registry = self.wal.large.0.lock();
        let done: Vec<u64> = registry
            .commits
            .iter()
            .filter(|(_, commit)| commit.is_in_tables())
            .map(|(number, _)| *number)
            .collect();
        // Dropped below, without the lock: the last handle of a dropped family removes files.
        let commits: Vec<_> = done
            .iter()
            .map(|number| registry.commits.remove(number))
            .collect();
        drop(registry);
        for number in done {
            self.sequencer().release_parts(number);
        }
        drop(commits);
    }

    /// The families for which parts below `end` are retained.
    pub(crate) fn families_of_parts_below(&self, end: Lsn) -> BTreeSet<u32> {
        let registry = self.wal.large.0.lock();
        let below = registry.commits.values().filter(|commit| commit.first < end);
        below
            .filter_map(|commit| commit.linked.as_ref())
            .flat_map(|(at, families)| families.iter().filter(|family| family.flushed().get() <= *at))
            .map(|family| family.id())
            .collect()
    }
}
