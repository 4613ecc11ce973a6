//! What nodes have in shared memory: entries of `--durability process` outlive a process there, and go with the power.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use collie_io::{Device, RealDevice};

/// Files in shared memory that a node has mapped.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory(BTreeSet<PathBuf>);

impl SharedMemory {
    /// Adds what a process has mapped, which still runs.
    pub(crate) fn look(&mut self, pid: u32) -> anyhow::Result<()> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))
            .with_context(|| format!("cannot read what process {pid} has mapped"))?;
        self.0.extend(maps.lines().filter_map(file));
        Ok(())
    }

    /// Removes the files, as the power goes.
    pub(crate) fn lose(&self) -> anyhow::Result<()> {
        let device = RealDevice::new();
        for path in &self.0 {
            match device.remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The file of a line of `/proc/PID/maps`, if it is in shared memory and still there.
fn file(line: &str) -> Option<PathBuf> {
    let path = Path::new(&line[line.find('/')?..]);
    let is_there = path.starts_with("/dev/shm") && !line.ends_with(" (deleted)");
    is_there.then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_shared_memory_that_are_there_go() {
        let of = |end: &str| {
            file(&format!(
                "7f0000000000-7f0000100000 rw-s 00000000 00:18 42  {end}"
            ))
        };
        assert_eq!(of("/dev/shm/a"), Some(PathBuf::from("/dev/shm/a")));
        assert_eq!(of("/dev/shm/a (deleted)"), None);
        assert_eq!(of("/tmp/a"), None);
        assert_eq!(of("[heap]"), None);
    }
}
