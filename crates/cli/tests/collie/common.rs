//! What the tests of the binary share.

use std::ffi::OsStr;
use std::process::{Command, Output};

pub(crate) use crate::outputs::{json_lines, stderr};

/// The binary under test, to which a test adds arguments.
pub(crate) fn collie() -> Command {
    Command::new(env!("CARGO_BIN_EXE_collie"))
}

/// Runs the binary to its end.
pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    collie().args(args).output().unwrap()
}
