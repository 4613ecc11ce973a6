//! Inspecting a closed log, and truncating it: what `collie log dump | verify | repair` do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::Device;

use super::chain::Chain;
use super::directory::DirLock;
use super::old_ring::{self, OldRing};
use super::report::{RingOutcome, TornTail, Truncation};
use super::scan::{Seen, walk};
use super::truncate;
use crate::Lsn;
use crate::append::compress;
use crate::error::{At, LogError, corrupt_at};
use crate::format::{FIRST_OWN_KIND, KIND_CLOSE, KIND_FILLER, KIND_SEAL};
use crate::segments::frames::payload_of;

/// A frame as it lies in the log.
#[derive(Debug)]
pub struct FrameView<'a> {
    /// Where it starts.
    pub lsn: Lsn,
    /// One past its last byte.
    pub end: Lsn,
    /// The epoch that wrote it.
    pub epoch: u32,
    /// Everything below was durable when it was written; 0: it records nothing.
    pub durable_mark: Lsn,
    /// Its stream.
    pub stream: u32,
    /// Its kind; from 240 on the log's own.
    pub kind: u8,
    /// Its payload, as it was appended.
    pub payload: &'a [u8],
    /// Whether it is stored compressed.
    pub compressed: bool,
    /// The segment that it starts in and the byte there; `None` for one that only the ring has.
    pub place: Option<(&'a Path, u64)>,
}

impl FrameView<'_> {
    /// The name of a kind of the log's own, `data` for all others.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            KIND_SEAL => "seal",
            KIND_CLOSE => "close",
            KIND_FILLER => "filler",
            _ if self.kind >= FIRST_OWN_KIND => "unknown",
            _ => "data",
        }
    }
}

/// An epoch's segments, as their headers say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentView {
    /// The file.
    pub path: PathBuf,
    /// Its number.
    pub number: u64,
    /// The epoch that it belongs to.
    pub epoch: u32,
    /// The LSN of its first byte of data.
    pub first_lsn: Lsn,
    /// One past the last LSN that it has room for.
    pub end: Lsn,
}

/// What inspecting a whole log found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The segments, in order.
    pub segments: Vec<SegmentView>,
    /// Files with names of segments that are not part of the log.
    pub strays: Vec<PathBuf>,
    /// Where the first whole frame starts.
    pub first_frame: Lsn,
    /// Where the log ends.
    pub end: Lsn,
    /// Everything below is known to have been durable.
    pub durable_mark: Lsn,
    /// Valid frames, the log's own included.
    pub frames: u64,
    /// What stands behind the last frame, if anything.
    pub torn: Option<TornTail>,
    /// What became of the ring.
    pub ring: RingOutcome,
}

