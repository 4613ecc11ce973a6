//! `collie-lab bench`.

mod beside;
mod families;
mod front;
mod locks;
mod partitions;
mod set;
mod transactions;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Subcommand, ValueEnum};
use collie_bench::Workload;
use collie_db::Compression;
use collie_log::Level;

use super::seconds;
use super::values::{Durability, Ring};
pub(crate) use beside::BesideBenchArgs;
pub(crate) use families::FamiliesBenchArgs;
pub(crate) use front::FrontBenchArgs;
pub(crate) use locks::LocksBenchArgs;
pub(crate) use partitions::PartitionsBenchArgs;
pub(crate) use set::SetBenchArgs;
pub(crate) use transactions::{
    CommitBenchArgs, CommitEnd, IsolationLevel, OrdersBenchArgs, TransactionKind, TransactionRunArgs,
};

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
    /// Appends to the log alone, by number of threads; with --baselines to three lock-based logs as
    /// well.
    Log(LogBenchArgs),
    /// Transactions on rows that all share, by when a commit lets go of its locks: when it is
    /// durable (sync), when it is visible (early-release), without waiting for the disk at all
    /// (async), or early and then flushing for itself.
    Commit(CommitBenchArgs),
    /// Order entry, compared by the same ends of a commit: transactions that take a number from a
    /// shared counter, read a customer for update, take pieces from rows of a stock of which some
    /// are hot, and insert an order and its lines. After each run all of it must add up, or the
    /// exit code is 1.
    Orders(OrdersBenchArgs),
    /// Row and range locks that many want: a writer beside serializable readers of its whole table,
    /// a small range beside many locked rows, many ranges in one commit.
    Locks(LocksBenchArgs),
    /// What many families cost: a snapshot, a small transaction, a batch over all of them, and
    /// another thread's puts beside such batches.
    Families(FamiliesBenchArgs),
    /// Durable writes beside a family that is flushed and merged all the while, by how the store's
    /// background work shares the device.
    Beside(BesideBenchArgs),
    /// Many small logs in one process, with the threads of one set or with threads of their own:
    /// what they cost while they are idle, and how fast they are opened.
    Set(SetBenchArgs),
    /// Partitions of a replicated store by which logs they have: shared, one per disk, or private ones, as
    /// Pegasus compared them.
    Partitions(PartitionsBenchArgs),
    /// PostgreSQL 15, as it is, on several storages: as installed, with compressed full pages,
    /// without full pages (not safe), and without them on btrfs and on Collie's mount. Needs root
    /// and Debian's postgresql-15.
    Front(Box<FrontBenchArgs>),
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkloadArgs {
    /// What to do, in this order: fillseq, fillrandom (both begin with a new store), overwrite,
    /// readrandom, recovery (closes and opens).
    #[arg(required = true, value_name = "WORKLOAD", value_delimiter = ',')]
    pub(crate) workloads: Vec<Workload>,
    /// The store goes into the directory `collie-bench` in here, and stays. Without it a temporary
    /// one is used.
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
    /// Flush the log only when its buffer is half full, and at the end. With --ring private and
    /// --durability process a write then costs no call.
    #[arg(long, alias = "manual_wal_flush", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "0", default_missing_value = "1", value_parser = BoolishValueParser::new())]
    pub(crate) manual_wal_flush: bool,
    /// Compression of commits in the log.
    #[arg(long, alias = "wal_compression", value_enum, default_value_t = DataCompression::None)]
    pub(crate) wal_compression: DataCompression,
    /// Past this much live log, the families that pin it are flushed; 0 for four times all write
    /// buffers.
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
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// How often the whole sequence is repeated; figures are medians then.
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) repeat: usize,
    /// All random choices follow from it.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// After writing, flush and wait until compaction is over; that time is reported apart.
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
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Where the rings lie: in shared memory, or private to the process.
    #[arg(long, value_enum, default_value_t = Ring::Shared)]
    pub(crate) ring: Ring,
    #[command(flatten)]
    pub(crate) repeated: RepeatedArgs,
}

/// How often something is measured, where, and how results are printed.
#[derive(Debug, clap::Args)]
pub(crate) struct RepeatedArgs {
    /// All files go into a new directory in here for the time of the measurement; the system's
    /// temporary directory by default.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// How often each measurement is repeated, all interleaved; figures are medians.
    #[arg(long, value_name = "R", default_value_t = 3)]
    pub(crate) repeat: usize,
    /// Print one JSON object per result.
    #[arg(long)]
    pub(crate) json: bool,
}

impl RepeatedArgs {
    pub(crate) fn dir(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(std::env::temp_dir)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use collie_log::RingMode;

    use super::*;
    use crate::args::{Args, Command};

    fn command<'a>(words: impl Iterator<Item = &'a &'a str>) -> Command {
        Args::try_parse_from(words).unwrap().command.unwrap()
    }

    fn log_bench(words: &[&str]) -> LogBenchArgs {
        let words = ["collie-lab", "bench", "log"].iter().chain(words);
        match command(words) {
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
        let words = ["collie-lab", "bench"].iter().chain(words);
        match command(words) {
            Command::Bench(args) if args.log.is_none() => args.workloads,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bench_takes_its_own_flags_and_those_of_db_bench() {
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
            Args::try_parse_from(["collie-lab", "bench"]).is_err(),
            "a workload is needed"
        );
        let wrong = Args::try_parse_from(["collie-lab", "bench", "filseq"]).unwrap_err();
        assert!(wrong.to_string().contains("no workload"), "{wrong}");
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
        assert_eq!(args.duration, Duration::from_millis(500));
        assert_eq!(args.ring.mode(), RingMode::Private);
        assert!(args.baselines && args.repeated.json && args.repeated.repeat == 5);
        let negative = ["collie-lab", "bench", "log", "--duration", "-1"];
        assert!(Args::try_parse_from(negative).is_err());
    }
}
