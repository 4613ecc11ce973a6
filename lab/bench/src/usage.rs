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
    let file = RealDevice::new()
        .open(Path::new("/proc/self/io"), OpenMode::Read)
        .ok()?;
    let mut text = [0; 1024];
    let len = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"))?;
    line.trim().parse().ok()
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
