//! The one window over the frames of the log: bytes of segment files by LSN, and the one place
//! where it is judged whether a frame stands there. Recovery, readers and followers read through
//! it; a [`Stretch`] says what may be read.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use zerocopy::{FromBytes, IntoBytes};

use crate::append::compress;
use crate::error::{At, LogError, corrupt_at};
use crate::format::{ALIGN, FIRST_OWN_KIND, FRAME_HEADER, FrameHeader, Salt};
use crate::options::MAX_RING_BYTES;
use crate::segments::files::read_or_zeros;
use crate::segments::run::{Run, Stretch};
use crate::{Frame, Lsn};

/// How much is read at once, in bytes; a larger frame is read whole. The memory of recovery and of
/// readers is bounded by it, and by what the ring can hold, however long the log is.
pub(crate) const WINDOW: usize = 1 << 20;

/// No frame is larger, whatever its header says: it was in a ring as a whole.
const MAX_FRAME: u64 = MAX_RING_BYTES as u64;

/// Damage in a run.
pub(crate) fn corrupt(run: &Run, lsn: Lsn, expected: &str, found: impl fmt::Display) -> LogError {
    let segment = run
        .segments
        .iter()
        .find(|s| s.header.end() > lsn)
        .or(run.segments.last());
    let path = segment.map_or(Path::new(""), |s| &s.path);
    corrupt_at(path, segment.map_or(0, |s| s.offset(lsn)), lsn, expected, found)
}

/// A payload as it was appended, of one as it is stored; or what is wrong with it.
pub(crate) fn payload_of<'a>(header: &FrameHeader, stored: &'a [u8]) -> Result<Cow<'a, [u8]>, String> {
    match header.is_compressed() {
        true => compress::expand(stored).map(Cow::Owned),
        false => Ok(Cow::Borrowed(stored)),
    }
}

/// A frame as readers give it; `None` for one of the log's own.
pub(crate) fn given(header: &FrameHeader, stored: &[u8]) -> Result<Option<Frame>, String> {
    if header.kind() >= FIRST_OWN_KIND {
        return Ok(None);
    }
    Ok(Some(Frame {
        start: header.lsn.get(),
        end: header.end(),
        stream: header.stream(),
        kind: header.kind(),
        payload: payload_of(header, stored)?.into_owned(),
    }))
}

/// Why there is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Zeros, or no bytes at all.
    Nothing,
    /// The LSN that it gives, and that of its place.
    Lsn(Lsn, Lsn),
    /// Its epoch, and that of the segment.
    Epoch(u32, u32),
    /// It records as durable what lies behind it.
    Mark(Lsn),
    /// It goes beyond the end; the length is that of its payload, here and below.
    Beyond(usize),
    TooLarge(usize),
    /// Not all of it can be read.
    Part(usize),
    Checksum(usize),
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Nothing => write!(f, "zeros"),
            Self::Lsn(found, at) if found > 0 && found < at => {
                write!(f, "something that is no frame, or an old one with LSN {found}")
            }
            Self::Lsn(found, _) => write!(f, "bytes that are no frame (they give LSN {found})"),
            Self::Epoch(found, expected) => {
                write!(f, "a frame of epoch {found} in a segment of epoch {expected}")
            }
            Self::Mark(lsn) => {
                write!(
                    f,
                    "a frame that records what lies behind it as durable, up to LSN {lsn}"
                )
            }
            Self::Beyond(len) => write!(f, "a frame of {len} bytes, more than the segments hold"),
            Self::TooLarge(len) => write!(f, "a frame of {len} bytes, more than any ring holds"),
            Self::Part(len) => write!(f, "a part of a frame of {len} bytes"),
            Self::Checksum(len) => write!(f, "a frame of {len} bytes with a wrong checksum"),
        }
    }
}

