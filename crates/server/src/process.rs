//! What the kernel says of this process; zeros where it does not.

use std::path::Path;

use collie_io::{Device, OpenMode, RealDevice};
use rustix::process::{Resource, getrlimit};

/// Resident memory, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let pages = read("/proc/self/statm");
    let pages = pages
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Processor time as user and in the system, in seconds.
pub(crate) fn cpu_seconds() -> (f64, f64) {
    // Behind the command's name in parentheses, user and system time are fields 12 and 13, in ticks.
    let stat = read("/proc/self/stat");
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace();
    let mut ticks = fields.skip(11).map(|field| field.parse::<u64>().unwrap_or(0));
    let hertz = rustix::param::clock_ticks_per_second().max(1);
    let mut seconds = || ticks.next().unwrap_or(0) as f64 / hertz as f64;
    (seconds(), seconds())
}

/// Open file descriptors.
pub(crate) fn open_descriptors() -> u64 {
    RealDevice::new()
        .list(Path::new("/proc/self/fd"))
        // The one that was opened to look is none.
        .map_or(0, |open| open.len().saturating_sub(1) as u64)
}

/// How many there may be.
pub(crate) fn descriptors_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn read(path: &str) -> String {
    let mut buffer = [0; 1024];
    let file = RealDevice::new().open(Path::new(path), OpenMode::Read);
    let read = file.and_then(|file| file.read_at(&mut buffer, 0)).unwrap_or(0);
    String::from_utf8_lossy(buffer.get(..read).unwrap_or_default()).into_owned()
}
