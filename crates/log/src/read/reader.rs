//! Reading durable frames back from the segments, also while the log is being written.

use std::sync::Arc;

use crate::append::compress;
use crate::core::Core;
use crate::error::{LogError, corrupt_at};
use crate::format::Salt;
use crate::read::retention::{Holder, Retention};
use crate::read::source::Source;
use crate::segments::frames::{Window, given};
use crate::segments::run::{Extent, Stretch};
use crate::segments::segment::Segment;
use crate::{Frame, Lsn};

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
            if let Some(damaged) = self.core.report.damaged_at(at) {
                self.next = damaged.to;
                self.advance();
                continue;
            }
            let durable = Durable {
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
pub(super) struct Durable<'a> {
    pub(super) core: &'a Core,
    pub(super) source: &'a mut Source,
    pub(super) segment: &'a Segment,
    pub(super) end: Lsn,
}

impl Stretch for Durable<'_> {
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
