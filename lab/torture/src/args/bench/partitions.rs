//! Partitions of a replicated store by which logs they have.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use collie_bench::{LogPlace, Mix};

use super::super::size;
use crate::args::seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct PartitionsBenchArgs {
    /// Where the logs are: `shared` and private ones besides, which nothing waits for (dual); one on the first
    /// disk; private ones on the first disk (home) or on the disk of their tables (data); one for each disk.
    #[arg(long, value_enum, value_name = "PLACE", value_delimiter = ',', default_values_t = Place::value_variants().to_vec())]
    layouts: Vec<Place>,
    /// Reads to writes and threads, as in 1:3@15. Default: Pegasus' seven.
    #[arg(long, value_name = "MIX", value_delimiter = ',')]
    mixes: Vec<Mix>,
    /// Nodes with a replica of each partition, all in this process: 1 or 3.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) nodes: usize,
    /// Partitions.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) partitions: u16,
    /// Keys, which are written first.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) keys: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 1000)]
    pub(crate) value_size: usize,
    /// Disks of a node: directories, or with --limit file systems in images.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) disks: usize,
    /// Bytes per second that each disk takes at most, as in 10mb: a loop device limited by control groups. Needs root.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    limit: Option<i64>,
    /// Size of the image of a disk. It is written whole once per layout.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "2gb")]
    image: i64,
    /// Nothing is synced: writes are in the page cache when they are answered, as Pegasus has it.
    #[arg(long)]
    pub(crate) no_sync: bool,
    /// Seconds that each mix is measured.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// How often all of it is done; the layouts take turns. Figures are medians then.
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) repeat: usize,
    /// All files go into a new directory in here for the time of the measurement; the system's temporary directory by
    /// default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// Write results.json, an object per run, and the plot partitions.svg to this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print a JSON object per run.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    Dual,
    Shared,
    Home,
    Data,
    PerDisk,
}

impl PartitionsBenchArgs {
    pub(crate) fn layouts(&self) -> Vec<LogPlace> {
        let places = self.layouts.iter().map(|place| match place {
            Place::Dual => LogPlace::Dual,
            Place::Shared => LogPlace::Shared,
            Place::Home => LogPlace::Home,
            Place::Data => LogPlace::Data,
            Place::PerDisk => LogPlace::PerDisk,
        });
        places.collect()
    }

    pub(crate) fn mixes(&self) -> Vec<Mix> {
        match self.mixes.is_empty() {
            true => Mix::all(),
            false => self.mixes.clone(),
        }
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit.and_then(|limit| u64::try_from(limit).ok())
    }

    pub(crate) fn image_bytes(&self) -> u64 {
        u64::try_from(self.image).unwrap_or(0)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }
}
