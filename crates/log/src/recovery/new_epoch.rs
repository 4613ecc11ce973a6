//! How the log goes on: in a new epoch, with a copy of everything past the durable mark.
//!
//! Order: the new ring exists; the copied frames are synced in fresh segments, and so is every old
//! segment that the log still relies on; then the header of the epoch's first segment is written
//! and synced, which names the new ring and records where the old epoch ends. From there on the new
//! epoch is the log. Only then does the old ring go, and what the new epoch took over.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chain::Chain;
use super::copy_forward::NewEpoch;
use super::directory::DirLock;
use super::new_ring::{NewRing, remove_rings};
use super::old_ring::OldRing;
use super::report::{RecoveryReport, RingOutcome, Truncation};
use super::scan::{CopyPiece, CopySource, Found};
use super::write_path::{self, Chosen};
use crate::Lsn;
use crate::append::ring::Ring;
use crate::error::{At, LogError};
use crate::flush::writer::filler_len;
use crate::format::{BLOCK, LogId, Salt};
use crate::options::{FIRST_LSN, LogOptions};
use crate::segments::archive::Archive;
use crate::segments::files::{Directory, remove_for_good, rewrite};
use crate::segments::pool::Segments;
use crate::segments::run::Run;
use crate::segments::segment::{Segment, in_use};

/// What was truncated from the log, by this open and before it.
pub(crate) struct History {
    pub(crate) truncated: Option<Truncation>,
    pub(crate) set_aside: Vec<PathBuf>,
}

/// The log as recovery hands it over, to be appended to.
pub(crate) struct Opened {
    pub(crate) options: LogOptions,
    pub(crate) dir: PathBuf,
    pub(crate) epoch: u32,
    pub(crate) salt: Salt,
    /// Where the first append goes; everything below is durable.
    pub(crate) end: Lsn,
    /// The bytes of the last block below `end`.
    pub(crate) partial: Vec<u8>,
    pub(crate) ring: Ring,
    pub(crate) segments: Segments,
    pub(crate) report: RecoveryReport,
    pub(crate) lock: DirLock,
}

/// A fresh log: nothing to copy forward.
pub(crate) fn begin_first(
    dir: &Path,
    options: LogOptions,
    mut chain: Chain,
    history: History,
    lock: DirLock,
) -> Result<Opened, LogError> {
    match options.log_id {
        Some(LogId(id)) => chain.log_id = id,
        None => options
            .device
            .random(&mut chain.log_id)
            .at("get random bytes for", dir)?,
    }
    let start = FIRST_LSN.max(options.min_lsn);
    let found = Found {
        first_frame: start,
        end: start,
        durable_mark: start,
        past_mark: VecDeque::new(),
        frames: 0,
        beginnings: Vec::new(),
        torn: None,
        damaged: Vec::new(),
        mended: None,
        ring: RingOutcome::None,
    };
    go_on(dir, options, chain, OldRing::None, found, history, lock)
}

