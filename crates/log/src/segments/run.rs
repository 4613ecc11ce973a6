//! Segment files as their headers describe them: those of one epoch, which segment follows which, and
//! what of each counts. Recovery, readers of the archive and followers all go by this.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::File;

use crate::Lsn;
use crate::error::{LogError, corrupt_at};
use crate::format::{LogId, Salt, SegmentHeader};

/// Segments of one epoch, without a gap.
pub(crate) trait Stretch {
    fn epoch(&self) -> u32;

    fn salt(&self) -> Salt;

    /// One past the last LSN that a frame may reach.
    fn end(&self) -> Lsn;

    /// Where the files end: beyond it nothing is searched for.
    fn data_end(&self) -> Lsn {
        self.end()
    }

    /// Where the byte at `lsn`, which lies below the end, stands; `None` where its file is gone.
    fn extent(&mut self, lsn: Lsn) -> Result<Option<Extent>, LogError>;
}

/// A part of a segment file.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) file: Arc<dyn File>,
    pub(crate) path: PathBuf,
    /// The byte of the LSN that was asked for.
    pub(crate) offset: u64,
    /// One past the last LSN that stands here.
    pub(crate) end: Lsn,
}

/// A segment file with a good header.
#[derive(Debug, Clone)]
pub(crate) struct SegmentFile {
    pub(crate) header: SegmentHeader,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    /// Length of the file: what lies beyond reads as zeros.
    pub(crate) len: u64,
}

impl SegmentFile {
    pub(crate) fn number(&self) -> u64 {
        self.header.number.get()
    }

    pub(crate) fn first_lsn(&self) -> Lsn {
        self.header.first_lsn.get()
    }

    /// Where the file's data ends: its capacity, or what is left of it.
    pub(crate) fn data_end(&self) -> Lsn {
        self.header
            .end()
            .min(self.first_lsn() + self.len.saturating_sub(self.header.data_at()))
    }

    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        self.header.data_at() + (lsn - self.first_lsn())
    }

    /// Where its data must have ended, at least, when the frames reached up to `lsn`, which lies in
    /// it; `None` where the file is that long, or need not be.
    ///
    /// A header that does not begin an epoch is written together with the file's zeros: after a power
    /// cut it may be there without them, and then no frame is.
    fn cut_short(&self, lsn: Lsn, is_followed: bool) -> Option<Lsn> {
        if lsn == self.first_lsn() && !self.header.begins_epoch() {
            return None;
        }
        let least = self.header.prepared_to(lsn)?;
        // The next segment is begun when this one is whole.
        let least = if is_followed { self.header.end() } else { least };
        (self.data_end() < least && lsn < least).then_some(least)
    }
}

/// The segments of one epoch, without a gap.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) segments: Vec<SegmentFile>,
}

impl Run {
    /// A run has at least one segment.
    pub(crate) fn head(&self) -> Option<&SegmentHeader> {
        self.segments.first().map(|s| &s.header)
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.head().map_or(0, |h| h.epoch.get())
    }

    pub(crate) fn salt(&self) -> Salt {
        Salt(self.head().map_or(0, |h| h.salt.get()))
    }

    pub(crate) fn first_lsn(&self) -> Lsn {
        self.head().map_or(0, |h| h.first_lsn.get())
    }

    pub(crate) fn end(&self) -> Lsn {
        self.segments.last().map_or(0, |s| s.header.end())
    }

    /// Whether the epoch's first segment is there, so that a frame starts at its first byte.
    pub(crate) fn is_whole(&self) -> bool {
        self.head().is_some_and(SegmentHeader::begins_epoch)
    }

    /// Where its first frame begins. Segments before the one that says it were being released.
    ///
    /// # Errors
    /// The segment that said it is not there any more, nor what comes before the others.
    pub(crate) fn beginning(&self) -> Result<RunBeginning, LogError> {
        let known = self.segments.iter().find_map(|s| s.header.first_frame());
        match (known, self.segments.first()) {
            (Some(lsn), _) => Ok(RunBeginning::Known(lsn)),
            (None, Some(first)) if !first.header.is_one_block() => Err(LogError::BeginningUnknown {
                path: first.path.clone(),
                lsn: first.first_lsn(),
                why: format!(
                    "segment {:016x}, which comes before it, is not there or damaged",
                    first.number() - 1
                ),
            }),
            _ => Ok(RunBeginning::Unrecorded),
        }
    }

