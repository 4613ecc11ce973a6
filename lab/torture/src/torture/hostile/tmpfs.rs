//! A small file system in memory that no other process sees: it can be filled, freed, and taken
//! away under its users.
//!
//! It is mounted in a mount namespace, which a process keeps that does nothing else; servers are
//! started in there. Root makes one at once, others in a user namespace, where the system lets
//! them. It goes with the last process.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;
use collie_io::{Device, OpenMode, RealDevice};

/// Mounts a tmpfs of $2 bytes at $1, says so, and waits for the end of what it reads.
const KEEPER: &str =
    "mount -t tmpfs -o size=\"$2\",mode=700 collie \"$1\" && echo mounted && exec cat >/dev/null";
/// The file that takes the room.
const BALLAST: &str = "ballast";
/// A file is made to take room in steps that shrink to this, in bytes.
const STEP_LEAST: u64 = 4096;

/// A mounted file system. Dropped, it goes when the last process in it has ended.
pub(crate) struct Tmpfs {
    keeper: Child,
    /// What the keeper reads.
    _input: Option<ChildStdin>,
    at: PathBuf,
    is_root: bool,
}

impl Tmpfs {
    /// Mounts one of so many bytes at `at`, a directory. Where the system does not allow that, the
    /// error says why.
    pub(crate) fn mount(at: &Path, bytes: u64) -> anyhow::Result<Self> {
        let device = RealDevice::new();
        device.create_dir_all(at)?;
        let is_root = device.uid() == 0;
        let mut keeper = Command::new("unshare")
            .arg(if is_root { "-m" } else { "-Urm" })
            .args(["sh", "-c", KEEPER, "sh"])
            .arg(at)
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start unshare (Debian: util-linux)")?;
        let mut line = String::new();
        let out = keeper.stdout.take().context("the keeper has no output")?;
        BufReader::new(out).read_line(&mut line)?;
        let mut tmpfs = Self {
            _input: keeper.stdin.take(),
            keeper,
            at: at.to_owned(),
            is_root,
        };
        if line.trim() != "mounted" {
            let mut text = String::new();
            if let Some(mut err) = tmpfs.keeper.stderr.take() {
                err.read_to_string(&mut text)?;
            }
            anyhow::bail!("no tmpfs can be mounted in a namespace: {}", text.trim());
        }
        Ok(tmpfs)
    }

    /// Where it is for the processes in it.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Where it is for this process.
    fn outside(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(self.at.strip_prefix("/").unwrap_or(&self.at))
    }

    /// What stands before a command that is to run in it.
    pub(crate) fn before(&self) -> Vec<OsString> {
        let mut words = vec!["nsenter".into(), "-t".into(), self.keeper.id().to_string().into()];
        if !self.is_root {
            words.extend(["-U".into(), "--preserve-credentials".into()]);
        }
        words.extend(["-m".into(), "--".into()]);
        words
    }

    /// Takes all the room that there is.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        let path = self.outside().join(BALLAST);
        let file = RealDevice::new()
            .open(&path, OpenMode::OpenOrCreate)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut len = file.stat()?.len;
        let mut step = self.room()?;
        while step >= STEP_LEAST {
            match file.allocate(len + step) {
                Ok(()) => len += step,
                // Others take room at the same time.
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => step /= 2,
                Err(error) => return Err(error).context("cannot fill the file system"),
            }
        }
        Ok(())
    }

    /// Gives back what [`Tmpfs::fill`] took.
    pub(crate) fn free(&self) -> anyhow::Result<()> {
        let path = self.outside().join(BALLAST);
        RealDevice::new()
            .remove_file(&path)
            .with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Bytes that are free.
    fn room(&self) -> anyhow::Result<u64> {
        let system = rustix::fs::statvfs(self.outside()).context("cannot look at the file system")?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Takes it away from under its users, as `umount --lazy` does: open files go on, names are
    /// gone.
    pub(crate) fn detach(&self) -> anyhow::Result<()> {
        let words = self.before();
        let (program, rest) = words.split_first().context("there is no program to start")?;
        let status = Command::new(program)
            .args(rest)
            .args(["umount", "--lazy"])
            .arg(&self.at)
            .status()
            .context("cannot start nsenter (Debian: util-linux)")?;
        anyhow::ensure!(status.success(), "umount failed: {status}");
        Ok(())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // It may have ended; then there is nothing left to do.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