/// Goes on from what the walk found.
pub(crate) fn go_on(
    dir: &Path,
    options: LogOptions,
    chain: Chain,
    old: OldRing,
    found: Found,
    history: History,
    lock: DirLock,
) -> Result<Opened, LogError> {
    let device = Arc::clone(&options.device);
    let mut warnings = losses(&found, &history);
    // They proved nothing, and on a full device they are in the way.
    let strays = chain.strays.iter();
    let strays: Vec<_> = strays.map(|s| (s.path.clone(), Arc::clone(&s.file))).collect();
    let directory = Directory::open(&device, dir)?;
    remove_for_good(&directory, &strays)?;
    let mut live = old_segments(&chain, &found);
    rely_on(&chain, &live)?;
    // An opening that died before it could do so left them; on a full device they would be in the
    // way of the next epoch.
    remove_for_good(&directory, &chain.superseded)?;
    shorten(&chain, &live);

    let mut epoch = NewEpoch {
        device: &*device,
        dir,
        directory: &directory,
        options: &options,
        log_id: chain.log_id,
        number: chain.max_number,
        epoch: chain.max_epoch,
        unfinished: Vec::new(),
    };
    // Tables that are ahead of the log (it ran without one for a while): the LSNs go on above them.
    // The copy then has an epoch of its own, which ends where it ends.
    let mut end = options.min_lsn.max(found.end);
    let (taken_over_at, mut found) = (found.durable_mark, found);
    if end > found.end && !chain.is_empty() {
        let copied = epoch.begin(&chain, &old, &found, None, found.durable_mark)?;
        live.extend(copied.segments);
        live.iter_mut().for_each(|s| end_at(s, found.end));
        (found.durable_mark, found.past_mark) = (found.end, VecDeque::new());
    }
    let first_lsn = if chain.is_empty() || end > found.end {
        end
    } else {
        found.durable_mark
    };
    if options.pad_to_block && end > first_lsn {
        end = pad(&mut found, first_lsn);
    }
    let ring = NewRing::make(&epoch.home(), end, &mut warnings)?;
    let mut last = match epoch.begin(&chain, &old, &found, Some(&ring), first_lsn) {
        Ok(last) => last,
        Err(error) => {
            // Whether the header is on the device is unknown once its write was tried: then the
            // files stay, and the next open decides.
            if epoch.give_up() {
                ring.remove(&*device);
            }
            return Err(error);
        }
    };

    // The new epoch counts. An error from here on is mended by the next open.
    tidy(&directory, &chain, taken_over_at, &mut warnings)?;
    let archive = Archive::open(dir, &options, &mut warnings)?;
    remove_rings(&epoch.home(), &chain, &old, &found.ring, &ring, &mut warnings);
    // With a private ring `Process` means a write call, which must not wait for the device.
    let shared = ring.ring.file.is_some();
    let Chosen { direct, probe } = if shared {
        write_path::choose(&options, &mut last.segments, &last.spare, &mut warnings)?
    } else {
        Chosen::cached()
    };
    let template = last.template;
    live.extend(last.segments);
    let report = RecoveryReport {
        log_id: LogId(chain.log_id),
        epoch: epoch.epoch,
        first_frame: if found.frames > 0 { found.first_frame } else { end },
        end,
        frames: found.frames,
        copied_bytes: last.copied,
        torn: found.torn,
        damaged: found.damaged,
        truncated: history.truncated,
        set_aside: history.set_aside,
        ring: found.ring,
        ring_shared: ring.ring.file.is_some(),
        direct,
        probe,
        warnings,
    };
    for warning in &report.warnings {
        tracing::warn!(dir = %dir.display(), "{warning}");
    }
    let live = live.into_iter().map(Arc::new).collect();
    let epoch = epoch.epoch;
    let segments = Segments::new(
        Arc::clone(&device),
        directory,
        template,
        live,
        last.ready,
        archive,
    )?;
    Ok(Opened {
        dir: dir.to_owned(),
        epoch,
        salt: Salt(template.salt.get()),
        end,
        partial: last.partial,
        ring: ring.ring,
        segments,
        report,
        lock,
        options,
    })
}

/// The warnings for the user.
fn losses(found: &Found, history: &History) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(truncated) = &history.truncated {
        warnings.push(format!(
            "the log was truncated at LSN {}, and what followed is lost to it: {}",
            truncated.lsn, truncated.damage
        ));
    }
    for path in &history.set_aside {
        warnings.push(format!(
            "{} holds what was truncated from the log; remove it when it is not needed any more",
            path.display()
        ));
    }
    if let Some(torn) = &found.torn {
        let (path, offset) = (torn.path.display(), torn.offset);
        warnings.push(format!(
            "the log was truncated in {path} at byte {offset} (LSN {}), where it held {}",
            torn.lsn, torn.found
        ));
    }
    for damaged in &found.damaged {
        let (path, offset) = (damaged.path.display(), damaged.offset);
        warnings.push(format!(
            "{path} is damaged at byte {offset} (LSN {}), and what was durable from there to LSN {} is lost: {}",
            damaged.from, damaged.to, damaged.why
        ));
    }
    if let Some(mended) = &found.mended {
        let (path, offset) = (mended.path.display(), mended.offset);
        warnings.push(format!(
            "{path} is damaged at byte {offset} (LSN {}), where it holds {}; the ring had all from there on, and \
             nothing is lost",
            mended.lsn, mended.found
        ));
    }
    match &found.ring {
        RingOutcome::Gone { same_boot: true } => warnings.push(
            "the ring of the process before is gone although the machine was not restarted: what was acknowledged at \
             the process level and not yet flushed may be lost"
                .to_owned(),
        ),
        RingOutcome::Refused { reason } => warnings.push(format!("the ring of the process before was not used: {reason}")),
        _ => {}
    }
    warnings
}