    /// The segment that holds `lsn`, where its file is shorter than it was when the frames reached up
    /// to there, and up to where it must have gone at least.
    pub(crate) fn cut_short(&self, lsn: Lsn) -> Option<(&SegmentFile, Lsn)> {
        let at = self.segments.partition_point(|s| s.header.end() <= lsn);
        let segment = self.segments.get(at).filter(|s| s.first_lsn() <= lsn)?;
        let is_followed = self.segments.len() > at + 1;
        segment.cut_short(lsn, is_followed).map(|to| (segment, to))
    }

    /// Where the epoch before ends.
    pub(crate) fn predecessor_end(&self) -> Lsn {
        self.head().map_or(0, |h| h.predecessor_end.get())
    }

    /// What recovery had copied forward was durable before the header that says so.
    pub(crate) fn copied_end(&self) -> Lsn {
        if self.is_whole() {
            self.head().map_or(0, |h| h.copied_end.get())
        } else {
            0
        }
    }
}

impl Stretch for &Run {
    fn epoch(&self) -> u32 {
        Run::epoch(self)
    }

    fn salt(&self) -> Salt {
        Run::salt(self)
    }

    fn end(&self) -> Lsn {
        Run::end(self)
    }

    fn data_end(&self) -> Lsn {
        self.segments.last().map_or(0, SegmentFile::data_end)
    }

    fn extent(&mut self, lsn: Lsn) -> Result<Option<Extent>, LogError> {
        let at = self.segments.partition_point(|s| s.header.end() <= lsn);
        let holder = self.segments.get(at).filter(|s| s.first_lsn() <= lsn);
        Ok(holder.map(|segment| Extent {
            file: Arc::clone(&segment.file),
            path: segment.path.clone(),
            offset: segment.offset(lsn),
            end: segment.header.end(),
        }))
    }
}

/// Where a run's first frame begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunBeginning {
    Known(Lsn),
    /// Formats 1 and 2 do not say it.
    Unrecorded,
}

/// Segments by epoch.
#[derive(Debug, Default)]
pub(crate) struct Linked {
    /// The epochs in force, oldest first, without what a later one took over.
    pub(crate) runs: Vec<Run>,
    /// What a later epoch took over wholly.
    pub(crate) superseded: Vec<SegmentFile>,
    /// Segments of epochs that never came into force.
    pub(crate) not_in_force: Vec<SegmentFile>,
}

/// Splits the segments of the log `log_id`, sorted by number, into epochs, and refuses gaps.
///
/// An epoch is in force once its first segment has its header; only the oldest one's first segment
/// may have been released.
pub(crate) fn link(
    log_id: [u8; 16],
    segments: impl IntoIterator<Item = SegmentFile>,
) -> Result<Linked, LogError> {
    let mut runs: Vec<Run> = Vec::new();
    for segment in segments {
        // Which of them are in the wrong place is for a person to say.
        check_log_id(&segment.header, log_id, &segment.path)?;
        match runs.last_mut() {
            Some(run) if run.epoch() == segment.header.epoch.get() => run.segments.push(segment),
            Some(run) if run.epoch() > segment.header.epoch.get() => {
                let expected = format!("epoch {} or later", run.epoch());
                let found = format!("epoch {}", segment.header.epoch);
                return Err(corrupt_at(
                    &segment.path,
                    64,
                    segment.first_lsn(),
                    expected,
                    found,
                ));
            }
            _ => runs.push(Run {
                segments: vec![segment],
            }),
        }
    }
    let (mut linked, mut taken_over_at) = (Linked::default(), Lsn::MAX);
    for (at, mut run) in runs.into_iter().enumerate().rev() {
        if at > 0 && !run.is_whole() {
            // A recovery that was interrupted. (Where damage took the header, the epoch before ends
            // too early, or later frames prove it: see `recovery/scan.rs`.)
            linked.not_in_force.extend(run.segments);
            continue;
        }
        let predecessor_end = run.predecessor_end();
        let superseded = run.segments.extract_if(.., |s| s.first_lsn() >= taken_over_at);
        linked.superseded.extend(superseded);
        check_gaps(&run)?;
        taken_over_at = taken_over_at.min(predecessor_end);
        if !run.segments.is_empty() {
            linked.runs.push(run);
        }
    }
    linked.runs.reverse();
    Ok(linked)
}

/// What counts of one segment, which may be archived.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) header: SegmentHeader,
    /// One past the last LSN that counts here: what fits, or where the next epoch takes over.
    pub(crate) end: Lsn,
    pub(crate) path: PathBuf,
    /// None of an archived one: it is opened when it is read, and may be gone by then.
    pub(crate) file: Option<Arc<dyn File>>,
}

impl Piece {
    pub(crate) fn start(&self) -> Lsn {
        self.header.first_lsn.get()
    }

