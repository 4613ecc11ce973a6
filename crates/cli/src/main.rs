//! The program `collie`: the server, nodes of a cluster, the mount for PostgreSQL, and the log's
//! tools.
//!
//! Results go to standard output, one JSON object per line where `--json` asks for it; everything
//! else goes to standard error. The exit code is 0 for success, 1 if something was found or failed,
//! 2 for a wrong command line; `collie cluster status` has more.

mod args;
mod cluster;
mod front;
mod log;
mod node;
mod notify;
mod rings;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use collie_cli::{Allocator, Outcome};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    let args = Args::parse();
    // The diagnostics of a server are set by its configuration.
    if !matches!(args.command, Command::Serve(_) | Command::Node(_)) {
        show_diagnostics();
    }
    Outcome::exit_code(run(args))
}

/// Writes warnings and errors that the crates below log to standard error.
fn show_diagnostics() {
    // No other subscriber is set, so this cannot fail.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .try_init();
}

fn run(args: Args) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Serve(args) => serve::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Cluster(command) => cluster::run(&command),
        Command::Log(command) => log::run(&command),
        Command::Rings(args) => rings::run(&args),
        Command::Mount(args) => front::mount(&args),
        Command::Umount(args) => front::umount(&args),
        Command::Drain(args) => front::drain(&args),
        Command::Front(command) => front::run(&command),
    }
}
