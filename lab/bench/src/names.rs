//! Words for options, as they stand in results and on command lines.

use collie_log::{Level, RingMode};

/// The name of a durability level.
#[must_use]
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::Buffered => "buffered",
        Level::Process => "process",
        Level::Disk => "disk",
    }
}

/// The name of a kind of ring.
#[must_use]
pub fn ring_name(ring: &RingMode) -> &'static str {
    match ring {
        RingMode::Shared { .. } => "shared",
        RingMode::Private => "private",
    }
}
