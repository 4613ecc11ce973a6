//! What a file is called: by its users, and in the records of the log.

use std::path::{Path, PathBuf};

use super::PageFile;
use crate::disk::record::FileId;

/// Where a file is, from the volume's root. Records hold paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    /// It has this name, which a crash may take unless it is durable.
    Known { path: PathBuf, is_durable: bool },
    /// It had this name, and may have others, by none of which it was opened yet: no record can be
    /// written before one is found.
    Lost(PathBuf),
    /// This was its last name: it writes no more records but that of its removal.
    Unlinked(PathBuf),
}

/// The state of a file in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Nothing: the file at home is all of it, and behind its committed end are zeros at most.
    Plain,
    /// Its committed end, and which pages are displaced, if any are.
    Mapped(FileId),
}

/// What a file's records are written with.
#[derive(Debug)]
pub(crate) struct Committer {
    pub(crate) mapping: Mapping,
}

impl Name {
    /// A name of which it is not known whether it is durable: that of a new file, or of one that
    /// another process may have made and not synced.
    pub(crate) fn new(path: &Path) -> Name {
        Name::Known {
            path: path.to_owned(),
            is_durable: false,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Name::Known { path, .. } | Name::Lost(path) | Name::Unlinked(path) => path,
        }
    }
}

/// A name that is known or unlinked changes only under `committer`, so that a commit under way can
/// rely on it.
impl PageFile {
    pub(crate) fn name(&self) -> Name {
        self.name.lock().clone()
    }

    pub(crate) fn is_unlinked(&self) -> bool {
        matches!(*self.name.lock(), Name::Unlinked(_))
    }

    /// Its name as it is called in errors.
    pub(super) fn path(&self) -> PathBuf {
        self.shared.root.join(self.name.lock().path())
    }

    /// It was opened by this name. Waits for no commit.
    pub(crate) fn opened_as(&self, path: &Path) {
        let mut name = self.name.lock();
        if matches!(*name, Name::Lost(_)) {
            *name = Name::new(path);
        }
    }

    /// It has this name from here on, which a crash may take.
    pub(crate) fn renamed(&self, _committer: &Committer, path: &Path) {
        *self.name.lock() = Name::new(path);
    }

    /// Its name is durable.
    pub(super) fn named_for_good(&self, _committer: &Committer) {
        if let Name::Known { is_durable, .. } = &mut *self.name.lock() {
            *is_durable = true;
        }
    }

    /// One of its names, though not the last, was removed.
    pub(crate) fn lost_name(&self, _committer: &Committer, path: &Path) {
        let mut name = self.name.lock();
        if name.path() == path {
            *name = Name::Lost(path.to_owned());
        }
    }

    /// Its last name was removed.
    pub(crate) fn unlinked(&self, _committer: &Committer, path: &Path) {
        *self.name.lock() = Name::Unlinked(path.to_owned());
    }
}
