//! Locks that many want.

use std::time::Duration;

use super::RepeatedArgs;
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
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    #[command(flatten)]
    pub(crate) repeated: RepeatedArgs,
}
