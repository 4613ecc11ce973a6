//! The log through its public interface, on real files and on the simulated device; what it does
//! across crashes is in the test program `crash`. One program, as each links all of it.

mod appending;
mod applying;
mod archive;
mod changes;
mod compression;
mod failures;
mod follow;
mod formats;
mod hostile;
mod options;
mod rings;
mod room;
mod set;
mod streams;
mod tail;
mod task;
mod vanished;
mod wakers;
