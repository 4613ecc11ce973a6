//! What all tests of the program share.

use std::path::PathBuf;
use std::process::Child;

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
