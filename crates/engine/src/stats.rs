//! What the store tells about itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::{LogStats, Lsn};
use parking_lot::Mutex;

use crate::core::{Core, FamilyState, GATE_SLOW, GATE_STOP};
use crate::replay::Replayed;
use crate::view::FlushCause;

/// Counters of the store that no hot path shares.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) wal_size_flushes: AtomicU64,
    replayed_commits: AtomicU64,
    replayed_bytes: AtomicU64,
    replay_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn note_replay(&self, replayed: &Replayed) {
        self.replayed_commits.store(replayed.commits, Ordering::Relaxed);
        self.replayed_bytes.store(replayed.bytes, Ordering::Relaxed);
        self.replay_ns.store(replayed.ns, Ordering::Relaxed);
    }
}

/// Counters of a family, all off the path of writes that are not held up.
#[derive(Default)]
pub(crate) struct FamilyCounters {
    pub(crate) flushes: Mutex<BTreeMap<u8, (FlushCause, u64)>>,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) flush_ns: AtomicU64,
    pub(crate) flush_failures: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) compaction_ns: AtomicU64,
    pub(crate) compaction_failures: AtomicU64,
    pub(crate) delays: AtomicU64,
    pub(crate) delay_ns: AtomicU64,
    pub(crate) stops: AtomicU64,
    pub(crate) stop_ns: AtomicU64,
    pub(crate) seal_ns: AtomicU64,
    /// Delay that writers owe but have not slept yet.
    pub(crate) debt_ns: AtomicU64,
}

impl FamilyCounters {
    pub(crate) fn count_flush(&self, cause: FlushCause, bytes: u64, ns: u64) {
        self.flushes.lock().entry(cause as u8).or_insert((cause, 0)).1 += 1;
        self.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.flush_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// A store's figures at one moment. Counts are since the store was opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// Everything below is in its memtables.
    pub visible: Lsn,
    /// Everything below is on the device; `None` with the log off.
    pub durable: Option<Lsn>,
    /// Commits.
    pub commits: u64,
    /// Bytes of commits as they are encoded for the log.
    pub commit_bytes: u64,
    /// How long commits waited for earlier ones that were still being applied, in nanoseconds; all threads
    /// together.
    pub apply_wait_ns: u64,
    /// Snapshots that live.
    pub snapshots: usize,
    /// Transactions and their locks.
    pub transactions: TransactionStats,
    /// Times that families were flushed because the log had grown past `max_total_wal_size`.
    pub wal_size_flushes: u64,
    /// Commits that opening replayed from the log.
    pub replayed_commits: u64,
    /// Bytes of log that they take.
    pub replayed_bytes: u64,
    /// How long that took, in nanoseconds, after the log itself was opened.
    pub replay_ns: u64,
    /// Bytes of live log; 0 with the log off.
    pub wal_bytes: u64,
    /// The limit on them that is in force now; see [`Options::max_total_wal_size`](crate::Options).
    pub max_total_wal_size: u64,
    /// What somebody should know about the options in their combination, in words.
    pub warnings: Vec<String>,
    /// The log's own figures, holders included.
    pub log: Option<LogStats>,
    /// Why writes are refused, if they are.
    pub refusal: Option<String>,
    /// By name.
    pub families: BTreeMap<String, FamilyStats>,
}

/// Figures of transactions and row locks, those of single writes included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TransactionStats {
    /// Transactions that are open; [`Db::transactions`](crate::Db::transactions) lists them.
    pub open: usize,
    /// Transactions that began.
    pub begun: u64,
    /// Transactions that were committed.
    pub committed: u64,
    /// Times that somebody else had written what a transaction depended on.
    pub conflicts: u64,
    /// Transactions and single writes that were the victims of a deadlock.
    pub deadlocks: u64,
    /// Locks that were not to be had in time.
    pub lock_timeouts: u64,
    /// Locks that were not to be had at once.
    pub lock_waits: u64,
    /// How long they were waited for, in nanoseconds; all threads together.
    pub lock_wait_ns: u64,
    /// Transactions and single writes that held locks and let go of them; [`RowLocks`](crate::RowLocks) are not counted.
    pub lock_holders: u64,
    /// How long they held locks, from the first to the end, in nanoseconds; all together.
    pub locks_held_ns: u64,
    /// Entries of the lock table now.
    pub locks: usize,
}

