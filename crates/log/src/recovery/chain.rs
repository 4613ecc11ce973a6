//! The segment files of a directory, put in order by what their headers say, and those that are not
//! part of the log: whether what stands in them proves that the log went further.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::Lsn;
use crate::error::{At, LogError, corrupt_at};
use crate::format::{
    ALIGN, BLOCK, FRAME_HEADER, FrameHeader, SEGMENT_HEAD, SEGMENT_NUMBERS, Salt, SegmentHeader,
};
use crate::segments::archive;
use crate::segments::files::{file_name, open_if_there, parse_file_name, read_header, read_or_zeros};
use crate::segments::frames::{WINDOW, Window, header_at};
use crate::segments::run::{self, Run, SegmentFile};

/// All segment files of a log.
#[derive(Debug)]
pub(crate) struct Chain {
    /// By epoch.
    pub(crate) runs: Vec<Run>,
    pub(crate) strays: Vec<Stray>,
    /// Segments that a later epoch took over wholly, and whose removal is not done or was undone by
    /// a crash. They must be gone for good before the segments that mask them are released.
    pub(crate) superseded: Vec<(PathBuf, Arc<dyn File>)>,
    /// It is an archive's. What is archived may have been shortened where a later epoch took over.
    pub(crate) is_archive: bool,
    /// Of an archive: where the first frame begins in the segment that follows, as far as that is
    /// known.
    pub(crate) goes_on_at: Option<Lsn>,
    /// Of an archive: the oldest segment of the log that it lies in, before the archive was
    /// listed.
    log_begins: Option<SegmentHeader>,
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

    /// The segment in which `lsn` lies, or the last one that begins below, and the byte in it.
    pub(crate) fn place(&self, lsn: Lsn) -> (PathBuf, u64) {
        let newest_first = self.runs.iter().rev().flat_map(|run| run.segments.iter().rev());
        let segment = newest_first
            .into_iter()
            .find(|segment| segment.first_lsn() <= lsn);
        segment.map_or_else(Default::default, |s| (s.path.clone(), s.offset(lsn)))
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
        // Before the archive: what leaves the log meanwhile is found there.
        let log_begins = oldest_live(device, dir)?;
        let segments = archive::list(device, dir).at("list", dir)?.segments.into_iter();
        let mut chain = Self::load_named(device, segments.map(|(number, (_, path))| (number, path)))?;
        chain.is_archive = true;
        chain.log_begins = log_begins.filter(|oldest| oldest.log_id == chain.log_id);
        chain.goes_on_at = chain.next_live(device, dir)?.and_then(|next| next.first_frame());
        Ok(chain)
    }

    /// Why an archive's frames end where `error` says. Any of its segments may be missing: a user
    /// removed it, or a power cut took the name that it left as well as the one that it got. Where
    /// an epoch's last ones are, the next epoch shows that it went on, and nothing of what is there
    /// is damaged.
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

    /// What an archive lacks at its end, where the log's oldest segment shows it: it does not go on
    /// from the archive's last one. (What is archived goes up to it without a gap, unless a user
    /// or a power cut took something away.)
    pub(crate) fn missing_before_log(&self, dir: &Path) -> Option<LogError> {
        let last = self.last()?.segments.last()?;
        let oldest = self.log_begins.as_ref()?;
        let is_there = oldest.number <= last.header.number || run::goes_on(&last.header, oldest);
        (!is_there).then(|| LogError::Missing {
            path: dir.to_owned(),
            wanted: last.header.end(),
            oldest: self.runs.first().map_or(0, Run::first_lsn),
            end: last.header.end(),
        })
    }

