//! The server over real sockets, as its clients meet it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where its assumptions do, and says what it skips"
)]

mod administration;
mod clock;
mod commands;
mod connections;
mod cut_off;
mod differential;
mod durability;
mod formats;
mod heavy;
mod in_doubt;
mod memory;
mod metrics;
mod pieces;
mod removed;
mod sizes;
mod support;
mod tools;
mod transactions;
