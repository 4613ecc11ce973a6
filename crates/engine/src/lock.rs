//! One process at a time: the lock file, and the look at a directory before anything in it is touched.

use std::path::Path;
use std::sync::Arc;

use collie_io::{Device, File, OpenMode, write_all_at};

use crate::{Error, Result, manifest_file};

/// The lock file's name.
pub(crate) const FILE: &str = "LOCK";

/// What a directory is, as far as its names tell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is not there, or empty, or a creation ended before its first step was durable.
    Nothing,
    /// It has a manifest.
    Store,
}

/// Looks at `dir` without changing anything.
pub(crate) fn look(device: &dyn Device, dir: &Path) -> Result<Found> {
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
        .any(|entry| entry.name == manifest_file::FILE && !entry.is_dir)
    {
        return Ok(Found::Store);
    }
    // A store's first step is its manifest. Whatever else is here without one is not ours to touch, and a
    // log without a manifest is a store that lost it.
    // A file system that was just made has its own directory.
    let ours = [FILE, manifest_file::TEMPORARY, "lost+found"];
    match entries.iter().find(|entry| !ours.contains(&entry.name.as_str())) {
        None => Ok(Found::Nothing),
        Some(entry) => wrong(format!("{:?} and no {}", entry.name, manifest_file::FILE)),
    }
}

/// Takes the lock, until the result is dropped.
pub(crate) fn lock(device: &dyn Device, dir: &Path) -> Result<Arc<dyn File>> {
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
    // For people. On a full device there may be no room for it, and the lock is as good without.
    let told = file
        .set_len(0)
        .and_then(|()| write_all_at(&*file, pid.as_bytes(), 0));
    if let Err(error) = told {
        tracing::debug!(path = %path.display(), %error, "the lock file does not say who holds it");
    }
    Ok(file)
}

/// The pid in a lock file; its holder may be about to write it.
fn holder(file: &dyn File) -> Option<u32> {
    let mut text = [0; 16];
    let len = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(text.get(..len)?).ok()?.trim().parse().ok()
}
