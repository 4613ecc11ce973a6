//! Directories that measurements make and remove.

use std::path::Path;

use tempfile::TempDir;

use crate::error::{At, BenchError};

/// A new directory in `parent`, removed with all in it when it is dropped or, with the error
/// returned, by [`Fresh::remove`].
pub(crate) fn fresh(parent: &Path) -> Result<Fresh, BenchError> {
    tempfile::Builder::new()
        .prefix("collie-bench-")
        .tempdir_in(parent)
        .map(Fresh)
        .at("make a directory in", parent)
}

#[derive(Debug)]
pub(crate) struct Fresh(TempDir);

impl Fresh {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn remove(self) -> Result<(), BenchError> {
        let path = self.0.path().to_owned();
        self.0.close().at("remove", &path)
    }
}
