//! The engine through its public interface; what it does across crashes is in the test programs
//! `crash` and `transaction_crashes`. One program, as each links all of it.

mod background_io;
mod batches;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod concurrent;
mod deleted;
mod events;
mod formats;
mod full_disk;
mod idle;
mod in_doubt;
mod iterators;
mod large;
mod lifecycle;
mod limits;
mod memory;
mod options;
mod readme;
mod regressions;
mod replay;
mod snapshots;
mod walks;
