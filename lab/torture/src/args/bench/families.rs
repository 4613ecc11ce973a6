//! What many families cost.

use std::path::PathBuf;
use std::time::Duration;

use crate::args::seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct FamiliesBenchArgs {
    /// Numbers of families, in a store each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 1000])]
    pub(crate) families: Vec<usize>,
    /// Puts of a batch, which go to all families by turns.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) batch: usize,
    /// Seconds that batches are written beside another thread's puts.
    #[arg(long, value_name = "S", default_value_t = 2.0, allow_negative_numbers = true)]
    duration: f64,
    /// Stores go into new directories in here for the time of the measurement; the system's
    /// temporary directory by default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// How often each measurement is repeated, all interleaved; figures are medians.
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) repeat: usize,
    /// Print one JSON object per number of families.
    #[arg(long)]
    pub(crate) json: bool,
}

impl FamiliesBenchArgs {
    pub(crate) fn duration(&self) -> anyhow::Result<Duration> {
        seconds("--duration", self.duration)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }
}
