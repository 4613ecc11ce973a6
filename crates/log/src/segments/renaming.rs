//! Renamings of segment files, which count once their directories are synced.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use collie_io::Device;

use crate::error::{At, LogError};
use crate::lockfree::sync::{Mutex, lock};

/// Renames files one at a time. After a sync that failed the device may have the old name for good,
/// and show it once the power was gone; what followed the file is released by then, so that the old
/// one would have a gap behind it. So a renaming that cannot be synced is undone before anything else
/// is done: what comes next, in this process or another one, finds the file under its old name.
/// Where undoing it fails too, it is tried again, and a process that dies meanwhile leaves the file
/// under the new name, by which the next open knows it.
#[derive(Debug, Default)]
pub(crate) struct Renaming {
    /// The old and the new name of what is to be undone.
    to_undo: Mutex<Option<(PathBuf, PathBuf)>>,
}

impl Renaming {
    /// Renames `old` to `new` for good; `sync` syncs the directories. A failure leaves the old name,
    /// or has it restored before the next renaming.
    pub(crate) fn rename(
        &self,
        device: &dyn Device,
        old: &Path,
        new: &Path,
        sync: impl FnOnce() -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.undo(device)?;
        device.rename(old, new).at("rename", old)?;
        sync().inspect_err(|_| self.give_back(device, old, new))
    }

    /// Gives `old` its name back, now or later.
    pub(crate) fn give_back(&self, device: &dyn Device, old: &Path, new: &Path) {
        *lock(&self.to_undo) = Some((old.to_owned(), new.to_owned()));
        if let Err(error) = self.undo(device) {
            tracing::warn!(path = %new.display(), %error, "cannot rename it back; it is tried again");
        }
    }

    /// Undoes what could not be undone before.
    pub(crate) fn undo(&self, device: &dyn Device) -> Result<(), LogError> {
        let mut to_undo = lock(&self.to_undo);
        if let Some((old, new)) = &*to_undo {
            match device.rename(new, old) {
                // It was removed by hand.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                renamed => renamed.at("rename", new)?,
            }
        }
        *to_undo = None;
        Ok(())
    }
}
