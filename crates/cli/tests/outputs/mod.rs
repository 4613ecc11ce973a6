//! What tests of programs read from a process and its output.

use std::path::PathBuf;
use std::process::{Child, Output};

use serde_json::Value;

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
