//! The segment files of a directory, put in order by what their headers say.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode};
use zerocopy::{FromZeros, IntoBytes};

use super::frames::Window;
use crate::archive;
use crate::error::{At, LogError};
use crate::format::{
    ALIGN, BLOCK, BadHeader, FrameHeader, SEGMENT_HEAD, SEGMENT_NUMBERS, Salt, SegmentHeader, VERSION,
};
use crate::segments::{file_name, parse_file_name};
use crate::{LogId, Lsn};

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
        self.head().is_some_and(|h| h.number == h.epoch_first)
    }

    /// Where its first frame begins. Segments before the one that says it were being released.
    ///
    /// # Errors
    /// The segment that said it is not there any more, nor what comes before the others.
    pub(crate) fn beginning(&self) -> Result<RunBeginning, LogError> {
        let told = self.segments.iter().find_map(|s| s.header.first_frame());
        match (told, self.segments.first()) {
            (Some(lsn), _) => Ok(RunBeginning::Told(lsn)),
            (None, Some(first)) if !first.header.is_one_block() => Err(LogError::BeginningUnknown {
                path: first.path.clone(),
                lsn: first.first_lsn(),
                why: format!(
                    "segment {:016x}, which comes before it, is not there or damaged",
                    first.number() - 1
                ),
            }),
            _ => Ok(RunBeginning::Untold),
        }
    }

    /// Where the epoch before ends.
    pub(crate) fn predecessor_end(&self) -> Lsn {
        self.head().map_or(0, |h| h.predecessor_end.get())
    }

    /// What recovery had carried over was durable before the header that says so.
    pub(crate) fn carried_end(&self) -> Lsn {
        if self.is_whole() {
            self.head().map_or(0, |h| h.carried_end.get())
        } else {
            0
        }
    }
}

/// Where a run's first frame begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunBeginning {
    Told(Lsn),
    /// Formats 1 and 2 do not say it.
    Untold,
}

/// A file that is not part of the chain: prepared and never used, renamed and not yet given its header, or
/// made by a recovery that did not come to its end. Or a damaged one: `scan` looks for proof of that.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) len: u64,
    /// A good header, of an epoch whose first segment never got its own.
    pub(crate) header: Option<SegmentHeader>,
    /// Its header under the number that it had before, where it was to be used again and never got its own.
    pub(super) before: Option<SegmentHeader>,
}

/// Where the data of a segment without a header may begin.
pub(super) const DATA_AT: [u64; 2] = [BLOCK as u64, SEGMENT_HEAD as u64];

/// All segment files of a log.
#[derive(Debug)]
pub(crate) struct Chain {
    /// By epoch.
    pub(crate) runs: Vec<Run>,
    pub(crate) strays: Vec<Stray>,
    /// Segments that a later epoch took over wholly, and whose removal is not done or was undone by a crash.
    /// They must be gone for good before the segments that mask them are released.
    pub(crate) superseded: Vec<(PathBuf, Arc<dyn File>)>,
    /// Of an archive: where the first frame begins in the segment that follows, as far as that is known.
    pub(crate) goes_on_at: Option<Lsn>,
    pub(crate) log_id: [u8; 16],
    pub(crate) max_epoch: u32,
    pub(crate) max_number: u64,
}

impl Chain {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The newest epoch.
    pub(crate) fn last(&self) -> Option<&Run> {
        self.runs.last()
    }

    /// Reads all headers of `dir` and puts the segments in order.
    pub(crate) fn load(device: &dyn Device, dir: &Path) -> Result<Self, LogError> {
        let mut named = Vec::new();
        for entry in device.list(dir).at("list", dir)? {
            if let Some(number) = parse_file_name(&entry.name) {
                named.push((number, dir.join(entry.name)));
            }
        }
        Self::load_named(device, named)
    }

    /// As [`Chain::load`], of an archive. No other one is made of archived segments.
    pub(crate) fn load_archive(device: &dyn Device, dir: &Path) -> Result<Self, LogError> {
        let segments = archive::list(device, dir).at("list", dir)?.segments.into_iter();
        let mut chain = Self::load_named(device, segments.map(|(number, (_, path))| (number, path)))?;
        chain.goes_on_at = chain.next_live(device, dir)?.and_then(|next| next.first_frame());
        Ok(chain)
    }

    /// Why an archive's frames end where `error` says. Any of its segments may be missing: somebody removed it, or a power
    /// cut took the name that it left as well as the one that it got. Where an epoch's last ones are, the next epoch tells
    /// that it went on, and nothing of what is there is damaged.
    pub(crate) fn missing_end(&self, dir: &Path, error: LogError) -> LogError {
        let LogError::Corrupt { lsn, .. } = error else {
            return error;
        };
        let mut pairs = self.runs.iter().zip(self.runs.iter().skip(1));
        let lacking = pairs.find(|(run, next)| {
            (run.first_lsn()..=run.end()).contains(&lsn) && run.end() < next.predecessor_end()
        });
        match lacking {
            Some((run, next)) if Window::default().goes_beyond(run, lsn).unwrap_or(false) => {
                LogError::Missing {
                    path: dir.to_owned(),
                    wanted: run.end(),
                    oldest: next.first_lsn(),
                    end: self.last().map_or(0, Run::end),
                }
            }
            _ => error,
        }
    }

