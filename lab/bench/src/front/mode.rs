//! What is compared.

use serde::Serialize;

/// A way to run the same server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrontMode {
    /// As PostgreSQL is installed: full pages go to the WAL.
    Default,
    /// The same, the full pages compressed with LZ4.
    Compressed,
    /// Without full pages, on the same file system: not safe, for reference.
    Off,
    /// Without them, on btrfs.
    Btrfs,
    /// Without them, on Collie's mount.
    Collie,
}

impl FrontMode {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Default,
        Self::Compressed,
        Self::Off,
        Self::Btrfs,
        Self::Collie,
    ];

    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Compressed => "compressed",
            Self::Off => "off",
            Self::Btrfs => "btrfs",
            Self::Collie => "collie",
        }
    }

    pub(super) fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Default => &["full_page_writes=on"],
            Self::Compressed => &["full_page_writes=on", "wal_compression=lz4"],
            Self::Off | Self::Btrfs | Self::Collie => &["full_page_writes=off"],
        }
    }
}
