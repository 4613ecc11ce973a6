//! Processor time of other processes.

use std::fs;
use std::path::Path;

struct Stat {
    parent: u32,
    /// Clock ticks of the process, and of its children that have ended.
    own: u64,
    ended: u64,
}

fn parse(stat: &str) -> Option<Stat> {
    // A process's name is in parentheses and may hold anything. What follows begins with the third
    // field of proc(5).
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: ticks(14)? + ticks(15)?,
        ended: ticks(16)? + ticks(17)?,
    })
}

fn stat_of(pid: u32) -> Option<Stat> {
    parse(&crate::disks::read(Path::new(&format!("/proc/{pid}/stat"))))
}

/// Microseconds of processor time that a process, its children and those of them that have ended
/// have used so far.
pub(super) fn cpu_us(pid: u32) -> u64 {
    let Some(first) = stat_of(pid) else { return 0 };
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let others = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let children = others.filter_map(stat_of).filter(|stat| stat.parent == pid);
    let ticks = first.own + first.ended + children.map(|stat| stat.own).sum::<u64>();
    ticks * 1_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_counts_children_that_have_ended() {
        let stat = "7 (a) b) (c) S 3 7 7 0 -1 4194560 100 200 0 0 11 22 33 44 20 0 1 0 5";
        let stat = parse(stat).unwrap();
        assert_eq!((stat.parent, stat.own, stat.ended), (3, 33, 77));
        assert!(parse("7 (a) S 3").is_none());
    }
}
