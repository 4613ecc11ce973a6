//! What the tests of the program share.

use std::ffi::OsStr;
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) use crate::outputs::{json_lines, stderr};
pub(crate) use crate::shared::rings_of;

/// The program under test, to which a test adds arguments.
pub(crate) fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_collie-lab"))
}

/// Runs the program to its end.
pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    lab().args(args).output().unwrap()
}

/// The names of an object's fields, sorted.
pub(crate) fn fields(object: &Value) -> Vec<&str> {
    let mut names: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}
