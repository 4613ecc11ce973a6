//! What can go wrong in a measurement.

use std::io;
use std::path::{Path, PathBuf};

use collie_log::LogError;

/// Why a measurement has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store failed.
    #[error(transparent)]
    Db(#[from] collie_db::Error),
    /// A file of a baseline failed.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A baseline stopped after an earlier failure.
    #[error("the baseline stopped: {cause}")]
    Stopped {
        /// The first failure.
        cause: String,
    },
    /// What was committed is not what is there: a bug of the store, or of the measurement.
    #[error("what is there is not what was committed: {what}")]
    Inconsistent {
        /// Where, what was expected and what was found.
        what: String,
    },
    /// An option is out of its range, or two contradict each other.
    #[error("{option}: {problem}")]
    Options {
        /// Its name.
        option: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A measuring thread panicked.
    #[error("a measuring thread panicked")]
    Panicked,
}

/// Says what was tried where, for errors of the seam.
pub(crate) trait At<T> {
    fn at(self, op: &'static str, path: &Path) -> Result<T, BenchError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, op: &'static str, path: &Path) -> Result<T, BenchError> {
        self.map_err(|source| BenchError::Io {
            op,
            path: path.to_owned(),
            source,
        })
    }
}
