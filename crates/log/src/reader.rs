//! Reading durable frames back from the segments, also while the log is being written.

use std::sync::Arc;

use collie_io::read_exact_at;
use zerocopy::FromBytes;

use crate::compress;
use crate::core::Core;
use crate::error::{At, LogError};
use crate::format::{FIRST_OWN_KIND, FRAME_HEADER, FrameHeader, Salt};
use crate::log::{Hold, Holder};
use crate::segments::Segment;
use crate::source::Source;
use crate::{Frame, Lsn};

/// How much is read at once, in bytes; a larger frame is read whole. A reader's memory is bounded by it.
const WINDOW: usize = 1 << 20;

/// Durable frames in order, up to what was durable when the reader was made.
///
/// It keeps what it has yet to read from being released, under the name `reader/…`. While it is in the archive
/// ([`LogOptions::archive_ttl`](crate::LogOptions::archive_ttl)) it holds nothing: segments may leave the archive before
/// they are read, and then it ends with [`LogError::Missing`]. One that is being read is read to its end.
#[derive(Debug)]
pub struct Reader {
    core: Arc<Core>,
    /// How its hold is named.
    holder: Holder,
    /// None as long as it reads the archive.
    hold: Option<Hold>,
    source: Source,
    segment: Option<Arc<Segment>>,
    next: Lsn,
    /// Everything below is durable and may be read.
    end: Lsn,
    window: Vec<u8>,
    /// The LSN of the window's first byte.
    window_at: Lsn,
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
            hold: None,
            source: Source::default(),
            segment: None,
            next: from,
            end,
            window: Vec::new(),
            window_at: 0,
            failed: false,
        };
        reader.hold_what_is_live();
        if from > end {
            return Err(LogError::Missing {
                path: core.dir.clone(),
                wanted: from,
                oldest: core.segments.oldest(),
                end,
            });
        }
        if reader.hold.is_none() {
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
                self.hold_what_is_live();
                continue;
            }
            let at = self.next;
            let header = self.bytes(at, FRAME_HEADER)?;
            let header = FrameHeader::read_from_bytes(header).ok();
            let header =
                header.filter(|h| h.lsn.get() == at && h.epoch.get() == segment.epoch && h.end() <= self.end);
            let Some(header) = header else {
                return Err(corrupt(
                    &segment,
                    at,
                    "a frame with this LSN, below the durable end",
                    "something else",
                ));
            };
            let payload = self.bytes(at + FRAME_HEADER as u64, header.stored_len())?;
            if !header.matches(Salt(segment.salt), payload) {
                return Err(corrupt(
                    &segment,
                    at,
                    "a frame with a valid checksum",
                    "a wrong checksum",
                ));
            }
            let (start, end) = (at, header.end());
            let payload = if header.is_compressed() {
                compress::expand(payload)
                    .map_err(|found| corrupt(&segment, at, compress::EXPECTED, &found))?
            } else {
                payload.to_vec()
            };
            self.next = end;
            if let Some(hold) = &mut self.hold {
                hold.advance(end);
            }
            if header.kind() < FIRST_OWN_KIND {
                return Ok(Some(Frame {
                    start,
                    end,
                    stream: header.stream(),
                    kind: header.kind(),
                    payload,
                }));
            }
        }
    }

    fn enter_segment(&mut self) -> Result<(), LogError> {
        if self.segment.as_ref().is_none_or(|s| s.end <= self.next) {
            self.hold_what_is_live();
            self.source.pass(self.next);
            self.segment = self.source.at_or_after(&self.core, self.next)?;
        }
        Ok(())
    }

    /// Holds the log from the next frame on, once that is not in the archive.
    fn hold_what_is_live(&mut self) {
        let is_live = |next| next >= self.core.segments.oldest();
        if self.hold.is_some() || !is_live(self.next) {
            return;
        }
        let hold = Hold::take(&self.core, self.next, &self.holder);
        // Looked at again after the hold: a release that missed it has happened by now.
        self.hold = is_live(self.next).then_some(hold);
    }

    /// `len` bytes of the frame stream from `at` on, which is at or above the window's start.
    fn bytes(&mut self, at: Lsn, len: usize) -> Result<&[u8], LogError> {
        let have = self.window_at + self.window.len() as u64;
        if at < self.window_at || at + len as u64 > have {
            self.fill(at, len)?;
        }
        let from = (at - self.window_at) as usize;
        Ok(self.window.get(from..from + len).unwrap_or_default())
    }

    fn fill(&mut self, at: Lsn, len: usize) -> Result<(), LogError> {
        let wanted = (len.max(WINDOW) as u64).min(self.end - at).max(len as u64) as usize;
        self.window.clear();
        self.window_at = at;
        loop {
            let have = self.window.len();
            let position = at + have as u64;
            if have >= wanted {
                return Ok(());
            }
            let segment = match self.source.at_or_after(&self.core, position) {
                Ok(Some(segment)) if segment.first_lsn <= position => segment,
                // What was asked for is there; what is wrong behind it is told to whoever asks for that.
                Ok(_) | Err(_) if have >= len => return Ok(()),
                Ok(_) => break,
                Err(error) => return Err(error),
            };
            let n = ((segment.end - position) as usize).min(wanted - have);
            self.window.resize(have + n, 0);
            if let Some(part) = self.window.get_mut(have..) {
                read_exact_at(&*segment.file, part, segment.offset(position)).at("read", &segment.path)?;
            }
        }
        match &self.segment {
            Some(segment) => Err(corrupt(segment, at, "a whole frame", "the end of the log")),
            None => Err(LogError::Closed),
        }
    }
}

fn corrupt(segment: &Segment, lsn: Lsn, expected: &str, found: &str) -> LogError {
    LogError::Corrupt {
        path: segment.path.clone(),
        offset: segment.offset(lsn),
        lsn,
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

impl Iterator for Reader {
    type Item = Result<Frame, LogError>;

    /// The next frame, [`LogError::Io`], or [`LogError::Corrupt`] where there is another thing than what was
    /// written. After an error there is none.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let result = self.read();
        self.failed = result.is_err();
        result.transpose()
    }
}