    /// Where the file's data ends: its header may claim more. Of one that is not open it is not
    /// known.
    pub(crate) fn data_end(&self) -> Lsn {
        let stat = self.file.as_ref().and_then(|file| file.stat().ok());
        let len = stat.map_or(u64::MAX, |stat| stat.len);
        let data = len.saturating_sub(self.header.data_at());
        self.end.min(self.start().saturating_add(data))
    }

    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        self.header.data_at() + (lsn - self.start())
    }
}

impl Linked {
    /// What counts, in order and without overlaps. Between two epochs there may be a gap.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let ends = self.runs.iter().skip(1).map(Run::predecessor_end);
        let runs = self.runs.iter().zip(ends.chain([Lsn::MAX]));
        let pieces = runs.flat_map(|(run, end)| {
            run.segments.iter().map(move |segment| Piece {
                header: segment.header,
                end: segment.header.end().min(end),
                path: segment.path.clone(),
                file: Some(Arc::clone(&segment.file)),
            })
        });
        pieces.collect()
    }
}

/// The archived segments that lead up to the segment with the header `next`, oldest first: from the
/// one that holds `from` on where there is one, else from the oldest that is there without a gap.
/// `header_of` gives `None` for a file that is gone.
///
/// They are read from the newest to the oldest: an archive may be long, and a reader of its newest
/// part needs none of the others.
pub(crate) fn leading_to(
    next: &SegmentHeader,
    from: Lsn,
    newest_first: impl IntoIterator<Item = (u64, PathBuf)>,
    mut header_of: impl FnMut(u64, &Path) -> Result<Option<SegmentHeader>, LogError>,
) -> Result<VecDeque<Piece>, LogError> {
    let mut found = VecDeque::new();
    let (mut next, mut taken_over_at) = (*next, Lsn::MAX);
    for (number, path) in newest_first {
        if next.first_lsn.get() <= from {
            break;
        }
        // A segment that was archived since its successor's header was read, or that a crash left
        // in both places.
        if number >= next.number.get() {
            continue;
        }
        let Some(header) = header_of(number, &path)? else {
            break;
        };
        check_archived(&header, number, &path, &next)?;
        if header.epoch != next.epoch {
            taken_over_at = taken_over_at.min(next.predecessor_end.get());
        }
        if header.first_lsn.get() >= taken_over_at {
            continue;
        }
        if !goes_on(&header, &next) {
            break;
        }
        found.push_front(Piece {
            header,
            end: header.end().min(taken_over_at),
            path,
            file: None,
        });
        next = header;
    }
    Ok(found)
}

/// Whether nothing is missing between `lsn` and a segment: it holds it, or begins an epoch above
/// the end of the one before, which `lsn` has reached.
pub(crate) fn is_reached_from(segment: &SegmentHeader, lsn: Lsn) -> bool {
    segment.first_lsn.get() <= lsn || segment.begins_epoch() && lsn >= segment.predecessor_end.get()
}

/// Whether nothing is missing between two segments.
pub(crate) fn goes_on(older: &SegmentHeader, newer: &SegmentHeader) -> bool {
    if older.epoch == newer.epoch {
        older.number.get() + 1 == newer.number.get() && older.end() == newer.first_lsn.get()
    } else {
        older.epoch < newer.epoch && newer.begins_epoch() && older.end() >= newer.predecessor_end.get()
    }
}

fn check_gaps(run: &Run) -> Result<(), LogError> {
    for pair in run.segments.windows(2) {
        let [a, b] = pair else { continue };
        if !goes_on(&a.header, &b.header) {
            let expected = format!("segment {} with LSN {}", a.number() + 1, a.header.end());
            let found = format!("segment {} with LSN {}", b.number(), b.first_lsn());
            return Err(corrupt_at(&b.path, 0, b.first_lsn(), expected, found));
        }
    }
    Ok(())
}

fn check_log_id(header: &SegmentHeader, log_id: [u8; 16], path: &Path) -> Result<(), LogError> {
    if header.log_id == log_id {
        return Ok(());
    }
    Err(LogError::LogIdMismatch {
        path: path.to_owned(),
        expected: LogId(log_id),
        found: LogId(header.log_id),
    })
}

/// Refuses what no archiving of this log put there.
fn check_archived(
    header: &SegmentHeader,
    number: u64,
    path: &Path,
    next: &SegmentHeader,
) -> Result<(), LogError> {
    check_log_id(header, next.log_id, path)?;
    if header.number == number {
        return Ok(());
    }
    let expected = format!("the header of segment {number}");
    let found = format!("that of segment {}", header.number);
    Err(corrupt_at(path, 0, header.first_lsn.get(), expected, found))
}