    /// The header of the log's segment that follows an archive's last one.
    fn next_live(&self, device: &dyn Device, archive: &Path) -> Result<Option<SegmentHeader>, LogError> {
        let (Some(last), Some(log)) = (self.last().and_then(|run| run.segments.last()), archive.parent())
        else {
            return Ok(None);
        };
        let path = log.join(file_name(last.number() + 1));
        let header = match open_if_there(device, &path)? {
            None => None,
            Some(file) => read_header(&*file, &path)?,
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
            is_archive: false,
            goes_on_at: None,
            log_begins: None,
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
                before => chain.strays.push(Stray {
                    number,
                    path,
                    file,
                    len,
                    header: None,
                    before,
                }),
            }
        }
        files.sort_by_key(SegmentFile::number);
        if let Some(first) = files.first() {
            chain.log_id = first.header.log_id;
            let mut strays = chain.strays.iter();
            strays.try_for_each(|stray| stray.refuse_renamed(first))?;
        }
        let linked = run::link(chain.log_id, files)?;
        chain.runs = linked.runs;
        // Where damage took the header of an epoch's first segment, its frames may still prove it.
        chain
            .strays
            .extend(linked.not_in_force.into_iter().map(Stray::from));
        let superseded = linked.superseded.into_iter();
        chain.superseded = superseded.map(|s| (s.path, s.file)).collect();
        Ok(chain)
    }

    /// Without a single good header there may still have been a log. A first open that was
    /// interrupted leaves zeros behind its header's block: nothing is appended before the header is
    /// durable.
    pub(crate) fn refuse_frames_without_header(&self) -> Result<(), LogError> {
        self.strays.iter().try_for_each(|stray| stray.refuse_frames(None))
    }

    /// Nor is a file before the first good segment one that was released: those are gone, oldest
    /// first. (What an interrupted recovery leaves has a number above what it followed.) One that
    /// was to be used again, and lost its new header to the power before it was synced, holds what
    /// was released.
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
}

/// The header of the oldest segment of the log whose archive this is; `None` where there is none,
/// as beside a copy, or it is damaged.
fn oldest_live(device: &dyn Device, archive: &Path) -> Result<Option<SegmentHeader>, LogError> {
    let Some(log) = archive.parent().filter(|_| archive.ends_with(archive::DIR)) else {
        return Ok(None);
    };
    let log = if log == Path::new("") { Path::new(".") } else { log };
    oldest_in(device, log)
}

/// The header of the oldest segment in a log's directory; `None` where there is none, or it is
/// damaged.
pub(super) fn oldest_in(device: &dyn Device, log: &Path) -> Result<Option<SegmentHeader>, LogError> {
    // A copy need not lie in a directory that may be read.
    let entries = device.list(log).unwrap_or_default();
    let mut numbers: Vec<_> = entries.iter().filter_map(|e| parse_file_name(&e.name)).collect();
    numbers.sort_unstable();
    for number in numbers {
        let path = log.join(file_name(number));
        // One that is not there was archived since.
        if let Some(file) = open_if_there(device, &path)? {
            // An empty one was about to be removed.
            if file.stat().at("stat", &path)?.len == 0 {
                continue;
            }
            let header = read_header(&*file, &path)?;
            return Ok(header.filter(|header| header.number == number));
        }
    }
    Ok(None)
}

/// A file that is not part of the chain: prepared and never used, renamed and not yet given its
/// header, or made by a recovery that did not come to its end. Or a damaged one: `scan` searches
/// it for proof of that.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) len: u64,
    /// A good header, of an epoch whose first segment never got its own.
    pub(crate) header: Option<SegmentHeader>,
    /// Its header under the number that it had before, where it was to be used again and never got
    /// its own.
    pub(crate) before: Option<SegmentHeader>,
}

/// Where the data of a segment without a header may begin.
const DATA_AT: [u64; 2] = [BLOCK as u64, SEGMENT_HEAD as u64];

impl Stray {
    /// Fails where the file has the header of a segment that was never released. The oldest ones are, and get
    /// a larger number: so it is smaller than the file's, and than that of `first`, the oldest that is there.
    pub(crate) fn refuse_renamed(&self, first: &SegmentFile) -> Result<(), LogError> {
        let Some(header) = &self.before else {
            return Ok(());
        };
        if header.log_id == first.header.log_id && header.number < first.number().min(self.number) {
            return Ok(());
        }
        let expected = format!("the header of segment {}", self.number);
        let found = format!(
            "that of segment {}: was the file copied, renamed or swapped with another?",
            header.number
        );
        Err(corrupt_at(&self.path, 0, header.first_lsn.get(), expected, found))
    }

