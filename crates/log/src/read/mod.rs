//! Reading what is durable: in the process that writes the log, and from outside.

pub mod follow;
pub(crate) mod get;
pub(crate) mod reader;
pub(crate) mod retention;
mod source;
pub(crate) mod tail;
