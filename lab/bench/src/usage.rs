//! What a measurement used: processor time, device writes, disk space.

use std::path::Path;

use collie_io::{Device, Nanos, OpenMode, RealDevice};

use crate::error::{At, BenchError};

/// Processor time of all threads of this process so far.
pub(crate) fn cpu_time() -> Nanos {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Bytes that this process has caused to be written to block devices so far, as the kernel counts
/// them; `None` where it does not.
pub(crate) fn device_bytes() -> Option<u64> {
    counted("write_bytes:")
}

fn counted(name: &str) -> Option<u64> {
    let file = RealDevice::new()
        .open(Path::new("/proc/self/io"), OpenMode::Read)
        .ok()?;
    let mut text = [0; 1024];
    let len = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Bytes that this process has handed to calls that write so far; `None` where the kernel does not count them. What
/// [`device_bytes`] counts is more where pages are larger than what is written.
pub(crate) fn written_bytes() -> Option<u64> {
    counted("wchar:")
}

/// What this process has of the system's now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) threads: usize,
    pub(crate) descriptors: usize,
    /// Memory in use, in bytes.
    pub(crate) resident_bytes: u64,
}

impl Process {
    pub(crate) fn now() -> Result<Self, BenchError> {
        let device = RealDevice::new();
        let count = |dir: &str| {
            device
                .list(Path::new(dir))
                .map(|entries| entries.len())
                .at("list", Path::new(dir))
        };
        let path = Path::new("/proc/self/statm");
        let mut text = [0; 256];
        let len = device
            .open(path, OpenMode::Read)
            .and_then(|file| file.read_at(&mut text, 0))
            .at("read", path)?;
        let text = String::from_utf8_lossy(text.get(..len).unwrap_or_default()).into_owned();
        let pages = text
            .split_whitespace()
            .nth(1)
            .and_then(|pages| pages.parse::<u64>().ok());
        let Some(pages) = pages else {
            return Err(BenchError::Output {
                place: path.display().to_string(),
                expected: "numbers of pages",
                found: text,
            });
        };
        Ok(Self {
            threads: count("/proc/self/task")?,
            descriptors: count("/proc/self/fd")?,
            resident_bytes: pages * rustix::param::page_size() as u64,
        })
    }
}

/// The lengths of all files in `dir` and below. Files that vanish meanwhile do not count.
pub(crate) fn disk_bytes(dir: &Path) -> Result<u64, BenchError> {
    let device = RealDevice::new();
    let mut bytes = 0;
    for entry in device.list(dir).at("list", dir)? {
        let path = dir.join(&entry.name);
        if entry.is_dir() {
            bytes += disk_bytes(&path)?;
        } else if let Ok(stat) = device.stat(&path) {
            bytes += stat.len;
        }
    }
    Ok(bytes)
}
