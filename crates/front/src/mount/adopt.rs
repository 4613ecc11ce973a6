//! What is checked in a PostgreSQL directory before it is mounted over.

use std::io;
use std::path::{Component, Path, PathBuf};

use collie_io::{Device, FileKind, OpenMode, read_exact_at};
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::disk::shadow::HEADER;
use crate::error::MountError;
use crate::volume::OWN as OWN_DIR;

/// Of a directory where a daemon was killed.
pub(super) const DEAD: &str = "a mount is there whose daemon has died; stop the server, then take it away with \
                               `collie umount`";

/// Longer files are not read whole.
const LONGEST: u64 = 1 << 20;
/// What stands right before the size of a block in `global/pg_control`, in every version: the
/// number 1234567 as a double, by which the server checks its format.
const BEFORE_BLOCK_SIZE: [u8; 8] = 1_234_567.0_f64.to_le_bytes();
/// The bytes of `pg_control` that are written.
const CONTROL_BYTES: usize = 512;

/// A directory below its mount.
pub(super) struct Cluster<'a> {
    pub(super) device: &'a dyn Device,
    /// A path that leads below the mount.
    pub(super) root: &'a Path,
    /// The path of the mount, as its user gave it.
    pub(super) shown: &'a Path,
}

impl Cluster<'_> {
    /// The text of a small file, if it exists.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, MountError> {
        let failed = |e| MountError::io("read", &self.shown.join(name))(e);
        let file = match self.device.open(&self.root.join(name), OpenMode::Read) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let len = file.stat().map_err(failed)?.len.min(LONGEST);
        let mut text = vec![0; usize::try_from(len).unwrap_or(0)];
        read_exact_at(&*file, &mut text, 0).map_err(failed)?;
        Ok(Some(text))
    }

    pub(super) fn refuse(&self, problem: String) -> MountError {
        MountError::Refused {
            path: self.shown.to_owned(),
            problem,
        }
    }

    /// Refuses a directory that is mounted, by a daemon that lives or by one that has died.
    pub(super) fn check_unmounted(&self) -> Result<(), MountError> {
        // Below a mount there is no file of this name.
        let made_up = Path::new(OWN_DIR).join("command");
        match self.device.lstat(&self.root.join(made_up)) {
            Ok(_) => {
                Err(self.refuse("it is mounted already; `collie umount` takes the mount away".to_owned()))
            }
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Err(self.refuse(DEAD.to_owned())),
            // Whatever else is wrong with it shows where it is opened.
            Err(_) => Ok(()),
        }
    }

    /// Refuses a directory that a live server uses: what it has open it would go on writing below
    /// the mount.
    pub(super) fn check_unused(&self) -> Result<(), MountError> {
        let Some(text) = self.read("postmaster.pid")? else {
            return Ok(());
        };
        let text = String::from_utf8_lossy(&text);
        let number = text
            .lines()
            .next()
            .and_then(|line| line.trim().parse::<i32>().ok());
        let Some(pid) = number.and_then(|number| Pid::from_raw(number.abs())) else {
            return Ok(());
        };
        let is_gone = match test_kill_process(pid) {
            Err(Errno::SRCH) => true,
            // Another user's process, which had the number after a crash: the server is this user's, as
            // PostgreSQL has it.
            Err(Errno::PERM) => self.device.uid() != 0,
            _ => false,
        };
        // The number may be another process's since the server died, or still that of its remains,
        // which have no command line, until they are waited for.
        let about = |what: &str| PathBuf::from(format!("/proc/{}/{what}", pid.as_raw_nonzero()));
        // By numbers: a server may have come by another path, or be in a container.
        let number = |path: &Path| {
            let stat = self.device.stat(path);
            stat.map(|stat| (stat.dev, stat.ino))
        };
        let is_elsewhere = match (number(&about("cwd")), number(&self.root.join("."))) {
            (Ok(its), Ok(own)) => its != own,
            _ => false,
        };
        let command = self.device.open(&about("cmdline"), OpenMode::Read);
        let is_remains = command.is_ok_and(|command| matches!(command.read_at(&mut [0], 0), Ok(0)));
        if is_gone || is_elsewhere || is_remains {
            return Ok(());
        }
        Err(self.refuse(format!(
            "PostgreSQL runs in it (postmaster.pid names the live process {number}); stop the server first, or \
             remove that file where no server runs",
            number = pid.as_raw_nonzero()
        )))
    }

    /// Refuses a directory in a cluster, and one with clusters in it: nothing in it would be written
    /// whole.
    pub(super) fn check_level(&self, is_cluster: bool) -> Result<(), MountError> {
        for above in self.shown.ancestors().skip(1) {
            if self.device.stat(&above.join("global/pg_control")).is_ok() {
                return Err(self.refuse(format!(
                    "it is a part of the cluster in {}; mount that directory",
                    above.display()
                )));
            }
        }
        if is_cluster {
            return Ok(());
        }
        let entries = self.device.list(&self.root.join(""));
        for entry in entries.map_err(MountError::io("list", self.shown))? {
            let control = Path::new(&entry.name).join("global/pg_control");
            if self.device.stat(&self.root.join(control)).is_ok() {
                return Err(self.refuse(format!(
                    "it is no cluster, and has one in it; mount {}",
                    self.shown.join(&entry.name).display()
                )));
            }
        }
        Ok(())
    }

    /// Refuses what this process may not change.
    pub(super) fn check_access(&self) -> Result<(), MountError> {
        let own = self.root.join(OWN_DIR);
        let map = own.join("MAP");
        for path in [self.root, &own, &map] {
            match rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => {
                    let below = path.strip_prefix(self.root).unwrap_or(path);
                    // Without a slash behind the directory itself.
                    let shown: PathBuf = self.shown.join(below).components().collect();
                    return Err(MountError::io("write to", &shown)(e.into()));
                }
            }
        }
        Ok(())
    }

    /// The bytes that a shadow file takes, besides those that it has.
    pub(super) fn room_for(&self, page_bytes: u32, shadow_bytes: u64) -> Result<u64, MountError> {
        let name = Path::new(OWN_DIR).join("shadow");
        let has = match self.device.stat(&self.root.join(&name)) {
            Ok(stat) => stat.len,
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(MountError::io("stat", &self.shown.join(name))(e)),
        };
        let slots = shadow_bytes / u64::from(page_bytes);
        Ok((HEADER + slots * u64::from(page_bytes)).saturating_sub(has))
    }

    /// The size of the cluster's pages, if there is a cluster.
    pub(super) fn page_bytes(&self) -> Result<Option<u32>, MountError> {
        let Some(text) = self.read("global/pg_control")? else {
            return Ok(None);
        };
        let text = text.get(..CONTROL_BYTES).unwrap_or(&text);
        let found = text.chunks_exact(8).position(|chunk| chunk == BEFORE_BLOCK_SIZE);
        let bytes = found.and_then(|at| text.get((at + 1) * 8..)?.first_chunk::<4>());
        let size = bytes.map(|bytes| u32::from_le_bytes(*bytes));
        match size {
            Some(size) if size.is_power_of_two() && (1024..=32_768).contains(&size) => Ok(Some(size)),
            _ => Err(MountError::Refused {
                path: self.shown.join("global/pg_control"),
                problem: "it does not say how large the cluster's pages are; is it damaged, or of another architecture?"
                    .to_owned(),
            }),
        }
    }

    /// Refuses tablespaces outside of the directory: their pages would not be written whole.
    pub(super) fn check_tablespaces(&self) -> Result<(), MountError> {
        let dir = Path::new("pg_tblspc");
        let entries = match self.device.list(&self.root.join(dir)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(MountError::io("list", &self.shown.join(dir))(e)),
        };
        for entry in entries.iter().filter(|entry| entry.kind == FileKind::Symlink) {
            let link = dir.join(&entry.name);
            let target = self.device.read_link(&self.root.join(&link));
            let target = target.map_err(MountError::io("read", &self.shown.join(&link)))?;
            check_link(self.device, (self.root, self.shown), &link, &target)?;
        }
        Ok(())
    }

    /// Refuses directories of relations that are symbolic links: nothing in them would be written
    /// whole.
    pub(super) fn check_dirs(&self) -> Result<(), MountError> {
        let mut dirs = vec![PathBuf::from("base"), PathBuf::from("global")];
        if let Ok(databases) = self.device.list(&self.root.join("base")) {
            dirs.extend(databases.iter().map(|entry| Path::new("base").join(&entry.name)));
        }
        for dir in dirs {
            let found = self.device.lstat(&self.root.join(&dir));
            if found.is_ok_and(|found| found.kind == FileKind::Symlink) {
                return Err(MountError::Refused {
                    path: self.shown.join(dir),
                    problem:
                        "it is a symbolic link, behind which pages would not be written whole; move the \
                              directory itself here"
                            .to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Refuses a cluster whose server would make its files durable by a call that does not reach
    /// the mount.
    pub(super) fn check_sync_method(&self) -> Result<(), MountError> {
        for name in ["postgresql.conf", "postgresql.auto.conf"] {
            let text = self.read(name)?.unwrap_or_default();
            if String::from_utf8_lossy(&text).lines().any(is_syncfs) {
                return Err(MountError::Refused {
                    path: self.shown.join(name),
                    problem: "recovery_init_sync_method is syncfs, which syncs nothing on a FUSE file \
                              system; set it to fsync"
                        .to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// Refuses a tablespace's link out of the directory `shown`, which is reached by the path `root`.
pub(super) fn check_link(
    device: &dyn Device,
    (root, shown): (&Path, &Path),
    link: &Path,
    target: &Path,
) -> Result<(), MountError> {
    if link.parent() != Some(Path::new("pg_tblspc")) {
        return Ok(());
    }
    let refuse = |problem: String| {
        Err(MountError::Refused {
            path: shown.join(link),
            problem: format!(
                "{problem}, where pages would not be written whole; place the tablespace in a directory below {}",
                shown.display()
            ),
        })
    };
    let Some(inside) = inside(shown, link, target) else {
        return refuse(format!("it leads to {}, outside of the mount", target.display()));
    };
    // From the top: below a link that leads away there may be anything.
    let mut parts: Vec<_> = inside.ancestors().collect();
    parts.pop();
    while let Some(part) = parts.pop() {
        let found = device.lstat(&root.join(part));
        if found.is_ok_and(|found| found.kind == FileKind::Symlink) {
            return refuse(format!(
                "it leads through {}, a symbolic link, perhaps out of the mount",
                shown.join(part).display()
            ));
        }
    }
    Ok(())
}

/// Where a link leads from the root, by its text, if that is below the root.
fn inside(root: &Path, link: &Path, target: &Path) -> Option<PathBuf> {
    let mut at = PathBuf::new();
    let dir = link.parent().unwrap_or(Path::new(""));
    for part in root.join(dir).join(target).components() {
        match part {
            Component::ParentDir => {
                at.pop();
            }
            Component::CurDir => {}
            part => at.push(part),
        }
    }
    let inside = at.strip_prefix(root).ok()?;
    (inside != Path::new("")).then(|| inside.to_owned())
}

/// Whether a line of a configuration chooses `syncfs` for the start of recovery.
fn is_syncfs(line: &str) -> bool {
    let mut words = line
        .split(|c: char| c == '=' || c == '\'' || c.is_whitespace())
        .filter(|word| !word.is_empty());
    let is_name = |word: &str| word.eq_ignore_ascii_case("recovery_init_sync_method");
    words.next().is_some_and(is_name)
        && words
            .next()
            .is_some_and(|word| word.eq_ignore_ascii_case("syncfs"))
}

#[cfg(test)]
mod tests {
    use collie_sim::SimDevice;

    use super::*;

    #[test]
    fn links_of_tablespaces_stay_inside() {
        let root = Path::new("/var/lib/pg");
        let device = SimDevice::new(1);
        device.create_dir_all(&root.join("space/deep")).unwrap();
        device.symlink(Path::new("/ssd"), &root.join("away")).unwrap();
        let check = |link: &str, target: &str| {
            check_link(&device, (root, root), Path::new(link), Path::new(target)).is_ok()
        };
        assert!(check("pg_tblspc/1", "/var/lib/pg/space"));
        assert!(check("pg_tblspc/1", "../space"));
        assert!(check("pg_tblspc/1", "../space/deep/../new"));
        assert!(!check("pg_tblspc/1", "/var/lib/pg/away"));
        assert!(!check("pg_tblspc/1", "../away/space"));
        assert!(check("pg_wal", "/elsewhere"), "the log may be anywhere");
        assert!(!check("pg_tblspc/1", "/var/lib/pg"));
        assert!(!check("pg_tblspc/1", "/var/lib/pgx/space"));
        assert!(!check("pg_tblspc/1", "/var/lib/pg/../space"));
        assert!(!check("pg_tblspc/1", "../../space"));
    }

    #[test]
    fn the_setting_is_found_as_postgresql_reads_it() {
        for line in [
            "recovery_init_sync_method = syncfs",
            "recovery_init_sync_method='syncfs' # all at once",
            "  Recovery_Init_Sync_Method syncfs",
        ] {
            assert!(is_syncfs(line), "{line}");
        }
        for line in [
            "#recovery_init_sync_method = syncfs",
            "recovery_init_sync_method = fsync\t# fsync, syncfs (Linux 5.8+)",
            "sync = syncfs",
        ] {
            assert!(!is_syncfs(line), "{line}");
        }
    }
}
