//! Transactions of a Collie store, checked from outside: a child process runs them and is killed, and what it
//! reported is judged by [`adya`](https://crates.io/crates/adya), an isolation checker that is not ours
//! (`src/judge/tests.rs` checks what it finds). It uses the public interface of `collie-db` only and shares
//! no code with the tests. `--seed` repeats a run as far as threads allow.
//!
//! **A round** is a child process that opens a store, runs 2 to 6 threads, closes and reopens it, and is
//! killed (SIGKILL) after some commits, in a flush or compaction, while a family is created or dropped, or
//! while opening. The threads append unique elements to lists and read them, with all options of
//! transactions, beside plain writes, scans, snapshots, locks, families, forced flushes and compactions, with
//! sizes at the limits.
//!
//! `adya` checks strong snapshot isolation of all, and strict serializability of reads that must hold, per
//! epoch and with what the next open found. The program checks that
//!
//! * a transaction reads its own writes, the same twice, nothing rolled back;
//! * acknowledged commits outlive the kill, and the survivors are a prefix, none partial;
//! * families are as acknowledged, all ways to read agree, and there is no unwritten key;
//! * at the end no transaction, lock or snapshot is left.
//!
//! A store with a violation is kept, with all events in the file `events`.

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
