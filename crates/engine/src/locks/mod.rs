//! Row and range locks, and the detection of deadlocks.

mod cover;
pub(crate) mod entry;
mod family;
pub(crate) mod held;
pub(crate) mod owner;
mod ranges;
pub(crate) mod table;
#[cfg(test)]
mod test;
