//! What an earlier process left, and how the log goes on from it.
//!
//! Recovery reads (`chain`, `scan`, `old_ring`), decides by a table (`decide`), and then never appends to
//! what it found: a reopened file may show pages that a failed sync has lost, a dead process's last write
//! may still land, and behind a cut the old epoch's bytes survive. It copies everything past the last
//! promise into a fresh segment under a new epoch (`carry`), whose header, written and synced last, makes
//! the copy count. Interrupted anywhere before that, it starts over and comes to the same end.

mod carry;
mod chain;
mod decide;
mod lock;
mod new_ring;
mod old_ring;
mod scan;

use std::path::{Path, PathBuf};

use collie_io::Device;

use crate::Lsn;
use crate::core::Opened;
use crate::error::LogError;
use crate::options::{LogId, LogOptions};

pub(crate) use chain::Chain;
pub(crate) use lock::{CUT_SUFFIX, DirLock};
pub(crate) use new_ring::{keep_aside, leave_spent};
pub(crate) use old_ring::{OldRing, open as find_ring};
pub(crate) use scan::{Seen, walk};

/// What became of the ring of the process before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingOutcome {
    /// There was none to look for: a fresh log, or one whose ring was private.
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
        /// The machine has not been restarted since: something removed the file, and what was acknowledged at
        /// [`Level::Process`](crate::Level::Process) and not yet flushed is lost.
        same_boot: bool,
    },
    /// A file is there and is not used; it was left untouched.
    Refused {
        /// Why.
        reason: String,
    },
}

/// The end of the log was not clean; nothing that was promised durable is missing.
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
    /// Where the recovered log ended and this epoch's appends began.
    pub end: Lsn,
    /// Frames that were verified, the log's own included.
    pub frames: u64,
    /// Bytes copied into the new epoch's first segment: what lay past the last promise.
    pub carried_bytes: u64,
    /// Where the log was cut, if something incomplete stood at its end.
    pub torn: Option<TornTail>,
    /// What became of the earlier ring.
    pub ring: RingOutcome,
    /// Whether this epoch's ring is shared.
    pub ring_shared: bool,
    /// Whether groups are written past the page cache.
    pub direct: bool,
    /// What somebody should know: fallbacks, and possible losses.
    pub warnings: Vec<String>,
}

/// Recovers the log in `dir` and begins a new epoch. The directory's lock is held by the caller.
pub(crate) fn recover(dir: &Path, options: LogOptions, lock: DirLock) -> Result<Opened, LogError> {
    let device = std::sync::Arc::clone(&options.device);
    let device: &dyn Device = &*device;
    let chain = Chain::load(device, dir)?;
    let found = LogId(chain.log_id);
    if let Some(expected) = options.log_id.filter(|id| !chain.is_empty() && *id != found) {
        return Err(LogError::OtherLog {
            path: dir.to_owned(),
            expected,
            found,
        });
    }
    if chain.is_empty() {
        chain.refuse_frames_without_header()?;
        if let Some(wanted) = options.resume_at {
            return Err(LogError::Missing {
                path: dir.to_owned(),
                wanted,
                oldest: 0,
                end: 0,
            });
        }
        return carry::begin_first(dir, options, chain, lock);
    }
    if options.resume_at.is_none() {
        chain.refuse_damaged_beginning()?;
    }
    let ring = find_ring(device, dir, &chain)?;
    let found = walk(&chain, &ring, options.resume_at, &mut |_| {})?;
    carry::carry_on(dir, options, chain, ring, found, lock)
}
