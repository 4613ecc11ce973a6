//! A log's segments as they are seen from outside, while their owner makes, renames, archives and
//! removes them.
//!
//! The log's directory is listed first and its archive after it: a segment that goes from the one
//! to the other meanwhile is seen at least once. The other way round it could be missed in both.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, Stat};

use crate::Lsn;
use crate::error::{At, LogError};
use crate::format::{Salt, SegmentHeader};
use crate::segments::archive;
use crate::segments::files::{open_if_there, parse_file_name, read_header};
use crate::segments::run::{self, Extent, Piece, Run, SegmentFile, Stretch};

/// How often the directory is listed until it shows no gap: segments are made, one after the other,
/// while it is read. All that were listed may be gone before they are opened, or all but the
/// oldest, which were opened first.
const LISTINGS: u32 = 4;

/// A segment file with a good header.
#[derive(Debug)]
struct Known {
    segment: SegmentFile,
    /// Distinguishes it from another file of the same name, which a repair or a user may put in
    /// its place.
    stat: Stat,
}

/// The log as its segments' headers describe it.
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
    pub(super) durable_mark: Lsn,
    /// The newest epoch in force.
    pub(super) epoch: u32,
    /// Where what that epoch's recovery found ended.
    pub(super) copied_end: Lsn,
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
            durable_mark: 0,
            epoch: 0,
            copied_end: 0,
            log_id: None,
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lists the directory again and, where the log begins above `from` by now, its archive.
    /// The log was seen to reach up to `from`.
    ///
    /// # Errors
    /// Another log's segments, a format that is not known, a gap that stays, or an archived header
    /// that is damaged.
    pub(super) fn refresh(&mut self, from: Lsn) -> Result<(), LogError> {
        let mut listings = 0;
        loop {
            listings += 1;
            self.list().map_err(|error| match error.is_not_found() {
                true => self.no_log(from),
                false => error,
            })?;
            self.learn_beginning()?;
            let built = self.build();
            // A log's end does not go back: where it seems to, the segments behind it went while
            // they were listed.
            let ends_early = self.pieces.is_empty() || self.bounds().1 < from;
            let may_be_torn = matches!(built, Err(LogError::Corrupt { .. })) || ends_early;
            if !may_be_torn || listings == LISTINGS {
                built?;
                return self.find_archived(from);
            }
        }
    }

    /// The directory is not there.
    fn no_log(&self, wanted: Lsn) -> LogError {
        LogError::Missing {
            path: self.dir.clone(),
            wanted,
            oldest: 0,
            end: 0,
        }
    }

    /// Has the oldest segment say where its first frame begins. Its header may have been read while
    /// the segment before it was there, which is not listed any more; it came to say so before that
    /// one went, and is read again.
    fn learn_beginning(&mut self) -> Result<(), LogError> {
        while let Some(mut oldest) = self.known.first_entry() {
            let SegmentFile {
                header, path, file, ..
            } = &mut oldest.get_mut().segment;
            if header.first_frame().is_some() {
                break;
            }
            match read_header(&**file, path)? {
                Some(now) if now.number == header.number => {
                    *header = now;
                    break;
                }
                // It went as well, and its file is used again.
                _ => drop(oldest.remove()),
            }
        }
        Ok(())
    }

    /// Puts the archived segments that lead up to the first piece before it, from the one that
    /// holds `from` on.
    fn find_archived(&mut self, from: Lsn) -> Result<(), LogError> {
        let next = self.pieces.first().map(|piece| piece.header);
        let Some(next) = next.filter(|header| header.first_lsn.get() > from) else {
            self.archived.clear();
            return Ok(());
        };
        let names = self.list_archive()?;
        let mut known = std::mem::take(&mut self.archived);
        let found = run::leading_to(&next, from, names.into_iter().rev(), |_, path| {
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
        self.durable_mark = self.durable_mark.max(durable);
        self.pieces.splice(0..0, found);
        Ok(())
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
        open_if_there(&*self.device, &piece.path)
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
                    .stat(&known.segment.path)
                    .is_ok_and(|stat| (stat.dev, stat.ino) == (known.stat.dev, known.stat.ino));
            if same {
                names.remove(number);
            }
            same
        });
        for (number, path) in names {
            // It may have been renamed or removed since the directory was listed.
            let Some(file) = open_if_there(&*self.device, &path)? else {
                continue;
            };
            // Without a good header of this number it is one that is being made.
            if let Some(header) = read_header(&*file, &path)?.filter(|h| h.number == number) {
                let stat = file.stat().at("stat", &path)?;
                let segment = SegmentFile {
                    header,
                    path,
                    file,
                    len: stat.len,
                };
                let known = Known { segment, stat };
                self.known.insert(number, known);
            }
        }
        Ok(())
    }

    /// Puts the segments in order, by the rules that recovery has for them.
    fn build(&mut self) -> Result<(), LogError> {
        let segments = self.known.values().map(|known| known.segment.clone());
        let first = self.known.values().next();
        let log_id = match (self.log_id, first) {
            (Some(log_id), _) => log_id,
            (None, Some(known)) => *self.log_id.insert(known.segment.header.log_id),
            (None, None) => return Ok(()),
        };
        let linked = run::link(log_id, segments)?;
        self.pieces = linked.pieces();
        let heads = linked.runs.iter().filter_map(Run::head);
        let marks = heads.map(|head| head.copied_end.max(head.predecessor_end).get());
        // The durable mark never goes back, also where the segment that recorded it is gone.
        self.durable_mark = marks.fold(self.durable_mark, Lsn::max);
        if let Some(newest) = linked.runs.last().and_then(Run::head) {
            (self.epoch, self.copied_end) = (newest.epoch.get(), newest.copied_end.get());
        }
        // Numbers of segments that never came to count may be given out once more.
        for segment in linked.not_in_force {
            self.known.remove(&segment.number());
        }
        Ok(())
    }

    /// The piece that holds `lsn` or, where none does, the first one above it.
    pub(super) fn at_or_after(&self, lsn: Lsn) -> Option<&Piece> {
        let at = self.pieces.partition_point(|p| p.end <= lsn);
        self.pieces.get(at)
    }

    /// What counts of the epoch that `piece` belongs to.
    pub(super) fn epoch_of<'a>(&'a self, piece: &'a Piece) -> EpochStretch<'a> {
        EpochStretch { view: self, piece }
    }

    /// The first LSN that is there, and one past the last that there is room for.
    pub(super) fn bounds(&self) -> (Lsn, Lsn) {
        let oldest = self.pieces.first().map_or(0, Piece::start);
        let end = self.pieces.last().map_or(0, |p| p.end);
        (oldest, end)
    }
}

