//! What many families cost.

use std::time::Duration;

use super::RepeatedArgs;
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
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    #[command(flatten)]
    pub(crate) repeated: RepeatedArgs,
}
