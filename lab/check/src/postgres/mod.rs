//! PostgreSQL 15, as it is: a [`Cluster`] in any directory, run by a user who is not root, and what
//! is judged of it after a crash. A [`Ledger`] knows the commits that it acknowledged;
//! [`Cluster::checksums`] and [`Cluster::amcheck`] read every page.
//!
//! A test that cuts its power, or kills what its files are on, calls [`Cluster::kill`] first.

#![expect(
    clippy::disallowed_methods,
    reason = "a server's files are looked at from outside, as any program does"
)]

mod cluster;
mod judge;
mod ledger;
mod processes;

pub use cluster::{Cluster, Said, missing, run};
pub use judge::{Checked, reason};
pub use ledger::{Ledger, Writers};
pub use processes::kill_and_wait;
