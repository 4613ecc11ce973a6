//! Locks that many want.

use std::path::PathBuf;
use std::time::Duration;

use crate::args::seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct LocksBenchArgs {
    /// Numbers of scanners that a writer works beside.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 1, 2, 4])]
    pub(crate) scanners: Vec<usize>,
    /// Rows of the table.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) rows: u64,
    /// Rows of another transaction beside a small range.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub(crate) locked: u64,
    /// Ranges that one commit locks.
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    pub(crate) ranges: u64,
    /// Seconds that a writer works beside scanners.
    #[arg(long, value_name = "S", default_value_t = 2.0, allow_negative_numbers = true)]
    duration: f64,
    /// The store goes into a new directory in here for the time of the measurement; the system's
    /// temporary directory by default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// How often each measurement is repeated, all interleaved; figures are medians.
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) repeat: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl LocksBenchArgs {
    pub(crate) fn duration(&self) -> anyhow::Result<Duration> {
        seconds("--duration", self.duration)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }
}
