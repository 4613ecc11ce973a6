//! What the tests of the binary share.

use std::ffi::OsStr;
use std::process::{Command, Output};

use serde_json::Value;

/// The binary under test, to which a test adds arguments.
pub(crate) fn collie() -> Command {
    Command::new(env!("CARGO_BIN_EXE_collie"))
}

/// Runs the binary to its end.
pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    collie().args(args).output().unwrap()
}

/// Standard output as one JSON object per line.
pub(crate) fn json_lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
