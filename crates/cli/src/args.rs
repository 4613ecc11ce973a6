//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use clap::builder::BoolishValueParser;
use clap::{Parser, Subcommand, ValueEnum};
use collie_bench::Workload;
use collie_db::Compression;
use collie_log::{Level, RingMode};
use collie_server::Ack;
use serde::{Deserialize, Serialize};

use crate::serve::{Filter, LogFormat};
use crate::torture::power::{Aim, System};

/// Collie: a transactional store built around its log. Without a command: a tour of about forty seconds in a
/// temporary directory, which ends by serving.
#[derive(Debug, Parser)]
#[command(
    name = "collie",
    version,
    max_term_width = 110,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) tour: TourArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TourArgs {
    /// End the tour instead of serving.
    #[arg(long, conflicts_with = "serve")]
    pub(crate) no_serve: bool,
    /// Serve at the end of the tour even where standard output is no terminal.
    #[arg(long)]
    pub(crate) serve: bool,
    /// A tour of a few seconds, whose figures say little.
    #[arg(long)]
    pub(crate) short: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Looks at a closed log, follows one that is in use, or cuts away what is damaged.
    #[command(subcommand)]
    Log(LogCommand),
    /// Measures: workloads on a store, by db_bench's names and flags; or the log beside lock-based ones.
    Bench(Box<BenchArgs>),
    /// Serves a store to Redis clients, until SIGTERM, SIGINT or SHUTDOWN.
    Serve(ServeArgs),
    /// Crash tests: nothing that was acknowledged may be lost.
    #[command(subcommand)]
    Torture(TortureCommand),
    /// The process that `torture kill` kills.
    #[command(name = WRITER, hide = true)]
    Writer {
        /// The store's directory.
        dir: PathBuf,
        /// Where the ring's file goes, if not where it does by default.
        #[arg(long)]
        rings: Option<PathBuf>,
    },
    /// Becomes another program, which ends when the process that started it does.
    #[command(name = LEASHED, hide = true)]
    Leashed {
        /// The program.
        program: PathBuf,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// What a command that a signal ended becomes.
    #[command(name = REMOVER, hide = true)]
    Remover {
        /// The exit code.
        code: u8,
        /// What is to go.
        places: Vec<PathBuf>,
    },
}

/// The hidden command that `torture kill` and the tour start as a process of its own.
pub(crate) const WRITER: &str = "torture-writer";
/// The hidden command that `torture power` starts servers by.
pub(crate) const LEASHED: &str = "torture-leashed";
/// The hidden command that removes what is temporary, see `temporary`.
pub(crate) const REMOVER: &str = "remove-temporary";

#[derive(Debug, Subcommand)]
pub(crate) enum TortureCommand {
    /// Kills a process that writes, some of the time while it recovers, and looks for what it had
    /// acknowledged.
    Kill(TortureArgs),
    /// Cuts the power of a simulated device under the log at all kinds of moments, and recovers.
    Images(ImagesArgs),
    /// Runs a server on a file system that forgets what was not synced, cuts its power while many clients write and
    /// read, and looks for what they were told. It needs /dev/fuse and root's rights, or fusermount3.
    Power(PowerArgs),
    /// Runs a server under a mixed load, compares every reply with a ledger, watches memory, disk and latencies, and
    /// reads everything again after a restart.
    ///
    /// It is a violation, and the exit code is 1: a reply that is not what the ledger says; more memory than buffers,
    /// cache, ring and 160 MiB for the rest; more disk than twice the live data, the log's limit and 28 MiB for what is
    /// being merged or recycled; a p99 that drifts.
    Soak(SoakArgs),
    /// Runs a server among a thousand connections that are silent or send a byte now and then, on a disk that is filled
    /// and freed, and on files that vanish.
    ///
    /// It is a violation, and the exit code is 1: a good client that waits longer than the factor says; an acknowledged
    /// write that is lost; a refusal that does not say what to do; a write that is acknowledged five seconds after the
    /// store was removed; a panic. Disk and files need a mount namespace (unshare); without one they are skipped, which
    /// is a failure where COLLIE_REQUIRE_TOOLS is set.
    Hostile(HostileArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct HostileArgs {
    /// One part alone.
    #[arg(long, value_enum)]
    pub(crate) part: Option<HostilePart>,
    /// How many slow connections, every second one silent.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// How often the good client is measured, alone and beside them, for 1.5 s each.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) turns: u32,
    /// How many times its p99 alone (the median of the turns) that beside them may be.
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub(crate) factor: f64,
    /// Below this its p99 beside them is no violation, in µs: what a scheduler of few cores does is no fault.
    #[arg(long, value_name = "US", default_value_t = 2_000.0)]
    pub(crate) floor_us: f64,
    /// What the clients do follows from it; by default a new one, which is printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// See [`HostileArgs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HostilePart {
    /// Slow connections.
    Crowd,
    /// A disk that is filled and freed.
    Full,
    /// A file system, a directory, a ring that go.
    Vanished,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// How long, after all keys were set once.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) minutes: u64,
    /// What the clients do follows from it; by default a new one, which is printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The store goes into a directory `store` in here, which must not hold one, and stays; by default a temporary one
    /// is used, and kept only if something was found.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How many times the median p99 of the first third of the run that of the last may be, where it is above 20 ms.
    /// Generous, for other work of the machine counts.
    #[arg(long, value_name = "FACTOR", default_value_t = 4.0)]
    pub(crate) drift_max: f64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PowerArgs {
    /// How many power cuts.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    /// What is aimed at, and what is lost, follows from it; by default a new one, which is printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// What makes a name in a directory durable: a sync of that directory, or, as with ext4's journal, any sync.
    #[arg(long, value_enum, default_value = "posix")]
    pub(crate) names: NamesArg,
    /// Aim all cuts at this.
    #[arg(long, value_enum)]
    pub(crate) aim: Option<Aim>,
    /// The product under test.
    #[arg(long, value_enum, default_value = "collie")]
    pub(crate) system: System,
    /// The product's program, if not this one or the one along the path.
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
}

/// See [`PowerArgs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NamesArg {
    /// A sync of the directory.
    Posix,
    /// Any sync.
    Journal,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TortureArgs {
    /// How many kills.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    /// When to kill follows from it; by default a new one, which is printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The store goes into a directory `store` in here, and stays; by default a temporary one is used, and
    /// kept only if something was found.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImagesArgs {
    /// How many crash images, about.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    /// Everything follows from it; by default a new one, which is printed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What stands here goes before what a configuration file says, and that before the defaults.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The store's directory; created where it does not exist.
    #[arg(long, required_unless_present = "config")]
    pub(crate) dir: Option<PathBuf>,
    /// Read settings from this file, in TOML; packaging/collie.toml describes them all.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings that would be in force, without passwords, and end.
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Where to listen; port 0 takes a free one. By default 127.0.0.1:6380.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// What a reply waits for, of all that it tells; by default the disk. Connections can choose for themselves.
    #[arg(long, value_enum)]
    pub(crate) ack: Option<Durability>,
    /// Where the log's ring lies; by default in shared memory.
    #[arg(long, value_enum)]
    pub(crate) ring: Option<Ring>,
    /// End every write of the log with a block of 4,096 bytes, so that no block with acknowledged commits is written
    /// again; docs/durability.md tells what that costs.
    #[arg(long)]
    pub(crate) pad_to_block: bool,
    /// Keep segments of the log that are needed no more for so many seconds, in the archive; 0, the default, for
    /// none. Without this and --wal-size-limit there is no archive, and one that is there is removed.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wal_ttl: Option<u32>,
    /// Keep such segments until all of them take more than so many bytes, the oldest go first; units as in 10gb. 0,
    /// the default: as many as --wal-ttl keeps.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) wal_size_limit: Option<i64>,
    /// Threads that serve connections; 0, the default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1024))]
    pub(crate) threads: Option<u16>,
    /// Let in only clients that say the password on the first line of this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Listen off loopback even without a password.
    #[arg(long)]
    pub(crate) open_to_network: bool,
    /// Answer requests for /metrics (Prometheus) and /healthz here; nowhere by default.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Say what is at least so important: error, warn, info (the default), debug or trace; some modules from
    /// another level on, as in info,collie_log=debug.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<Filter>,
    /// Whether diagnostics are lines for people, as by default, or JSON objects.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Keep memtables, tables and segments so small that they come and go all the time: for `torture power`.
    #[arg(long, hide = true)]
    pub(crate) small: bool,
    /// Keep them so small that a minute sees many: for `torture soak` and `torture hostile`.
    #[arg(long, hide = true)]
    pub(crate) moderate: bool,
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
    /// Shows the frames that are durable for certain, while another process may be writing the log: takes no lock
    /// and holds nothing back. A frame comes once a later one proves that it was durable. What was released is read
    /// from the log's archive, if there is one; where it is gone, the command fails, and never leaves anything out.
    /// SIGINT ends it.
    Tail {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object per frame, with the fields of `dump`.
        #[arg(long)]
        json: bool,
        /// Print whole payloads, in hexadecimal.
        #[arg(long)]
        payload: bool,
        /// The LSN to begin at: a frame's `lsn` or `end`. Without it, the oldest frame, in the archive
        /// where there is one.
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// Go on with frames to come.
        #[arg(long)]
        follow: bool,
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

/// Options stand after the workloads, with hyphens or, as db_bench has them, underscores.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) log: Option<BenchCommand>,
    #[command(flatten)]
    pub(crate) workloads: WorkloadArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Appends to the log alone, by number of threads; with --baselines to three lock-based logs as well.
    Log(LogBenchArgs),
    /// Transactions on rows that all share, by when a commit lets go of its locks: when it is durable (sync), when it
    /// is visible (early-release), without waiting for the disk at all (async), or early and then flushing for itself.
    Commit(CommitBenchArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkloadArgs {
    /// What to do, in this order: fillseq, fillrandom (both begin with a new store), overwrite, readrandom,
    /// recovery (closes and opens).
    #[arg(required = true, value_name = "WORKLOAD", value_delimiter = ',')]
    pub(crate) workloads: Vec<Workload>,
    /// The store goes into the directory `collie-bench` in here, and stays. Without it a temporary one is used.
    #[arg(long, value_name = "DIR")]
    pub(crate) db: Option<PathBuf>,
    /// Keys, and operations of all threads together.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) num: u64,
    /// Bytes of a key.
    #[arg(long, alias = "key_size", value_name = "BYTES", default_value_t = 16)]
    pub(crate) key_size: usize,
    /// Bytes of a value.
    #[arg(long, alias = "value_size", value_name = "BYTES", default_value_t = 100)]
    pub(crate) value_size: usize,
    /// Threads.
    #[arg(long, value_name = "T", default_value_t = 1)]
    pub(crate) threads: usize,
    /// What each write waits for.
    #[arg(long, value_enum, default_value_t = Durability::Disk)]
    durability: Durability,
    /// db_bench's word for --durability disk; --sync=0 stands for --durability process.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = BoolishValueParser::new(), conflicts_with = "durability")]
    sync: Option<bool>,
    /// Where the log's ring lies: in shared memory, or private to the process.
    #[arg(long, value_enum, default_value_t = Ring::Shared)]
    pub(crate) ring: Ring,
    /// No log at all.
    #[arg(long, alias = "disable_wal", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "0", default_missing_value = "1", value_parser = BoolishValueParser::new())]
    pub(crate) disable_wal: bool,
    /// Flush the log only when its buffer is half full, and at the end. With --ring private and --durability
    /// process a write then costs no call.
    #[arg(long, alias = "manual_wal_flush", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "0", default_missing_value = "1", value_parser = BoolishValueParser::new())]
    pub(crate) manual_wal_flush: bool,
    /// Compression of commits in the log.
    #[arg(long, alias = "wal_compression", value_enum, default_value_t = DataCompression::None)]
    pub(crate) wal_compression: DataCompression,
    /// Past this much live log, the families that pin it are flushed; 0 for four times all write buffers.
    #[arg(long, alias = "max_total_wal_size", value_name = "BYTES")]
    pub(crate) max_total_wal_size: Option<u64>,
    /// Families that the keys are spread over.
    #[arg(long, alias = "num_column_families", value_name = "N", default_value_t = 1)]
    pub(crate) families: usize,
    /// Bytes of a memtable.
    #[arg(long, alias = "write_buffer_size", value_name = "BYTES", default_value_t = 64 << 20)]
    pub(crate) write_buffer_size: u64,
    /// Bytes of the block cache.
    #[arg(long, alias = "cache_size", value_name = "BYTES", default_value_t = 32 << 20)]
    pub(crate) cache_size: u64,
    /// Bits per key of the bloom filters; 0 for none.
    #[arg(long, alias = "bloom_bits", value_name = "BITS", default_value_t = 10)]
    pub(crate) bloom_bits: u8,
    /// Compression of tables.
    #[arg(long, alias = "compression_type", value_enum, default_value_t = DataCompression::None)]
    pub(crate) compression: DataCompression,
    /// Seconds that each workload takes, however many operations that are.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    duration: Option<f64>,
    /// How often the whole sequence is repeated; figures are medians then.
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) repeat: usize,
    /// All random choices follow from it.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// After writing, flush and wait until compaction is over; that time is told apart.
    #[arg(long)]
    pub(crate) drain: bool,
    /// All the while, merge all tables again and again, as compaction does.
    #[arg(long)]
    pub(crate) compacting: bool,
    /// Print one JSON object per workload.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How tables, or commits in the log, are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataCompression {
    /// Not at all.
    None,
    /// LZ4.
    Lz4,
}

impl DataCompression {
    pub(crate) fn compression(self) -> Compression {
        match self {
            Self::None => Compression::None,
            Self::Lz4 => Compression::Lz4,
        }
    }
}

impl WorkloadArgs {
    pub(crate) fn durability(&self) -> Level {
        match self.sync {
            Some(true) => Level::Disk,
            Some(false) => Level::Process,
            None => self.durability.level(),
        }
    }

    pub(crate) fn duration(&self) -> anyhow::Result<Option<Duration>> {
        self.duration.map(|s| seconds("--duration", s)).transpose()
    }
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
    /// Writes that the log may have under way at once, 1 to 3
    #[arg(long, value_name = "W", default_value_t = 1)]
    pub(crate) writes_in_flight: usize,
    /// Measure one mutex, eight insertion locks (PostgreSQL) and a link buffer (MySQL 8) as well.
    #[arg(long)]
    pub(crate) baselines: bool,
    /// Seconds that one measurement takes.
    #[arg(long, value_name = "S", default_value_t = 2.0, allow_negative_numbers = true)]
    duration: f64,
    /// Log files go into a new directory in here for the time of the measurement; the system's temporary
    /// directory by default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// Where the rings lie: in shared memory, or private to the process.
    #[arg(long, value_enum, default_value_t = Ring::Shared)]
    pub(crate) ring: Ring,
    /// How often each measurement is repeated.
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) repeat: usize,
    /// Print one JSON object per result.
    #[arg(long)]
    pub(crate) json: bool,
}

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

/// What a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
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

    /// As [`mode`](Self::mode), with the directory of a shared one.
    pub(crate) fn mode_in(self, dir: &Path) -> RingMode {
        match self {
            Self::Shared => RingMode::Shared {
                dir: dir.to_path_buf(),
            },
            Self::Private => RingMode::Private,
        }
    }
}

impl LogBenchArgs {
    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }

    pub(crate) fn duration(&self) -> anyhow::Result<Duration> {
        seconds("--duration", self.duration)
    }
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected an IP address and a port, as in 127.0.0.1:6380 or [::1]:6380")
}

fn size(text: &str) -> Result<i64, &'static str> {
    collie_server::parse_bytes(text).ok_or("expected bytes: a number, or one with a unit, as in 64mb or 10gb")
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
        match Args::try_parse_from(words).unwrap().command.unwrap() {
            Command::Bench(args) => {
                let Some(BenchCommand::Log(args)) = args.log else {
                    panic!("{args:?}")
                };
                args
            }
            other => panic!("{other:?}"),
        }
    }

    fn workloads(words: &[&str]) -> WorkloadArgs {
        let words = ["collie", "bench"].iter().chain(words);
        match Args::try_parse_from(words).unwrap().command.unwrap() {
            Command::Bench(args) if args.log.is_none() => args.workloads,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bench_takes_workloads_with_its_own_flags_and_with_those_of_db_bench() {
        let args = workloads(&["fillseq"]);
        assert_eq!(args.workloads, [Workload::FillSeq]);
        assert_eq!((args.num, args.key_size, args.value_size), (1_000_000, 16, 100));
        assert_eq!((args.durability(), args.disable_wal), (Level::Disk, false));
        let ours = workloads(&[
            "fillrandom",
            "readrandom",
            "--key-size",
            "8",
            "--value-size",
            "50",
            "--durability",
            "process",
            "--disable-wal",
            "--manual-wal-flush",
            "--wal-compression",
            "lz4",
            "--families",
            "3",
            "--write-buffer-size",
            "1048576",
            "--cache-size",
            "0",
            "--bloom-bits",
            "0",
            "--compression",
            "lz4",
            "--duration",
            "1.5",
            "--repeat",
            "2",
            "--seed",
            "9",
            "--drain",
            "--compacting",
            "--json",
            "--ring",
            "private",
            "--max-total-wal-size",
            "7",
            "--db",
            "/x",
            "--threads",
            "4",
        ]);
        let theirs = workloads(&[
            "fillrandom,readrandom",
            "--key_size=8",
            "--value_size=50",
            "--sync=0",
            "--disable_wal=1",
            "--manual_wal_flush=1",
            "--wal_compression=lz4",
            "--num_column_families=3",
            "--write_buffer_size=1048576",
            "--cache_size=0",
            "--bloom_bits=0",
            "--compression_type=lz4",
            "--duration=1.5",
            "--repeat=2",
            "--seed=9",
            "--drain",
            "--compacting",
            "--json",
            "--ring=private",
            "--max_total_wal_size=7",
            "--db=/x",
            "--threads=4",
        ]);
        assert_eq!(ours.durability(), theirs.durability());
        let unlike = |args: &WorkloadArgs| format!("{args:?}").replace("Some(false)", "None");
        assert_eq!(
            unlike(&ours).replace("durability: Process", "durability: Disk"),
            unlike(&theirs)
        );
        assert_eq!(workloads(&["overwrite", "--sync"]).durability(), Level::Disk);
        assert!(
            Args::try_parse_from(["collie", "bench"]).is_err(),
            "a workload is needed"
        );
        let wrong = Args::try_parse_from(["collie", "bench", "filseq"]).unwrap_err();
        assert!(wrong.to_string().contains("no workload"), "{wrong}");
    }

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_a_command_there_is_a_tour_and_its_flags_go_with_nothing_else() {
        let args = Args::try_parse_from(["collie", "--no-serve", "--short"]).unwrap();
        assert!(args.command.is_none() && args.tour.no_serve && args.tour.short);
        assert!(Args::try_parse_from(["collie", "--no-serve", "--serve"]).is_err());
        assert!(Args::try_parse_from(["collie", "--short", "log", "verify", "x"]).is_err());
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
        assert_eq!(args.ring.mode(), RingMode::Private);
        assert!(args.baselines && args.json && args.repeat == 5);
        assert!(log_bench(&["--duration", "-1"]).duration().is_err());
    }
}
