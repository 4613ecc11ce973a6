//! Reading durable frames back from the segments, also while the log is being written: in order, or
//! one by its LSN.

use std::sync::Arc;

use crate::append::compress;
use crate::core::Core;
use crate::error::{LogError, corrupt_at};
use crate::format::{ALIGN, FrameHeader, Salt};
use crate::lockfree::sync::lock;
use crate::read::source::{Source, missing};
use crate::segments::frames::{Window, given};
use crate::segments::run::{Extent, Stretch};
use crate::segments::segment::Segment;
use crate::{Frame, Lsn};

/// How much [`get`] reads at first, in bytes: a header and a small payload. A larger frame takes a second
/// read.
const FIRST_READ: usize = 4 << 10;

/// What [`get`] expects, for errors.
const EXPECTED: &str = "a frame of the log's user, which begins at this LSN";

/// Durable frames in order, up to what was durable when the reader was made.
///
/// It keeps what it has yet to read from being released, under the name `reader/…`. While it is in
/// the archive ([`LogOptions::archive_ttl`](crate::LogOptions::archive_ttl)) it retains nothing:
/// segments may leave the archive before they are read, and then it ends with
/// [`LogError::Missing`]. One that is being read is read to its end.
#[derive(Debug)]
pub struct Reader {
    core: Arc<Core>,
    /// How its retention is named.
    holder: Holder,
    /// None as long as it reads the archive.
    retention: Option<Retention>,
    source: Source,
    segment: Option<Arc<Segment>>,
    next: Lsn,
    /// Everything below is durable and may be read.
    end: Lsn,
    window: Window,
    failed: bool,
}

impl Reader {
    /// A reader of what is durable now, from `from` on.
    pub(crate) fn start(core: &Arc<Core>, holder: Holder, from: Lsn) -> Result<Self, LogError> {
        core.check_process()?;
        let end = core.durable();
        let mut reader = Self {
            core: Arc::clone(core),
            holder,
            retention: None,
            source: Source::default(),
            segment: None,
            next: from,
            end,
            window: Window::default(),
            failed: false,
        };
        reader.retain_what_is_live();
        if from > end {
            return Err(LogError::Missing {
                path: core.dir.clone(),
                wanted: from,
                oldest: core.segments.oldest(),
                end,
            });
        }
        if reader.retention.is_none() {
            reader.enter_segment()?;
        }
        Ok(reader)
    }

    /// Where the next frame starts.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.next
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// How far it may read.
    pub(crate) fn end(&self) -> Lsn {
        self.end
    }

    /// Goes on to what is durable now; `false` where that is no more than before.
    pub(crate) fn extend(&mut self) -> bool {
        let durable = self.core.durable();
        let more = durable > self.end;
        self.end = self.end.max(durable);
        more
    }

    /// The next frame of the log's user below the end.
    pub(crate) fn read(&mut self) -> Result<Option<Frame>, LogError> {
        self.core.check_process()?;
        loop {
            if self.next >= self.end {
                return Ok(None);
            }
            self.enter_segment()?;
            let Some(segment) = self.segment.clone() else {
                return Ok(None);
            };
            if self.next < segment.first_lsn {
                // An epoch may begin above the end of the one before.
                self.next = segment.first_lsn;
                self.retain_what_is_live();
                continue;
            }
            let at = self.next;
            if let Some(damaged) = self.core.opening.report.damaged_at(at) {
                self.next = damaged.to;
                self.advance();
                continue;
            }
            let durable = DurableStretch {
                core: &self.core,
                source: &mut self.source,
                segment: &segment,
                end: self.end,
            };
            let (header, payload) = match self.window.frame(durable, at)? {
                Ok(frame) => frame,
                Err(bad) => {
                    return Err(corrupt(&segment, at, "a frame, below the durable end", bad));
                }
            };
            let frame =
                given(&header, payload).map_err(|found| corrupt(&segment, at, compress::EXPECTED, found))?;
            self.next = header.end();
            self.advance();
            if frame.is_some() {
                return Ok(frame);
            }
        }
    }

    /// What lies before the next frame need not be retained any more.
    fn advance(&mut self) {
        if let Some(retention) = &mut self.retention {
            retention.advance(self.next);
        }
    }

    fn enter_segment(&mut self) -> Result<(), LogError> {
        if self.segment.as_ref().is_none_or(|s| s.end <= self.next) {
            self.retain_what_is_live();
            self.source.pass(self.next);
            self.segment = self.source.at_or_after(&self.core, self.next)?;
        }
        Ok(())
    }

    /// Retains the log from the next frame on, once that is not in the archive.
    fn retain_what_is_live(&mut self) {
        let is_live = |next| next >= self.core.segments.oldest();
        if self.retention.is_some() || !is_live(self.next) {
            return;
        }
        let retention = Retention::take(&self.core, self.next, &self.holder);
        // Checked again once it is registered: a release that missed it has happened by now.
        self.retention = is_live(self.next).then_some(retention);
    }
}

/// What is durable, from a segment on. The window knows bytes by their LSN: that the next epoch's
/// are among those that it read in advance does no harm.
pub(super) struct DurableStretch<'a> {
    pub(super) core: &'a Core,
    pub(super) source: &'a mut Source,
    pub(super) segment: &'a Segment,
    pub(super) end: Lsn,
}

