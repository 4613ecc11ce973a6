//! The program `collie-lab`, run as its users run it. It starts `collie`, which stands beside it:
//! `cargo test` builds both, `cargo test -p collie-lab` only this one.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]
#![expect(clippy::print_stdout, reason = "a test says what it skips")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the real files from outside"
)]

mod bench;
mod bench_front;
mod common;
#[path = "../../../../crates/cli/tests/outputs/mod.rs"]
mod outputs;
#[path = "../../../../crates/cli/tests/shared/mod.rs"]
mod shared;
mod torture;
mod torture_cluster;
mod tour;
