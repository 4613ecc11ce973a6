//! The program `collie`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]
#![expect(clippy::print_stdout, reason = "a test says what it skips")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the real files from outside, and damage them"
)]

#[path = "../../../cluster/tests/addresses/mod.rs"]
mod addresses;
#[path = "../../../server/tests/server/support/client.rs"]
mod client;
mod cluster;
mod cluster_up;
mod common;
mod duplicates;
mod kills;
mod log;
mod mount;
mod node;
mod operations;
#[path = "../outputs/mod.rs"]
mod outputs;
mod reload;
mod requests;
mod rings;
mod serve;
#[path = "../shared/mod.rs"]
mod shared;
mod tls;
mod units;
mod watch;
