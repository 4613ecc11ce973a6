//! The command line.

mod bench;
mod log;
mod serve;
mod torture;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub(crate) use bench::{
    BenchArgs, BenchCommand, CommitBenchArgs, CommitEnd, IsolationLevel, LogBenchArgs, OrdersBenchArgs,
    TransactionKind, TransactionRunArgs, WorkloadArgs,
};
pub(crate) use log::LogCommand;
pub(crate) use serve::ServeArgs;
pub(crate) use torture::{HostileArgs, HostilePart, NamesArg, PowerArgs, SoakArgs, TortureCommand};
pub(crate) use values::{Durability, Ring};

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

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
}