/// The header at the beginning of `head`, if a frame of `epoch` can stand at `at` with it and end
/// by `end`. Whether one does, its checksum says.
pub(crate) fn header_at(head: &[u8], at: Lsn, epoch: u32, end: Lsn) -> Result<FrameHeader, Bad> {
    let (header, _) = FrameHeader::read_from_prefix(head).map_err(|_| Bad::Nothing)?;
    let (len, found) = (header.stored_len(), header.lsn.get());
    if header.as_bytes().iter().all(|byte| *byte == 0) {
        Err(Bad::Nothing)
    } else if header.lsn != at {
        Err(Bad::Lsn(found, at))
    } else if header.epoch != epoch {
        Err(Bad::Epoch(header.epoch.get(), epoch))
    } else if header.durable_mark.get() > at {
        Err(Bad::Mark(header.durable_mark.get()))
    } else if header.end() > end {
        Err(Bad::Beyond(len))
    } else if header.end() - at > MAX_FRAME {
        Err(Bad::TooLarge(len))
    } else {
        Ok(header)
    }
}

/// Bytes of a stretch in memory, as the files were when they were read.
#[derive(Debug)]
pub(crate) struct Window {
    bytes: Vec<u8>,
    at: Lsn,
    /// How much is read at first.
    first: usize,
    /// How much was read last; twice that is read next.
    read: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self::growing_from(WINDOW)
    }
}

impl Window {
    /// A window that reads little at first: for frames that are read as they are written.
    pub(crate) fn growing_from(first: usize) -> Self {
        Self {
            bytes: Vec::new(),
            at: 0,
            first,
            read: 0,
        }
    }

