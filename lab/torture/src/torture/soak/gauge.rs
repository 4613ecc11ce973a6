//! What a process takes: memory and disk.

use std::io;
use std::path::Path;

use anyhow::Context;
use collie_io::{Device, OpenMode, RealDevice};
use rustix::fs::{Mode, OFlags};

/// Resident memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) now: u64,
    /// The most that it ever was.
    pub(crate) most: u64,
}

/// As the kernel reports it, shared memory included.
pub(crate) fn memory(pid: u32) -> anyhow::Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let file = RealDevice::new()
        .open(Path::new(&path), OpenMode::Read)
        .with_context(|| format!("cannot open {path}"))?;
    let mut bytes = vec![0; 1 << 14];
    let len = file
        .read_at(&mut bytes, 0)
        .with_context(|| format!("cannot read {path}"))?;
    bytes.truncate(len);
    let text = String::from_utf8_lossy(&bytes);
    parse(&text).with_context(|| format!("{path} has no VmRSS and VmHWM; found:\n{text}"))
}

/// Has the kernel begin anew with the most that the process ever had.
pub(crate) fn forget_most(pid: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(&path, flags, Mode::empty()).with_context(|| format!("cannot open {path}"))?;
    rustix::io::write(&file, b"5").with_context(|| format!("cannot write {path}"))?;
    Ok(())
}

fn parse(text: &str) -> Option<Memory> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes << 10)
    };
    Some(Memory {
        now: field("VmRSS:")?,
        most: field("VmHWM:")?,
    })
}

/// What all files below a directory take on disk, in bytes. Files that go meanwhile are left out.
pub(crate) fn disk(dir: &Path) -> io::Result<u64> {
    let entries = match RealDevice::new().list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let path = dir.join(&entry.name);
        if entry.is_dir() {
            bytes += disk(&path)?;
            continue;
        }
        match rustix::fs::stat(&path) {
            // Blocks of 512 bytes, whatever the file system's own are.
            Ok(stat) => bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_what_the_kernel_tells() {
        let text = "Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t    12 kB\n";
        let expected = Memory {
            now: 12 << 10,
            most: 2 << 20,
        };
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("VmHWM:\t  2048 kB\n"), None);
        let own = memory(std::process::id()).unwrap();
        assert!(own.now > 0 && own.most >= own.now);
    }

    #[test]
    fn the_disk_of_a_directory_is_that_of_all_files_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        device.create_dir_all(&dir.path().join("a/b")).unwrap();
        for (name, len) in [("x", 10_000), ("a/y", 5_000), ("a/b/z", 1)] {
            let file = device.open(&dir.path().join(name), OpenMode::CreateNew).unwrap();
            collie_io::write_all_at(&*file, &vec![1; len], 0).unwrap();
            file.sync_data().unwrap();
        }
        let bytes = disk(dir.path()).unwrap();
        assert!((15_001..200_000).contains(&bytes), "{bytes}");
        assert_eq!(disk(&dir.path().join("none")).unwrap(), 0);
    }
}
