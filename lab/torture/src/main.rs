//! The program `collie-lab`: measures Collie (`bench`), tries to break it (`torture`), and shows both
//! (the tour, without a command).
//!
//! Results go to standard output, one JSON object per line where `--json` asks for it; everything
//! else goes to standard error. The exit code is 0 for success, 1 if something was found or failed,
//! 2 for a wrong command line.

mod args;
mod bench;
mod busy;
mod client;
mod diagnostics;
mod figures;
mod limits;
mod page;
mod programs;
mod server;
mod temporary;
mod torture;
mod tour;

use std::process::ExitCode;

use clap::Parser;
use collie_cli::{Allocator, Outcome};

use args::{Args, Command};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    let args = Args::parse();
    diagnostics::show();
    Outcome::exit_code(run(args))
}

fn run(args: Args) -> anyhow::Result<Outcome> {
    let Some(command) = args.command else {
        return tour::run(&args.tour);
    };
    match command {
        Command::Bench(args) => bench::run(&args),
        Command::Torture(command) => torture::run(&command),
        Command::Writer { dir, rings } => {
            torture::writer::run(&dir, rings.as_deref()).map(|()| Outcome::Good)
        }
        Command::Served(args) => torture::resized::run(&args).map(|()| Outcome::Good),
        Command::Leashed { program, arguments } => torture::leashed(&program, &arguments),
        Command::Remover { code, places } => temporary::remove_and_exit(code, &places),
    }
}
