//! `collie mount` of a directory, and the other commands for it.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use collie_check::postgres::{Said, kill_and_wait, run};

use crate::shared::rings_of;

/// How often it is looked whether something has come about, and for how long at most.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
const LOOKS: u32 = 6_000;

/// The binary under test, to which a test adds arguments.
pub(crate) fn collie<const N: usize>(args: [&str; N], dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_collie"));
    command.args(args).arg(dir);
    command
}

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Child,
    dir: PathBuf,
    log: PathBuf,
    /// How long its log was before.
    before: usize,
}

impl Daemon {
    /// Starts one, which has not mounted the directory yet. What it says goes to the file `log`.
    pub(crate) fn spawn(dir: &Path, args: &[&str], log: &Path) -> Self {
        let before = fs::read(log).unwrap_or_default().len();
        let output = || {
            let mut options = OpenOptions::new();
            options.append(true).create(true).open(log).unwrap()
        };
        let mut command = collie(["mount"], dir);
        command.args(args).stdin(Stdio::null());
        let process = command.stdout(output()).stderr(output()).spawn().unwrap();
        Self {
            process,
            dir: dir.to_owned(),
            log: log.to_owned(),
            before,
        }
    }

    /// Whether the directory is mounted; what it said, where it has ended.
    pub(crate) fn serves(&mut self) -> Result<bool, String> {
        let said = fs::read(&self.log).unwrap_or_default().split_off(self.before);
        let said = String::from_utf8_lossy(&said).into_owned();
        if let Some(status) = self.process.try_wait().unwrap() {
            return Err(format!("{said}the daemon ended with {status}"));
        }
        Ok(said.lines().any(|line| line.starts_with("mounted ")))
    }

    /// Starts one and waits until the directory is mounted.
    pub(crate) fn start(dir: &Path, args: &[&str], log: &Path) -> Result<Self, String> {
        let mut daemon = Self::spawn(dir, args, log);
        for _ in 0..LOOKS {
            if daemon.serves()? {
                return Ok(daemon);
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Err("the daemon does not mount the directory".into())
    }

    /// Unmounts the directory and waits for the daemon's end.
    pub(crate) fn umount(mut self) -> Said {
        let said = run(&mut collie(["umount"], &self.dir));
        if said.is_err() {
            let _ = self.process.kill();
            let _ = self.process.wait();
            return said;
        }
        let status = self.process.wait().unwrap();
        match status.success() {
            true => said,
            false => Err(format!("the daemon ended with {status}")),
        }
    }

    /// The process, and the rings that it has in shared memory: a power cut takes them.
    pub(crate) fn into_process(self) -> (Child, Vec<PathBuf>) {
        let rings = rings_of(&self.process);
        (self.process, rings)
    }

    /// Kills it with SIGKILL. The mount is left, and answers nothing; so are the rings, which are
    /// returned.
    pub(crate) fn kill(self) -> Vec<PathBuf> {
        let rings = rings_of(&self.process);
        kill_and_wait(self.process, || {}).unwrap();
        rings
    }
}
