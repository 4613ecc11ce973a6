//! Finding a name of a file whose known one was removed, while it has others.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use collie_io::{FileKind, Stat};

use super::{OWN, Volume};
use crate::FrontError;
use crate::file::{Name, PageFile};

impl Volume {
    /// Finds another name of a file that has lost its known one, by a walk over the whole volume; no
    /// other name is used meanwhile. One that has none, though it may have some outside of the volume,
    /// is a removed file from then on. Does nothing where the name is known.
    pub(super) fn find_name(&self, file: &PageFile) -> Result<(), FrontError> {
        let stat = file.stat()?;
        let (moves, claim) = (self.moves.lock(), self.names.claim(&[Path::new("")]));
        let Name::Lost(lost) = file.name() else {
            return Ok(());
        };
        if let Some(path) = self.search(&stat)? {
            file.opened_as(&path);
            return Ok(());
        }
        file.unlinked(&file.committer(), &lost);
        let known = self.files.lock().open.remove(&(stat.dev, stat.ino));
        drop((moves, claim));
        known.map_or(Ok(()), |file| self.settle(&file))
    }

    /// A name of a file. Not through symbolic links, nor in the volume's own directory.
    fn search(&self, wanted: &Stat) -> Result<Option<PathBuf>, FrontError> {
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let (mut found, full) = (Vec::new(), self.path(&dir));
            let mut each = |name: &OsStr, kind: FileKind, ino: u64| {
                let path = dir.join(name);
                if kind == FileKind::Directory && path != Path::new(OWN) {
                    dirs.push(path);
                } else if kind == FileKind::File && ino == wanted.ino {
                    found.push(path);
                }
            };
            match self.shared.device.read_dir(&full, &mut each) {
                // It was removed meanwhile; or no file is opened in it.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                    ) => {}
                read => read.map_err(FrontError::io("list", &full))?,
            }
            for path in found {
                let stat = self.look_if_any(&path)?;
                if stat.is_some_and(|stat| (stat.dev, stat.ino) == (wanted.dev, wanted.ino)) {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }
}