    /// Fails where frames stand behind the header's block, others than those of its use under the
    /// header `before`. Anything else may: blocks of a file that was never synced hold what was on
    /// the device before.
    pub(crate) fn refuse_frames(&self, before: Option<&SegmentHeader>) -> Result<(), LogError> {
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

    /// Whether a frame's header stands at `place`, and where it ends another that goes on from it;
    /// behind the file's very first frame there may be nothing. (Without a segment header there is
    /// no salt for a checksum.)
    fn has_frames_at(&self, place: u64, before: Option<&SegmentHeader>) -> Result<bool, LogError> {
        let header = self.frame_header(place)?;
        let lsn = header.lsn.get();
        let was_at = before.map(|before| (before.first_lsn.get() + place).wrapping_sub(before.data_at()));
        let plausible = was_at != Some(lsn)
            && (1 << 32..1 << 62).contains(&lsn)
            && lsn.is_multiple_of(ALIGN)
            && header.durable_mark <= header.lsn
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

    /// Whether this header at `place` and what follows it are a frame.
    fn has_frame(&self, header: &FrameHeader, place: u64, salt: Salt) -> Result<bool, LogError> {
        let (lsn, epoch) = (header.lsn.get(), header.epoch.get());
        let end = lsn.saturating_add(self.len - place);
        if header_at(header.as_bytes(), lsn, epoch, end).is_err() {
            return Ok(false);
        }
        let mut payload = vec![0; header.stored_len()];
        let payload_at = place + FRAME_HEADER as u64;
        read_or_zeros(&*self.file, &mut payload, payload_at).at("read", &self.path)?;
        Ok(header.matches(salt, &payload))
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

/// Whether a file outside the chain shows that the log was durable at `at`: its header is damaged,
/// or it is a later epoch's whose first header is. Frames that were copied forward record nothing,
/// so what an interrupted recovery left proves nothing.
///
/// `begins_epoch`: no other such file stands before it, so it may be its epoch's first segment.
pub(crate) fn stray_proves(run: &Run, stray: &Stray, begins_epoch: bool, at: Lsn) -> Result<bool, LogError> {
    if stray.before.is_some() {
        // It was to be used again: nothing of its new use was written before both copies of its new
        // header were there.
        return Ok(false);
    }
    if stray.header.as_ref().is_some_and(is_behind_copy) {
        return Ok(true);
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
            if header.epoch == epoch
                && proves_durable(&header, run, at)
                && stray.has_frame(&header, place, salt)?
            {
                return Ok(true);
            }
        }
        offset += (n - FRAME_HEADER) as u64 / ALIGN * ALIGN + ALIGN;
    }
    Ok(false)
}

/// Whether a segment was begun when its epoch was in force: behind the segments of what was copied forward,
/// of which the last may begin where the copy ends. An epoch in force proves all of the one before.
fn is_behind_copy(header: &SegmentHeader) -> bool {
    header.number != header.epoch_first && header.first_lsn > header.copied_end
}

/// A segment whose header is destroyed, of an epoch whose salt went with it. An epoch's first
/// segment begins with a frame, so its frames can be followed by their lengths from there: LSN and
/// epoch must agree at each step, which no payload can arrange. Garbage in blocks that were never
/// synced must not pass either: the first frame lies within reach of what is known. (Far within:
/// every open begins an epoch, also those that leave no segment; and an LSN goes on above tables
/// that were written without a log.)
fn headerless_proves(run: &Run, stray: &Stray, data_at: u64, at: Lsn) -> Result<bool, LogError> {
    const EPOCHS_AHEAD: u32 = 1 << 24;
    const BYTES_AHEAD: u64 = 1 << 48;
    let within_reach = |header: &FrameHeader| {
        let (lsn, durable_mark) = (header.lsn.get(), header.durable_mark.get());
        header.epoch.get().wrapping_sub(run.epoch()) < EPOCHS_AHEAD
            && lsn.wrapping_sub(run.first_lsn()) < BYTES_AHEAD
            && lsn.is_multiple_of(ALIGN)
            && durable_mark.is_multiple_of(ALIGN)
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
        if proves_durable(&header, run, at) {
            return Ok(true);
        }
        place += header.end() - header.lsn.get();
    }
    Ok(false)
}

/// Whether a header, if it is one, says that `at` was durable.
fn proves_durable(header: &FrameHeader, run: &Run, at: Lsn) -> bool {
    let (durable_mark, epoch) = (header.durable_mark.get(), header.epoch.get());
    let later = if epoch == run.epoch() {
        durable_mark > at
    } else {
        epoch > run.epoch() && durable_mark >= at
    };
    durable_mark > 0 && durable_mark <= header.lsn.get() && header.lsn.get() >= at && later
}
