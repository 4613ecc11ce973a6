//! What a segment is, and whether its file is open.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use collie_io::{Device, File, OpenMode};

use crate::Lsn;
use crate::format::SegmentHeader;

/// What a segment is: `[first_lsn, end)` of the log.
#[derive(Debug, Clone)]
pub(crate) struct SegmentMeta {
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) salt: u32,
    pub(crate) first_lsn: Lsn,
    /// One past the last LSN that counts here: what fits, or where the next epoch takes over.
    pub(crate) end: Lsn,
    /// Where in the file the data begins.
    pub(crate) data_at: u64,
    /// Shared by all values for this segment, whether its file is open or not.
    pub(crate) beginning: Arc<Beginning>,
    pub(crate) path: PathBuf,
    /// Whether the whole file is allocated and this epoch's, so that it can be used again.
    pub(crate) reusable: bool,
}

/// A segment whose file is open.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) meta: SegmentMeta,
    pub(crate) file: Arc<dyn File>,
    /// The same file, for writes that bypass the page cache.
    pub(crate) direct: Option<Arc<dyn File>>,
}

impl std::ops::Deref for Segment {
    type Target = SegmentMeta;

    fn deref(&self) -> &SegmentMeta {
        &self.meta
    }
}

/// A segment of the live log.
#[derive(Debug, Clone)]
pub(crate) enum Live {
    /// It is, or will be, written to. What is written and not synced yet keeps it open by itself.
    Open(Arc<Segment>),
    /// Nothing is written to it any more: it needs no descriptor, and is opened to be read.
    Cold(Arc<SegmentMeta>),
}

impl std::ops::Deref for Live {
    type Target = SegmentMeta;

    fn deref(&self) -> &SegmentMeta {
        match self {
            Self::Open(segment) => segment,
            Self::Cold(meta) => meta,
        }
    }
}

impl Live {
    pub(super) fn meta(&self) -> SegmentMeta {
        SegmentMeta::clone(self)
    }

    /// The segment with its file. A cold one may have been archived or released meanwhile.
    pub(crate) fn open(&self, device: &dyn Device, mode: OpenMode) -> std::io::Result<Arc<Segment>> {
        match self {
            Self::Open(segment) => Ok(Arc::clone(segment)),
            Self::Cold(meta) => Ok(Arc::new(Segment {
                file: device.open(&meta.path, mode)?,
                direct: None,
                meta: SegmentMeta::clone(meta),
            })),
        }
    }
}

impl SegmentMeta {
    /// Where an LSN's byte is in the file.
    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        self.data_at + (lsn - self.first_lsn)
    }
}

/// Where the first frame begins that begins in a segment or behind it.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    pub(super) lsn: OnceLock<Lsn>,
    /// The file says it, durably, or need not: it begins an epoch, or is of a format that does not
    /// say it.
    pub(super) recorded: OnceLock<()>,
    /// The frames of the segment before it do not lead here: something in them is damaged.
    pub(super) not_found: OnceLock<()>,
}

impl Beginning {
    /// As far as the header says. What it says of its first frame may be in the page cache only,
    /// where a sync failed.
    pub(crate) fn of(header: &SegmentHeader) -> Self {
        let beginning = Self::default();
        if let Some(lsn) = header.first_frame() {
            beginning.set_lsn(lsn);
        }
        if header.begins_epoch() || header.is_one_block() {
            beginning.set_recorded();
        }
        beginning
    }

    /// The first frame begins at `lsn`.
    pub(crate) fn set_lsn(&self, lsn: Lsn) {
        let _ = self.lsn.set(lsn);
    }

    pub(super) fn set_recorded(&self) {
        let _ = self.recorded.set(());
    }
}

/// The value for a segment of the current epoch.
pub(crate) fn in_use(
    header: &SegmentHeader,
    path: PathBuf,
    file: Arc<dyn File>,
    direct: Option<Arc<dyn File>>,
) -> Segment {
    let meta = SegmentMeta {
        number: header.number.get(),
        epoch: header.epoch.get(),
        salt: header.salt.get(),
        first_lsn: header.first_lsn.get(),
        end: header.end(),
        data_at: header.data_at(),
        beginning: Arc::new(Beginning::of(header)),
        path,
        reusable: true,
    };
    Segment { meta, file, direct }
}