/// A family's figures.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FamilyStats {
    /// Its id.
    pub id: u32,
    /// Bytes in the active memtable.
    pub active_bytes: u64,
    /// Memtables that wait to be flushed.
    pub sealed: usize,
    /// Their bytes.
    pub sealed_bytes: u64,
    /// Commits below this LSN are in tables.
    pub flushed: Lsn,
    /// Bytes of log from there on, which the family pins; 0 with the log off.
    pub pinned_wal_bytes: u64,
    /// Flushes by cause.
    pub flushes: Vec<(FlushCause, u64)>,
    /// Bytes of memtables that were flushed.
    pub flushed_bytes: u64,
    /// Time spent writing tables, in nanoseconds.
    pub flush_ns: u64,
    /// Flushes that failed and were, or will be, tried again.
    pub flush_failures: u64,
    /// Compactions that changed something.
    pub compactions: u64,
    /// Time spent in compactions, in nanoseconds.
    pub compaction_ns: u64,
    /// Compactions that failed.
    pub compaction_failures: u64,
    /// Writes that were delayed.
    pub delays: u64,
    /// Time that they slept, in nanoseconds.
    pub delay_ns: u64,
    /// Writes that had to stop.
    pub stops: u64,
    /// Time that they waited, in nanoseconds.
    pub stop_ns: u64,
    /// Time that writes spent sealing the memtable that they had filled, in nanoseconds.
    pub seal_ns: u64,
    /// What writes meet right now.
    pub stall: Stall,
    /// Runs in level 0.
    pub level0_runs: usize,
    /// Tables.
    pub tables: usize,
    /// Their bytes on disk.
    pub table_bytes: u64,
}

/// What a family does to writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// Nothing.
    None,
    /// It delays them.
    Delayed,
    /// It makes them wait.
    Stopped,
}

pub(crate) fn collect(core: &Core) -> Stats {
    let families = core.families.read().all();
    let end = core.journal.reserved();
    let (commits, commit_bytes) = core.workers.totals();
    let logged = core.journal.durable().is_some();
    let families = families
        .iter()
        .map(|family| {
            (
                family.name.to_string(),
                family_stats(family, logged.then_some(end)),
            )
        })
        .collect();
    Stats {
        visible: core.visible.boundary(),
        durable: core.journal.durable(),
        commits,
        commit_bytes,
        apply_wait_ns: core.visible.slept_ns(),
        snapshots: core.snapshots.load(Ordering::Relaxed),
        transactions: transactions(core),
        wal_size_flushes: core.counters.wal_size_flushes.load(Ordering::Relaxed),
        replayed_commits: core.counters.replayed_commits.load(Ordering::Relaxed),
        replayed_bytes: core.counters.replayed_bytes.load(Ordering::Relaxed),
        replay_ns: core.counters.replay_ns.load(Ordering::Relaxed),
        wal_bytes: core
            .journal
            .oldest()
            .map_or(0, |oldest| end.saturating_sub(oldest)),
        max_total_wal_size: crate::wal_size::limit(core),
        warnings: crate::wal_size::warnings(core),
        log: core.journal.stats(),
        refusal: core
            .refusal()
            .or_else(|| core.journal.poisoned())
            .map(|e| e.to_string()),
        families,
    }
}

fn family_stats(family: &FamilyState, log_end: Option<Lsn>) -> FamilyStats {
    let view = family.view.load();
    let counters = &family.counters;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let flushed = family.flushed.get();
    FamilyStats {
        id: family.id,
        active_bytes: view.active.bytes(),
        sealed: view.sealed.len(),
        sealed_bytes: view.sealed.iter().map(|sealed| sealed.mem.bytes()).sum(),
        flushed,
        pinned_wal_bytes: log_end.map_or(0, |end| end.saturating_sub(flushed)),
        flushes: counters.flushes.lock().values().copied().collect(),
        flushed_bytes: count(&counters.flushed_bytes),
        flush_ns: count(&counters.flush_ns),
        flush_failures: count(&counters.flush_failures),
        compactions: count(&counters.compactions),
        compaction_ns: count(&counters.compaction_ns),
        compaction_failures: count(&counters.compaction_failures),
        delays: count(&counters.delays),
        delay_ns: count(&counters.delay_ns),
        stops: count(&counters.stops),
        stop_ns: count(&counters.stop_ns),
        seal_ns: count(&counters.seal_ns),
        stall: match family.gate.load(Ordering::Relaxed) {
            GATE_STOP => Stall::Stopped,
            GATE_SLOW => Stall::Delayed,
            _ => Stall::None,
        },
        level0_runs: family.level0.load(Ordering::Relaxed),
        tables: family.tables.table_count(),
        table_bytes: family.tables.disk_bytes(),
    }
}

fn transactions(core: &Core) -> TransactionStats {
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (all, locks) = (&core.transactions.counters, &core.locks.counters);
    TransactionStats {
        open: core.transactions.open(),
        begun: get(&all.begun),
        committed: get(&all.committed),
        conflicts: get(&all.conflicts),
        deadlocks: get(&locks.deadlocks),
        lock_timeouts: get(&locks.timeouts),
        lock_waits: get(&locks.waits),
        lock_wait_ns: get(&locks.wait_ns),
        lock_holders: get(&locks.held),
        locks_held_ns: get(&locks.held_ns),
        locks: core.locks.entries(),
    }
}
