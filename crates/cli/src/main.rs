//! The binary `collie`: the server, the mount for PostgreSQL, the log's tools, and the lab's
//! commands.
//!
//! Results go to standard output, one JSON object per line where `--json` asks for it; everything
//! else goes to standard error. The exit code is 0 for success, 1 if something was found or failed,
//! 2 for a wrong command line; `collie cluster status` has more.

mod args;
mod cluster;
mod front;
#[cfg(feature = "lab")]
mod lab;
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
    let is_server = match &args.command {
        Some(Command::Serve(_) | Command::Node(_)) => true,
        #[cfg(feature = "lab")]
        Some(Command::Lab(command)) => matches!(**command, lab::args::LabCommand::Served { .. }),
        _ => false,
    };
    if !is_server {
        #[cfg(feature = "lab")]
        lab::diagnostics::show();
        #[cfg(not(feature = "lab"))]
        show_diagnostics();
    }
    Outcome::exit_code(run(args))
}

/// Writes warnings and errors that the crates below log to standard error.
#[cfg(not(feature = "lab"))]
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
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Node(args)) => node::run(&args),
        Some(Command::Cluster(command)) => cluster::run(&command),
        Some(Command::Log(command)) => log::run(&command),
        Some(Command::Rings(args)) => rings::run(&args),
        Some(Command::Mount(args)) => front::mount(&args),
        Some(Command::Umount(args)) => front::umount(&args),
        Some(Command::Drain(args)) => front::drain(&args),
        Some(Command::Front(command)) => front::run(&command),
        #[cfg(feature = "lab")]
        Some(Command::Lab(command)) => lab::run(*command),
        #[cfg(feature = "lab")]
        None => lab::tour(&args.tour),
        // The command line requires a command without the lab.
        #[cfg(not(feature = "lab"))]
        None => Ok(Outcome::Good),
    }
}
