//! What an earlier process left, and how the log goes on from it.
//!
//! Recovery reads (`chain`, `scan`, `old_ring`), decides by a table (`decide`), and then never appends to
//! what it found: a reopened file may show pages that a failed sync has lost, a dead process's last write
//! may still land, and behind a cut the old epoch's bytes survive. It copies everything past the last
//! promise into a fresh segment under a new epoch (`carry`), whose header, written and synced last, makes
//! the copy count. Interrupted anywhere before that, it starts over and comes to the same end.

mod carry;
mod chain;
mod cut;
mod decide;
mod frames;
mod lock;
mod new_ring;
mod old_ring;
mod scan;
mod write_path;

use std::path::{Path, PathBuf};

use collie_io::Device;

use scan::Found;

use crate::Lsn;
use crate::core::Opened;
use crate::error::LogError;
use crate::options::{LogId, LogOptions, RecoveryMode};

pub(crate) use carry::READY;
pub(crate) use chain::{Chain, read_header, read_or_zeros};
pub use cut::Cut;
pub(crate) use cut::cut;
pub(crate) use lock::{DirLock, RESERVE};
pub(crate) use new_ring::{keep_aside, leave_spent};
pub(crate) use old_ring::{OldRing, open as find_ring};
pub(crate) use scan::{Seen, walk};
pub use write_path::Probe;

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

/// The end of the log was not clean. No frame and no header that is left tells that what is missing there was durable.
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
    /// What this open cut from the log, [`RecoveryMode::PointInTimeRecovery`].
    pub cut: Option<Cut>,
    /// Files in the log's directory that hold what was cut from it, by this open or before.
    pub set_aside: Vec<PathBuf>,
    /// What became of the earlier ring.
    pub ring: RingOutcome,
    /// Whether this epoch's ring is shared.
    pub ring_shared: bool,
    /// Whether groups are written past the page cache.
    pub direct: bool,
    /// How many writes may be under way at once.
    pub writes_in_flight: usize,
    /// What was measured to choose these, [`WritePath::Auto`](crate::WritePath::Auto).
    pub probe: Option<Probe>,
    /// What somebody should know: fallbacks, and possible losses.
    pub warnings: Vec<String>,
}

/// Recovers the log in `dir` and begins a new epoch. The directory's lock is held by the caller.
pub(crate) fn recover(dir: &Path, options: LogOptions, lock: DirLock) -> Result<Opened, LogError> {
    let device = std::sync::Arc::clone(&options.device);
    let device: &dyn Device = &*device;
    let (left, cut) = match read(device, dir, &options) {
        Err(damage @ LogError::Corrupt { .. })
            if options.recovery_mode == RecoveryMode::PointInTimeRecovery =>
        {
            let cut = cut_to_a_point(device, dir, &options, damage)?;
            (read(device, dir, &options)?, Some(cut))
        }
        other => (other?, None),
    };
    let history = History {
        cut,
        set_aside: cut::left_over(device, dir)?,
    };
    let Left { chain, ring, found } = left;
    let Some(found) = found else {
        return carry::begin_first(dir, options, chain, history, lock);
    };
    if options.recovery_mode == RecoveryMode::AbsoluteConsistency {
        refuse_unclean(dir, &found)?;
    }
    carry::carry_on(dir, options, chain, ring, found, history, lock)
}

/// What was cut from the log, by this open and before it.
pub(crate) struct History {
    pub(crate) cut: Option<Cut>,
    pub(crate) set_aside: Vec<PathBuf>,
}

/// What is there. Reading it changes nothing.
struct Left {
    chain: Chain,
    ring: OldRing,
    /// `None`: there is no log yet.
    found: Option<Found>,
}

fn read(device: &dyn Device, dir: &Path, options: &LogOptions) -> Result<Left, LogError> {
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
        return Ok(Left {
            chain,
            ring: OldRing::None,
            found: None,
        });
    }
    if options.resume_at.is_none() {
        chain.refuse_damaged_beginning()?;
    }
    let ring = find_ring(device, dir, &chain)?;
    let found = walk(&chain, &ring, options.resume_at, &mut |_| {})?;
    Ok(Left {
        chain,
        ring,
        found: Some(found),
    })
}

/// Cuts the log at its first damage, unless its caller has what lies behind that in its tables: those would
/// be of a later time than the log.
fn cut_to_a_point(
    device: &dyn Device,
    dir: &Path,
    options: &LogOptions,
    damage: LogError,
) -> Result<Cut, LogError> {
    let needed = options.min_lsn.max(options.resume_at.unwrap_or(0));
    let nothing_left = cut::would_leave_nothing(device, dir, &damage)?;
    match damage {
        LogError::Corrupt {
            path,
            offset,
            lsn,
            expected,
            found,
        } if lsn < needed || nothing_left => {
            let why = if nothing_left {
                "there is no point in time before the damage to go back to".to_owned()
            } else {
                format!("the log cannot be cut here: the tables hold what lies below LSN {needed}")
            };
            let expected = format!("{expected} ({why})");
            Err(LogError::Corrupt {
                path,
                offset,
                lsn,
                expected,
                found,
            })
        }
        damage => cut(device, dir, damage),
    }
}

/// Refuses a log whose end is not as its last process left it.
fn refuse_unclean(dir: &Path, found: &Found) -> Result<(), LogError> {
    if let Some(torn) = &found.torn {
        return Err(LogError::Corrupt {
            path: torn.path.clone(),
            offset: torn.offset,
            lsn: torn.lsn,
            expected: "a whole frame or the log's end (absolute consistency was asked for)".to_owned(),
            found: torn.found.clone(),
        });
    }
    if let RingOutcome::Gone { same_boot: true } = found.ring {
        return Err(LogError::Corrupt {
            path: dir.to_owned(),
            offset: 0,
            lsn: found.end,
            expected:
                "the ring of the process before, which ran in this boot (absolute consistency was asked for)"
                    .to_owned(),
            found: "no file".to_owned(),
        });
    }
    Ok(())
}
