//! The binary `collie`: the log's tools, and what else can be done with Collie from a shell.
//!
//! Results go to standard output, one JSON object per line where `--json` asks for it; everything else goes
//! to standard error. The exit code is 0 where all was well, 1 where something was found or failed, 2 where
//! the command line was wrong.

mod args;
mod bench;
mod log;
mod output;
mod serve;
mod temporary;
mod torture;
mod tour;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

// glibc's allocator gives memory back in bursts that stall writers for a tenth of a second after a memtable
// was freed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How a command ended that did what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All is well.
    Good,
    /// It found what should not be; it has said what.
    Bad,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A server is told by its configuration what it shows.
    if !matches!(args.command, Some(Command::Serve(_))) {
        output::show_diagnostics();
    }
    match run(args) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<Outcome> {
    let Some(command) = args.command else {
        return tour::run(&args.tour);
    };
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Torture(command) => torture::run(&command),
        Command::Writer { dir, rings } => {
            torture::writer::run(&dir, rings.as_deref()).map(|()| Outcome::Good)
        }
        Command::Leashed { program, arguments } => torture::leashed(&program, &arguments),
        Command::Remover { code, places } => temporary::remove_and_exit(code, &places),
        Command::Log(command) => log::run(&command),
        Command::Bench(args) => bench::run(&args),
    }
}