    /// The header of the log's segment that follows an archive's last one.
    fn next_live(&self, device: &dyn Device, archive: &Path) -> Result<Option<SegmentHeader>, LogError> {
        let (Some(last), Some(log)) = (self.last().and_then(|run| run.segments.last()), archive.parent())
        else {
            return Ok(None);
        };
        let path = log.join(file_name(last.number() + 1));
        let header = match device.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            file => read_header(&*file.at("open", &path)?, &path)?,
        };
        Ok(header.filter(|next| next.log_id == self.log_id && next.first_lsn == last.header.end()))
    }

    fn load_named(
        device: &dyn Device,
        named: impl IntoIterator<Item = (u64, PathBuf)>,
    ) -> Result<Self, LogError> {
        let mut chain = Self {
            runs: Vec::new(),
            strays: Vec::new(),
            superseded: Vec::new(),
            goes_on_at: None,
            log_id: [0; 16],
            max_epoch: 0,
            max_number: 0,
        };
        let mut files = Vec::new();
        for (number, path) in named {
            if number >= SEGMENT_NUMBERS {
                return Err(LogError::Corrupt {
                    path,
                    offset: 0,
                    lsn: 0,
                    expected: format!("a segment's number below {SEGMENT_NUMBERS:016x} in a name like that"),
                    found: "one that no log makes; move the file elsewhere".to_owned(),
                });
            }
            let file = device.open(&path, OpenMode::ReadWrite).at("open", &path)?;
            let len = file.stat().at("stat", &path)?.len;
            chain.max_number = chain.max_number.max(number);
            match read_header(&*file, &path)? {
                Some(header) if header.number == number => {
                    chain.max_epoch = chain.max_epoch.max(header.epoch.get());
                    files.push(SegmentFile {
                        header,
                        path,
                        file,
                        len,
                    });
                }
                other => chain.strays.push(Stray {
                    number,
                    path,
                    file,
                    len,
                    header: None,
                    before: other.filter(|header| header.number < number),
                }),
            }
        }
        files.sort_by_key(SegmentFile::number);
        if let Some(first) = files.first() {
            chain.log_id = first.header.log_id;
        }
        chain.link(files)?;
        Ok(chain)
    }

    /// Without a single good header there may still have been a log. A first open that was cut short leaves
    /// zeros behind its header's block: nothing is appended before the header is durable.
    pub(crate) fn refuse_frames_without_header(&self) -> Result<(), LogError> {
        self.strays.iter().try_for_each(|stray| stray.refuse_frames(None))
    }

    /// Nor is a file before the first good segment one that was released: those are gone, oldest first. (What an
    /// interrupted recovery leaves has a number above what it followed.) One that was to be used again, and lost its
    /// new header to the power before it was synced, holds what was released.
    pub(crate) fn refuse_damaged_beginning(&self) -> Result<(), LogError> {
        let first = self
            .runs
            .first()
            .and_then(|run| run.segments.first())
            .map_or(0, SegmentFile::number);
        self.strays
            .iter()
            .filter(|s| s.header.is_none() && s.number < first)
            .try_for_each(|stray| stray.refuse_frames(stray.before.as_ref()))
    }

    /// Splits the files into epochs, drops what a later epoch took over, and refuses gaps.
    fn link(&mut self, files: Vec<SegmentFile>) -> Result<(), LogError> {
        let mut runs: Vec<Run> = Vec::new();
        for file in files {
            // Which of them are in the wrong place is for a person to say.
            if file.header.log_id != self.log_id {
                return Err(LogError::OtherLog {
                    path: file.path,
                    expected: LogId(self.log_id),
                    found: LogId(file.header.log_id),
                });
            }
            match runs.last_mut() {
                Some(run) if run.epoch() == file.header.epoch.get() => run.segments.push(file),
                Some(run) if run.epoch() > file.header.epoch.get() => {
                    let expected = format!("epoch {} or later", run.epoch());
                    return Err(mismatch(
                        &file,
                        64,
                        &expected,
                        &format!("epoch {}", file.header.epoch),
                    ));
                }
                _ => runs.push(Run { segments: vec![file] }),
            }
        }
        let mut taken_over_at = Lsn::MAX;
        for (at, mut run) in runs.into_iter().enumerate().rev() {
            if at > 0 && !run.is_whole() {
                // A later epoch whose first segment has no header: a recovery that was cut short. (If damage
                // took the header, the epoch before ends too early, or later frames prove it: see `scan`.)
                self.strays.extend(run.segments.into_iter().map(Stray::from));
                continue;
            }
            let predecessor_end = run.predecessor_end();
            self.superseded.extend(
                run.segments
                    .extract_if(.., |s| s.first_lsn() >= taken_over_at)
                    .map(|s| (s.path, s.file)),
            );
            check_gaps(&run)?;
            taken_over_at = taken_over_at.min(predecessor_end);
            if !run.segments.is_empty() {
                self.runs.push(run);
            }
        }
        self.runs.reverse();
        Ok(())
    }
}

