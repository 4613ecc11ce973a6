//! What is set of a file beside its bytes: by what is open, or by its name.

use std::io;

use collie_io::File;

use super::files::Content;
use super::names::NodeId;
use super::tree::{Answer, Tree, front, system};
use crate::FrontError;
use crate::file::PageFile;

/// Attributes to be set.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attributes {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// In nanoseconds since the Unix epoch.
    pub(super) atime: Option<i64>,
    pub(super) mtime: Option<i64>,
}

impl Attributes {
    fn has_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    fn has_times(&self) -> bool {
        self.atime.is_some() || self.mtime.is_some()
    }
}

impl Tree {
    /// Sets attributes of a node, which may have no name left while it is open.
    pub(super) fn set_attributes(&self, id: NodeId, wanted: &Attributes) -> Answer<()> {
        match self.handles.of_node(id) {
            Some(Content::Pages(file)) => {
                let set = front(self.set_attributes_of_pages(&file, wanted));
                self.volume.release(file);
                set
            }
            Some(Content::Plain(file)) => system(set_attributes_in_place(&*file, wanted)),
            None => self.set_attributes_by_name(id, wanted),
        }
    }

    fn set_attributes_of_pages(&self, file: &PageFile, wanted: &Attributes) -> Result<(), FrontError> {
        if wanted.has_owner() {
            self.volume.set_owner(file, wanted.uid, wanted.gid)?;
        }
        if let Some(mode) = wanted.mode {
            self.volume.set_mode(file, mode)?;
        }
        match wanted.has_times() {
            true => self.volume.set_times(file, wanted.atime, wanted.mtime),
            false => Ok(()),
        }
    }

    fn set_attributes_by_name(&self, id: NodeId, wanted: &Attributes) -> Answer<()> {
        let _moves = self.moves.read();
        let path = self.path(id)?;
        let full = self.full(&path);
        if wanted.has_owner() {
            system(self.device.set_owner(&full, wanted.uid, wanted.gid))?;
        }
        if let Some(mode) = wanted.mode {
            system(self.device.set_mode(&full, mode))?;
        }
        if wanted.has_times() {
            let stat = system(self.device.lstat(&full))?;
            match self.volume.open_file(&stat) {
                Some(file) => front(self.volume.set_times(&file, wanted.atime, wanted.mtime))?,
                None => system(self.device.set_times(&full, wanted.atime, wanted.mtime))?,
            }
        }
        Ok(())
    }
}

fn set_attributes_in_place(file: &dyn File, wanted: &Attributes) -> io::Result<()> {
    // The owner first: the system may take set-user-id bits from the file with it.
    if wanted.has_owner() {
        file.set_owner(wanted.uid, wanted.gid)?;
    }
    if let Some(mode) = wanted.mode {
        file.set_mode(mode)?;
    }
    match wanted.has_times() {
        true => file.set_times(wanted.atime, wanted.mtime),
        false => Ok(()),
    }
}
