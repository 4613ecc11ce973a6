//! What a root's daemon created and did not live to give to the process that asked.

use std::path::{Path, PathBuf};

use collie_io::{Device, FileKind};

use super::MountError;
use crate::volume::OWN as OWN_DIR;

const ROOT_USER: u32 = 0;

/// Gives what is root's in directories below `root` that are not root's to the owner of its
/// directory, and returns how many there were: a daemon that was killed, or whose power was cut,
/// between a file's creation and its change of owner has left it like this, and the server could not
/// open it. What is directly in `root` stays whose it is: administrators put files there.
pub(super) fn give_away(device: &dyn Device, root: &Path, shown: &Path) -> Result<usize, MountError> {
    let mut given = 0;
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let failed = |e| MountError::io("look at", &shown.join(&dir))(e);
        let owner = device.lstat(&root.join(&dir)).map_err(failed)?;
        if owner.uid == ROOT_USER {
            continue;
        }
        let mut entries = Vec::new();
        let mut add = |name: &std::ffi::OsStr, kind, _| entries.push((dir.join(name), kind));
        device.read_dir(&root.join(&dir), &mut add).map_err(failed)?;
        for (path, kind) in entries {
            if path == Path::new(OWN_DIR) {
                continue;
            }
            let failed = |e| MountError::io("give away", &shown.join(&path))(e);
            let full = root.join(&path);
            // One look at each: as many as a server that starts makes.
            let is_roots = device.lstat(&full).map_err(failed)?.uid == ROOT_USER;
            if is_roots && !dir.as_os_str().is_empty() {
                device
                    .set_owner(&full, Some(owner.uid), Some(owner.gid))
                    .map_err(failed)?;
                given += 1;
            }
            if kind == FileKind::Directory {
                dirs.push(path);
            }
        }
    }
    Ok(given)
}
