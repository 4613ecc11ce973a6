//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, Subcommand, ValueEnum};
use collie_log::{Level, RingMode};
use collie_server::Ack;

/// Collie: a transactional store built around its log.
#[derive(Debug, Parser)]
#[command(
    name = "collie",
    version,
    max_term_width = 110,
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Looks at a closed log, or cuts away what is damaged.
    #[command(subcommand)]
    Log(LogCommand),
    /// Measures: the log beside lock-based ones.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Serves a store to Redis clients, until SIGTERM, SIGINT or SHUTDOWN.
    Serve(ServeArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The store's directory; created where it does not exist.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6380")]
    pub(crate) listen: SocketAddr,
    /// When replies leave: when what they tell is at this level. Connections can choose for themselves.
    #[arg(long, value_enum, default_value_t = Durability::Disk)]
    pub(crate) ack: Durability,
    /// Where the log's ring lies.
    #[arg(long, value_enum, default_value_t = Ring::Shared)]
    pub(crate) ring: Ring,
    /// Threads that serve connections; 0: one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Let in only clients that say the password on the first line of this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Listen off loopback even without a password.
    #[arg(long)]
    pub(crate) open_to_network: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Shows every frame of the log.
    Dump {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object per frame.
        #[arg(long)]
        json: bool,
        /// Print whole payloads, in hexadecimal.
        #[arg(long)]
        payload: bool,
    },
    /// Reads the whole log and says where it is damaged, if it is; then the exit code is 1.
    Verify {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Cuts the log at its first damage, so that it opens again without what followed. What is cut away is
    /// kept in files that end in `.cut`.
    Repair {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Appends to the log alone, by number of threads; with --baselines to three lock-based logs as well.
    Log(LogBenchArgs),
}

/// What all benchmarks take.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Where files are put for the time of the measurement; the system's temporary directory by default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// Where the log's ring lies: in shared memory, or private to the process.
    #[arg(long, value_enum, default_value_t = Ring::Shared)]
    pub(crate) ring: Ring,
    /// How often each measurement is repeated.
    #[arg(long, default_value_t = 3)]
    pub(crate) repeat: usize,
    /// Print one JSON object per result.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogBenchArgs {
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    pub(crate) threads: Vec<usize>,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 100)]
    pub(crate) size: usize,
    /// What each append waits for.
    #[arg(long, value_enum, default_value_t = Durability::Disk)]
    pub(crate) durability: Durability,
    /// Appends that a thread has under way before it waits for the oldest.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) in_flight: usize,
    /// Measure one mutex, eight insertion locks (PostgreSQL) and a link buffer (MySQL 8) as well.
    #[arg(long)]
    pub(crate) baselines: bool,
    /// Seconds that one measurement takes.
    #[arg(long, value_name = "S", default_value_t = 2.0, allow_negative_numbers = true)]
    duration: f64,
    #[command(flatten)]
    pub(crate) common: BenchArgs,
}

/// What a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// Nothing.
    Buffered,
    /// That it survives the death of the process.
    Process,
    /// That it survives a power cut.
    Disk,
}

impl Durability {
    pub(crate) fn level(self) -> Level {
        match self {
            Self::Buffered => Level::Buffered,
            Self::Process => Level::Process,
            Self::Disk => Level::Disk,
        }
    }

    pub(crate) fn ack(self) -> Ack {
        match self {
            Self::Buffered => Ack::Buffered,
            Self::Process => Ack::Process,
            Self::Disk => Ack::Disk,
        }
    }
}

/// Where a ring lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ring {
    /// In shared memory (/dev/shm): what was written survives the process.
    Shared,
    /// In the process.
    Private,
}

impl Ring {
    pub(crate) fn mode(self) -> RingMode {
        match self {
            Self::Shared => RingMode::default(),
            Self::Private => RingMode::Private,
        }
    }
}

impl BenchArgs {
    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }
}

impl LogBenchArgs {
    pub(crate) fn duration(&self) -> anyhow::Result<Duration> {
        seconds("--duration", self.duration)
    }
}

fn seconds(flag: &str, seconds: f64) -> anyhow::Result<Duration> {
    ensure!(
        seconds > 0.0 && seconds <= 86_400.0,
        "{flag}: {seconds} is not a number of seconds above 0 and up to a day"
    );
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn log_bench(words: &[&str]) -> LogBenchArgs {
        let words = ["collie", "bench", "log"].iter().chain(words);
        match Args::try_parse_from(words).unwrap().command {
            Command::Bench(BenchCommand::Log(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Args::command().debug_assert();
    }

    #[test]
    fn bench_log_takes_the_documented_flags() {
        let args = log_bench(&[]);
        assert_eq!((args.threads.as_slice(), args.size), (&[1, 4, 16, 64][..], 100));
        assert_eq!((args.durability, args.in_flight), (Durability::Disk, 1));
        let args = log_bench(&[
            "--threads",
            "2,8",
            "--size",
            "512",
            "--durability",
            "process",
            "--in-flight",
            "256",
            "--baselines",
            "--duration",
            "0.5",
            "--repeat",
            "5",
            "--ring",
            "private",
            "--json",
        ]);
        assert_eq!((args.threads.as_slice(), args.size), (&[2, 8][..], 512));
        assert_eq!((args.durability.level(), args.in_flight), (Level::Process, 256));
        assert_eq!(args.duration().unwrap(), Duration::from_millis(500));
        assert_eq!(args.common.ring.mode(), RingMode::Private);
        assert!(args.baselines && args.common.json && args.common.repeat == 5);
        assert!(log_bench(&["--duration", "-1"]).duration().is_err());
    }
}
