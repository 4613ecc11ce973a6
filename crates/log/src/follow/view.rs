//! A log's segments as they are seen from outside, while their owner makes, renames, archives and removes them.
//!
//! The log's directory is listed first and its archive after it: a segment that goes from the one to the other
//! meanwhile is seen at least once. The other way round it could be missed in both.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode, Stat};

use crate::archive::{self, Archived};
use crate::error::{At, LogError};
use crate::format::{Salt, SegmentHeader};
use crate::recovery::read_header;
use crate::segments::parse_file_name;
use crate::{LogId, Lsn};

/// How often the directory is listed until it shows no gap: segments are made, one after the other, while it is
/// read. All that were listed may be gone before they are opened, or all but the oldest, which were looked at first.
const LISTINGS: u32 = 4;

/// A stretch of the log: what counts of one segment.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) epoch: u32,
    pub(super) salt: Salt,
    pub(super) start: Lsn,
    /// One past the last LSN that counts here: what fits, or where the next epoch takes over.
    pub(super) end: Lsn,
    /// Whether a frame begins at its first byte for certain.
    pub(super) begins_epoch: bool,
    pub(super) path: PathBuf,
    /// None of an archived one, which is opened to be read and may be gone by then.
    file: Option<Arc<dyn File>>,
    /// In an epoch's first segment: where the epoch before ends.
    pub(super) predecessor_end: Lsn,
    first_lsn: Lsn,
    data_at: u64,
    /// Where the first frame begins that begins here or behind, as far as the header tells.
    pub(super) first_frame: Option<Lsn>,
    /// Whether it is of a format that does not tell that.
    pub(super) cannot_tell: bool,
}

impl Piece {
    /// All that fits into a segment.
    fn new(header: &SegmentHeader, path: PathBuf, file: Option<Arc<dyn File>>) -> Self {
        Self {
            epoch: header.epoch.get(),
            salt: Salt(header.salt.get()),
            start: header.first_lsn.get(),
            end: header.end(),
            begins_epoch: header.number == header.epoch_first,
            path,
            file,
            predecessor_end: header.predecessor_end.get(),
            first_lsn: header.first_lsn.get(),
            data_at: header.data_at(),
            first_frame: header.first_frame(),
            cannot_tell: header.is_one_block(),
        }
    }

    pub(super) fn offset(&self, lsn: Lsn) -> u64 {
        self.data_at + (lsn - self.first_lsn)
    }
}

impl From<Archived> for Piece {
    fn from(archived: Archived) -> Self {
        let Archived { header, end, path } = archived;
        Self {
            end,
            ..Self::new(&header, path, None)
        }
    }
}

/// A segment file with a good header.
#[derive(Debug)]
struct Known {
    header: SegmentHeader,
    path: PathBuf,
    file: Arc<dyn File>,
    /// Tells it from another file of the same name, which a repair or somebody's hand may put in its place.
    stat: Stat,
}

/// The log as its segments' headers tell it.
#[derive(Debug)]
pub(super) struct View {
    device: Arc<dyn Device>,
    dir: PathBuf,
    known: BTreeMap<u64, Known>,
    /// Headers of archived segments that were needed so far.
    archived: BTreeMap<PathBuf, SegmentHeader>,
    /// In order, without overlaps; between two epochs there may be a gap.
    pub(super) pieces: Vec<Piece>,
    /// Everything below was durable when the headers were written.
    pub(super) promise: Lsn,
    /// The newest epoch in force.
    pub(super) epoch: u32,
    /// Where what that epoch's recovery found ended.
    pub(super) carried_end: Lsn,
    log_id: Option<[u8; 16]>,
}

