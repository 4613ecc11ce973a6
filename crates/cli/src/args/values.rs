//! Values that several commands take.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use collie_log::{Level, RingMode};
use collie_server::Ack;
use serde::{Deserialize, Serialize};

/// What a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Durability {
    /// Nothing.
    Buffered,
    /// That it survives the death of the process.
    Process,
    /// That it survives a power cut.
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
    /// In shared memory (/dev/shm): what was written survives the process.
    Shared,
    /// In the process.
    Private,
}

impl Ring {
    pub(crate) fn mode(self) -> RingMode {
        match self {
            Self::Shared => RingMode::default(),
            Self::Private => RingMode::Private,
        }
    }

    /// As [`mode`](Self::mode), with the directory of a shared one.
    pub(crate) fn mode_in(self, dir: &Path) -> RingMode {
        match self {
            Self::Shared => RingMode::Shared {
                dir: dir.to_path_buf(),
            },
            Self::Private => RingMode::Private,
        }
    }
}

pub(super) fn seconds(flag: &str, seconds: f64) -> anyhow::Result<Duration> {
    ensure!(
        seconds > 0.0 && seconds <= 86_400.0,
        "{flag}: {seconds} is not a number of seconds above 0 and up to a day"
    );
    Ok(Duration::from_secs_f64(seconds))
}
