//! Where the log begins: the first frame of its oldest segment.
//!
//! Once a segment is released, the one behind it may begin in the middle of a frame, and the bytes there are whatever a
//! user had stored: another log's segment, or frames made up for the place. So they are not searched for the first
//! frame. Its LSN is known while the log is written, and the segment's header says it, durably, before the segment
//! before it is let go.

use std::path::Path;
use std::sync::OnceLock;

use collie_io::{Device, File, OpenMode, write_all_at};
use zerocopy::{FromZeros, IntoBytes};

use crate::Lsn;
use crate::error::{At, LogError};
use crate::format::{BLOCK, FrameHeader, SEGMENT_HEAD, SegmentHeader};
use crate::recovery::{read_header, read_or_zeros};
use crate::segments::Live;
use crate::stake::{Fatal, HousekeepingError};

/// Where the first frame begins that begins in a segment or behind it.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    lsn: OnceLock<Lsn>,
    /// The file says it, durably, or need not: it begins an epoch, or is of a format that does not say it.
    recorded: OnceLock<()>,
}

impl Beginning {
    /// As far as the header tells. What it says of its first frame may be in the page cache only, where a sync failed.
    pub(crate) fn of(header: &SegmentHeader) -> Self {
        let beginning = Self::default();
        if let Some(lsn) = header.first_frame() {
            beginning.set_lsn(lsn);
        }
        if header.number == header.epoch_first || header.is_one_block() {
            beginning.set_recorded();
        }
        beginning
    }

    /// The first frame begins at `lsn`.
    pub(crate) fn set_lsn(&self, lsn: Lsn) {
        let _ = self.lsn.set(lsn);
    }

    fn set_recorded(&self) {
        let _ = self.recorded.set(());
    }
}

/// Has the segments in `next` say where they begin, so that what is before them can be released up to `lowest`, where
/// a frame begins. Gives the last one that does. One of which it is not known is passed over: then the log begins
/// in a later one, and what is before that goes, oldest first.
pub(crate) fn record(
    device: &dyn Device,
    next: &[Live],
    lowest: Lsn,
    direct: bool,
) -> Result<Option<u64>, HousekeepingError> {
    let mut last = None;
    for segment in next {
        let Beginning { lsn, recorded } = &*segment.beginning;
        if recorded.get().is_none() {
            if lsn.get().is_none() && begins_frame(device, segment, lowest)? {
                segment.beginning.set_lsn(lowest);
            }
            let Some(first) = lsn.get() else { continue };
            tell(device, &segment.path, *first, direct)?;
            segment.beginning.set_recorded();
        }
        last = Some(segment.number);
    }
    Ok(last)
}

/// Whether the frame at `lsn`, which is the start of one somewhere, stands in this segment.
fn begins_frame(device: &dyn Device, segment: &Live, lsn: Lsn) -> Result<bool, LogError> {
    if !(segment.first_lsn..segment.end).contains(&lsn) {
        return Ok(false);
    }
    let segment = segment.open(device, OpenMode::Read).at("open", &segment.path)?;
    let mut header = FrameHeader::new_zeroed();
    read_or_zeros(&*segment.file, header.as_mut_bytes(), segment.offset(lsn)).at("read", &segment.path)?;
    Ok(header.lsn == lsn && header.epoch == segment.epoch)
}

/// The file is opened for this alone: the log may write to it at the same time, and the kernel tells of a failed sync
/// once per open file. Where frames are not durable when their writes return, it may have lost some of them.
fn tell(device: &dyn Device, path: &Path, first: Lsn, direct: bool) -> Result<(), HousekeepingError> {
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

/// Writes a header where one stands, copy by copy, each durable before the other is touched, and a damaged one first: a
/// write that is cut short by the power may leave anything in its block.
pub(crate) fn rewrite(file: &dyn File, path: &Path, header: &SegmentHeader) -> Result<(), LogError> {
    let head = header.encode();
    if header.is_one_block() {
        write_all_at(file, &head, 0).at("write", path)?;
        return file.sync_data().at("sync", path);
    }
    let mut there = [0; SEGMENT_HEAD];
    read_or_zeros(file, &mut there, 0).at("read", path)?;
    let [first, second] = SegmentHeader::copies(&there);
    let (one, two) = head.split_at(BLOCK);
    let mut copies = [(one, 0), (two, BLOCK as u64)];
    if first.is_ok() && second.is_err() {
        copies.reverse();
    }
    for (copy, at) in copies {
        write_all_at(file, copy, at).at("write", path)?;
        file.sync_data().at("sync", path)?;
    }
    Ok(())
}
