//! What recovery found and did.

use std::path::PathBuf;

use collie_io::Nanos;

use crate::Lsn;
use crate::format::LogId;

/// What became of the ring of the process before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingOutcome {
    /// None was expected: a fresh log, or one whose ring was private.
    None,
    /// The log was closed; its ring held nothing more.
    Closed,
    /// It was found, and what it held beyond the segments was recovered.
    Recovered {
        /// Frames that only the ring had.
        frames: u64,
        /// Places reserved by a dead process and never filled. Nothing acknowledged was in them.
        holes: u64,
    },
    /// It is not there any more.
    Gone {
        /// The machine has not been restarted since: something removed the file, and what was
        /// acknowledged at [`Level::Process`](crate::Level::Process) and not yet flushed is lost.
        same_boot: bool,
    },
    /// A file is there and is not used. It was left untouched or, where it belonged to this log,
    /// renamed, which a warning says.
    Refused {
        /// Why.
        reason: String,
    },
}

/// The end of the log was not clean. No frame that is left shows that what is missing there was
/// durable. It may have been where `found` is the end of a file that was once longer: something other
/// than the log has cut that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The segment in which the log ends.
    pub path: PathBuf,
    /// The byte in it from which on there is no frame.
    pub offset: u64,
    /// The same place as an LSN.
    pub lsn: Lsn,
    /// What is there instead.
    pub found: String,
}

/// A part of the log that was durable and is damaged, and that an opening passed over:
/// [`RecoveryMode::SkipDamaged`](crate::RecoveryMode::SkipDamaged). The frames in it are lost. How
/// many there were is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damaged {
    /// The segment in which it begins.
    pub path: PathBuf,
    /// The byte in it where it begins.
    pub offset: u64,
    /// The LSN of the frame that should begin there.
    pub from: Lsn,
    /// Where the next good frame begins, or an epoch takes over, or the log ends.
    pub to: Lsn,
    /// What is expected there, and what is found.
    pub why: String,
}

/// What [`Log::open`](crate::Log::open) found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Which log it is.
    pub log_id: LogId,
    /// The epoch that began with this open; 1 for a fresh log.
    pub epoch: u32,
    /// Where the first whole frame in the log starts.
    pub first_frame: Lsn,
    /// Where the recovered log ended and this epoch's appends began. With
    /// [`LogOptions::pad_to_block`](crate::LogOptions::pad_to_block) the log is filled up to there,
    /// so that this may lie above what was lost.
    pub end: Lsn,
    /// Frames that were verified, the log's own included.
    pub frames: u64,
    /// Bytes copied into the new epoch's first segment: what lay past the durable mark.
    pub copied_bytes: u64,
    /// Where the log was truncated, if something incomplete stood at its end.
    pub torn: Option<TornTail>,
    /// The damaged parts that were passed over, lowest first; none but in
    /// [`RecoveryMode::SkipDamaged`](crate::RecoveryMode::SkipDamaged). They are found again by each
    /// opening, as long as the segments are there that they lie in.
    pub damaged: Vec<Damaged>,
    /// What this open truncated,
    /// [`RecoveryMode::PointInTimeRecovery`](crate::RecoveryMode::PointInTimeRecovery).
    pub truncated: Option<Truncation>,
    /// Files in the log's directory that hold what was truncated from it, by this open or before.
    pub set_aside: Vec<PathBuf>,
    /// What became of the earlier ring.
    pub ring: RingOutcome,
    /// Whether this epoch's ring is shared.
    pub ring_shared: bool,
    /// Whether groups are written past the page cache.
    pub direct: bool,
    /// What was measured to choose that, [`WritePath::Auto`](crate::WritePath::Auto).
    pub probe: Option<Probe>,
    /// Fallbacks, and possible losses.
    pub warnings: Vec<String>,
}

impl RecoveryReport {
    /// The damaged part that was passed over in which `lsn` lies.
    pub(crate) fn damaged_at(&self, lsn: Lsn) -> Option<&Damaged> {
        let at = self.damaged.partition_point(|damaged| damaged.to <= lsn);
        self.damaged.get(at).filter(|damaged| damaged.from <= lsn)
    }
}

/// What was truncated from a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Truncation {
    /// The damage at which it was truncated, in words.
    pub damage: String,
    /// Where the log ends since.
    pub lsn: Lsn,
    /// Copies of every file that was changed or taken out, as it was before.
    pub kept: Vec<PathBuf>,
}

/// The fastest write of a block that was durable when it ended, each way, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Past the page cache.
    pub direct_ns: Nanos,
    /// To the page cache, and `fdatasync`.
    pub fdatasync_ns: Nanos,
}

impl Probe {
    /// Past the page cache a commit takes one call, and through it two: these must be clearly faster
    /// to be chosen.
    pub(crate) fn prefers_sync(self) -> bool {
        self.fdatasync_ns < self.direct_ns / 5 * 4
    }
}
