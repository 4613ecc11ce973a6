//! Values that several commands take.

use std::path::Path;

use clap::ValueEnum;
use collie_log::RingMode;
use collie_server::Ack;
use serde::{Deserialize, Serialize};

/// The durability that a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Durability {
    /// None.
    Buffered,
    /// The write survives the death of the process.
    Process,
    /// The write survives a power cut.
    Disk,
}

impl Durability {
    pub(crate) fn ack(self) -> Ack {
        match self {
            Self::Buffered => Ack::Buffered,
            Self::Process => Ack::Process,
            Self::Disk => Ack::Disk,
        }
    }
}

/// Where a ring lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ring {
    /// In shared memory (/dev/shm): its frames survive the process.
    Shared,
    /// In the process's memory.
    Private,
}

impl Ring {
    /// With the directory of a shared ring.
    pub(crate) fn mode_in(self, dir: &Path) -> RingMode {
        match self {
            Self::Shared => RingMode::Shared {
                dir: dir.to_path_buf(),
            },
            Self::Private => RingMode::Private,
        }
    }
}
