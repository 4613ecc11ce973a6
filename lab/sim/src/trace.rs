//! What was asked of a simulated device.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of collie-io that has its name")]
pub enum OpKind {
    Open,
    Create,
    Stat,
    List,
    CreateDir,
    Symlink,
    HardLink,
    /// A change of mode, owner or times.
    SetAttributes,
    Rename,
    RemoveFile,
    RemoveDir,
    SyncDir,
    BootId,
    Random,
    Read,
    Write,
    /// A write through [`OpenMode::DirectSync`](collie_io::OpenMode::DirectSync).
    DirectWrite,
    /// A sync of a file, with its data alone or with all else.
    SyncData,
    SyncRange,
    SetLen,
    Allocate,
    FileStat,
    Lock,
    Map,
}

impl OpKind {
    /// Whether a crash right after it can leave something else than a crash right before it.
    #[must_use]
    pub fn mutates(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::CreateDir
                | Self::Symlink
                | Self::HardLink
                | Self::SetAttributes
                | Self::Rename
                | Self::RemoveFile
                | Self::RemoveDir
                | Self::Write
                | Self::SetLen
                | Self::Allocate
        ) || self.syncs()
    }

    /// Whether it makes something durable.
    #[must_use]
    pub fn syncs(self) -> bool {
        matches!(self, Self::SyncDir | Self::SyncData | Self::DirectWrite)
    }
}

/// One operation on the trace.
#[derive(Debug, Clone)]
pub struct Op {
    /// Its number; the first operation of a device is 1.
    pub number: u64,
    /// What it does.
    pub kind: OpKind,
    /// The file or directory, by the name that it was opened with; for a renaming or a hard
    /// link the old name.
    pub path: Arc<PathBuf>,
    /// First byte read or written; the length for those that set one; 0 otherwise.
    pub offset: u64,
    /// Bytes read or written; 0 otherwise.
    pub len: u64,
    /// Whether it was refused or made to fail.
    pub failed: bool,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>6} {:?} {} {}+{}",
            self.number,
            self.kind,
            self.path.display(),
            self.offset,
            self.len
        )?;
        if self.failed {
            f.write_str(" FAILED")?;
        }
        Ok(())
    }
}
