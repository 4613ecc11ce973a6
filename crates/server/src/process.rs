//! The process as the kernel reports it (zeros where it does not), and how many clients its limits
//! allow.

use std::path::Path;

use collie_io::{Device, OpenMode, RealDevice};
use rustix::process::{Resource, getrlimit};

/// Open files that are not connections: the engine's tables and segments, and the program's own.
const OWN_DESCRIPTORS: u64 = 1024;

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
    // Behind the command's name in parentheses, user and system time are fields 12 and 13, in
    // ticks.
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
        // Without the descriptor that lists the directory.
        .map_or(0, |open| open.len().saturating_sub(1) as u64)
}

/// The limit on open file descriptors.
pub(crate) fn descriptors_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many clients a limit of `files` open files allows: at least half of the files are for
/// clients.
pub(crate) fn clients_possible(files: u64) -> usize {
    usize::try_from(files - OWN_DESCRIPTORS.min(files / 2)).unwrap_or(usize::MAX)
}

fn read(path: &str) -> String {
    let mut buffer = [0; 1024];
    let file = RealDevice::new().open(Path::new(path), OpenMode::Read);
    let read = file.and_then(|file| file.read_at(&mut buffer, 0)).unwrap_or(0);
    String::from_utf8_lossy(buffer.get(..read).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_the_stores_files_share_what_may_be_open() {
        for (files, clients) in [
            (600, 300),
            (2048, 1024),
            (20_000, 18_976),
            (131_072, 130_048),
            (u64::MAX, usize::MAX - 1024),
        ] {
            assert_eq!(clients_possible(files), clients, "{files}");
        }
    }
}
