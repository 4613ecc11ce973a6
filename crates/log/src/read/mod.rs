//! Reading what is durable: in the process that writes the log, and from outside.

pub mod follow;
pub(crate) mod reader;
mod source;
pub(crate) mod tail;