/// Reads the whole log in `dir`, verifies it, and shows each frame to `visit`. Changes nothing, but
/// takes the directory's lock, so that no process writes meanwhile. A log's archive is read
/// likewise, and without a lock: nothing is written to it. It may begin and end in mid-frame, and
/// lose its oldest segments meanwhile. Whether segments are missing at its end is known from the
/// log that it lies in; of a copy that lies elsewhere it is not.
///
/// # Errors
/// As [`Log::open`](crate::Log::open), without [`resume_at`](crate::LogOptions::resume_at);
/// [`LogError::Corrupt`] says where the first damage is. Where there is no log, or an archive lacks
/// an epoch's last segments, it is [`LogError::Missing`], and [`LogError::Io`] where there is no
/// directory. [`LogError::BeginningUnknown`]: of an archive whose oldest segments left it, no
/// segment says where its first frame begins, since what left it was damaged, or was archived by a
/// version that did not say it of every segment.
pub fn inspect(
    device: &Arc<dyn Device>,
    dir: &Path,
    visit: impl FnMut(FrameView<'_>),
) -> Result<Inspection, LogError> {
    match Chain::load_archive(&**device, dir) {
        Ok(chain) if !chain.is_empty() => {
            let found = inspect_chain(&**device, dir, &chain, visit);
            let found = found.map_err(|error| chain.missing_end(dir, error))?;
            chain.missing_before_log(dir).map_or(Ok(found), Err)
        }
        // The directory is there: what failed is one of its archived segments.
        Err(error) if device.list(dir).is_ok() => Err(error),
        _ => {
            let _lock = lock_existing(&**device, dir)?;
            inspect_locked(&**device, dir, visit)
        }
    }
}

/// A log's own directory, whose lock is the caller's.
fn inspect_locked(
    device: &dyn Device,
    dir: &Path,
    visit: impl FnMut(FrameView<'_>),
) -> Result<Inspection, LogError> {
    let chain = Chain::load(device, dir)?;
    if chain.is_empty() {
        return Err(LogError::Missing {
            path: dir.to_owned(),
            wanted: 0,
            oldest: 0,
            end: 0,
        });
    }
    chain.refuse_damaged_beginning()?;
    inspect_chain(device, dir, &chain, visit)
}

fn inspect_chain(
    device: &dyn Device,
    dir: &Path,
    chain: &Chain,
    mut visit: impl FnMut(FrameView<'_>),
) -> Result<Inspection, LogError> {
    let ring = old_ring::open(device, dir, chain)?;
    let mut damage = None;
    let found = walk(chain, &ring, None, false, &mut |seen| {
        let payload = match payload_of(&seen.header, seen.payload) {
            Ok(payload) => payload,
            Err(found) => {
                damage.get_or_insert_with(|| bad_payload(&seen, &ring, found));
                return Ok(());
            }
        };
        visit(FrameView {
            lsn: seen.header.lsn.get(),
            end: seen.header.end(),
            epoch: seen.header.epoch.get(),
            durable_mark: seen.header.durable_mark.get(),
            stream: seen.header.stream(),
            kind: seen.header.kind(),
            payload: &payload,
            compressed: seen.header.is_compressed(),
            place: seen
                .place
                .map(|(segment, offset)| (segment.path.as_path(), offset)),
        });
        Ok(())
    });
    // It lies before whatever else was found.
    if let Some(damage) = damage {
        return Err(damage);
    }
    let found = found?;
    let segments = chain
        .runs
        .iter()
        .flat_map(|run| &run.segments)
        .map(|s| SegmentView {
            path: s.path.clone(),
            number: s.number(),
            epoch: s.header.epoch.get(),
            first_lsn: s.first_lsn(),
            end: s.header.end(),
        });
    Ok(Inspection {
        segments: segments.collect(),
        strays: chain.strays.iter().map(|s| s.path.clone()).collect(),
        first_frame: found.first_frame,
        end: found.end,
        durable_mark: found.durable_mark,
        frames: found.frames,
        torn: found.torn,
        ring: found.ring,
    })
}

fn bad_payload(seen: &Seen<'_>, ring: &OldRing, found: String) -> LogError {
    let (path, offset) = match seen.place {
        Some((segment, offset)) => (segment.path.as_path(), offset),
        None => (ring.path().unwrap_or(Path::new("the ring")), 0),
    };
    corrupt_at(path, offset, seen.header.lsn.get(), compress::EXPECTED, found)
}

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// The damage at which the log was truncated, in words; `None`: there was none, and nothing was
    /// changed.
    pub damage: Option<String>,
    /// Where the log ends now.
    pub end: Lsn,
    /// Copies of every file that was changed or taken out, as it was before.
    pub kept: Vec<PathBuf>,
}

/// Truncates the log in `dir` at its first damage, so that it opens again **without what
/// followed**. Files that it changes or takes out are kept beside it under names that end in
/// `.cut`. Without damage it does nothing.
///
/// It truncates only where a second inspection finds damage, too, and never all that there is.
/// Where the log's beginning is not known it changes nothing.
///
/// # Errors
/// As [`inspect`], save for damage at which it truncates. Interrupted, it can be run again.
pub fn repair(device: &Arc<dyn Device>, dir: &Path) -> Result<Repair, LogError> {
    let nothing_to_do = |found: Inspection| Repair {
        damage: None,
        end: found.end,
        kept: Vec::new(),
    };
    if let Ok(found) = inspect(device, dir, |_| {}) {
        return Ok(nothing_to_do(found));
    }
    // The second inspection, whose answer counts: the lock is held from here to the end.
    let _lock = lock_existing(&**device, dir)?;
    let error = match inspect_locked(&**device, dir, |_| {}) {
        Ok(found) => return Ok(nothing_to_do(found)),
        Err(error) => error,
    };
    let Truncation { damage, lsn, kept } = truncate::truncate(&**device, dir, error)?;
    Ok(Repair {
        damage: Some(damage),
        end: lsn,
        kept,
    })
}

/// The lock of a directory that must exist.
fn lock_existing(device: &dyn Device, dir: &Path) -> Result<DirLock, LogError> {
    device.stat(dir).at("open", dir)?;
    DirLock::take(device, dir)
}
