//! `collie-lab bench front`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use collie_bench::{FrontLoad, FrontMode};

use super::super::size;
use crate::args::seconds;

#[derive(Debug, clap::Args)]
pub(crate) struct FrontBenchArgs {
    /// What is compared.
    #[arg(long, value_enum, value_name = "MODE", value_delimiter = ',', default_values_t = Mode::value_variants().to_vec())]
    pub(crate) modes: Vec<Mode>,
    /// What clients do: pgbench's own transactions, or a load like TPC-C's.
    #[arg(long, value_enum, default_value_t = Load::Pgbench)]
    load: Load,
    /// 100,000 accounts each; with --load tpcc a warehouse each.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) scale: u32,
    /// Clients at once.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) clients: usize,
    /// Seconds that are measured.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: Duration,
    /// Seconds that clients work before, which do not count.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds_or_none, allow_negative_numbers = true)]
    pub(crate) warm_up: Duration,
    /// How often all of it is done; the modes take turns. Of each mode the run with the median
    /// throughput is shown.
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) repeat: usize,
    /// Bytes per second that the disk takes at most, as in 60mb; then each mode is on a file system
    /// in an image, whose loop device is limited by control groups.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    limit: Option<i64>,
    /// Every mode on a file system in an image, as btrfs always is: so they compare.
    #[arg(long)]
    pub(crate) on_images: bool,
    /// Size of the image. It is written whole once.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "16gb")]
    image: i64,
    /// PostgreSQL's shared_buffers.
    #[arg(long, value_name = "SIZE", default_value = "512MB")]
    shared_buffers: String,
    /// PostgreSQL's checkpoint_timeout.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    checkpoint_timeout: String,
    /// PostgreSQL's max_wal_size.
    #[arg(long, value_name = "SIZE", default_value = "10GB")]
    max_wal_size: String,
    /// PostgreSQL's autovacuum: as it is, or with six workers, every 15 s, after 25 rows and 10 %,
    /// and without pauses.
    #[arg(long, value_enum, default_value_t = Autovacuum::Default)]
    autovacuum: Autovacuum,
    /// A further setting of PostgreSQL in all modes, as in wal_recycle=off.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Room for pages that are not at home, of the mode collie.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "1gb")]
    shadow: i64,
    /// Instead: a sequential scan of a table after --seconds of random updates, nothing of it in
    /// memory, in the modes default and collie unless others are given; on the mount again after
    /// `collie drain`.
    #[arg(long, conflicts_with_all = ["adopt", "load"])]
    pub(crate) scan: bool,
    /// Instead: how long it takes to mount clusters of these scales.
    #[arg(long, value_name = "SCALE", value_delimiter = ',', conflicts_with_all = ["load", "modes", "scale"])]
    pub(crate) adopt: Vec<u32>,
    /// All files go into a new directory in here for the time of the measurement; the system's
    /// temporary directory by default. PostgreSQL's user must be able to pass it.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write results.json, an object per run, and the plots tps.svg and latency.svg to this
    /// directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object per run.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A way to run the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// As installed: full_page_writes = on.
    Default,
    /// The same, with wal_compression = lz4.
    Compressed,
    /// full_page_writes = off, where a power cut may destroy pages: for reference.
    Off,
    /// full_page_writes = off on btrfs.
    Btrfs,
    /// full_page_writes = off on Collie's mount.
    Collie,
}

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    /// pgbench's tpcb-like transactions.
    Pgbench,
    /// A load like TPC-C's.
    Tpcc,
}

/// How autovacuum is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Autovacuum {
    /// As installed.
    Default,
    /// Early, often and without pauses.
    Aggressive,
}

impl FrontBenchArgs {
    pub(crate) fn modes(&self) -> Vec<FrontMode> {
        let all = self.modes.as_slice() == Mode::value_variants();
        let mode = |mode: &Mode| match mode {
            Mode::Default => FrontMode::Default,
            Mode::Compressed => FrontMode::Compressed,
            Mode::Off => FrontMode::Off,
            Mode::Btrfs => FrontMode::Btrfs,
            Mode::Collie => FrontMode::Collie,
        };
        match self.scan && all {
            true => vec![FrontMode::Default, FrontMode::Collie],
            false => self.modes.iter().map(mode).collect(),
        }
    }

