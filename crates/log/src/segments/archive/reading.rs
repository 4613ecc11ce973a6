//! An archived segment, opened. Files are not kept open: the archive may be cleaned under its
//! readers, and what is read next may be gone by then.

use std::path::Path;
use std::sync::Arc;

use collie_io::{Device, File};

use crate::error::{LogError, corrupt_at};
use crate::format::SegmentHeader;
use crate::segments::files::open_if_there;
use crate::segments::header::read_header;

/// An archived segment's header, and the file that it was read from.
pub(crate) struct ArchivedFile {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn File>,
}

/// Opens an archived segment and reads its header; `None` where it is gone.
pub(crate) fn open(device: &dyn Device, path: &Path) -> Result<Option<ArchivedFile>, LogError> {
    let Some(file) = open_if_there(device, path)? else {
        return Ok(None);
    };
    match read_header(&*file, path)? {
        Some(header) => Ok(Some(ArchivedFile { header, file })),
        None => Err(corrupt_at(
            path,
            0,
            0,
            "the header of an archived segment",
            "damage in both copies of it",
        )),
    }
}
