//! Statistics of a store and its families.

mod properties;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::{LogStats, Lsn};

use crate::events::FlushCause;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::write::stall::Stall;

/// A store's figures at one moment. Counts are since the store was opened.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, Default)]
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
    /// How long commits waited for earlier ones that were still being applied, in nanoseconds; all
    /// threads together, without waits of less than 10 µs.
    pub apply_wait_ns: u64,
    /// Pieces of tables that went to the device in their turn; see
    /// [`Options::background_io`](crate::Options::background_io).
    pub background_pieces: u64,
    /// Bytes of all memtables that wait to be flushed, active ones included; see
    /// [`Options::max_memtable_bytes`](crate::Options::max_memtable_bytes). With
    /// [`Options::shared`](crate::Options::shared) the sum over all stores that share.
    pub memtable_bytes: u64,
    /// The limit on them that is in force.
    pub max_memtable_bytes: u64,
    /// Snapshots that are open.
    pub snapshots: usize,
    /// Transactions and their locks.
    pub transactions: TransactionStats,
    /// How often families were flushed because the log had grown past `max_total_wal_size`.
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
    /// Warnings about the combination of options.
    pub warnings: Vec<String>,
    /// The log's own figures, holders included.
    pub log: Option<LogStats>,
    /// The error with which writes are refused, if they are.
    pub refusal: Option<String>,
    /// Why writes that bring data may be refused for want of room, as long as more is looked for.
    pub no_room: Option<String>,
    /// Bytes that are kept back on the device for what makes room
    /// ([`Options::reserve_bytes`](crate::Options::reserve_bytes)), when all of them are there.
    pub reserve_bytes: u64,
    /// Whether all of them are there.
    pub reserve_complete: bool,
    /// Events that the [`Listener`](crate::Listener) did not get, as it was behind.
    pub lost_events: u64,
    /// By name.
    pub families: BTreeMap<String, FamilyStats>,
}

/// Figures of transactions and row locks, those of single writes included.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TransactionStats {
    /// Transactions that are open; [`Db::transactions`](crate::Db::transactions) lists them.
    pub open: usize,
    /// Transactions that began.
    pub begun: u64,
    /// Transactions that were committed.
    pub committed: u64,
    /// Conflicts: another commit had written what a transaction depended on.
    pub conflicts: u64,
    /// Transactions and single writes that were the victims of a deadlock.
    pub deadlocks: u64,
    /// Requests for locks that timed out.
    pub lock_timeouts: u64,
    /// Requests for locks that had to wait.
    pub lock_waits: u64,
    /// How long they were waited for, in nanoseconds; all threads together.
    pub lock_wait_ns: u64,
    /// Transactions and single writes that held locks and have released them;
    /// [`RowLocks`](crate::RowLocks) are not counted.
    pub lock_holders: u64,
    /// How long they held locks, from the first to the end, in nanoseconds; all together.
    pub locks_held_ns: u64,
    /// Entries of the lock table now.
    pub locks: usize,
}

/// A family's figures.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    /// Bytes of log from there on, which are retained for the family; 0 with the log off.
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
    /// How often all tables were merged since tombstones hid half of what they had, or were half as
    /// many as rows. These count as compactions, too.
    pub whole_merges: u64,
    /// Writes that were delayed.
    pub delays: u64,
    /// Time that they slept, in nanoseconds.
    pub delay_ns: u64,
    /// Writes that were stopped.
    pub stops: u64,
    /// Time that they waited, in nanoseconds.
    pub stop_ns: u64,
    /// Time that writes spent sealing the memtable that they had filled, in nanoseconds.
    pub seal_ns: u64,
    /// What it does to writes right now.
    pub stall: Stall,
    /// Runs in level 0.
    pub level0_runs: usize,
    /// Its keys, as [`Family::approximate_len`](crate::Family::approximate_len) has them.
    pub approximate_len: u64,
    /// Tables.
    pub tables: usize,
    /// Their bytes on disk.
    pub table_bytes: u64,
    /// Of these, what tombstones hide, by an estimate from samples; 0 until a flush after the opening
    /// has written tombstones.
    pub hidden_bytes: u64,
    /// Tombstones in the tables, which scans walk over.
    pub tombstones: u64,
}