    pub(crate) fn load(&self) -> FrontLoad {
        match self.load {
            Load::Pgbench => FrontLoad::PgBench,
            Load::Tpcc => FrontLoad::Tpcc,
        }
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit.map(bytes)
    }

    pub(crate) fn image_bytes(&self) -> u64 {
        bytes(self.image)
    }

    pub(crate) fn shadow_bytes(&self) -> u64 {
        bytes(self.shadow)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// PostgreSQL's settings in all modes.
    pub(crate) fn settings(&self) -> Vec<String> {
        let sizes = [
            format!("shared_buffers={}", self.shared_buffers),
            format!("checkpoint_timeout={}", self.checkpoint_timeout),
            format!("max_wal_size={}", self.max_wal_size),
        ];
        let autovacuum: &[&str] = match self.autovacuum {
            Autovacuum::Default => &[],
            Autovacuum::Aggressive => &[
                "autovacuum_max_workers=6",
                "autovacuum_naptime=15s",
                "autovacuum_vacuum_threshold=25",
                "autovacuum_analyze_threshold=10",
                "autovacuum_vacuum_scale_factor=0.1",
                "autovacuum_analyze_scale_factor=0.05",
                "autovacuum_vacuum_cost_delay=0",
                "autovacuum_vacuum_cost_limit=1000",
            ],
        };
        let autovacuum = autovacuum.iter().map(|setting| (*setting).to_owned());
        sizes
            .into_iter()
            .chain(autovacuum)
            .chain(self.set.iter().cloned())
            .collect()
    }
}

fn seconds_or_none(text: &str) -> Result<Duration, &'static str> {
    if text.parse() == Ok(0.0) {
        return Ok(Duration::ZERO);
    }
    seconds(text)
}

/// Sizes have no sign.
pub(super) fn bytes(size: i64) -> u64 {
    size.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, BenchCommand, Command};

    fn parse(words: &[&str]) -> Result<FrontBenchArgs, clap::Error> {
        let words = ["collie-lab", "bench", "front"].iter().chain(words);
        match Args::try_parse_from(words)?.command {
            Some(Command::Bench(args)) => match args.log {
                Some(BenchCommand::Front(args)) => Ok(*args),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bench_front_compares_all_modes_unless_it_scans() {
        assert_eq!(parse(&[]).unwrap().modes(), FrontMode::ALL);
        assert_eq!(
            parse(&["--scan"]).unwrap().modes(),
            [FrontMode::Default, FrontMode::Collie]
        );
        let args = parse(&["--scan", "--modes", "off"]).unwrap();
        assert_eq!(args.modes(), [FrontMode::Off]);
        assert!(parse(&["--scan", "--adopt", "1"]).is_err());
    }

    #[test]
    fn bench_front_passes_settings_on() {
        let args = parse(&[
            "--modes",
            "btrfs,compressed",
            "--load",
            "tpcc",
            "--limit",
            "60mb",
            "--seconds",
            "0.5",
            "--warm-up",
            "0",
            "--shared-buffers",
            "1GB",
            "--autovacuum",
            "aggressive",
            "--set",
            "wal_recycle=off",
        ])
        .unwrap();
        assert_eq!(args.modes(), [FrontMode::Btrfs, FrontMode::Compressed]);
        assert_eq!((args.load(), args.limit()), (FrontLoad::Tpcc, Some(60 << 20)));
        assert_eq!(args.seconds, Duration::from_millis(500));
        assert_eq!(args.warm_up, Duration::ZERO);
        let settings = args.settings();
        for setting in [
            "shared_buffers=1GB",
            "autovacuum_max_workers=6",
            "wal_recycle=off",
        ] {
            assert!(
                settings.iter().any(|one| one == setting),
                "{setting} in {settings:?}"
            );
        }
        assert_eq!(
            parse(&[]).unwrap().settings().len(),
            3,
            "autovacuum is left as it is"
        );
        assert!(parse(&["--seconds", "-1"]).is_err());
    }
}
