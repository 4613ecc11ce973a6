//! Frames in the segments: read and verified at a place, looked for beyond it, and looked for in files that are not part of
//! the log.

use zerocopy::FromBytes;

use super::chain::{Chain, DATA_AT, Run, SegmentFile, Stray, read_or_zeros};
use crate::Lsn;
use crate::error::{At, LogError};
use crate::format::{ALIGN, BLOCK, FRAME_HEADER, FrameHeader, Salt};

/// How much is read at once, in bytes; a larger frame is read whole. Recovery's memory is bounded by it, and by what
/// the ring can hold, however long the log is.
const WINDOW: usize = 1 << 20;

pub(super) fn corrupt(run: &Run, lsn: Lsn, expected: &str, found: &str) -> LogError {
    let segment = run
        .segments
        .iter()
        .find(|s| s.header.end() > lsn)
        .or(run.segments.last());
    let found = if found.is_empty() { "zeros" } else { found };
    LogError::Corrupt {
        path: segment.map(|s| s.path.clone()).unwrap_or_default(),
        offset: segment.map_or(0, |s| s.offset(lsn)),
        lsn,
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

/// Why there is no frame, in words; empty where there is nothing at all.
#[derive(Debug)]
pub(super) struct Bad(pub(super) String);

/// A stretch of a run's frame stream in memory.
#[derive(Debug, Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    at: Lsn,
}

impl Window {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// `len` bytes from `at`, which lie inside the run.
    pub(super) fn bytes(&mut self, run: &Run, at: Lsn, len: usize) -> Result<&[u8], LogError> {
        let end = self.at + self.bytes.len() as u64;
        if self.bytes.is_empty() || at < self.at || at + len as u64 > end {
            self.fill(run, at, len.max(WINDOW))?;
        }
        let from = (at - self.at) as usize;
        Ok(self.bytes.get(from..from + len).unwrap_or_default())
    }

    fn fill(&mut self, run: &Run, at: Lsn, len: usize) -> Result<(), LogError> {
        self.at = at;
        self.bytes.clear();
        for segment in &run.segments {
            let position = at + self.bytes.len() as u64;
            if segment.header.end() <= position || self.bytes.len() >= len {
                continue;
            }
            let have = self.bytes.len();
            let n = ((segment.header.end() - position) as usize).min(len - have);
            self.bytes.resize(have + n, 0);
            if let Some(part) = self.bytes.get_mut(have..) {
                read_or_zeros(&*segment.file, part, segment.offset(position)).at("read", &segment.path)?;
            }
        }
        Ok(())
    }

    /// The frame at `at`, verified, or why there is none.
    pub(super) fn frame(&mut self, run: &Run, at: Lsn) -> Result<Result<FrameHeader, Bad>, LogError> {
        let room = run.end().saturating_sub(at);
        if room < FRAME_HEADER as u64 {
            return Ok(Err(Bad(String::new())));
        }
        let epoch = run.epoch();
        let head = self.bytes(run, at, FRAME_HEADER)?;
        let Ok(header) = FrameHeader::read_from_bytes(head) else {
            return Ok(Err(Bad(String::new())));
        };
        let bad = |found: String| Ok(Err(Bad(found)));
        if header.lsn != at {
            let old = header.lsn < at && header.lsn.get() > 0;
            let nothing = header == FrameHeader::read_from_bytes(&[0; FRAME_HEADER]).unwrap_or(header);
            return bad(match (nothing, old) {
                (true, _) => String::new(),
                (_, true) => format!(
                    "something that is no frame, or an old one with LSN {}",
                    header.lsn
                ),
                _ => format!("bytes that are no frame (they give LSN {})", header.lsn),
            });
        }
        if header.epoch != epoch {
            return bad(format!(
                "a frame of epoch {} in a segment of epoch {epoch}",
                header.epoch
            ));
        }
        if header.promised.get() > at {
            return bad(format!(
                "a frame that promises what lies behind it, up to LSN {}",
                header.promised
            ));
        }
        if header.end() - at > room {
            return bad(format!(
                "a frame of {} bytes, more than the segments hold",
                header.stored_len()
            ));
        }
        let payload = self.bytes(run, at + FRAME_HEADER as u64, header.stored_len())?;
        if !header.matches(run.salt(), payload) {
            return bad(format!(
                "a frame of {} bytes with a wrong checksum",
                header.stored_len()
            ));
        }
        Ok(Ok(header))
    }

    /// Where the frame at `at` ends, if it is one: its header alone says so.
    pub(super) fn claimed_end(&mut self, run: &Run, at: Lsn) -> Result<Option<Lsn>, LogError> {
        if run.end().saturating_sub(at) < FRAME_HEADER as u64 {
            return Ok(None);
        }
        let header = FrameHeader::read_from_bytes(self.bytes(run, at, FRAME_HEADER)?).ok();
        let header = header.filter(|header| header.lsn == at && header.epoch == run.epoch());
        Ok(header.map(|header| header.end()))
    }

    /// Whether the frame at `at` needs more than the run has: its header says so, or has no room itself.
    pub(super) fn goes_beyond(&mut self, run: &Run, at: Lsn) -> Result<bool, LogError> {
        let has_header = run.end().saturating_sub(at) >= FRAME_HEADER as u64;
        Ok(!has_header || self.claimed_end(run, at)?.is_some_and(|end| end > run.end()))
    }

    /// The first valid frame above `at` that `wanted` wants.
    pub(super) fn find(
        &mut self,
        run: &Run,
        at: Lsn,
        wanted: impl Fn(&FrameHeader) -> bool,
    ) -> Result<Option<Lsn>, LogError> {
        self.search(run, at + ALIGN, |window, lsn| {
            Ok(window.frame(run, lsn)?.is_ok_and(|header| wanted(&header)))
        })
    }

    /// The first place at `at` or above where a frame of the run seems to stand, whatever its checksum says: for
    /// segments of a format that does not say where the first one is.
    pub(super) fn first_place(&mut self, run: &Run, at: Lsn) -> Result<Option<Lsn>, LogError> {
        self.search(run, at, |window, lsn| {
            let header = FrameHeader::read_from_bytes(window.bytes(run, lsn, FRAME_HEADER)?);
            Ok(header.is_ok_and(|header| header.lsn == lsn && header.epoch == run.epoch()))
        })
    }

    /// The first place from `here` on that gives its own LSN and is `wanted`.
    fn search(
        &mut self,
        run: &Run,
        mut here: Lsn,
        wanted: impl Fn(&mut Self, Lsn) -> Result<bool, LogError>,
    ) -> Result<Option<Lsn>, LogError> {
        let end = run.segments.last().map_or(0, SegmentFile::data_end);
        while here + FRAME_HEADER as u64 <= end {
            let len = WINDOW.min((end - here) as usize);
            let chunk = self.bytes(run, here, len)?;
            if chunk.iter().all(|byte| *byte == 0) {
                here += (len - FRAME_HEADER) as u64 / ALIGN * ALIGN + ALIGN;
                continue;
            }
            let candidates = places(chunk, here);
            let step = (len - FRAME_HEADER) as u64 / ALIGN * ALIGN + ALIGN;
            for lsn in candidates {
                if wanted(self, lsn)? {
                    return Ok(Some(lsn));
                }
            }
            here += step;
        }
        Ok(None)
    }
}

/// Whether a file outside the chain shows that the log was durable at `at`: its header is damaged, or it is
/// a later epoch's whose first header is. Carried-over frames promise nothing, so what an interrupted
/// recovery left proves nothing.
///
/// `begins_epoch`: no other such file stands before it, so it may be its epoch's first segment.
pub(super) fn stray_proves(run: &Run, stray: &Stray, begins_epoch: bool, at: Lsn) -> Result<bool, LogError> {
    if stray.before.is_some() {
        // It was to be used again: nothing of its new use was written before both copies of its new header were there.
        return Ok(false);
    }
    if stray.header.is_none() && begins_epoch {
        for data_at in DATA_AT {
            if headerless_proves(run, stray, data_at, at)? {
                return Ok(true);
            }
        }
    }
    let (epoch, salt) = match &stray.header {
        Some(known) => (known.epoch.get(), Salt(known.salt.get())),
        None => (run.epoch(), run.salt()),
    };
    let mut chunk = vec![0; WINDOW];
    let mut offset = BLOCK as u64;
    while offset + FRAME_HEADER as u64 <= stray.len {
        let n = WINDOW.min((stray.len - offset) as usize);
        let Some(part) = chunk.get_mut(..n) else { break };
        read_or_zeros(&*stray.file, part, offset).at("read", &stray.path)?;
        for (index, head) in part.windows(FRAME_HEADER).step_by(ALIGN as usize).enumerate() {
            let Ok(header) = FrameHeader::read_from_bytes(head) else {
                continue;
            };
            let place = offset + index as u64 * ALIGN;
            if header.epoch == epoch && promises(&header, run, at) && is_whole(&header, stray, place, salt)? {
                return Ok(true);
            }
        }
        offset += (n - FRAME_HEADER) as u64 / ALIGN * ALIGN + ALIGN;
    }
    Ok(false)
}

/// A segment whose header is destroyed, of an epoch whose salt went with it. An epoch's first segment begins
/// with a frame, so its frames can be followed by their lengths from there: LSN and epoch must agree at
/// each step, which no payload can arrange. Garbage in blocks that were never synced must not pass either:
/// the first frame lies within reach of what is known. (Far within: every open begins an epoch, also those
/// that leave no segment; and an LSN goes on above tables that were written without a log.)
fn headerless_proves(run: &Run, stray: &Stray, data_at: u64, at: Lsn) -> Result<bool, LogError> {
    const EPOCHS_AHEAD: u32 = 1 << 24;
    const BYTES_AHEAD: u64 = 1 << 48;
    let within_reach = |header: &FrameHeader| {
        let (lsn, promised) = (header.lsn.get(), header.promised.get());
        header.epoch.get().wrapping_sub(run.epoch()) < EPOCHS_AHEAD
            && lsn.wrapping_sub(run.first_lsn()) < BYTES_AHEAD
            && lsn.is_multiple_of(ALIGN)
            && promised.is_multiple_of(ALIGN)
    };
    let mut head = [0; FRAME_HEADER];
    let mut place = data_at;
    let mut first: Option<FrameHeader> = None;
    while place + FRAME_HEADER as u64 <= stray.len {
        read_or_zeros(&*stray.file, &mut head, place).at("read", &stray.path)?;
        let Ok(header) = FrameHeader::read_from_bytes(&head) else {
            break;
        };
        let begin = first.get_or_insert(header);
        let expected = begin.lsn.get().wrapping_add(place - data_at);
        let epoch = header.epoch.get();
        let follows = header.lsn == expected && header.epoch == begin.epoch;
        if !follows || !within_reach(&header) || epoch <= run.epoch() || header.lsn == 0 {
            break;
        }
        if promises(&header, run, at) {
            return Ok(true);
        }
        place += header.end() - header.lsn.get();
    }
    Ok(false)
}

/// Whether a header, if it is one, says that `at` was durable.
fn promises(header: &FrameHeader, run: &Run, at: Lsn) -> bool {
    let (promised, epoch) = (header.promised.get(), header.epoch.get());
    let later = if epoch == run.epoch() {
        promised > at
    } else {
        epoch > run.epoch() && promised >= at
    };
    promised > 0 && promised <= header.lsn.get() && header.lsn.get() >= at && later
}

/// Whether a header in a stray and what follows it are a frame.
fn is_whole(header: &FrameHeader, stray: &Stray, place: u64, salt: Salt) -> Result<bool, LogError> {
    if header.stored_len() as u64 > stray.len.saturating_sub(place) {
        return Ok(false);
    }
    let mut payload = vec![0; header.stored_len()];
    read_or_zeros(&*stray.file, &mut payload, place + FRAME_HEADER as u64).at("read", &stray.path)?;
    Ok(header.matches(salt, &payload))
}

/// Where in `chunk`, which begins at LSN `at`, a frame's own LSN equals its place.
fn places(chunk: &[u8], at: Lsn) -> Vec<Lsn> {
    const LSN_AT: usize = std::mem::offset_of!(FrameHeader, lsn);
    let mut found = Vec::new();
    for (n, head) in chunk.windows(FRAME_HEADER).step_by(ALIGN as usize).enumerate() {
        let lsn = at + n as u64 * ALIGN;
        if head
            .get(LSN_AT..LSN_AT + 8)
            .is_some_and(|b| b == lsn.to_le_bytes())
        {
            found.push(lsn);
        }
    }
    found
}

/// Reads pieces again, in order, for copying.
#[derive(Debug, Default)]
pub(crate) struct Rereader {
    window: Window,
    run: Option<usize>,
}

impl Rereader {
    /// Header and payload of a frame in a run.
    pub(crate) fn frame(
        &mut self,
        chain: &Chain,
        index: usize,
        at: Lsn,
    ) -> Result<(FrameHeader, &[u8]), LogError> {
        let run = chain.runs.get(index).ok_or(LogError::Closed)?;
        if self.run.replace(index) != Some(index) {
            self.window.clear();
        }
        match self.window.frame(run, at)? {
            Ok(header) => {
                let payload = self
                    .window
                    .bytes(run, at + FRAME_HEADER as u64, header.stored_len())?;
                Ok((header, payload))
            }
            Err(bad) => Err(corrupt(run, at, "the frame that was there a moment ago", &bad.0)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "forges a frame in a file")]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::format::{FrameStart, SEGMENT_HEAD, SegmentHeader};
    use crate::{FIRST_LSN, Level, Log, LogOptions, RingMode};

    /// Whoever could write a good checksum: a frame promises what is durable before it, never itself or more.
    #[test]
    fn a_frame_that_promises_what_lies_behind_it_is_refused_whatever_its_checksum() {
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
        let forge = |bytes: &mut Vec<u8>, promised: u64| {
            let start = FrameStart {
                payload_crc: Salt(header.salt.get()).crc(b"payload!"),
                len: 8,
                compressed: false,
                stream: 0,
                kind: 0,
            };
            let frame = FrameHeader::finish(start, spans[1].start, promised, header.epoch.get());
            let at = SEGMENT_HEAD + (spans[1].start - FIRST_LSN) as usize;
            bytes[at..at + FRAME_HEADER].copy_from_slice(frame.as_bytes());
            std::fs::write(&segments[0], bytes).unwrap();
        };
        for promised in [spans[1].end, spans[2].end, u64::MAX - 7] {
            forge(&mut bytes, promised);
            let error = Log::open(dir.path(), options.clone()).unwrap_err().to_string();
            let expected = format!("promises what lies behind it, up to LSN {promised}");
            assert!(error.contains(&expected), "{error}");
        }
        forge(&mut bytes, spans[1].start);
        let log = Log::open(dir.path(), options).unwrap();
        assert_eq!(log.read(FIRST_LSN).unwrap().count(), 3);
    }
}