impl Stretch for DurableStretch<'_> {
    fn epoch(&self) -> u32 {
        self.segment.epoch
    }

    fn salt(&self) -> Salt {
        Salt(self.segment.salt)
    }

    fn end(&self) -> Lsn {
        self.end
    }

    fn extent(&mut self, lsn: Lsn) -> Result<Option<Extent>, LogError> {
        let segment = self.source.at_or_after(self.core, lsn)?;
        Ok(segment.filter(|s| s.first_lsn <= lsn).map(|segment| Extent {
            file: Arc::clone(&segment.file),
            path: segment.path.clone(),
            offset: segment.offset(lsn),
            end: segment.end,
        }))
    }
}

pub(super) fn corrupt(
    segment: &Segment,
    lsn: Lsn,
    expected: &str,
    found: impl std::fmt::Display,
) -> LogError {
    corrupt_at(&segment.path, segment.offset(lsn), lsn, expected, found)
}

impl Iterator for Reader {
    type Item = Result<Frame, LogError>;

    /// The next frame, [`LogError::Io`], or [`LogError::Corrupt`] where there is another thing than
    /// what was written. After an error there is none.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let result = self.read();
        self.failed = result.is_err();
        result.transpose()
    }
}

/// One frame by its LSN, without a reader: the place of its segment is known, so no more is read than
/// the frame.
pub(crate) fn get(core: &Core, lsn: Lsn) -> Result<Frame, LogError> {
    core.check_process()?;
    if core.has_ended() {
        // The directory may be another log's by now.
        return Err(LogError::Closed);
    }
    let mut moved = None;
    loop {
        let end = core.durable();
        if lsn >= end {
            return Err(missing(core, lsn, core.segments.oldest()));
        }
        let mut source = Source::default();
        let Some(segment) = source.at_or_after(core, lsn)? else {
            return Err(missing(core, lsn, core.segments.oldest()));
        };
        if lsn < segment.first_lsn {
            let found = format!(
                "the gap between two epochs, the later of which begins at LSN {}",
                segment.first_lsn
            );
            return Err(corrupt_at(&segment.path, 0, lsn, EXPECTED, found));
        }
        if let Some(damaged) = core.opening.report.damaged_at(lsn) {
            let found = format!(
                "damage from LSN {} to {}: {}",
                damaged.from, damaged.to, damaged.why
            );
            return Err(corrupt(&segment, lsn, EXPECTED, found));
        }
        match read(core, &mut source, &segment, lsn, end) {
            // Nothing keeps the segment for this: it may have been released meanwhile, and used
            // again. The next round finds it where it is now, or that it is gone.
            Err(LogError::Corrupt { .. })
                if segment.first_lsn < core.segments.oldest() && moved != Some(segment.number) =>
            {
                moved = Some(segment.number);
            }
            read => return read,
        }
    }
}

fn read(
    core: &Core,
    source: &mut Source,
    segment: &Arc<Segment>,
    lsn: Lsn,
    end: Lsn,
) -> Result<Frame, LogError> {
    if !lsn.is_multiple_of(ALIGN) {
        let found = format!("an LSN that is no multiple of {ALIGN}");
        return Err(corrupt(segment, lsn, EXPECTED, found));
    }
    let mut window = Window::growing_from(FIRST_READ);
    let durable = DurableStretch {
        core,
        source,
        segment,
        end,
    };
    let (header, payload) = match window.frame(durable, lsn)? {
        Ok(frame) => frame,
        Err(bad) => return Err(corrupt(segment, lsn, EXPECTED, bad)),
    };
    let frame = given(&header, payload).map_err(|found| corrupt(segment, lsn, compress::EXPECTED, found))?;
    frame.ok_or_else(|| corrupt(segment, lsn, EXPECTED, own(&header)))
}

fn own(header: &FrameHeader) -> String {
    format!("a frame of the log's own, of kind {}", header.kind())
}

/// Who reads: what a retention is named after.
#[derive(Debug)]
pub(crate) enum Holder {
    /// Named by the number of the retention.
    Reader,
    /// Named by its user.
    Tail(String),
}

impl Holder {
    fn name(&self, id: u64) -> String {
        match self {
            Self::Reader => format!("reader/{id}"),
            Self::Tail(name) => format!("tail/{name}"),
        }
    }
}

/// Keeps what a reader has yet to read from being released, until it is dropped.
#[derive(Debug)]
pub(crate) struct Retention {
    core: Arc<Core>,
    id: u64,
    at: Lsn,
}

impl Retention {
    pub(crate) fn take(core: &Arc<Core>, at: Lsn, holder: &Holder) -> Self {
        let id = lock(&core.segments.holders).add_reader(|id| holder.name(id), at);
        Self {
            core: Arc::clone(core),
            id,
            at,
        }
    }

    /// Releases what lies below `at`, a segment's worth at a time.
    pub(crate) fn advance(&mut self, at: Lsn) {
        if at - self.at >= self.core.options.segment_bytes {
            self.at = at;
            lock(&self.core.segments.holders).move_reader(self.id, at);
            self.core.threads.preparer.call();
        }
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        if self.core.check_process().is_err() {
            // The holders are the parent's.
            return;
        }
        lock(&self.core.segments.holders).remove_reader(self.id);
        self.core.threads.preparer.call();
    }
}
