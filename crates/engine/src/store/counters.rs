//! What a store and its families count. None of it is on the path of a write that is not stalled.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::store::Store;
use crate::store::view::FlushCause;

/// A number that only grows. Relaxed throughout: nothing else is read on the strength of it.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A store's counters.
#[derive(Default)]
pub(super) struct StoreCounters {
    wal_size_flushes: Counter,
    replayed: Mutex<Replayed>,
}

/// What opening the store replayed from the log.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Replayed {
    pub(crate) commits: u64,
    /// Bytes of log that they take.
    pub(crate) bytes: u64,
    pub(crate) ns: u64,
}

/// A store's counts at one moment.
pub(crate) struct Counts {
    pub(crate) commits: u64,
    /// Bytes of commits as they are encoded for the log.
    pub(crate) commit_bytes: u64,
    /// How long threads waited for earlier commits to be applied, in nanoseconds.
    pub(crate) apply_wait_ns: u64,
    pub(crate) snapshots: usize,
    pub(crate) wal_size_flushes: u64,
    pub(crate) replayed: Replayed,
}

impl Store {
    /// All that the store counts. The numbers are read one after the other, not at one instant.
    pub(crate) fn counts(&self) -> Counts {
        let (commits, commit_bytes) = self.appenders.totals();
        Counts {
            commits,
            commit_bytes,
            apply_wait_ns: self.visible.slept_ns(),
            snapshots: self.snapshots.load(Ordering::Relaxed),
            wal_size_flushes: self.counters.wal_size_flushes.get(),
            replayed: *self.counters.replayed.lock(),
        }
    }

    /// Families are flushed because the log has grown past its limit, or is full.
    pub(crate) fn count_wal_size_flush(&self) {
        self.counters.wal_size_flushes.add(1);
    }

    /// The log was replayed; once, while the store is opened.
    pub(crate) fn note_replayed(&self, replayed: Replayed) {
        *self.counters.replayed.lock() = replayed;
    }
}

/// A family's counters.
#[derive(Default)]
pub(crate) struct FamilyCounters {
    flushes: Mutex<BTreeMap<u8, (FlushCause, u64)>>,
    pub(crate) flushed_bytes: Counter,
    pub(crate) flush_ns: Counter,
    pub(crate) flush_failures: Counter,
    pub(crate) compactions: Counter,
    pub(crate) compaction_ns: Counter,
    pub(crate) compaction_failures: Counter,
    pub(crate) whole_merges: Counter,
    pub(crate) delays: Counter,
    pub(crate) delay_ns: Counter,
    pub(crate) stops: Counter,
    pub(crate) stop_ns: Counter,
    pub(crate) seal_ns: Counter,
}

impl FamilyCounters {
    pub(crate) fn count_flush(&self, cause: FlushCause, bytes: u64, ns: u64) {
        self.flushes.lock().entry(cause as u8).or_insert((cause, 0)).1 += 1;
        self.flushed_bytes.add(bytes);
        self.flush_ns.add(ns);
    }

    /// Flushes by cause.
    pub(crate) fn flushes(&self) -> Vec<(FlushCause, u64)> {
        self.flushes.lock().values().copied().collect()
    }
}
