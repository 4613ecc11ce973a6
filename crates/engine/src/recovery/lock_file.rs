//! One process at a time: the lock file, and the inspection of a directory before anything in it is
//! changed.

use std::path::Path;
use std::sync::Arc;

use collie_io::{Device, File, OpenMode, write_all_at};

use crate::manifest;
use crate::{Error, Result};

/// The lock file's name.
pub(crate) const FILE: &str = "LOCK";

/// What a directory holds, by the names in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It does not exist, or it is empty, or a creation was cut off before its first step was
    /// durable.
    Nothing,
    /// It has a manifest.
    Store,
}

/// Inspects `dir` without changing anything.
pub(crate) fn inspect(device: &dyn Device, dir: &Path) -> Result<Found> {
    let wrong = |found: String| {
        Err(Error::WrongDirectory {
            path: dir.into(),
            found,
        })
    };
    let entries = match device.list(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            return wrong("a file".into());
        }
        Err(e) => return Err(Error::io("list", dir, e)),
    };
    if entries
        .iter()
        .any(|entry| entry.name == manifest::file::FILE && !entry.is_dir())
    {
        return Ok(Found::Store);
    }
    // A new store writes its manifest first. Other files without a manifest are not a store's, and
    // a log without a manifest is a store that lost it. A new file system has `lost+found`.
    let ours = [FILE, manifest::file::TEMPORARY, "lost+found"];
    match entries.iter().find(|entry| !ours.contains(&entry.name.as_str())) {
        None => Ok(Found::Nothing),
        Some(entry) => wrong(format!("{:?} and no {}", entry.name, manifest::file::FILE)),
    }
}

/// The right to change a store's directory, which one process has, until the last copy is dropped.
/// Whoever opens a tree shows it ([`Home`](crate::tables::Home)): opening a tree removes the tables
/// that its manifest does not name, those too that an owner is about to name.
#[derive(Clone)]
pub(crate) struct StoreLock {
    dir: Arc<Path>,
    _file: Arc<dyn File>,
}

impl StoreLock {
    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Takes the lock.
pub(crate) fn lock(device: &dyn Device, dir: &Path) -> Result<StoreLock> {
    let path = dir.join(FILE);
    let file = device
        .open(&path, OpenMode::OpenOrCreate)
        .map_err(|e| Error::io("open", &path, e))?;
    if !file.try_lock().map_err(|e| Error::io("lock", &path, e))? {
        return Err(Error::Locked {
            pid: holder(&*file),
            path,
        });
    }
    let pid = format!("{}\n", std::process::id());
    // For people to read. On a full device there may be no room for it; the lock does not depend on
    // it.
    let written = file
        .set_len(0)
        .and_then(|()| write_all_at(&*file, pid.as_bytes(), 0));
    if let Err(error) = written {
        tracing::debug!(path = %path.display(), %error, "the lock file does not name its holder");
    }
    Ok(StoreLock {
        dir: dir.into(),
        _file: file,
    })
}

/// The pid in a lock file; `None` while its holder has not written it.
fn holder(file: &dyn File) -> Option<u32> {
    let mut text = [0; 16];
    let len = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(text.get(..len)?).ok()?.trim().parse().ok()
}