/// What counts of an epoch, from a piece on.
#[derive(Clone, Copy)]
pub(super) struct EpochStretch<'a> {
    view: &'a View,
    piece: &'a Piece,
}

impl EpochStretch<'_> {
    fn last(&self) -> &Piece {
        let pieces = &self.view.pieces;
        let behind = pieces.partition_point(|p| p.header.epoch <= self.piece.header.epoch);
        let last = behind.checked_sub(1).and_then(|last| pieces.get(last));
        last.unwrap_or(self.piece)
    }
}

impl Stretch for EpochStretch<'_> {
    fn epoch(&self) -> u32 {
        self.piece.header.epoch.get()
    }

    fn salt(&self) -> Salt {
        Salt(self.piece.header.salt.get())
    }

    fn end(&self) -> Lsn {
        self.last().end
    }

    fn data_end(&self) -> Lsn {
        self.last().data_end()
    }

    fn extent(&mut self, lsn: Lsn) -> Result<Option<Extent>, LogError> {
        let Some(piece) = self.view.at_or_after(lsn).filter(|p| p.start() <= lsn) else {
            return Ok(None);
        };
        // Without it the frame is not whole, and the caller reads again what there is by then.
        let file = self.view.open(piece)?;
        Ok(file.map(|file| Extent {
            file,
            path: piece.path.clone(),
            offset: piece.offset(lsn),
            end: piece.end,
        }))
    }
}
