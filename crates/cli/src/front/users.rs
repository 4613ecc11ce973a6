//! The processes that use a mount, and its owner, by the system's `/proc`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use collie_front::MountError;
use collie_io::{Device, OpenMode, RealDevice};

/// Processes that are named; of more the number is.
const NAMED: usize = 5;

/// A small file of `/proc`, whose length is not known before it is read.
fn text(path: &Path) -> Option<String> {
    let file = RealDevice::new().open(path, OpenMode::Read).ok()?;
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 14]);
    loop {
        match file.read_at(&mut piece, bytes.len() as u64).ok()? {
            0 => return Some(String::from_utf8_lossy(&bytes).into_owned()),
            len => bytes.extend_from_slice(piece.get(..len)?),
        }
    }
}

/// The processes that have something below `dir` open, or work in it, with their names: as far as
/// this user may look. The daemon has its files below the mount open, by the same paths.
fn users(dir: &Path, daemon: u32) -> BTreeMap<u32, String> {
    let device = RealDevice::new();
    let leads_below = |link: &Path| device.read_link(link).is_ok_and(|target| target.starts_with(dir));
    let processes = device.list(Path::new("/proc")).unwrap_or_default();
    let numbers = processes
        .iter()
        .filter_map(|entry| entry.name.parse::<u32>().ok())
        .filter(|pid| *pid != daemon);
    let mut found = BTreeMap::new();
    for pid in numbers {
        let about = PathBuf::from(format!("/proc/{pid}"));
        let open = device.list(&about.join("fd")).unwrap_or_default();
        let mut links = ["cwd", "root", "exe"].into_iter().map(|name| about.join(name));
        let is_user = links.any(|link| leads_below(&link))
            || open
                .iter()
                .any(|fd| leads_below(&about.join("fd").join(&fd.name)));
        if is_user {
            let name = text(&about.join("comm")).unwrap_or_default();
            found.insert(pid, name.trim().to_owned());
        }
    }
    found
}

/// Why a mount cannot be taken away: with the processes that use it, where that is the reason.
pub(super) fn busy(dir: &Path, daemon: u32, error: MountError) -> anyhow::Error {
    let is_busy = matches!(&error, MountError::Io { source, .. } if source.kind() == ErrorKind::ResourceBusy);
    match is_busy {
        true => anyhow!("{error}; {}", usage(dir, daemon)),
        false => error.into(),
    }
}

/// Says which processes use a directory, or how to find them.
fn usage(dir: &Path, daemon: u32) -> String {
    let found = users(dir, daemon);
    if found.is_empty() {
        return format!(
            "no process that this user may look at has anything in it open; `fuser -vm {}` as root tells",
            dir.display()
        );
    }
    let named: Vec<String> = found
        .iter()
        .take(NAMED)
        .map(|(pid, name)| format!("{pid} ({name})"))
        .collect();
    let more = match found.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("in use by process {}{more}; end them first", named.join(", "))
}

/// The user whose mount is at a directory, where there is one.
pub(super) fn owner(dir: &Path) -> Option<String> {
    let uid = owner_in(&text(Path::new("/proc/self/mountinfo"))?, dir)?;
    let users = text(Path::new("/etc/passwd")).unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(uid.as_str())).then(|| name.to_owned())
    });
    Some(name.unwrap_or(format!("#{uid}")))
}

/// The number of that user, by the text of `mountinfo`. Of several mounts at a place the last one is
/// seen.
fn owner_in(mounts: &str, dir: &Path) -> Option<String> {
    mounts.lines().rev().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let at = mount.split(' ').nth(4)?.replace("\\040", " ");
        if Path::new(&at) != dir || !file_system.starts_with("fuse.collie ") {
            return None;
        }
        let options = file_system.rsplit(' ').next()?.split(',');
        options
            .filter_map(|option| option.strip_prefix("user_id="))
            .map(str::to_owned)
            .next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_mount_is_found_in_the_systems_list() {
        let mounts = "\
22 1 8:1 / / rw - ext4 /dev/vda rw
71 22 0:50 / /srv/a\\040b rw,nosuid - fuse.collie /srv/a\\040b rw,user_id=103,group_id=1,default_permissions
72 22 0:51 / /srv/c rw - fuse.other x rw,user_id=7,group_id=1
";
        assert_eq!(owner_in(mounts, Path::new("/srv/a b")).as_deref(), Some("103"));
        for other in ["/srv/c", "/srv", "/"] {
            assert_eq!(owner_in(mounts, Path::new(other)), None);
        }
    }

    #[test]
    fn a_process_with_an_open_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        assert!(usage(&at, 0).contains("fuser -vm"));
        let path = at.join("file");
        let _file = RealDevice::new().open(&path, OpenMode::CreateNew).unwrap();
        let said = usage(&at, 0);
        assert!(
            said.contains(&format!("process {} (", std::process::id())),
            "{said}"
        );
        let of_others = usage(&at, std::process::id());
        assert!(
            of_others.contains("fuser -vm"),
            "the daemon is no user: {of_others}"
        );
    }
}
