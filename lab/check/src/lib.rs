//! Judges: what a program was acknowledged, and whether what was found afterwards agrees.
//!
//! * [`ledger`] is the one book of acknowledgements, and the one judgement of what a crash left:
//!   lost, partial, reordered. Its users differ in how they read a store: [`images`] recovers the
//!   log from crash images of random programs, [`lives`] reads transactions back, and the tests
//!   that kill a process or cut the power of a whole store number their commits
//!   ([`ledger::Clients`]).
//! * [`history`] and [`appends`] judge something else, and share nothing with it: answers that were
//!   given while a store ran. [`history`] asks of each key whether reads and writes of many threads
//!   fit one order that respects their times (linearizability), [`appends`] of transactions whether
//!   those that committed were isolated. They are about values that were read, need no crash to
//!   fail, and know no level of an acknowledgement; the ledger is about which commits are there,
//!   whatever was read of them.
//! * [`objects`] asks the same of operations on a few keys at once: counters, conditional writes,
//!   transactions, and outcomes that stay unknown. It searches where [`history`] sorts.
//! * [`postgres`] runs another product on a file system under test, and judges what it has kept.

pub mod appends;
pub mod history;
pub mod images;
pub mod ledger;
pub mod lives;
pub mod objects;
pub mod postgres;

pub use ledger::{Commit, Ledger, Promise, Survives, Verdict, Violation, payload, read_payload};
