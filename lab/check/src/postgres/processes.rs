//! Processes, by number.

use std::fs;
use std::io;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How often it is looked whether something has come about, and for how long at most.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
pub(super) const LOOKS: u32 = 3_000;

/// Kills a process and its children, and waits for their ends. What waits for a file system ends
/// when that lets its calls fail: `let_go` is called when all of them have been killed.
///
/// # Errors
/// It cannot be waited for.
pub fn kill_and_wait(mut process: Child, let_go: impl FnOnce()) -> io::Result<()> {
    let pid = Pid::from_child(&process);
    // While it stands still it starts none, and it has waited for none.
    let _ = kill_process(pid, Signal::STOP);
    let children = children_of(pid)?;
    let _ = kill_process(pid, Signal::KILL);
    for &child in &children {
        let _ = kill_process(child, Signal::KILL);
    }
    let_go();
    process.wait()?;
    let gone = |child: &Pid| stat_of(*child).is_none_or(|(state, _)| state == "Z");
    for _ in 0..LOOKS {
        if children.iter().all(gone) {
            return Ok(());
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    Err(io::Error::other(format!("{children:?} do not end")))
}

/// A process's state and its parent.
fn stat_of(pid: Pid) -> Option<(String, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // Its name is in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn children_of(parent: Pid) -> io::Result<Vec<Pid>> {
    let pids = fs::read_dir("/proc")?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    });
    let parent = parent.as_raw_nonzero().get();
    Ok(pids
        .filter(|&pid| stat_of(pid).is_some_and(|(_, above)| above == parent))
        .collect())
}
