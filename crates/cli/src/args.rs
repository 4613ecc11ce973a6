//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

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