/// The old epochs' segments as parts of the open log, each ending where the next epoch begins.
fn old_segments(chain: &Chain, found: &Found) -> Vec<Segment> {
    let (mut live, durable_mark) = (Vec::new(), found.durable_mark);
    for (at, run) in chain.runs.iter().enumerate() {
        let end = chain.runs.get(at + 1).map_or(durable_mark, Run::predecessor_end);
        for file in run.segments.iter().filter(|s| s.first_lsn() < end) {
            let mut segment = in_use(&file.header, file.path.clone(), Arc::clone(&file.file), None);
            if let Some((_, lsn)) = found
                .beginnings
                .iter()
                .find(|(number, _)| *number == segment.number)
            {
                segment.beginning.set_lsn(*lsn);
            }
            end_at(&mut segment, end);
            live.push(segment);
        }
    }
    live
}

/// Has the copy that begins at `first_lsn`, a block's beginning, end with a block: what is appended
/// begins in another one. Returns the end.
fn pad(found: &mut Found, first_lsn: Lsn) -> Lsn {
    let start = found.end;
    found.end += filler_len(start - first_lsn);
    if found.end > start {
        found.past_mark.push_back(CopyPiece {
            start,
            end: found.end,
            source: CopySource::Hole,
        });
    }
    found.end
}

/// Gives back the room behind where a later epoch took over, as `tidy` does for the one that begins
/// now.
fn shorten(chain: &Chain, live: &[Segment]) {
    let newest = chain.last().and_then(|run| run.segments.first());
    for segment in live {
        let len = segment.offset(segment.end).next_multiple_of(BLOCK as u64);
        let is_older = newest.is_some_and(|newest| segment.epoch < newest.header.epoch.get());
        if is_older && segment.file.stat().is_ok_and(|stat| stat.len > len) {
            // Where it cannot be shortened it takes more room than it needs, and is released with
            // the others.
            let _ = segment.file.set_len(len);
        }
    }
}

fn end_at(segment: &mut Segment, end: Lsn) {
    segment.meta.end = segment.end.min(end);
    segment.meta.reusable = false;
}

/// Makes durable what the log goes on to rely on: a reopened file may show pages that are not on
/// the device. Nor need the newest epoch's own header be there: an open whose last sync failed has
/// left it in the page cache, clean. Writing it again, as it is, dirties it.
fn rely_on(chain: &Chain, live: &[Segment]) -> Result<(), LogError> {
    if let Some(first) = chain
        .last()
        .filter(|run| run.is_whole())
        .and_then(|run| run.segments.first())
    {
        rewrite(&*first.file, &first.path, &first.header)?;
    }
    live.iter()
        .try_for_each(|s| s.file.sync_data().at("sync", &s.path))
}

/// Removes what this epoch took over, for good: if it came back after its successors are released,
/// it would pass for the log.
fn tidy(
    dir: &Directory,
    chain: &Chain,
    durable_mark: Lsn,
    warnings: &mut Vec<String>,
) -> Result<(), LogError> {
    let mut taken_over = Vec::new();
    for segment in chain.last().iter().flat_map(|run| run.segments.iter().rev()) {
        if segment.first_lsn() >= durable_mark {
            taken_over.push((segment.path.clone(), Arc::clone(&segment.file)));
        } else if segment.data_end() > durable_mark {
            let len = segment.offset(durable_mark).next_multiple_of(BLOCK as u64);
            if let Err(error) = segment.file.set_len(len) {
                // It takes more room than it needs, and is released with the others.
                warnings.push(format!("cannot shorten {}: {error}", segment.path.display()));
            }
        }
    }
    remove_for_good(dir, &taken_over)
}
