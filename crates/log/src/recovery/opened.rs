//! The log as recovery hands it over to be appended to.

use std::path::PathBuf;

use super::lock::DirLock;
use super::report::RecoveryReport;
use crate::Lsn;
use crate::append::ring::Ring;
use crate::format::Salt;
use crate::options::LogOptions;
use crate::segments::pool::Segments;

/// What recovery hands over.
pub(crate) struct Opened {
    pub(crate) options: LogOptions,
    pub(crate) dir: PathBuf,
    pub(crate) epoch: u32,
    pub(crate) salt: Salt,
    /// Where the first append goes; everything below is durable.
    pub(crate) end: Lsn,
    /// The bytes of the last block below `end`.
    pub(crate) partial: Vec<u8>,
    pub(crate) ring: Ring,
    pub(crate) segments: Segments,
    pub(crate) report: RecoveryReport,
    pub(crate) lock: DirLock,
}
