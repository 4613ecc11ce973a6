//! Requests to the daemon of a mounted directory: through the files in its `.collie`, which is not
//! listed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use collie_io::{Device, OpenMode, RealDevice};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

use super::users;

/// A mounted directory.
pub(super) struct Daemon {
    dir: PathBuf,
    pid: u32,
}

/// Why the daemon cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("{}: it is mounted for the user {owner} alone, and this one is refused; run this as that user: sudo -u {owner} collie …", dir.display())]
    OfOther { dir: PathBuf, owner: String },
    #[error("{}: the daemon has died; stop the server, then take the mount away with `collie umount`", dir.display())]
    Dead { dir: PathBuf },
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{dir}: the status that the daemon gives is not understood: {source}; is it of another version? Stop the server, then take the mount away with `fusermount3 -u {dir}`, or as root with `umount {dir}`", dir = dir.display())]
    Status { dir: PathBuf, source: serde_json::Error },
}

impl AskError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AskError {
        let path = path.to_owned();
        move |source| AskError::Io { action, path, source }
    }
}

/// What is wrong where a call into the mount over `dir` fails; `otherwise` where it is nothing that a
/// mount has of its own.
fn failed(dir: &Path, otherwise: impl FnOnce(io::Error) -> AskError) -> impl FnOnce(io::Error) -> AskError {
    let dir = dir.to_owned();
    move |source| match source.kind() {
        // It had died, or died before it answered.
        io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted => AskError::Dead { dir },
        io::ErrorKind::PermissionDenied => match users::owner(&dir) {
            Some(owner) => AskError::OfOther { dir, owner },
            None => otherwise(source),
        },
        _ => otherwise(source),
    }
}

/// A command of a daemon.
#[derive(Debug, Clone, Copy)]
pub(super) enum DaemonCommand {
    Commit,
    Drain,
    /// As `Drain`, and the directory is to be a plain one after the mount.
    Leave,
}

/// The content of `status`. That of a daemon of another version may lack everything but its process.
#[derive(Debug, Deserialize)]
pub(super) struct Status {
    pub(super) pid: u32,
    #[serde(default)]
    pub(super) page_bytes: u64,
    #[serde(default)]
    pub(super) slots: u64,
    #[serde(default)]
    pub(super) free_slots: u64,
    #[serde(default)]
    pub(super) mapped_files: u64,
    #[serde(default)]
    pub(super) displaced_pages: u64,
    #[serde(default)]
    pub(super) dirty_pages: u64,
    #[serde(default)]
    pub(super) log_bytes: u64,
    #[serde(default)]
    pub(super) fsyncs: u64,
    #[serde(default)]
    pub(super) fsync_p99_us: u64,
    #[serde(default)]
    pub(super) fsync_max_us: u64,
    #[serde(default)]
    pub(super) under_way: Vec<String>,
    #[serde(default)]
    pub(super) failure: Option<String>,
}

impl Daemon {
    /// The daemon of a directory; `None` where it is not mounted.
    pub(super) fn of(dir: &Path) -> Result<Option<Daemon>, AskError> {
        let device = RealDevice::new();
        let real = match dir.canonicalize() {
            Ok(real) => real,
            Err(e) => return Err(failed(dir, AskError::io("find", dir))(e)),
        };
        match device.stat(&real.join(".collie/status")) {
            Ok(_) => {}
            // Also where a file is in the place of the directory `.collie`.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(e) => return Err(failed(&real, AskError::io("ask the daemon of", dir))(e)),
        }
        let mut daemon = Daemon { dir: real, pid: 0 };
        daemon.pid = daemon.status()?.pid;
        Ok(Some(daemon))
    }

    /// The directory, without symbolic links.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(".collie").join(name)
    }

    /// The whole text of one of the files.
    pub(super) fn text(&self, name: &str) -> Result<String, AskError> {
        let path = self.file(name);
        let failed = |e| failed(&self.dir, AskError::io("read", &path))(e);
        let file = RealDevice::new().open(&path, OpenMode::Read).map_err(failed)?;
        let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match file.read_at(&mut piece, text.len() as u64) {
                Ok(0) => return Ok(String::from_utf8_lossy(&text).into_owned()),
                Ok(len) => text.extend_from_slice(piece.get(..len).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }

    pub(super) fn status(&self) -> Result<Status, AskError> {
        let text = self.text("status")?;
        serde_json::from_str(&text).map_err(|source| AskError::Status {
            dir: self.dir.clone(),
            source,
        })
    }

    /// What has ended the daemon's writes, where something has and it says so.
    pub(super) fn failure(&self) -> Option<String> {
        self.status().ok()?.failure
    }

    /// Has a command done; returns when it is.
    pub(super) fn command(&self, command: DaemonCommand) -> Result<(), AskError> {
        let path = self.file("command");
        let (word, action) = match command {
            DaemonCommand::Commit => ("commit", "make everything durable: the daemon's answer to"),
            DaemonCommand::Drain => ("drain", "bring every page home: the daemon's answer to"),
            DaemonCommand::Leave => ("leave", "bring every page home: the daemon's answer to"),
        };
        let failed = |e: rustix::io::Errno| failed(&self.dir, AskError::io(action, &path))(e.into());
        let file =
            rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        rustix::io::write(&file, word.as_bytes()).map_err(failed)?;
        Ok(())
    }

    /// Waits until the process of the daemon has ended, which writes the map after the mount is
    /// gone.
    pub(super) fn wait_for_end(&self) -> Result<(), AskError> {
        let path = self.dir.join(".collie/LOCK");
        let failed = |e| AskError::io("wait for the daemon to release", &path)(e);
        let lock = RealDevice::new()
            .open(&path, OpenMode::ReadWrite)
            .map_err(failed)?;
        while !lock.try_lock().map_err(failed)? {
            if RealDevice::new()
                .stat(Path::new(&format!("/proc/{}", self.pid)))
                .is_err()
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that says what it is given, as a mounted one does.
    fn saying(status: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        device.create_dir_all(&dir.path().join(".collie")).unwrap();
        let path = dir.path().join(".collie/status");
        let file = device.open(&path, OpenMode::CreateNew).unwrap();
        file.write_at(status.as_bytes(), 0).unwrap();
        dir
    }

    #[test]
    fn a_daemon_of_another_version_is_understood_by_its_process() {
        let dir = saying(r#"{"pid":7,"fsyncs":3,"of_a_later_version":[1]}"#);
        let daemon = Daemon::of(dir.path()).unwrap().unwrap();
        let status = daemon.status().unwrap();
        assert_eq!((daemon.pid(), status.fsyncs, status.slots), (7, 3, 0));
        assert_eq!(daemon.failure(), None);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_a_way_out() {
        for status in ["", "{}", "pid 7"] {
            let dir = saying(status);
            let said = Daemon::of(dir.path()).err().unwrap().to_string();
            let way = format!("fusermount3 -u {}", dir.path().canonicalize().unwrap().display());
            assert!(said.contains(&way), "{said}");
        }
    }
}
