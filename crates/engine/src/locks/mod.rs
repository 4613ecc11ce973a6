//! Row and range locks, and the detection of deadlocks.

mod cover;
pub(crate) mod deadlock;
mod family;
pub(crate) mod held;
mod merge;
pub(crate) mod owner;
mod range;
mod ranges;
mod room;
pub(crate) mod row;
pub(crate) mod table;
#[cfg(test)]
mod test;
