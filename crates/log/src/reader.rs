//! Reading durable frames back from the segments, also while the log is being written.

use std::sync::Arc;

use collie_io::read_exact_at;
use zerocopy::FromBytes;

use crate::compress;
use crate::core::Core;
use crate::error::{At, LogError};
use crate::format::{FIRST_OWN_KIND, FRAME_HEADER, FrameHeader, Salt};
use crate::log::Hold;
use crate::segments::Segment;
use crate::{Frame, Lsn};

/// How much is read at once, in bytes; a larger frame is read whole. A reader's memory is bounded by it.
const WINDOW: usize = 1 << 20;

/// Durable frames in order, up to what was durable when the reader was made.
///
/// It keeps what it has yet to read from being released, under the name `reader/…`.
#[derive(Debug)]
pub struct Reader {
    core: Arc<Core>,
    hold: Hold,
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
    pub(crate) fn new(core: Arc<Core>, hold: Hold, from: Lsn, end: Lsn) -> Self {
        Self {
            core,
            hold,
            segment: None,
            next: from,
            end,
            window: Vec::new(),
            window_at: 0,
            failed: false,
        }
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
            self.enter_segment();
            let Some(segment) = self.segment.clone() else {
                return Ok(None);
            };
            if self.next < segment.first_lsn {
                // An epoch may begin above the end of the one before.
                self.next = segment.first_lsn;
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
            self.hold.advance(end);
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

    fn enter_segment(&mut self) {
        if self.segment.as_ref().is_none_or(|s| s.end <= self.next) {
            self.segment = self.core.segments.at_or_after(self.next);
        }
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
        for segment in self.core.segments.from(at) {
            let have = self.window.len();
            let position = at + have as u64;
            if have >= wanted || position < segment.first_lsn {
                break;
            }
            let n = ((segment.end.saturating_sub(position)) as usize).min(wanted - have);
            self.window.resize(have + n, 0);
            if let Some(part) = self.window.get_mut(have..) {
                read_exact_at(&*segment.file, part, segment.offset(position)).at("read", &segment.path)?;
            }
        }
        if self.window.len() >= len {
            return Ok(());
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
