//! Where trees are: in a directory for each family, in a store that this process has locked; and
//! what all trees of a store share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use collie_io::{Device, Scheduler};
use lsm_tree::{AbstractTree, Cache, DescriptorTable, GlobalTableId, Tree};

use crate::external_journal::ExternalJournal;
use crate::memtable::chunks::Reclaim;
use crate::recovery::store_lock::StoreLock;
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

pub(crate) type TableResult<T> = std::result::Result<T, lsm_tree::Error>;

/// What all trees of a store share.
pub(crate) struct TreeContext {
    pub(crate) cache: Arc<Cache>,
    pub(crate) descriptors: Arc<DescriptorTable>,
    pub(crate) scheduler: Arc<Scheduler>,
    /// Set when the store closes: running compactions end early.
    pub(crate) stop: Arc<AtomicBool>,
    /// Set while the device is full and the reserve is given up: compactions that do not make room end
    /// early.
    pub(crate) short: Arc<AtomicBool>,
    /// What says which rows merges remove, where there is such.
    pub(crate) journal: Option<Arc<dyn ExternalJournal>>,
}

/// A family's directory. Where the family was dropped, the last user removes the directory.
pub(crate) struct TreeDir {
    pub(super) path: PathBuf,
    pub(super) dropped: Arc<AtomicBool>,
    pub(super) reclaim: Sender<Reclaim>,
    pub(super) tree: Tree,
    pub(super) descriptors: Arc<DescriptorTable>,
}

impl Drop for TreeDir {
    fn drop(&mut self) {
        // The table library closes only those of tables that a merge has replaced. What is open takes
        // its space also when it is removed.
        for table in self.tree.current_version().iter_tables() {
            self.descriptors
                .remove_for_table(&GlobalTableId::from((self.tree.id(), table.id())));
        }
        if self.dropped.load(Ordering::Relaxed) {
            // Where the receiver is gone, the next open removes the directory: the manifest does
            // not name its id.
            drop(
                self.reclaim
                    .send(Reclaim::Directory(std::mem::take(&mut self.path))),
            );
        }
    }
}
