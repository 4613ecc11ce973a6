//! What the tests of the program share.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Output};

use serde_json::Value;

/// The program under test, to which a test adds arguments.
pub(crate) fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_collie-lab"))
}

/// Runs the program to its end.
pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    lab().args(args).output().unwrap()
}

/// The rings that a running process has in shared memory.
pub(crate) fn rings_of(process: &Child) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.id())).unwrap_or_default();
    let mapped = maps
        .lines()
        .filter_map(|line| line.find("/dev/shm/").map(|at| &line[at..]));
    mapped
        .filter(|path| path.ends_with(".ring"))
        .map(PathBuf::from)
        .collect()
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

/// The names of an object's fields, sorted.
pub(crate) fn fields(object: &Value) -> Vec<&str> {
    let mut names: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}
