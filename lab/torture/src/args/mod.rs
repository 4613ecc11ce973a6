//! The command line.

mod bench;
mod torture;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use collie_server::Ack;

pub(crate) use bench::{
    BenchArgs, BenchCommand, BesideBenchArgs, CommitBenchArgs, CommitEnd, FamiliesBenchArgs, FrontBenchArgs,
    IsolationLevel, LocksBenchArgs, LogBenchArgs, OrdersBenchArgs, PartitionsBenchArgs, SetBenchArgs,
    TransactionKind, TransactionRunArgs, WorkloadArgs,
};
pub(crate) use torture::{
    ClusterArgs, HostileArgs, HostilePart, NamesArg, PowerArgs, SoakArgs, TortureCommand,
};

/// Measures Collie and tries to break it. Without a command: a tour of about forty seconds in a temporary
/// directory, which ends by serving.
#[derive(Debug, Parser)]
#[command(
    name = "collie-lab",
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
    /// A server with a store of other sizes than `collie serve` has, for `torture`.
    #[command(name = SERVED, hide = true)]
    Served(ServedArgs),
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

#[derive(Debug, clap::Args)]
pub(crate) struct ServedArgs {
    pub(crate) sizes: Sizes,
    /// The store's directory.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Where the ring's file goes; without it the ring is in the process.
    #[arg(long)]
    pub(crate) rings: Option<PathBuf>,
    /// The port of loopback; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// The durability that a reply waits for.
    #[arg(long, default_value_t = Ack::Disk)]
    pub(crate) ack: Ack,
}

/// How large the memtables, tables and segments of a server under test are.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Sizes {
    /// So small that they are replaced all the time.
    Small,
    /// So small that a minute sees many.
    Moderate,
}

/// The hidden command by which `torture` starts a server of other [`Sizes`].
pub(crate) const SERVED: &str = "torture-served";
/// The hidden command that `torture kill` and the tour start as a process of its own.
pub(crate) const WRITER: &str = "torture-writer";
/// The hidden command that `torture power` starts servers by.
pub(crate) const LEASHED: &str = "torture-leashed";
/// The hidden command that removes what is temporary, see `temporary`.
pub(crate) const REMOVER: &str = "remove-temporary";

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text
        .parse()
        .ok()
        .filter(|&seconds| seconds > 0.0 && seconds <= 86_400.0);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or("expected a number of seconds above 0 and up to a day")
}

fn size(text: &str) -> Result<i64, &'static str> {
    collie_server::parse_bytes(text).ok_or("expected bytes: a number, or one with a unit, as in 64mb or 10gb")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_tour_is_the_default_and_its_flags_stand_alone() {
        let args = Args::try_parse_from(["collie-lab", "--no-serve", "--short"]).unwrap();
        assert!(args.command.is_none() && args.tour.no_serve && args.tour.short);
        assert!(Args::try_parse_from(["collie-lab", "--no-serve", "--serve"]).is_err());
        assert!(Args::try_parse_from(["collie-lab", "--short", "torture", "kill"]).is_err());
    }
}
