//! Linking the files of a tree to another directory.
//!
//! Table files are never written again once they are part of a tree, and a tree removes its own
//! names of them, so two directories may share them. The two small files that say which tables there
//! are belong to one tree each, and are copied.

use std::path::Path;

use collie_io::{Device, OpenMode, write_all_at};
use lsm_tree::AbstractTree;

use crate::tables::current::{named_version, read_file, version_file};
use crate::tables::{Tables, verified};
use crate::{Error, Result};

/// The directory of the table files in a tree's.
const TABLES: &str = "tables";

impl Tables {
    /// Links the newest version to `to`, which holds nothing, durably. The caller keeps flushes out.
    pub(crate) fn link(&self, to: &Path, device: &dyn Device) -> Result<()> {
        let from = &self.dir.path;
        // Its tables stay as long as it lives, compactions or not.
        let (version, small) = {
            let locked = self.version_lock.lock();
            let _locked = locked.map_err(|poisoned| Error::Background {
                cause: poisoned.cause,
            })?;
            (self.tree.current_version(), SmallFiles::read(from, device)?)
        };
        let tables = version.iter_tables().map(|table| table.id().to_string());
        link_tables(from, to, tables, false, device)?;
        reach!("tables are linked");
        small.write(to, device)
    }
}

/// Links all files of the tree in `from`, which is not open, to `to`, which holds nothing, and makes
/// them durable.
pub(crate) fn link_closed(from: &Path, to: &Path, device: &dyn Device) -> Result<()> {
    let small = SmallFiles::read(from, device)?;
    let listed = from.join(TABLES);
    let entries = device.list(&listed).map_err(|e| Error::io("list", &listed, e))?;
    link_tables(
        from,
        to,
        entries.into_iter().map(|entry| entry.name),
        true,
        device,
    )?;
    reach!("staged tables are linked");
    small.write(to, device)
}

fn link_tables(
    from: &Path,
    to: &Path,
    names: impl Iterator<Item = String>,
    sync: bool,
    device: &dyn Device,
) -> Result<()> {
    let (from, to) = (from.join(TABLES), to.join(TABLES));
    device
        .create_dir_all(&to)
        .map_err(|e| Error::io("create", &to, e))?;
    for name in names {
        let (old, new) = (from.join(&name), to.join(&name));
        if sync {
            // The process that brought it here may not have done so.
            device
                .open(&old, OpenMode::Read)
                .and_then(|file| file.sync_data())
                .map_err(|e| Error::io("sync", &old, e))?;
        }
        device
            .hard_link(&old, &new)
            .map_err(|e| Error::io("link the table file to", &new, e))?;
    }
    device.sync_dir(&to).map_err(|e| Error::io("sync", &to, e))
}

/// `current`, the file of the version that it names, and what is known of the tables.
struct SmallFiles {
    current: Vec<u8>,
    version: (String, Vec<u8>),
    verified: Option<Vec<u8>>,
}

impl SmallFiles {
    fn read(dir: &Path, device: &dyn Device) -> Result<Self> {
        let current = read_file(device, &dir.join("current"))?;
        let (number, _) = named_version(dir, &current)?;
        let name = version_file(number);
        let version = read_file(device, &dir.join(&name))?;
        Ok(Self {
            current,
            version: (name, version),
            // Without it they are read whole when they are opened.
            verified: read_file(device, &dir.join(verified::FILE)).ok(),
        })
    }

    fn write(&self, dir: &Path, device: &dyn Device) -> Result<()> {
        let (name, version) = &self.version;
        let verified = self.verified.iter().map(|bytes| (verified::FILE, bytes));
        for (name, bytes) in verified.chain([(name.as_str(), version), ("current", &self.current)]) {
            let path = dir.join(name);
            device
                .open(&path, OpenMode::CreateNew)
                .and_then(|file| {
                    write_all_at(&*file, bytes, 0)?;
                    file.sync_data()
                })
                .map_err(|e| Error::io("write", &path, e))?;
        }
        device.sync_dir(dir).map_err(|e| Error::io("sync", dir, e))
    }
}
