//! Where a reader finds the segments: in the live log and, before that, in its archive.
//!
//! A segment goes from the live log through the builder's hands into the archive, and from there it
//! is removed. A reader goes in the same order, so that it misses none: to the table, which
//! keeps a segment until the archive has it, and then to the archive. What it finds in neither is
//! gone.

use std::collections::VecDeque;
use std::sync::Arc;

use collie_io::{File, OpenMode};

use crate::Lsn;
use crate::core::Core;
use crate::error::{At, LogError, corrupt_at};
use crate::format::SegmentHeader;
use crate::segments::archive::{self, ArchivedFile};
use crate::segments::files::{open_if_there, read_header};
use crate::segments::pool::Whereabouts;
use crate::segments::run::{self, Piece};
use crate::segments::segment::{Beginning, Live, Segment, SegmentMeta};

/// An archived segment that is to be read.
#[derive(Debug)]
struct Ahead {
    archived: Piece,
    /// Open from the first read on, until the reader is past it. A removed file can be read as long
    /// as it is open.
    opened: Option<Arc<Segment>>,
}

/// The segments as one reader goes through them.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Archived segments, in order and without a gap, up to what was live when they were listed.
    ahead: VecDeque<Ahead>,
    /// The live segment that was opened last, where the log itself does not keep it open.
    entered: Option<Arc<Segment>>,
}

impl Source {
    /// Releases what ends at or below `lsn`.
    pub(crate) fn pass(&mut self, lsn: Lsn) {
        while self.ahead.front().is_some_and(|first| first.archived.end <= lsn) {
            self.ahead.pop_front();
        }
        if self.entered.as_ref().is_some_and(|segment| segment.end <= lsn) {
            self.entered = None;
        }
    }

    /// The segment that holds `lsn` or, where an epoch begins above the end of the one before, the
    /// one behind it; `None` at the end of the log.
    ///
    /// # Errors
    /// [`LogError::Missing`] where it is neither live nor archived any more, and those of reading
    /// an archived header.
    pub(crate) fn at_or_after(&mut self, core: &Core, lsn: Lsn) -> Result<Option<Arc<Segment>>, LogError> {
        let mut moved = None;
        loop {
            if let Some(at) = self.ahead.iter().position(|ahead| ahead.archived.end > lsn) {
                if self.leads_to(at, lsn)
                    && let Some(segment) = self.open(core, at)?
                {
                    return Ok(Some(segment));
                }
                // It was removed since its header was read, or what comes before it was.
                self.ahead.clear();
            }
            match core.segments.locate(lsn) {
                None => return Ok(None),
                Some(Whereabouts::Live(live)) => match self.enter(core, &live) {
                    // It was archived or released meanwhile; the next round finds it where it is.
                    Err(error) if error.is_not_found() && moved != Some(live.number) => {
                        moved = Some(live.number);
                    }
                    entered => return entered.map(Some),
                },
                Some(Whereabouts::Before(first)) => match self.find_archived(core, lsn, &first) {
                    Ok(None) => {}
                    // As above. Now a later one is the oldest that is live.
                    Err(error) if error.is_not_found() && moved != Some(first.number) => {
                        moved = Some(first.number);
                    }
                    found => return found,
                },
            }
        }
    }

    /// A live segment, open to be read.
    fn enter(&mut self, core: &Core, live: &Live) -> Result<Arc<Segment>, LogError> {
        if let Some(entered) = self.entered.as_ref().filter(|s| s.number == live.number) {
            return Ok(Arc::clone(entered));
        }
        let segment = live
            .open(&*core.options.device, OpenMode::Read)
            .at("open", &live.path)?;
        if let Live::Cold(_) = live {
            self.entered = Some(Arc::clone(&segment));
        }
        Ok(segment)
    }

    /// Whether nothing is missing between `lsn` and the first segment ahead that ends above it.
    fn leads_to(&self, at: usize, lsn: Lsn) -> bool {
        at > 0
            || self
                .ahead
                .front()
                .is_some_and(|first| run::is_reached_from(&first.archived.header, lsn))
    }

    /// An archived segment, opened; `None` where it is gone.
    fn open(&mut self, core: &Core, at: usize) -> Result<Option<Arc<Segment>>, LogError> {
        let Some(ahead) = self.ahead.get_mut(at) else {
            return Ok(None);
        };
        if let Some(segment) = &ahead.opened {
            return Ok(Some(Arc::clone(segment)));
        }
        let path = &ahead.archived.path;
        let Some(file) = open_if_there(&*core.options.device, path)? else {
            return Ok(None);
        };
        let segment = Arc::new(to_be_read(&ahead.archived, file));
        ahead.opened = Some(Arc::clone(&segment));
        Ok(Some(segment))
    }

    /// Finds the archived segments that lead from `lsn` up to the live log. `None`: they are
    /// ahead now. A segment: there is nothing between `lsn` and it.
    fn find_archived(
        &mut self,
        core: &Core,
        lsn: Lsn,
        first: &Live,
    ) -> Result<Option<Arc<Segment>>, LogError> {
        let Some(archive) = core.segments.archive() else {
            return Err(missing(core, lsn, first.first_lsn));
        };
        let next = header_of(&*self.enter(core, first)?)?;
        let mut last = None;
        let mut found = run::leading_to(&next, lsn, archive.newest_first(), |number, path| {
            let opened = archive::open(archive.device(), path)?;
            Ok(opened.map(|ArchivedFile { header, file }| {
                last = Some((number, file));
                header
            }))
        })?;
        // Below a gap between two epochs nothing is left to be read of the older one.
        found.retain(|archived| archived.end > lsn);
        let Some(oldest) = found.front() else {
            return if run::is_reached_from(&next, lsn) {
                self.enter(core, first).map(Some)
            } else {
                Err(missing(core, lsn, first.first_lsn))
            };
        };
        if !run::is_reached_from(&oldest.header, lsn) {
            return Err(missing(core, lsn, oldest.header.first_lsn.get()));
        }
        // It is read first, and cannot be removed from under us.
        let file = last.filter(|(number, _)| oldest.header.number == *number);
        let mut opened = file.map(|(_, file)| Arc::new(to_be_read(oldest, file)));
        // What is still ahead is kept: a window that reads in advance comes back to it.
        self.ahead.extend(found.into_iter().map(|archived| Ahead {
            archived,
            opened: opened.take(),
        }));
        Ok(None)
    }
}

/// The header of a live segment.
fn header_of(segment: &Segment) -> Result<SegmentHeader, LogError> {
    read_header(&*segment.file, &segment.path)?.ok_or_else(|| {
        let expected = "a segment header before the segment's frames";
        corrupt_at(
            &segment.path,
            0,
            segment.first_lsn,
            expected,
            "damage in both copies of it",
        )
    })
}

fn to_be_read(archived: &Piece, file: Arc<dyn File>) -> Segment {
    let header = &archived.header;
    let meta = SegmentMeta {
        number: header.number.get(),
        epoch: header.epoch.get(),
        salt: header.salt.get(),
        first_lsn: header.first_lsn.get(),
        end: archived.end,
        data_at: header.data_at(),
        beginning: Arc::new(Beginning::of(header)),
        path: archived.path.clone(),
        reusable: false,
    };
    Segment {
        meta,
        file,
        direct: None,
    }
}

pub(super) fn missing(core: &Core, wanted: Lsn, oldest: Lsn) -> LogError {
    LogError::Missing {
        path: core.dir.clone(),
        wanted,
        oldest,
        end: core.durable(),
    }
}