impl View {
    pub(super) fn new(device: Arc<dyn Device>, dir: PathBuf) -> Self {
        Self {
            device,
            dir,
            known: BTreeMap::new(),
            archived: BTreeMap::new(),
            pieces: Vec::new(),
            promise: 0,
            epoch: 0,
            carried_end: 0,
            log_id: None,
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Looks at the directory again and, where the log begins above `from` by now, at its archive. The log was seen to
    /// reach up to `from`.
    ///
    /// # Errors
    /// Another log's segments, a format that is not known, a gap that stays, or an archived header that is damaged.
    pub(super) fn refresh(&mut self, from: Lsn) -> Result<(), LogError> {
        let mut listings = 0;
        loop {
            listings += 1;
            self.list()?;
            let built = self.build();
            // A log's end does not go back: where it seems to, the segments behind it went while they were looked at.
            let ends_early = self.pieces.is_empty() || self.bounds().1 < from;
            let may_be_torn = matches!(built, Err(LogError::Corrupt { .. })) || ends_early;
            if !may_be_torn || listings == LISTINGS {
                built?;
                return self.look_back(from);
            }
        }
    }

    /// Looks at everything again, with nothing kept of what was seen before.
    pub(super) fn look_anew(&mut self, from: Lsn) -> Result<(), LogError> {
        self.known.clear();
        self.archived.clear();
        self.refresh(from)
    }

    /// Puts the archived segments that lead up to the first piece before it, from the one that holds `from` on.
    fn look_back(&mut self, from: Lsn) -> Result<(), LogError> {
        let Some(next) = self.first_header().filter(|header| header.first_lsn.get() > from) else {
            self.archived.clear();
            return Ok(());
        };
        let names = self.list_archive()?;
        let mut known = std::mem::take(&mut self.archived);
        let found = archive::leading_to(&next, from, names.into_iter().rev(), |_, path| {
            let header = match known.remove(path) {
                Some(header) => header,
                None => match archive::open(&*self.device, path)? {
                    Some(opened) => opened.header,
                    None => return Ok(None),
                },
            };
            self.archived.insert(path.to_owned(), header);
            Ok(Some(header))
        })?;
        // What is archived was durable as a whole before.
        let durable = found.back().map_or(0, |newest| newest.end);
        self.promise = self.promise.max(durable);
        let pieces = found.into_iter().map(Piece::from);
        self.pieces.splice(0..0, pieces);
        Ok(())
    }

    /// The header of the first segment that counts.
    fn first_header(&self) -> Option<SegmentHeader> {
        let first = self.pieces.first()?;
        let known = self.known.values().find(|known| known.path == first.path)?;
        Some(known.header)
    }

    /// The numbers and paths of archived segments.
    fn list_archive(&self) -> Result<BTreeMap<u64, PathBuf>, LogError> {
        let dir = self.dir.join(archive::DIR);
        let listing = match archive::list(&*self.device, &dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            listing => listing.at("list", &dir)?,
        };
        let segments = listing.segments.into_iter();
        Ok(segments.map(|(number, (_, path))| (number, path)).collect())
    }

    /// A piece's file to be read from; `None` where it is gone.
    pub(super) fn open(&self, piece: &Piece) -> Result<Option<Arc<dyn File>>, LogError> {
        if let Some(file) = &piece.file {
            return Ok(Some(Arc::clone(file)));
        }
        match self.device.open(&piece.path, OpenMode::Read) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.at("open", &piece.path).map(Some),
        }
    }

    /// Learns of new segments, and forgets those that are gone.
    fn list(&mut self) -> Result<(), LogError> {
        let entries = self.device.list(&self.dir).at("list", &self.dir)?;
        let mut names: BTreeMap<u64, PathBuf> = entries
            .into_iter()
            .filter_map(|e| parse_file_name(&e.name).map(|number| (number, self.dir.join(e.name))))
            .collect();
        self.known.retain(|number, known| {
            let same = names.contains_key(number)
                && self
                    .device
                    .stat(&known.path)
                    .is_ok_and(|stat| (stat.dev, stat.ino) == (known.stat.dev, known.stat.ino));
            if same {
                names.remove(number);
            }
            same
        });
        for (number, path) in names {
            let file = match self.device.open(&path, OpenMode::Read) {
                Ok(file) => file,
                // Renamed or removed since the look at the directory.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e).at("open", &path),
            };
            // Without a good header of this number it is one that is being made.
            if let Some(header) = read_header(&*file, &path)?.filter(|h| h.number == number) {
                let stat = file.stat().at("stat", &path)?;
                let known = Known {
                    header,
                    path,
                    file,
                    stat,
                };
                self.known.insert(number, known);
            }
        }
        Ok(())
    }

    /// Puts the segments in order, by the rules that recovery has for them.
    fn build(&mut self) -> Result<(), LogError> {
        let mut runs: Vec<Vec<&Known>> = Vec::new();
        for known in self.known.values() {
            let log_id = *self.log_id.get_or_insert(known.header.log_id);
            if known.header.log_id != log_id {
                return Err(LogError::OtherLog {
                    path: self.dir.clone(),
                    expected: LogId(log_id),
                    found: LogId(known.header.log_id),
                });
            }
            match runs.last_mut() {
                Some(run)
                    if run
                        .last()
                        .is_some_and(|last| last.header.epoch == known.header.epoch) =>
                {
                    run.push(known);
                }
                _ => runs.push(vec![known]),
            }
        }
        let (mut pieces, mut taken_over_at) = (Vec::new(), Lsn::MAX);
        let (mut promise, mut newest) = (0, None);
        let mut in_force = BTreeSet::new();
        for (at, run) in runs.iter().enumerate().rev() {
            let Some(head) = run.first().map(|first| &first.header) else {
                continue;
            };
            // An epoch is in force once its first segment has its header; only the oldest one's may be gone.
            if at > 0 && head.number != head.epoch_first {
                continue;
            }
            check_gaps(run)?;
            in_force.extend(run.iter().map(|known| known.header.number.get()));
            newest.get_or_insert((head.epoch.get(), head.carried_end.get()));
            promise = head
                .carried_end
                .get()
                .max(head.predecessor_end.get())
                .max(promise);
            let counts = run.iter().filter(|k| k.header.first_lsn.get() < taken_over_at);
            pieces.extend(counts.rev().map(|known| known.piece(taken_over_at)));
            taken_over_at = taken_over_at.min(head.predecessor_end.get());
        }
        pieces.reverse();
        self.pieces = pieces;
        // What was promised once stays so, also where the segment that said it is gone.
        self.promise = self.promise.max(promise);
        if let Some(newest) = newest {
            (self.epoch, self.carried_end) = newest;
        }
        // Numbers of segments that never came to count may be given out once more.
        self.known.retain(|number, _| in_force.contains(number));
        Ok(())
    }

    /// The piece that holds `lsn` or, where none does, the first one above it.
    pub(super) fn at_or_after(&self, lsn: Lsn) -> Option<&Piece> {
        let at = self.pieces.partition_point(|p| p.end <= lsn);
        self.pieces.get(at)
    }

    /// The stretch of one epoch from `lsn` on, piece by piece.
    pub(super) fn stretch(&self, lsn: Lsn) -> impl Iterator<Item = &Piece> {
        let at = self.pieces.partition_point(|p| p.end <= lsn);
        let pieces = self.pieces.get(at..).unwrap_or_default();
        let epoch = pieces.first().map_or(0, |first| first.epoch);
        pieces.iter().take_while(move |p| p.epoch == epoch)
    }

    /// The first LSN that is there, and one past the last that there is room for.
    pub(super) fn bounds(&self) -> (Lsn, Lsn) {
        let oldest = self.pieces.first().map_or(0, |p| p.start);
        let end = self.pieces.last().map_or(0, |p| p.end);
        (oldest, end)
    }
}

impl Known {
    fn piece(&self, taken_over_at: Lsn) -> Piece {
        let whole = Piece::new(&self.header, self.path.clone(), Some(Arc::clone(&self.file)));
        Piece {
            end: whole.end.min(taken_over_at),
            ..whole
        }
    }
}

fn check_gaps(run: &[&Known]) -> Result<(), LogError> {
    for pair in run.windows(2) {
        let [a, b] = pair else { continue };
        let number = a.header.number.get() + 1;
        if b.header.number != number || b.header.first_lsn != a.header.end() {
            return Err(LogError::Corrupt {
                path: b.path.clone(),
                offset: 0,
                lsn: b.header.first_lsn.get(),
                expected: format!("segment {number} with LSN {}", a.header.end()),
                found: format!("segment {} with LSN {}", b.header.number, b.header.first_lsn),
            });
        }
    }
    Ok(())
}
