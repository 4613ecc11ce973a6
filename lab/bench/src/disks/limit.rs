//! A limit on what may be written to a block device, by control groups.
//!
//! Version 1 charges the page cache's writeback to the root group, whatever group dirtied the pages:
//! a limit on a child group lets it pass (211 MB of 240 MB written in 0.1 s under 20 MB/s). So the
//! limit is set on the root group, for a loop device that only the measurement writes to. Version 2
//! has no limits on its root, and charges writeback to the group of the file's writer: there all
//! processes are in a group of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use collie_io::{Clock, RealClock};

use super::commands::Interrupt;
use crate::error::{At, BenchError};

const ROOT_1: &str = "/sys/fs/cgroup/blkio";
const THROTTLE: &str = "blkio.throttle.write_bps_device";
const ROOT_2: &str = "/sys/fs/cgroup";

/// The group in which processes are limited. They are in it from when it is made until it is
/// dropped, with those that they start.
#[derive(Debug)]
pub(crate) struct Group {
    version: Version,
    /// Where this process was before.
    before: PathBuf,
    limited: Vec<String>,
}

#[derive(Debug)]
enum Version {
    One,
    Two { group: PathBuf },
}

impl Group {
    /// Moves this process to where it can be limited.
    pub(crate) fn enter() -> Result<Self, BenchError> {
        let own = super::read(Path::new("/proc/self/cgroup"));
        let me = std::process::id().to_string();
        let path_of = |controllers: &str| {
            own.lines()
                .find_map(|line| line.split_once(controllers))
                .map(|(_, path)| path)
        };
        let root = Path::new(ROOT_1);
        let throttle = root.join(THROTTLE);
        if let (true, Some(path)) = (throttle.exists(), path_of(":blkio:")) {
            let before = below(root, path);
            let procs = root.join("cgroup.procs");
            fs::write(&procs, &me).at("move this process to the root group in", &procs)?;
            return Ok(Self {
                version: Version::One,
                before,
                limited: Vec::new(),
            });
        }
        let root = Path::new(ROOT_2);
        let controllers = super::read(&root.join("cgroup.controllers"));
        let (true, Some(path)) = (
            controllers.split_whitespace().any(|name| name == "io"),
            path_of("0::"),
        ) else {
            return Err(BenchError::Missing {
                what: format!(
                    "--limit: there is neither {} (control groups, version 1) nor the controller io in {ROOT_2} (version 2): mount \
                     one of them, or measure without a limit",
                    throttle.display()
                ),
            });
        };
        let subtree = root.join("cgroup.subtree_control");
        fs::write(&subtree, "+io").at("have groups limit what is written, in", &subtree)?;
        let group = root.join(format!("collie-bench-{me}"));
        fs::create_dir(&group).at("make the control group", &group)?;
        // Made first, so that it is removed where the next step fails.
        let entered = Self {
            before: below(root, path),
            version: Version::Two { group: group.clone() },
            limited: Vec::new(),
        };
        let procs = group.join("cgroup.procs");
        fs::write(&procs, &me).at("move this process to the group in", &procs)?;
        Ok(entered)
    }

    /// Where the limit is, in words.
    pub(crate) fn describe(&self) -> &'static str {
        match self.version {
            Version::One => {
                "control groups version 1: of the loop device, on the root group, writeback included"
            }
            Version::Two { .. } => {
                "control groups version 2: io.max of the loop device, on a group with all processes"
            }
        }
    }

    fn write(&self, device: &str, bytes_per_sec: Option<u64>) -> Result<(), BenchError> {
        let (file, line) = match &self.version {
            // 0 takes the limit away.
            Version::One => (
                Path::new(ROOT_1).join(THROTTLE),
                format!("{device} {}", bytes_per_sec.unwrap_or(0)),
            ),
            Version::Two { group } => (
                group.join("io.max"),
                format!(
                    "{device} wbps={}",
                    bytes_per_sec.map_or_else(|| "max".to_owned(), |rate| rate.to_string())
                ),
            ),
        };
        fs::write(&file, &line).at("set the limit in", &file)
    }

    /// Limits a device, given by its numbers, from now on.
    pub(crate) fn limit(&mut self, device: &str, bytes_per_sec: u64) -> Result<(), BenchError> {
        self.write(device, Some(bytes_per_sec))?;
        self.limited.push(device.to_owned());
        Ok(())
    }

    /// Takes the limits away.
    pub(crate) fn lift(&mut self) -> Result<(), BenchError> {
        std::mem::take(&mut self.limited)
            .iter()
            .try_for_each(|device| self.write(device, None))
    }
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nothing can be done about what fails here: the device goes next, and the limit with it.
        let _ = self.lift();
        let _ = fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        if let Version::Two { group } = &self.version {
            let _ = fs::remove_dir(group);
        }
    }
}

/// Writes for about a second past the page cache and then through it, with writeback left to the
/// kernel, and compares the rates with the limit that is set.
pub(crate) fn verify(dir: &Path, bytes_per_sec: u64, interrupt: &Interrupt) -> Result<Verified, BenchError> {
    let file = dir.join("collie-limit");
    let mib = (bytes_per_sec >> 20).max(1);
    let dd = |how: &str| {
        let mut dd = Command::new("dd");
        dd.arg("if=/dev/zero").arg(format!("of={}", file.display()));
        dd.args(["bs=1M", how]).arg(format!("count={mib}"));
        interrupt.run(&mut dd)
    };
    let rate = |began: u64| (mib << 20) as f64 * 1e9 / (RealClock.monotonic() - began).max(1) as f64;
    let began = RealClock.monotonic();
    dd("oflag=direct")?;
    let direct = rate(began);
    dd("conv=notrunc")?;
    let began = RealClock.monotonic();
    interrupt.run(Command::new("sync").arg("-f").arg(&file))?;
    let writeback = rate(began);
    fs::remove_file(&file).at("remove", &file)?;
    let verified = Verified {
        direct_bytes_per_sec: direct,
        writeback_bytes_per_sec: writeback,
    };
    match verified.holds(bytes_per_sec as f64) {
        true => Ok(verified),
        false => Err(BenchError::Missing {
            what: format!(
                "--limit {bytes_per_sec}: it does not hold: a second's worth was written at {direct:.0} bytes/s past the page cache \
                 and at {writeback:.0} through it, where 0.7 to 1.3 times the limit is expected; is the disk slower, or busy?"
            ),
        }),
    }
}

/// What the check of a limit measured.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Verified {
    /// Written past the page cache.
    pub direct_bytes_per_sec: f64,
    /// Written to the page cache, and from there by the kernel.
    pub writeback_bytes_per_sec: f64,
}

impl Verified {
    fn holds(self, limit: f64) -> bool {
        [self.direct_bytes_per_sec, self.writeback_bytes_per_sec]
            .iter()
            .all(|rate| (0.7..1.3).contains(&(rate / limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_writeback_passes_does_not_hold() {
        let rates = |direct_bytes_per_sec, writeback_bytes_per_sec| Verified {
            direct_bytes_per_sec,
            writeback_bytes_per_sec,
        };
        assert!(rates(60e6, 61e6).holds(60e6));
        assert!(!rates(60e6, 2e9).holds(60e6));
        assert!(!rates(500e6, 60e6).holds(60e6));
        assert!(!rates(20e6, 20e6).holds(60e6), "a slower disk is not the limit");
    }
}