    /// Forgets what was read, so that the files are read again.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.read = 0;
    }

    /// `len` bytes from `at`; fewer where the stretch ends or a file is gone.
    pub(crate) fn bytes(
        &mut self,
        stretch: &mut impl Stretch,
        at: Lsn,
        len: usize,
    ) -> Result<&[u8], LogError> {
        let end = self.at + self.bytes.len() as u64;
        if at < self.at || at + len as u64 > end {
            self.read = (2 * self.read).clamp(self.first, WINDOW);
            self.at = at;
            self.bytes.clear();
            self.fill(stretch, len).inspect_err(|_| self.bytes.clear())?;
        }
        let from = (at - self.at) as usize;
        let to = self.bytes.len().min(from + len);
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }

    /// Fills the empty window with `len` bytes, and with what is read in advance.
    fn fill(&mut self, stretch: &mut impl Stretch, len: usize) -> Result<(), LogError> {
        let room = stretch.end().saturating_sub(self.at);
        let wanted = (len.max(self.read) as u64).min(room) as usize;
        while self.bytes.len() < wanted {
            let have = self.bytes.len();
            match self.fill_from_one_file(stretch, wanted - have) {
                Ok(true) => {}
                Ok(false) => break,
                // What was asked for is there; what is wrong behind it is for the caller that asks
                // for that.
                Err(_) if have >= len => {
                    self.bytes.truncate(have);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn fill_from_one_file(&mut self, stretch: &mut impl Stretch, most: usize) -> Result<bool, LogError> {
        let have = self.bytes.len();
        let position = self.at + have as u64;
        let Some(extent) = stretch.extent(position)? else {
            return Ok(false);
        };
        let n = (extent.end.saturating_sub(position)).min(most as u64) as usize;
        self.bytes.resize(have + n, 0);
        if let Some(part) = self.bytes.get_mut(have..) {
            read_or_zeros(&*extent.file, part, extent.offset).at("read", &extent.path)?;
        }
        Ok(n > 0)
    }

    /// The frame at `at`, verified, with its payload as it is stored, or why there is none.
    pub(crate) fn frame(
        &mut self,
        mut stretch: impl Stretch,
        at: Lsn,
    ) -> Result<Result<(FrameHeader, &[u8]), Bad>, LogError> {
        let (epoch, end) = (stretch.epoch(), stretch.end());
        let head = self.bytes(&mut stretch, at, FRAME_HEADER)?;
        let header = match header_at(head, at, epoch, end) {
            Ok(header) => header,
            Err(bad) => return Ok(Err(bad)),
        };
        let len = header.stored_len();
        let payload = self.bytes(&mut stretch, at + FRAME_HEADER as u64, len)?;
        if payload.len() < len {
            return Ok(Err(Bad::Part(len)));
        }
        if !header.matches(stretch.salt(), payload) {
            return Ok(Err(Bad::Checksum(len)));
        }
        Ok(Ok((header, payload)))
    }

    /// Where the frames end that follow one another from `at` on, as far as they begin below `to`.
    pub(crate) fn follow<S: Stretch + Copy>(
        &mut self,
        stretch: S,
        mut at: Lsn,
        to: Lsn,
    ) -> Result<Lsn, LogError> {
        while at < to
            && let Ok((header, _)) = self.frame(stretch, at)?
        {
            at = header.end();
        }
        Ok(at)
    }

    /// The header of the frame at `at`, if it is one: it alone says so.
    pub(crate) fn claimed(
        &mut self,
        mut stretch: impl Stretch,
        at: Lsn,
    ) -> Result<Option<FrameHeader>, LogError> {
        let head = self.bytes(&mut stretch, at, FRAME_HEADER)?;
        let header = FrameHeader::read_from_bytes(head).ok();
        Ok(header.filter(|header| header.lsn == at && header.epoch == stretch.epoch()))
    }

    /// The frame that ends at `lsn` or goes beyond, where frames are followed from `at` on, which
    /// is below it, by what their headers say; `None` where they do not lead there.
    pub(crate) fn reaching(
        &mut self,
        run: &Run,
        mut at: Lsn,
        lsn: Lsn,
    ) -> Result<Option<FrameHeader>, LogError> {
        loop {
            match self.claimed(run, at)? {
                Some(header) if header.end() < lsn => at = header.end(),
                reached => return Ok(reached),
            }
        }
    }

    /// Whether the frame with this header has a good checksum. It may be of any length, whatever is
    /// true of it: its payload goes through one window.
    pub(crate) fn is_whole(&mut self, mut run: &Run, header: &FrameHeader) -> Result<bool, LogError> {
        let mut sum = run.salt();
        let (mut at, mut left) = (header.lsn.get() + FRAME_HEADER as u64, header.stored_len());
        loop {
            let n = left.min(WINDOW);
            let part = self.bytes(&mut run, at, n)?;
            if part.len() < n || n == left {
                return Ok(part.len() == n && header.matches(sum, part));
            }
            // The checksum of the parts up to here is the seed for the next.
            sum = Salt(sum.crc(part));
            (at, left) = (at + n as u64, left - n);
        }
    }

    /// Whether the frame at `at` needs more than the run has: its header says so, or has no room
    /// itself.
    pub(crate) fn goes_beyond(&mut self, run: &Run, at: Lsn) -> Result<bool, LogError> {
        let has_header = run.end().saturating_sub(at) >= FRAME_HEADER as u64;
        let claimed = self.claimed(run, at)?;
        Ok(!has_header || claimed.is_some_and(|header| header.end() > run.end()))
    }

    /// The first valid frame at or above `at` that `wanted` wants.
    pub(crate) fn find<S: Stretch + Copy>(
        &mut self,
        stretch: S,
        mut at: Lsn,
        wanted: impl Fn(&FrameHeader) -> bool,
    ) -> Result<Option<Lsn>, LogError> {
        loop {
            let (found, searched) = self.find_near(stretch, at, &wanted)?;
            if found.is_some() || searched == at {
                return Ok(found.map(|header| header.lsn.get()));
            }
            at = searched;
        }
    }

    /// The first place at `at` or above where a frame of the run seems to stand, whatever its
    /// checksum says: for segments of a format that does not say where the first one is.
    pub(crate) fn first_place(&mut self, run: &Run, mut at: Lsn) -> Result<Option<Lsn>, LogError> {
        loop {
            let (places, searched) = self.places(run, at)?;
            for place in places {
                if self.claimed(run, place)?.is_some() {
                    return Ok(Some(place));
                }
            }
            if searched == at {
                return Ok(None);
            }
            at = searched;
        }
    }

    /// The first valid frame at or above `at`, no further than a window's length, that `wanted`
    /// wants, and how far was searched: the same as `at` at the end.
    pub(crate) fn find_near<S: Stretch + Copy>(
        &mut self,
        stretch: S,
        at: Lsn,
        wanted: impl Fn(&FrameHeader) -> bool,
    ) -> Result<(Option<FrameHeader>, Lsn), LogError> {
        let (places, searched) = self.places(stretch, at)?;
        for place in places {
            if let Ok((header, _)) = self.frame(stretch, place)?
                && wanted(&header)
            {
                return Ok((Some(header), searched));
            }
        }
        Ok((None, searched))
    }

    /// Where, in a window's length from `at` on, bytes give their own place as an LSN, and how far
    /// was searched.
    fn places(&mut self, mut stretch: impl Stretch, at: Lsn) -> Result<(Vec<Lsn>, Lsn), LogError> {
        const LSN_AT: usize = std::mem::offset_of!(FrameHeader, lsn);
        let len = (WINDOW as u64).min(stretch.data_end().saturating_sub(at)) as usize;
        let chunk = self.bytes(&mut stretch, at, len)?;
        if chunk.len() < FRAME_HEADER {
            return Ok((Vec::new(), at));
        }
        let searched = at + (chunk.len() - FRAME_HEADER) as u64 / ALIGN * ALIGN + ALIGN;
        if chunk.iter().all(|byte| *byte == 0) {
            return Ok((Vec::new(), searched));
        }
        let heads = chunk.windows(FRAME_HEADER).step_by(ALIGN as usize);
        let places = (at..).step_by(ALIGN as usize).zip(heads).filter(|(lsn, head)| {
            head.get(LSN_AT..LSN_AT + 8)
                .is_some_and(|b| b == lsn.to_le_bytes())
        });
        Ok((places.map(|(lsn, _)| lsn).collect(), searched))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "forges a frame in a file")]
mod tests {
    use super::*;
    use crate::format::{FrameStart, SEGMENT_HEAD, SegmentHeader};
    use crate::{FIRST_LSN, Level, Log, LogOptions, RingMode};

    /// With a forged checksum, too: a frame records what is durable before it, never itself or
    /// more.
    #[test]
    fn a_frame_that_marks_what_lies_behind_it_durable_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            ring: RingMode::Private,
            threads: false,
            ..LogOptions::default()
        };
        let log = Log::open(dir.path(), options.clone()).unwrap();
        let mut worker = log.worker().unwrap();
        let spans = [0; 3].map(|_| {
            let span = worker.append(0, 0, b"payload!").unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            span
        });
        drop(worker);
        log.close().unwrap();
        let is_segment = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "seg");
        let files = std::fs::read_dir(dir.path()).unwrap();
        let mut segments: Vec<_> = files.map(|f| f.unwrap().path()).filter(is_segment).collect();
        segments.sort();
        let mut bytes = std::fs::read(&segments[0]).unwrap();
        let header = SegmentHeader::decode(&bytes[..SEGMENT_HEAD]).unwrap();
        let forge = |bytes: &mut Vec<u8>, durable_mark: u64| {
            let start = FrameStart {
                payload_crc: Salt(header.salt.get()).crc(b"payload!"),
                len: 8,
                compressed: false,
                stream: 0,
                kind: 0,
            };
            let frame = FrameHeader::finish(start, spans[1].start, durable_mark, header.epoch.get());
            let at = SEGMENT_HEAD + (spans[1].start - FIRST_LSN) as usize;
            bytes[at..at + FRAME_HEADER].copy_from_slice(frame.as_bytes());
            std::fs::write(&segments[0], bytes).unwrap();
        };
        for durable_mark in [spans[1].end, spans[2].end, u64::MAX - 7] {
            forge(&mut bytes, durable_mark);
            let error = Log::open(dir.path(), options.clone()).unwrap_err().to_string();
            let expected = format!("records what lies behind it as durable, up to LSN {durable_mark}");
            assert!(error.contains(&expected), "{error}");
        }
        forge(&mut bytes, spans[1].start);
        let log = Log::open(dir.path(), options).unwrap();
        assert_eq!(log.read(FIRST_LSN).unwrap().count(), 3);
    }
}
