//! What many small logs cost.

use std::path::PathBuf;
use std::time::Duration;

use crate::args::seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct SetBenchArgs {
    /// How many logs.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) logs: usize,
    /// Each has threads of its own, instead of those of the set.
    #[arg(long)]
    pub(crate) own_threads: bool,
    /// Bytes of a log's ring, which is private; a power of two.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    pub(crate) ring_bytes: usize,
    /// Bytes of a log's segments; a multiple of 4,096.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(crate) segment_bytes: u64,
    /// Threads that make durable commits, each to logs at random.
    #[arg(long, value_name = "T", default_value_t = 4)]
    pub(crate) threads: usize,
    /// Seconds that they do.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Seconds that the logs are idle.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) idle: Duration,
    /// The logs go into a new directory in here for the time of the measurement; the system's
    /// temporary directory by default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl SetBenchArgs {
    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }
}
