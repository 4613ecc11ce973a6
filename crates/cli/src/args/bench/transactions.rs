//! `collie bench commit`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::args::values::{Ring, seconds};

#[derive(Debug, clap::Args)]
pub(crate) struct CommitBenchArgs {
    /// Threads.
    #[arg(long, value_name = "T", default_value_t = 64)]
    pub(crate) threads: usize,
    /// Rows that all threads share.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) hot_keys: u64,
    /// Transactions out of a hundred that take one of these rows; the others take one of their thread's own.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    pub(crate) hot_share: u64,
    /// How commits end.
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [CommitEnd::Sync, CommitEnd::EarlyRelease, CommitEnd::Async])]
    pub(crate) mode: Vec<CommitEnd>,
    /// Commits with early release that a thread has under way before it waits for the oldest; with sync a thread would
    /// wait for itself.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) in_flight: usize,
    /// How much longer each sync of the log takes, in microseconds; with 0 the log writes past the page cache where it
    /// can.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub(crate) sync_delay_us: u64,
    /// Seconds that one measurement takes.
    #[arg(long, value_name = "S", default_value_t = 2.0, allow_negative_numbers = true)]
    duration: f64,
    /// Stores go into new directories in here for the time of the measurement; the system's temporary directory by
    /// default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// Where the ring lies: in shared memory, or private to the process.
    #[arg(long, value_enum, default_value_t = Ring::Shared)]
    pub(crate) ring: Ring,
    /// How often each measurement is repeated.
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) repeat: usize,
    /// Print one JSON object per result.
    #[arg(long)]
    pub(crate) json: bool,
}

impl CommitBenchArgs {
    pub(crate) fn duration(&self) -> anyhow::Result<Duration> {
        seconds("--duration", self.duration)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }
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
    /// It lets go of its locks when it is visible; then its thread flushes the log for itself, one at a time.
    OwnFlush,
}