impl Stray {
    /// Fails where frames stand behind the header's block, others than those of its use under the header `before`.
    /// Anything else may: blocks of a file that was never synced hold what was on the device before.
    fn refuse_frames(&self, before: Option<&SegmentHeader>) -> Result<(), LogError> {
        let mut chunk = vec![0; 1 << 18];
        let mut offset = BLOCK as u64;
        while offset < self.len {
            read_or_zeros(&*self.file, &mut chunk, offset).at("read", &self.path)?;
            for (index, head) in chunk.chunks_exact(ALIGN as usize).enumerate() {
                let place = offset + index as u64 * ALIGN;
                if head != [0; ALIGN as usize] && self.has_frames_at(place, before)? {
                    return Err(LogError::Corrupt {
                        path: self.path.clone(),
                        offset: 0,
                        lsn: 0,
                        expected: "a segment header before the segment's frames".to_owned(),
                        found: "damage in both copies of it".to_owned(),
                    });
                }
            }
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    /// Whether a frame's header stands at `place`, and where it ends another that goes on from it; behind the
    /// file's very first frame there may be nothing. (Without a segment header there is no salt for a checksum.)
    fn has_frames_at(&self, place: u64, before: Option<&SegmentHeader>) -> Result<bool, LogError> {
        let header = self.frame_header(place)?;
        let lsn = header.lsn.get();
        let was_at = before.map(|before| (before.first_lsn.get() + place).wrapping_sub(before.data_at()));
        let plausible = was_at != Some(lsn)
            && (1 << 32..1 << 62).contains(&lsn)
            && lsn.is_multiple_of(ALIGN)
            && header.promised <= header.lsn
            && header.epoch > 0
            && header.epoch < 1 << 24
            && place + (header.stored_len() as u64) < self.len;
        if !plausible {
            return Ok(false);
        }
        let next = self.frame_header(place + header.end() - lsn)?;
        let goes_on = next.lsn == header.end() && next.epoch == header.epoch;
        Ok(goes_on || DATA_AT.contains(&place) && next.as_bytes().iter().all(|byte| *byte == 0))
    }

    fn frame_header(&self, place: u64) -> Result<FrameHeader, LogError> {
        let mut header = FrameHeader::new_zeroed();
        read_or_zeros(&*self.file, header.as_mut_bytes(), place).at("read", &self.path)?;
        Ok(header)
    }
}

impl From<SegmentFile> for Stray {
    fn from(segment: SegmentFile) -> Self {
        let SegmentFile {
            header,
            path,
            file,
            len,
        } = segment;
        Self {
            number: header.number.get(),
            path,
            file,
            len,
            header: Some(header),
            before: None,
        }
    }
}

fn check_gaps(run: &Run) -> Result<(), LogError> {
    for pair in run.segments.windows(2) {
        let [a, b] = pair else { continue };
        if b.number() != a.number() + 1 || b.first_lsn() != a.header.end() {
            let expected = format!("segment {} with LSN {}", a.number() + 1, a.header.end());
            let found = format!("segment {} with LSN {}", b.number(), b.first_lsn());
            return Err(mismatch(b, 0, &expected, &found));
        }
    }
    Ok(())
}

fn mismatch(file: &SegmentFile, offset: u64, expected: &str, found: &str) -> LogError {
    LogError::Corrupt {
        path: file.path.clone(),
        offset,
        lsn: file.first_lsn(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

/// A segment's header; `None` where there is no good one.
pub(crate) fn read_header(file: &dyn File, path: &Path) -> Result<Option<SegmentHeader>, LogError> {
    let mut head = [0; SEGMENT_HEAD];
    read_or_zeros(file, &mut head, 0).at("read", path)?;
    match SegmentHeader::decode(&head) {
        Ok(header) if header.block.get() as usize == BLOCK => Ok(Some(header)),
        Ok(_) | Err(BadHeader::Blank | BadHeader::Damaged) => Ok(None),
        Err(BadHeader::Version(found)) => Err(LogError::Version {
            path: path.to_owned(),
            found,
            supported: VERSION,
        }),
    }
}

/// Fills `buf` from `offset`; what lies beyond the file's end is zeros.
pub(crate) fn read_or_zeros(file: &dyn File, buf: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    let mut rest = buf;
    while !rest.is_empty() {
        match file.read_at(rest, offset) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(n) => {
                rest = rest.split_at_mut(n).1;
                offset += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
