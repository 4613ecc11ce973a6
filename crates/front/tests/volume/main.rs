//! Volumes on a simulated device.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod attributes;
mod descriptors;
mod faults;
mod growth;
mod lost_names;
mod missing;
mod names;
mod refusals;
mod rules;
mod small;
#[path = "../support/mod.rs"]
mod support;
mod threads;
