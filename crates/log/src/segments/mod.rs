//! The segments: the files that hold the log, from their making to the archive.

pub(crate) mod archive;
mod beginning;
pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod holders;
pub(crate) mod pool;
pub(crate) mod renaming;
pub(crate) mod run;
pub(crate) mod segment;
