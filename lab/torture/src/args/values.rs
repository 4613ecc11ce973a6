//! Values that several commands take.

use clap::ValueEnum;
use collie_log::{Level, RingMode};

/// The durability that a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// None.
    Buffered,
    /// The write survives the death of the process.
    Process,
    /// The write survives a power cut.
    Disk,
}

impl Durability {
    pub(crate) fn level(self) -> Level {
        match self {
            Self::Buffered => Level::Buffered,
            Self::Process => Level::Process,
            Self::Disk => Level::Disk,
        }
    }
}

/// Where a ring lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ring {
    /// In shared memory (/dev/shm): its frames survive the process.
    Shared,
    /// In the process's memory.
    Private,
}

impl Ring {
    pub(crate) fn mode(self) -> RingMode {
        match self {
            Self::Shared => RingMode::default(),
            Self::Private => RingMode::Private,
        }
    }
}
