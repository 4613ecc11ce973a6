//! `collie-lab bench commit` and `collie-lab bench orders`.

use std::time::Duration;

use clap::ValueEnum;

use super::super::values::Ring;
use super::RepeatedArgs;
use crate::args::seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct CommitBenchArgs {
    /// Rows that all threads share.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) hot_keys: u64,
    /// Transactions out of a hundred that take one of these rows; the others take one of their
    /// thread's own.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    pub(crate) hot_share: u64,
    #[command(flatten)]
    pub(crate) run: TransactionRunArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OrdersBenchArgs {
    /// Districts, each with a counter that gives its orders their numbers, and with 1,000
    /// customers. With 1 all orders meet at one row.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) districts: u32,
    /// Items of the stock.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) items: u32,
    /// So many of them are hot.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) hot_items: u32,
    /// Lines out of a hundred that take one of the hot items.
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    pub(crate) hot_share: u64,
    /// Lines of an order at most; it has from one to so many.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) lines: u32,
    /// Transactions out of a hundred that look up a customer's last order instead of placing one.
    #[arg(long, value_name = "PERCENT", default_value_t = 20)]
    pub(crate) look_ups: u64,
    /// Whether rows are locked as they are read for update and written, or compared at the commit.
    #[arg(long, value_enum, default_value_t = TransactionKind::Pessimistic)]
    pub(crate) concurrency: TransactionKind,
    /// What transactions may see of each other.
    #[arg(long, value_enum, default_value_t = IsolationLevel::Serializable)]
    pub(crate) isolation: IsolationLevel,
    #[command(flatten)]
    pub(crate) run: TransactionRunArgs,
}

/// How transactions are run, whatever they do.
#[derive(Debug, clap::Args)]
pub(crate) struct TransactionRunArgs {
    /// Threads.
    #[arg(long, value_name = "T", default_value_t = 64)]
    pub(crate) threads: usize,
    /// How commits end.
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [CommitEnd::Sync, CommitEnd::EarlyRelease, CommitEnd::Async])]
    pub(crate) mode: Vec<CommitEnd>,
    /// Commits with early release that a thread has under way before it waits for the oldest; with
    /// sync a thread would wait for itself.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) in_flight: usize,
    /// How much longer each sync of the log takes, in microseconds, to stand for a slower disk.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub(crate) sync_delay_us: u64,
    /// Seconds that one measurement takes.
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Where the ring lies: in shared memory, or private to the process.
    #[arg(long, value_enum, default_value_t = Ring::Shared)]
    pub(crate) ring: Ring,
    #[command(flatten)]
    pub(crate) repeated: RepeatedArgs,
}

/// How a commit ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CommitEnd {
    /// It waits for the disk, then lets go of its locks.
    Sync,
    /// It lets go of its locks when it is visible, then waits for the disk.
    EarlyRelease,
    /// It lets go of its locks when it is visible, and waits for nothing.
    Async,
    /// It lets go of its locks when it is visible; then its thread flushes the log for itself, one
    /// at a time.
    OwnFlush,
}

/// When conflicts are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransactionKind {
    /// As they come: rows are locked.
    Pessimistic,
    /// At the commit, which is run again then.
    Optimistic,
}

/// What transactions may see of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationLevel {
    /// Each reads one moment; of two that write the same row the second is run again.
    Snapshot,
    /// As if one ran after the other.
    Serializable,
}
