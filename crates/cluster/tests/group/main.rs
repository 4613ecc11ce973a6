//! One group on three nodes in one process, each with a runtime of its own, connected by TCP on
//! loopback, with TLS or without. A node dies by the end of its runtime: nothing of it is closed. Nothing waits for a
//! fixed time.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

#[path = "../addresses/mod.rs"]
mod addresses;
mod alone;
mod bytes;
#[path = "../certificates/mod.rs"]
mod certificates;
mod cluster;
mod cuts;
mod filling;
mod full;
mod large;
mod leases;
mod lives;
mod long_logs;
mod losses;
mod messages;
mod parking;
mod partitions;
mod refusals;
mod seam;
mod speed;
mod splits;
