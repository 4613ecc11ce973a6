//! A segment's header as it stands in the file: read, and written where one stands.

use std::path::Path;

use collie_io::{File, write_all_at};

use crate::error::{At, LogError};
use crate::format::{BLOCK, BadHeader, SEGMENT_HEAD, SegmentHeader, VERSION};
use crate::segments::files::read_or_zeros;

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

/// Writes a header where one stands, copy by copy, each durable before the other is touched, and a
/// damaged one first: a write that the power interrupts may leave anything in its block.
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
