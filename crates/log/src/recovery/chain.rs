//! The segment files of a directory, put in order by what their headers say.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode};

use super::stray::Stray;
use crate::Lsn;
use crate::error::{At, LogError};
use crate::format::{SEGMENT_NUMBERS, SegmentHeader};
use crate::segments::archive;
use crate::segments::files::{file_name, open_if_there, parse_file_name, read_header};
use crate::segments::frames::Window;
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
            let header = read_header(&*file, &path)?;
            return Ok(header.filter(|header| header.number == number));
        }
    }
    Ok(None)
}
