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
    /// What a measurement needs is not there.
    #[error("{what}")]
    Missing {
        /// What, and what to do.
        what: String,
    },
    /// A program failed, or a server ended.
    #[error("{program}: {said}")]
    Program {
        /// Which.
        program: String,
        /// How it ended, and what it said.
        said: String,
    },
    /// A program's output is not what it is known to be.
    #[error("{place}: expected {expected}, found: {found}")]
    Output {
        /// Where.
        place: String,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A plot cannot be drawn.
    #[error("cannot draw {}: {cause}", path.display())]
    Plot {
        /// Its file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Interrupted,
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
