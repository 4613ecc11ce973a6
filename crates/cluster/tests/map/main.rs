//! Clusters of several nodes in one process, each with a runtime of its own, connected by TCP on
//! loopback. A node dies by the end of its runtime: nothing of it is closed. Nothing waits for a
//! fixed time.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the tests copy, move and change a node's files"
)]

#[path = "../addresses/mod.rs"]
mod addresses;
mod clocks;
mod disks;
mod drained;
mod duplication;
mod elsewhere;
mod formats;
mod lagging;
mod layouts;
mod leaders;
mod levels;
mod lives;
mod moves;
mod planned;
mod refusals;
mod removals;
mod rules;
mod sites;
mod splits;
mod spreading;
