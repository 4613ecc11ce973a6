//! Volumes on a simulated device: the page map, its files, names and map, through failures and power
//! cuts.

#![expect(
    clippy::unwrap_used,
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
mod model;
mod names;
mod refusals;
mod rules;
mod small;
mod support;
mod threads;
