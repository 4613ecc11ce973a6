//! Where the log begins: the first frame of its oldest segment.
//!
//! Once a segment is released, the one behind it may begin in the middle of a frame, and the bytes
//! there are whatever a user had stored: another log's segment, or frames made up for the place. So
//! they are not searched for the first frame. Its LSN is known while the log is written, and the
//! segment's header says it, durably, before the segment before it is released. Of segments that
//! were there when the log was opened, and that were not read then, it is found by following the
//! frames of the segment before.

use std::path::Path;
use std::sync::Arc;

use collie_io::{Device, OpenMode};

use crate::Lsn;
use crate::error::{At, Fatal, HousekeepingError, LogError};
use crate::format::{FRAME_HEADER, SegmentHeader};
use crate::segments::files::{read_header, rewrite};
use crate::segments::frames::Window;
use crate::segments::run::{Run, SegmentFile};
use crate::segments::segment::{Beginning, Live};

/// Finds where the segment right behind `before` begins, if that is not known: what lies below
/// [`resume_at`](crate::LogOptions::resume_at) is not read when the log is opened. `behind` are the
/// segments behind `before`, up to `lowest`, where a frame begins.
///
/// The headers of the frames in `before` are followed from its own beginning to the frame that
/// reaches the next segment: its checksum proves that it is one. Damage in the way, and what cannot
/// be read, leave the beginning unknown: they must not keep the log from being released.
///
/// # Errors
/// A segment that cannot be opened: later it may be.
pub(crate) fn find(device: &dyn Device, before: &Live, behind: &[Live], lowest: Lsn) -> Result<(), LogError> {
    let Some((next, further)) = behind.split_first() else {
        return Ok(());
    };
    let Beginning {
        lsn,
        recorded,
        not_found,
    } = &*next.beginning;
    if lsn.get().is_some() || recorded.get().is_some() || not_found.get().is_some() {
        return Ok(());
    }
    let found = match before.beginning.lsn.get() {
        Some(first) if before.epoch == next.epoch && before.end == next.first_lsn => {
            match follow(device, before, *first, next, further) {
                // It was removed by hand.
                Err(error) if error.is_not_found() => None,
                found => found?,
            }
        }
        _ => None,
    };
    match found.filter(|first| *first <= lowest) {
        Some(first) => next.beginning.set_lsn(first),
        None => {
            let _ = not_found.set(());
        }
    }
    Ok(())
}

/// Where the first frame begins in `next` or behind it, when the first one of `before` begins at
/// `first`.
fn follow(
    device: &dyn Device,
    before: &Live,
    first: Lsn,
    next: &Live,
    further: &[Live],
) -> Result<Option<Lsn>, LogError> {
    if first >= next.first_lsn {
        // A frame covers all of `before`.
        return Ok(Some(first));
    }
    let mut run = Run { segments: Vec::new() };
    for segment in [before, next] {
        // A header may begin in the one and end in the other.
        run.segments.push(to_read(device, segment)?);
    }
    let unreadable = |error: &LogError| {
        let path = before.path.display();
        tracing::warn!(%error, "the frames of {path} cannot be followed: the next segment's header will not say where \
            its first frame begins");
    };
    let mut window = Window::default();
    let last = window.reaching(&run, first, next.first_lsn);
    let Some(last) = last.inspect_err(unreadable).unwrap_or(None) else {
        return Ok(None);
    };
    for segment in further
        .iter()
        .take_while(|segment| segment.first_lsn < last.end())
    {
        run.segments.push(to_read(device, segment)?);
    }
    let is_whole = window.is_whole(&run, &last).inspect_err(unreadable);
    Ok(is_whole.unwrap_or(false).then_some(last.end()))
}

/// As the run of its epoch has it; its header is not read again.
fn to_read(device: &dyn Device, segment: &Live) -> Result<SegmentFile, LogError> {
    let opened = segment.open(device, OpenMode::Read).at("open", &segment.path)?;
    let mut header = SegmentHeader::blank();
    header.number = segment.number.into();
    header.epoch = segment.epoch.into();
    header.salt = segment.salt.into();
    header.first_lsn = segment.first_lsn.into();
    header.data_bytes = (segment.end - segment.first_lsn).into();
    Ok(SegmentFile {
        header,
        path: segment.path.clone(),
        file: Arc::clone(&opened.file),
        len: segment.offset(segment.end),
    })
}

/// Has the first of the segments in `next` of which it is known say where it begins, so that what
/// is before it can be released up to `lowest`, where a frame begins. Gives its number. Those of
/// which it is not known are passed over: then the log begins in a later one, and what is before
/// that goes, oldest first.
pub(crate) fn record(
    device: &dyn Device,
    next: &[Live],
    lowest: Lsn,
    direct: bool,
) -> Result<Option<u64>, HousekeepingError> {
    for segment in next {
        let Beginning { lsn, recorded, .. } = &*segment.beginning;
        if recorded.get().is_none() {
            if lsn.get().is_none() && begins_frame(device, segment, lowest)? {
                segment.beginning.set_lsn(lowest);
            }
            let Some(first) = lsn.get() else { continue };
            write_first_frame(device, &segment.path, *first, direct)?;
            segment.beginning.set_recorded();
        }
        return Ok(Some(segment.number));
    }
    Ok(None)
}

/// Whether the frame at `lsn`, which is the start of one somewhere, stands in this segment.
fn begins_frame(device: &dyn Device, segment: &Live, lsn: Lsn) -> Result<bool, LogError> {
    if !(segment.first_lsn..segment.end).contains(&lsn) {
        return Ok(false);
    }
    let run = Run {
        segments: vec![to_read(device, segment)?],
    };
    Ok(Window::growing_from(FRAME_HEADER).claimed(&run, lsn)?.is_some())
}

/// The file is opened for this alone: the log may write to it at the same time, and the kernel
/// reports a failed sync once per open file. Where frames are not durable when their writes
/// return, it may have lost some of them.
fn write_first_frame(
    device: &dyn Device,
    path: &Path,
    first: Lsn,
    direct: bool,
) -> Result<(), HousekeepingError> {
    let file = device.open(path, OpenMode::ReadWrite).at("open", path)?;
    let mut header = read_header(&*file, path)?.ok_or_else(|| LogError::Corrupt {
        path: path.to_owned(),
        offset: 0,
        lsn: first,
        expected: "a segment header before the segment's frames".to_owned(),
        found: "damage in both copies of it".to_owned(),
    })?;
    header.set_first_frame(first);
    rewrite(&*file, path, &header).map_err(|error| match direct {
        true => HousekeepingError::Setback(error),
        false => HousekeepingError::Fatal(Fatal::frames(&error)),
    })
}
