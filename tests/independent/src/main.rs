//! Transactions of a Collie store, checked from outside: a child process runs them and is killed, and
//! what it reported is judged by `adya`, a checker that is not ours. `README.md` says what is looked at.

#![allow(clippy::disallowed_methods, reason = "it stands outside of the store's seam")]

mod child;
mod events;
mod forms;
mod judge;
mod parent;
mod plan;
mod transact;
mod wait;
mod worker;
mod world;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Transactions of a Collie store, checked from outside")]
enum Command {
    /// Runs rounds until so many transactions have ended.
    Run(parent::RunArgs),
    /// What `run` starts and kills.
    #[command(hide = true)]
    Child(child::ChildArgs),
}

fn main() {
    let code = match Command::parse() {
        Command::Run(args) => parent::run(&args).unwrap_or_else(|error| {
            eprintln!("{error:#}");
            2
        }),
        Command::Child(args) => child::run(&args),
    };
    std::process::exit(code);
}
