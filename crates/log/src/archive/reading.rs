//! Which archived segments lead up to the live log without a gap: what a reader may go through.
//!
//! Read from the newest to the oldest, each by its header: an archive may be long, and whoever reads the newest part
//! of it need not look at the rest. Files are not kept open; what is read next may be gone by then, and the archive may
//! be cleaned under its readers.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode};

use crate::error::{At, LogError};
use crate::format::SegmentHeader;
use crate::recovery::read_header;
use crate::{LogId, Lsn};

/// An archived segment, and what counts of it.
#[derive(Debug, Clone)]
pub(crate) struct Archived {
    pub(crate) header: SegmentHeader,
    /// One past the last LSN that counts here: what fits, or where the next epoch takes over.
    pub(crate) end: Lsn,
    pub(crate) path: PathBuf,
}

/// The archived segments that lead up to the segment with the header `next`, oldest first: from the one that holds
/// `from` on where there is one, else from the oldest that is there without a gap. `header_of` gives `None` for a file
/// that is gone.
pub(crate) fn leading_to(
    next: &SegmentHeader,
    from: Lsn,
    newest_first: impl IntoIterator<Item = (u64, PathBuf)>,
    mut header_of: impl FnMut(u64, &Path) -> Result<Option<SegmentHeader>, LogError>,
) -> Result<VecDeque<Archived>, LogError> {
    let mut found = VecDeque::new();
    let (mut next, mut taken_over_at) = (*next, Lsn::MAX);
    for (number, path) in newest_first {
        if next.first_lsn.get() <= from {
            break;
        }
        // A segment that was archived since its successor was looked at, or that a crash left in both places.
        if number >= next.number.get() {
            continue;
        }
        let Some(header) = header_of(number, &path)? else {
            break;
        };
        check(&header, number, &path, &next)?;
        if header.epoch != next.epoch {
            taken_over_at = taken_over_at.min(next.predecessor_end.get());
        }
        if header.first_lsn.get() >= taken_over_at {
            continue;
        }
        if !goes_on(&header, &next) {
            break;
        }
        let end = header.end().min(taken_over_at);
        found.push_front(Archived { header, end, path });
        next = header;
    }
    Ok(found)
}

/// Whether nothing is missing between `lsn` and a segment: it holds it, or begins an epoch above the end of the one
/// before, which `lsn` has reached.
pub(crate) fn is_reached_from(segment: &SegmentHeader, lsn: Lsn) -> bool {
    segment.first_lsn.get() <= lsn
        || segment.number == segment.epoch_first && lsn >= segment.predecessor_end.get()
}

/// Whether nothing is missing between two segments.
fn goes_on(older: &SegmentHeader, newer: &SegmentHeader) -> bool {
    if older.epoch == newer.epoch {
        older.number.get() + 1 == newer.number.get() && older.end() == newer.first_lsn.get()
    } else {
        older.epoch < newer.epoch
            && newer.number == newer.epoch_first
            && older.end() >= newer.predecessor_end.get()
    }
}

/// Refuses what no archiving of this log put there.
fn check(header: &SegmentHeader, number: u64, path: &Path, next: &SegmentHeader) -> Result<(), LogError> {
    if header.log_id != next.log_id {
        return Err(LogError::OtherLog {
            path: path.to_owned(),
            expected: LogId(next.log_id),
            found: LogId(header.log_id),
        });
    }
    if header.number != number {
        return Err(LogError::Corrupt {
            path: path.to_owned(),
            offset: 0,
            lsn: header.first_lsn.get(),
            expected: format!("the header of segment {number}"),
            found: format!("that of segment {}", header.number),
        });
    }
    Ok(())
}

/// An archived segment's header, and the file that it was read from.
pub(crate) struct ArchivedFile {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn File>,
}

/// Opens an archived segment and reads its header; `None` where it is gone.
pub(crate) fn open(device: &dyn Device, path: &Path) -> Result<Option<ArchivedFile>, LogError> {
    let file = match device.open(path, OpenMode::Read) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).at("open", path),
    };
    match read_header(&*file, path)? {
        Some(header) => Ok(Some(ArchivedFile { header, file })),
        None => Err(LogError::Corrupt {
            path: path.to_owned(),
            offset: 0,
            lsn: 0,
            expected: "the header of an archived segment".to_owned(),
            found: "damage in both copies of it".to_owned(),
        }),
    }
}
