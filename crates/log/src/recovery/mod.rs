//! What an earlier process left, and how the log goes on from it.
//!
//! Recovery reads (`chain`, `scan`, `old_ring`), decides by a table (`decide`), and then never
//! appends to what it found: a reopened file may show pages that a failed sync has lost, a dead
//! process's last write may still land, and behind a truncation the old epoch's bytes survive. It
//! copies everything past the durable mark into a fresh segment under a new epoch (`new_epoch`,
//! `copy_forward`), whose header, written and synced last, makes the copy count. Interrupted
//! anywhere before that, it starts over and comes to the same end.

mod chain;
mod copy_forward;
mod damage;
mod decide;
mod directory;
pub mod inspect;
mod new_epoch;
mod new_ring;
mod old_ring;
mod report;
pub mod rings;
mod scan;
mod truncate;
mod write_path;

use std::path::Path;

use collie_io::Device;

use crate::error::{At, LogError};
use crate::format::LogId;
use crate::options::{LogOptions, OnLostRing, RecoveryMode};

use chain::Chain;
use new_epoch::History;
use old_ring::OldRing;
use scan::Found;

pub(crate) use directory::{DirLock, reserve};
pub(crate) use new_epoch::Opened;
pub(crate) use new_ring::leave_spent;
pub use report::{Damaged, Probe, RecoveryReport, RingOutcome, TornTail, Truncation};
pub(crate) use scan::Visit;

/// Recovers the log in `dir` and begins a new epoch. The directory's lock is held by the caller.
///
/// `visit` sees the frames before anything is changed, but for what is truncated to a point in time.
/// Frames that were seen before the truncation are seen again after it.
pub(crate) fn recover(
    dir: &Path,
    options: LogOptions,
    lock: DirLock,
    visit: &mut Visit<'_>,
) -> Result<Opened, LogError> {
    let device = std::sync::Arc::clone(&options.device);
    let device: &dyn Device = &*device;
    let (left, truncated) = match read(device, dir, &options, visit) {
        Err(damage @ LogError::Corrupt { .. })
            if options.recovery_mode == RecoveryMode::PointInTimeRecovery =>
        {
            let truncated = truncate_to_a_point(device, dir, &options, damage)?;
            (read(device, dir, &options, visit)?, Some(truncated))
        }
        other => (other?, None),
    };
    let history = History {
        truncated,
        set_aside: truncate::left_over(device, dir)?,
    };
    let OldLog { chain, ring, found } = left;
    let Some(found) = found else {
        return new_epoch::begin_first(dir, options, chain, history, lock);
    };
    refuse_lost_end(&chain, &found, &options)?;
    if options.recovery_mode == RecoveryMode::AbsoluteConsistency {
        refuse_unclean(dir, &ring, &found)?;
    }
    if let (RingOutcome::Gone { .. } | RingOutcome::Refused { .. }, Some(OnLostRing(lost))) =
        (&found.ring, &options.on_lost_ring)
    {
        lost(&found.ring).at("note that the ring was lost of", dir)?;
    }
    new_epoch::go_on(dir, options, chain, ring, found, history, lock)
}

/// What is there. Reading it changes nothing.
struct OldLog {
    chain: Chain,
    ring: OldRing,
    /// `None`: there is no log yet.
    found: Option<Found>,
}

fn read(
    device: &dyn Device,
    dir: &Path,
    options: &LogOptions,
    visit: &mut Visit<'_>,
) -> Result<OldLog, LogError> {
    let chain = Chain::load(device, dir)?;
    let found = LogId(chain.log_id);
    if let Some(expected) = options.log_id.filter(|id| !chain.is_empty() && *id != found) {
        return Err(LogError::LogIdMismatch {
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
        return Ok(OldLog {
            chain,
            ring: OldRing::None,
            found: None,
        });
    }
    if options.resume_at.is_none() {
        chain.refuse_damaged_beginning()?;
    }
    let ring = old_ring::open(device, dir, &chain)?;
    let passing = options.recovery_mode == RecoveryMode::SkipDamaged;
    let found = scan::walk(&chain, &ring, options.resume_at, passing, visit)?;
    Ok(OldLog {
        chain,
        ring,
        found: Some(found),
    })
}

/// Truncates the log at its first damage, unless its caller has what lies behind that in its
/// tables: those would be of a later time than the log.
fn truncate_to_a_point(
    device: &dyn Device,
    dir: &Path,
    options: &LogOptions,
    damage: LogError,
) -> Result<Truncation, LogError> {
    let needed = options.min_lsn.max(options.resume_at.unwrap_or(0));
    let nothing_left = truncate::would_leave_nothing(device, dir, &damage)?;
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
                format!("the log cannot be truncated here: the tables hold what lies below LSN {needed}")
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
        damage => truncate::truncate(device, dir, damage),
    }
}

/// Refuses a log that ends below what its caller's tables hold: they were made of what was durable,
/// so the log has lost that, and what the tables of one family hold another's may lack. To be called
/// before a new epoch lifts the end to where the tables end, since that would hide it for good.
fn refuse_lost_end(chain: &Chain, found: &Found, options: &LogOptions) -> Result<(), LogError> {
    let needed = options.min_lsn;
    if options.resume_at.is_none() || found.end >= needed {
        return Ok(());
    }
    let (path, offset) = chain.place(found.end);
    Err(LogError::Corrupt {
        path,
        offset,
        lsn: found.end,
        expected: format!(
            "a log that goes on to LSN {needed}, since tables hold what was durable up to there (bring back \
             what the log has lost, or restore all from a backup)"
        ),
        found: found
            .torn
            .as_ref()
            .map_or_else(|| "its end".to_owned(), |torn| torn.found.clone()),
    })
}

/// Refuses a log whose end is not as its last process left it.
fn refuse_unclean(dir: &Path, ring: &OldRing, found: &Found) -> Result<(), LogError> {
    if let Some(torn) = &found.torn {
        return Err(LogError::Corrupt {
            path: torn.path.clone(),
            offset: torn.offset,
            lsn: torn.lsn,
            expected: "a whole frame or the log's end (absolute consistency was asked for)".to_owned(),
            found: torn.found.clone(),
        });
    }
    let lost = match &found.ring {
        RingOutcome::Gone { same_boot: true } => Some("no file".to_owned()),
        RingOutcome::Refused { reason } if ring.is_lost() => {
            Some(format!("one that cannot be used: {reason}"))
        }
        _ => None,
    };
    if let Some(lost) = lost {
        return Err(LogError::Corrupt {
            path: dir.to_owned(),
            offset: 0,
            lsn: found.end,
            expected:
                "the ring of the process before, which ran in this boot (absolute consistency was asked for)"
                    .to_owned(),
            found: lost,
        });
    }
    Ok(())
}