pub(crate) fn collect(store: &Store) -> Stats {
    if let Err(forked) = store.check_process() {
        return Stats {
            refusal: Some(forked.to_string()),
            ..Stats::default()
        };
    }
    let sequencer = store.sequencer();
    let end = sequencer.appended();
    let counts = store.counts();
    let (reserve_bytes, reserve_complete) = store.reserve_status();
    let log_end = sequencer.oldest().map(|_| end);
    let families = store.families();
    let unreported = |family: &Arc<FamilyState>| {
        let view = family.view();
        view.mems().map(|mem| mem.count().unreported).sum::<u64>()
    };
    let unreported: u64 = families.iter().map(unreported).sum();
    let families = families
        .iter()
        .map(|family| (family.name().to_string(), family_stats(family, log_end)))
        .collect();
    Stats {
        visible: store.visible_boundary(),
        durable: sequencer.durable(),
        commits: counts.commits,
        commit_bytes: counts.commit_bytes,
        apply_wait_ns: counts.apply_wait_ns,
        background_pieces: store.background_pieces(),
        memtable_bytes: store.memtable_bytes() + unreported,
        max_memtable_bytes: store.throttle.budget.most(),
        snapshots: counts.snapshots,
        transactions: transactions(store),
        wal_size_flushes: counts.wal_size_flushes,
        replayed_commits: counts.replayed.commits,
        replayed_bytes: counts.replayed.bytes,
        replay_ns: counts.replayed.ns,
        wal_bytes: sequencer.oldest().map_or(0, |oldest| end.saturating_sub(oldest)),
        max_total_wal_size: crate::background::wal_limit::limit(store),
        warnings: crate::background::wal_limit::warnings(store),
        log: sequencer.stats(),
        refusal: store.failure().map(|e| e.to_string()),
        no_room: store.no_room().map(|e| e.to_string()),
        reserve_bytes,
        reserve_complete,
        lost_events: store.events().lost(),
        families,
    }
}

fn family_stats(family: &FamilyState, log_end: Option<Lsn>) -> FamilyStats {
    let view = family.view();
    let counters = family.counters();
    let flushed = family.flushed().get();
    let content = family.tables().content();
    FamilyStats {
        id: family.id(),
        active_bytes: view.active.all_bytes(),
        sealed: view.sealed.len(),
        sealed_bytes: view.sealed.iter().map(|sealed| sealed.mem.all_bytes()).sum(),
        flushed,
        pinned_wal_bytes: log_end.map_or(0, |end| end.saturating_sub(flushed)),
        flushes: counters.flushes(),
        flushed_bytes: counters.flushed_bytes.get(),
        flush_ns: counters.flush_ns.get(),
        flush_failures: counters.flush_failures.get(),
        compactions: counters.compactions.get(),
        compaction_ns: counters.compaction_ns.get(),
        compaction_failures: counters.compaction_failures.get(),
        whole_merges: counters.whole_merges.get(),
        delays: counters.delays.get(),
        delay_ns: counters.delay_ns.get(),
        stops: counters.stops.get(),
        stop_ns: counters.stop_ns.get(),
        seal_ns: counters.seal_ns.get(),
        stall: family.stall(),
        level0_runs: family.level0_runs(),
        approximate_len: family.approximate_len_with(&content),
        tables: family.tables().table_count(),
        table_bytes: content.bytes,
        hidden_bytes: content.hidden,
        tombstones: content.tombstones,
    }
}

fn transactions(store: &Store) -> TransactionStats {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (all, locks) = (&store.transactions().counters, &store.locks().counters);
    TransactionStats {
        open: store.transactions().open(),
        begun: get(&all.begun),
        committed: get(&all.committed),
        conflicts: get(&all.conflicts),
        deadlocks: get(&locks.deadlocks),
        lock_timeouts: get(&locks.timeouts),
        lock_waits: get(&locks.waits),
        lock_wait_ns: get(&locks.wait_ns),
        lock_holders: get(&locks.held),
        locks_held_ns: get(&locks.held_ns),
        locks: store.locks().entries(),
    }
}
