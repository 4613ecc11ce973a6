//! Where trees are: in a directory for each family, in a store that this process has locked.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use collie_io::Device;

use crate::memtable::chunks::Reclaim;
use crate::recovery::store_lock::StoreLock;
use crate::tables::TreeContext;
use crate::{Error, Result};

/// The directory of the families' directories.
pub(crate) const DIRECTORY: &str = "families";

/// Where the tables of a family are in the store's directory `dir`.
pub(crate) fn directory_in(dir: &Path, id: u32) -> PathBuf {
    dir.join(DIRECTORY).join(id.to_string())
}

/// Whether there are table files in the directory of a tree.
pub(crate) fn has_files(dir: &Path, device: &dyn Device) -> Result<bool> {
    let tables = dir.join("tables");
    match device.list(&tables) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        entries => entries
            .map(|entries| !entries.is_empty())
            .map_err(|e| Error::io("list", tables, e)),
    }
}

/// What a tree is opened with. Opening one removes the tables that its manifest does not name, those
/// too that an owner is about to name: so none is opened outside of a store that is locked.
pub(crate) struct Home<'a> {
    pub(crate) lock: &'a StoreLock,
    pub(crate) shared: &'a TreeContext,
    pub(crate) device: &'a dyn Device,
    pub(crate) reclaim: Sender<Reclaim>,
}
