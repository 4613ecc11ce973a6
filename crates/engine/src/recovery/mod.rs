//! Opening a store: its lock file, its manifest, and the replay of its log. First the directory is
//! inspected, before anything in it is changed.

pub(crate) mod open;
pub(crate) mod replay;
pub(crate) mod store_lock;

use std::path::Path;

use collie_io::Device;

use crate::{Error, Result, manifest};

/// What a directory holds, by the names in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectoryContent {
    /// It does not exist, or it is empty, or a creation was cut off before its first step was
    /// durable.
    Nothing,
    /// It has a manifest.
    Store,
}

/// Inspects `dir` without changing anything.
pub(crate) fn inspect(device: &dyn Device, dir: &Path) -> Result<DirectoryContent> {
    let wrong = |found: String| {
        Err(Error::WrongDirectory {
            path: dir.into(),
            found,
        })
    };
    let entries = match device.list(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(DirectoryContent::Nothing),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            return wrong("a file".into());
        }
        Err(e) => return Err(Error::io("list", dir, e)),
    };
    if entries
        .iter()
        .any(|entry| entry.name == manifest::file::FILE && !entry.is_dir())
    {
        return Ok(DirectoryContent::Store);
    }
    // A new store writes its manifest first. Other files without a manifest are not a store's, and
    // a log without a manifest is a store that lost it. A new file system has `lost+found`.
    let ours = [store_lock::FILE, manifest::file::TEMPORARY, "lost+found"];
    match entries.iter().find(|entry| !ours.contains(&entry.name.as_str())) {
        None => Ok(DirectoryContent::Nothing),
        Some(entry) => wrong(format!("{:?} and no {}", entry.name, manifest::file::FILE)),
    }
}
