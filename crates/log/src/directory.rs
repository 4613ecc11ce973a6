//! The log's directory, open for as long as the log is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, Dir};

use crate::error::{At, LogError};

/// A directory whose names can be synced when no further file can be opened.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    device: Arc<dyn Device>,
    path: PathBuf,
    open: Arc<dyn Dir>,
}

impl Directory {
    pub(crate) fn open(device: &Arc<dyn Device>, path: &Path) -> Result<Self, LogError> {
        Ok(Self {
            device: Arc::clone(device),
            path: path.to_owned(),
            open: device.open_dir(path).at("open", path)?,
        })
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes its names durable.
    pub(crate) fn sync(&self) -> Result<(), LogError> {
        self.open.sync().at("sync", &self.path)
    }
}
