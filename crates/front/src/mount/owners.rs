//! Files that root's daemon created and was killed before it changed their owner to that of the process
//! that requested them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, openat, statat};
use rustix::io::Errno;

use crate::error::MountError;
use crate::volume::OWN as OWN_DIR;

const ROOT_USER: u32 = 0;
const OWN_NAME: &CStr = c".collie";
/// Directories below so many are not looked into: a server makes none.
const DEPTH: usize = 16;

/// Gives what is root's in directories below `below` that are not root's to the owner of its
/// directory, and returns how many there were: a daemon that was killed, or whose power was cut,
/// between a file's creation and its change of owner has left it like this, and the server could not
/// open it. What is directly in it stays whose it is: administrators put files there.
///
/// The server's user may change names meanwhile, and root must not be led elsewhere: no path is used
/// twice, no symbolic link followed, and no file given away that has another name.
pub(super) fn give_away(below: impl AsFd, shown: &Path) -> Result<usize, MountError> {
    let dir = open_dir(below, c".").map_err(|e| MountError::io("look at", shown)(e.into()))?;
    let mut given = 0;
    walk(dir, &mut PathBuf::new(), shown, &mut given)?;
    Ok(given)
}

/// Gives `.collie`, where root has made it or files in it, to the owner of the directory: the server's
/// user may be the next to open it.
pub(super) fn give_own(below: impl AsFd, shown: &Path) -> Result<(), MountError> {
    let failed = |e: Errno| MountError::io("give away", &shown.join(OWN_DIR))(e.into());
    let dir = open_dir(below, c".").map_err(failed)?;
    let owner = fstat(&dir).map_err(failed)?;
    if owner.st_uid == ROOT_USER {
        return Ok(());
    }
    give(&dir, OWN_NAME, &owner).map_err(failed)?;
    let own = open_dir(&dir, OWN_NAME).map_err(failed)?;
    walk(own, &mut PathBuf::from(OWN_DIR), shown, &mut 0)
}

fn open_dir(at: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// One directory, whose path from the root is `path`, and those below it.
fn walk(dir: OwnedFd, path: &mut PathBuf, shown: &Path, given: &mut usize) -> Result<(), MountError> {
    let failed = |path: &Path, e: Errno| MountError::io("give away", &shown.join(path))(io::Error::from(e));
    let owner = fstat(&dir).map_err(|e| failed(path, e))?;
    if owner.st_uid == ROOT_USER {
        return Ok(());
    }
    let is_root = path.as_os_str().is_empty();
    for entry in Dir::read_from(&dir).map_err(|e| failed(path, e))? {
        let entry = entry.map_err(|e| failed(path, e))?;
        let name = entry.file_name();
        let is_own = is_root && name.to_bytes() == OWN_DIR.as_bytes();
        if matches!(name.to_bytes(), b"." | b"..") || is_own {
            continue;
        }
        path.push(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let done = (|| {
            let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            // One look at most of them: as many as a server that starts makes.
            if stat.st_uid == ROOT_USER && !is_root && give(&dir, name, &owner)? {
                *given += 1;
            }
            if is_dir(&stat) && path.components().count() < DEPTH {
                return open_dir(&dir, name).map(Some);
            }
            Ok(None)
        })();
        match done {
            Ok(Some(dir)) => walk(dir, path, shown, given)?,
            Ok(None) => {}
            // It is another one by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(e) => return Err(failed(path, e)),
        }
        path.pop();
    }
    Ok(())
}

/// Gives what has the name to the directory's owner, if it is root's and has no other name.
fn give(dir: &OwnedFd, name: &CStr, owner: &Stat) -> Result<bool, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    if stat.st_uid != ROOT_USER || !(is_dir(&stat) || stat.st_nlink == 1) {
        return Ok(false);
    }
    let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
    chownat(&file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    Ok(true)
}
