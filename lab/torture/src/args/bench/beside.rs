//! Durable writes beside flushes and compactions.

use std::time::Duration;

use clap::ValueEnum;
use collie_db::IoPolicy;

use super::super::size;
use super::RepeatedArgs;
use super::front::bytes;
use crate::args::seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct BesideBenchArgs {
    /// How background work shares the device: none (a table at once), fair (a piece at a time),
    /// classes (a piece while no commit is being synced).
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [BackgroundIo::None, BackgroundIo::Fair, BackgroundIo::Classes])]
    policy: Vec<BackgroundIo>,
    /// Threads that make durable writes, each half a millisecond after its last one.
    #[arg(long, value_name = "T", default_value_t = 4)]
    pub(crate) threads: usize,
    /// Bytes per second that are written to the other family, as in 15mb; as many as it takes by
    /// default.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    fill: Option<i64>,
    /// Its keys, with values of 1,000 bytes.
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    pub(crate) keys: u64,
    /// Size of its memtables.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "16mb")]
    write_buffer_size: i64,
    /// Also compact that family by hand, again and again.
    #[arg(long)]
    pub(crate) compact: bool,
    /// Seconds that one measurement takes; a third more before it, without the other family.
    #[arg(long, value_name = "S", default_value = "15", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    #[command(flatten)]
    pub(crate) repeated: RepeatedArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackgroundIo {
    None,
    Fair,
    Classes,
}

impl BesideBenchArgs {
    pub(crate) fn policies(&self) -> Vec<IoPolicy> {
        let policy = |policy: &BackgroundIo| match policy {
            BackgroundIo::None => IoPolicy::None,
            BackgroundIo::Fair => IoPolicy::Fair,
            BackgroundIo::Classes => IoPolicy::Classes,
        };
        self.policy.iter().map(policy).collect()
    }

    pub(crate) fn fill(&self) -> Option<u64> {
        self.fill.map(bytes)
    }

    pub(crate) fn write_buffer(&self) -> u64 {
        bytes(self.write_buffer_size)
    }
}
