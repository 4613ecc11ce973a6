//! The segment files of one epoch, as their headers describe them.

use std::path::PathBuf;
use std::sync::Arc;

use collie_io::File;

use crate::Lsn;
use crate::error::LogError;
use crate::format::{Salt, SegmentHeader};
use crate::segments::frames::{Extent, Stretch};

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
