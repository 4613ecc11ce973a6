//! The command lines of what measures and what tests.

mod bench;
mod torture;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Subcommand, ValueEnum};

use crate::args::ServeArgs;
pub(crate) use bench::{
    BenchArgs, BenchCommand, BesideBenchArgs, CommitBenchArgs, CommitEnd, FamiliesBenchArgs, FrontBenchArgs,
    IsolationLevel, LocksBenchArgs, LogBenchArgs, OrdersBenchArgs, SetBenchArgs, TransactionKind,
    TransactionRunArgs, WorkloadArgs,
};
pub(crate) use torture::{
    ClusterArgs, HostileArgs, HostilePart, NamesArg, PowerArgs, SoakArgs, TortureCommand,
};

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
pub(crate) enum LabCommand {
    /// Measures: workloads on a store, by db_bench's names and flags; or the log beside lock-based
    /// ones.
    Bench(Box<BenchArgs>),
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
    /// `serve` with a store of other sizes, for `torture`.
    #[command(name = SERVED, hide = true)]
    Served {
        sizes: Sizes,
        #[command(flatten)]
        args: Box<ServeArgs>,
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

/// How large the memtables, tables and segments of a server under test are.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Sizes {
    /// So small that they are replaced all the time.
    Small,
    /// So small that a minute sees many.
    Moderate,
}

/// The hidden command by which `torture` starts `serve` with [`Sizes`].
pub(crate) const SERVED: &str = "torture-served";
/// The hidden command that `torture kill` and the tour start as a process of its own.
pub(crate) const WRITER: &str = "torture-writer";
/// The hidden command that `torture power` starts servers by.
pub(crate) const LEASHED: &str = "torture-leashed";
/// The hidden command that removes what is temporary, see `temporary`.
pub(crate) const REMOVER: &str = "remove-temporary";

fn seconds(flag: &str, seconds: f64) -> anyhow::Result<Duration> {
    ensure!(
        seconds > 0.0 && seconds <= 86_400.0,
        "{flag}: {seconds} is not a number of seconds above 0 and up to a day"
    );
    Ok(Duration::from_secs_f64(seconds))
}
