//! Whether other programs used the processors while something was measured.
//!
//! The kernel counts what all processors did (`/proc/stat`). Without what this process used, and
//! without what the kernel's own threads did, which may have worked for it, the rest is that of others:
//! programs, and other machines on the same host.

use std::path::Path;

use collie_io::{Device, OpenMode, RealDevice};
use rustix::time::{ClockId, clock_gettime};

/// The flag of the kernel's own threads, in the field `flags` of a process's `stat`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What the processors did up to one moment, in ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Processors {
    /// All of it, idle too.
    all: f64,
    /// Work, but for interrupts.
    work: f64,
    /// Of it by this process, and by the kernel's threads.
    own: f64,
}

impl Processors {
    /// `None` where the kernel does not say.
    pub(crate) fn now() -> Option<Self> {
        let (all, work) = machine(&read(Path::new("/proc/stat"))?)?;
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
        let own = seconds * rustix::param::clock_ticks_per_second() as f64 + kernel_threads();
        Some(Self { all, work, own })
    }

    /// The share of all processors that others used since `before`, from 0 to 1.
    pub(crate) fn others_since(&self, before: &Self) -> f64 {
        let others = (self.work - before.work) - (self.own - before.own);
        (others / (self.all - before.all).max(1.0)).clamp(0.0, 1.0)
    }
}

/// What `/proc/stat` says of all processors together: all ticks, and those of work.
fn machine(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .map_while(|ticks| ticks.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guests are counted as users.
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let work = user + nice + system + steal;
    Some((work + idle + iowait + irq + softirq, work))
}

/// The ticks of the kernel's own threads, as far as they are visible here.
fn kernel_threads() -> f64 {
    let entries = RealDevice::new().list(Path::new("/proc")).unwrap_or_default();
    let processes = entries.iter().filter(|entry| entry.name.parse::<u32>().is_ok());
    processes
        .filter_map(|entry| kernel_thread(&read(&Path::new("/proc").join(&entry.name).join("stat"))?))
        .sum()
}

/// The ticks of a process, if it is a thread of the kernel.
fn kernel_thread(stat: &str) -> Option<f64> {
    // The name in parentheses may hold anything. Behind it: state, parent, …, flags are field 9, user and
    // system time 14 and 15.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    (number(9)? & KERNEL_THREAD != 0).then_some(())?;
    Some((number(14)? + number(15)?) as f64)
}

fn read(path: &Path) -> Option<String> {
    let file = RealDevice::new().open(path, OpenMode::Read).ok()?;
    let mut text = vec![0; 4096];
    let len = file.read_at(&mut text, 0).ok()?;
    text.truncate(len);
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_used_what_neither_this_process_nor_the_kernel_did() {
        let stat = "cpu  10 20 30 40 50 60 70 80 5 6\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(machine(stat), Some((360.0, 140.0)));
        assert_eq!(machine("cpu 1 2 3\n"), None);
        let kernel = "14 (kworker/0:1) odd) I 2 0 0 0 -1 69238880 0 0 0 0 3 4 0 0 20 0 1 0 9 0 0";
        assert_eq!(kernel_thread(kernel), Some(7.0));
        let user = "15 (sh) R 1 0 0 0 -1 4194304 0 0 0 0 3 4 0 0 20 0 1 0 9 0 0";
        assert_eq!(kernel_thread(user), None);
        let at = |all, work, own| Processors { all, work, own };
        let before = at(100.0, 50.0, 20.0);
        assert_eq!(at(300.0, 150.0, 70.0).others_since(&before), 0.25);
        // Clocks that are read one after the other may be apart by a tick.
        assert_eq!(at(300.0, 150.0, 121.0).others_since(&before), 0.0);
        assert_eq!(before.others_since(&before), 0.0);
    }

    #[test]
    fn the_machine_on_which_this_runs_says_what_its_processors_do() {
        let before = Processors::now().unwrap();
        let share = Processors::now().unwrap().others_since(&before);
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
