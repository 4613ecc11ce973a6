//! The errors of the page map and of the mount: where, what was expected and what was found.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_log::LogError;

/// An error of the page map. Cheap to clone: a poisoned one gives every caller its first cause.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FrontError {
    /// A call of the device failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The device's error.
        source: Arc<io::Error>,
    },
    /// The log refused, or failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Another process, or another [`Volume`](crate::Volume) in this one, has the directory open.
    #[error("{} is in use by another process; close it there first", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// What is stored contradicts itself.
    #[error("{}: {found}; expected {expected}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: String,
        /// What is.
        found: String,
    },
    /// The directory was made with other settings, or its files are not those of the map.
    #[error("{}: {problem}", path.display())]
    Mismatch {
        /// The directory.
        path: PathBuf,
        /// What does not match, and what can be done.
        problem: String,
    },
    /// A file would become longer than the map can number its pages. Nothing was written.
    #[error("{} would end at byte {end}, beyond the largest file, of 2^32 pages", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Where it would end.
        end: u64,
    },
    /// The shadow file has no room for a page, and no displaced page could be brought home.
    #[error("the shadow file {} is full: all of its {slots} pages are in use", path.display())]
    ShadowFull {
        /// The shadow file.
        path: PathBuf,
        /// Its size in pages.
        slots: u32,
    },
    /// An earlier write or sync failed: what was written since the last commit may be lost. Reads
    /// go on. Final for this file, or for the volume, until it is opened again.
    #[error("{} takes no more writes after an earlier failure: {cause}", path.display())]
    Poisoned {
        /// The file, or the volume's directory.
        path: PathBuf,
        /// The failure.
        cause: Box<FrontError>,
    },
}

impl FrontError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FrontError {
        let path = path.to_owned();
        move |source| FrontError::Io {
            action,
            path,
            source: Arc::new(source),
        }
    }

    /// Whether the reason is that too many files are open.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        self.system().is_some_and(collie_io::is_out_of_descriptors)
    }

    /// The system's error that it comes from.
    pub(crate) fn system(&self) -> Option<&io::Error> {
        match self {
            FrontError::Io { source, .. } => Some(source),
            FrontError::Log(LogError::Unprepared { cause, .. }) => match &**cause {
                LogError::Io { source, .. } => Some(source),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the reason is that the device has no room left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            FrontError::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                )
            }
            FrontError::Log(error) => matches!(error, LogError::StorageFull { .. }),
            FrontError::ShadowFull { .. } => true,
            _ => false,
        }
    }
}

/// Why a directory cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory cannot be mounted as it is; with what to do.
    #[error("{}: {problem}", path.display())]
    Refused {
        /// The directory, or the file in it that is the reason.
        path: PathBuf,
        /// What is wrong, and what can be done.
        problem: String,
    },
    /// The page map refused, or failed.
    #[error(transparent)]
    Front(#[from] FrontError),
}

impl MountError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MountError {
        let path = path.to_owned();
        move |source| MountError::Io { action, path, source }
    }
}
