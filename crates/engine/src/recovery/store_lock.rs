//! One process at a time has a store: the lock file.

use std::path::Path;
use std::sync::Arc;

use collie_io::{Device, File, OpenMode, write_all_at};

use crate::{Error, Result};

/// The lock file's name.
pub(crate) const FILE: &str = "LOCK";

/// The right to change a store's directory, which one process has, until the last copy is dropped.
/// No tree is opened without it.
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
