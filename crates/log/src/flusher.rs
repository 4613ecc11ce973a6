//! From the ring to the device: what a flight's leader does.

use std::sync::Arc;

use collie_io::write_all_at;
use zerocopy::{FromZeros, IntoBytes};

use crate::Lsn;
use crate::error::{At, LogError};
use crate::format::{BLOCK, FRAME_HEADER, FrameHeader};
use crate::ring::{Block, Ring};
use crate::segments::{Segment, Segments};

/// The most that one write call takes, in bytes.
const PIECE: usize = 1 << 20;

/// Writes the ring's prefix to the segments. There is one; the gate's lead guards it.
///
/// The last, partly filled block stays here and is written again, with what follows it, by the next flush:
/// writes are whole blocks, zero beyond what is complete, and no two of them are in flight at once. That
/// assumes of the device that rewriting a block with the same leading bytes never damages those bytes.
#[derive(Debug)]
pub(crate) struct Flusher {
    staging: Vec<Block>,
    /// Bytes at the start of `staging` that belong to the last block and are written already.
    partial: usize,
    /// Where the next byte goes.
    written: Lsn,
    /// The end of the last frame that is written wholly.
    whole: Lsn,
    segment: Option<Arc<Segment>>,
    /// Segments written to since their last sync.
    unsynced: Vec<Arc<Segment>>,
    /// Bytes handed to the device so far, whole blocks.
    pub(crate) device_bytes: u64,
}

impl Flusher {
    /// A flusher that goes on at `written`, whose block begins with `partial`.
    pub(crate) fn new(written: Lsn, partial: &[u8]) -> Self {
        let mut staging = Vec::new();
        staging.resize_with(PIECE / BLOCK + 1, Block::new_zeroed);
        if let Some(start) = staging.as_mut_slice().as_mut_bytes().get_mut(..partial.len()) {
            start.copy_from_slice(partial);
        }
        Self {
            staging,
            partial: partial.len(),
            written,
            whole: written,
            segment: None,
            unsynced: Vec::new(),
            device_bytes: 0,
        }
    }

    /// Where the next byte goes.
    pub(crate) fn written(&self) -> Lsn {
        self.written
    }

    /// Writes `[written, to)`, at most a piece of it. `to` is a boundary, so a frame ends there. Returns the
    /// end of the last frame that is written wholly.
    pub(crate) fn write(&mut self, ring: &Ring, segments: &Segments, to: Lsn) -> Result<Lsn, LogError> {
        let segment = self.segment_for(segments)?;
        let n = (to.min(segment.end) - self.written).min(PIECE as u64) as usize;
        let filled = self.partial + n;
        let staging = self.staging.as_mut_slice().as_mut_bytes();
        let (data, rest) = staging.split_at_mut(filled);
        if let Some(fresh) = data.get_mut(self.partial..) {
            #[expect(unsafe_code, reason = "reads what the herd found complete")]
            // SAFETY: [written, to) lies below the boundary, and no worker writes there before `written`
            // passes it.
            unsafe {
                ring.copy_out(self.written, fresh);
            }
        }
        let whole = filled.next_multiple_of(BLOCK);
        rest.iter_mut().take(whole - filled).for_each(|b| *b = 0);
        let offset = segment.offset(self.written) - self.partial as u64;
        let (blocks, _) = staging.split_at(whole);
        match &segment.direct {
            Some(direct) => write_all_at(&**direct, blocks, offset).at("write", &segment.path)?,
            None => {
                write_all_at(&*segment.file, blocks, offset).at("write", &segment.path)?;
                if !self.unsynced.iter().any(|s| s.number == segment.number) {
                    self.unsynced.push(Arc::clone(&segment));
                }
            }
        }
        self.device_bytes += whole as u64;
        self.written += n as u64;
        self.partial = if self.written == segment.end {
            0
        } else {
            filled % BLOCK
        };
        staging.copy_within(filled - self.partial..filled, 0);
        self.whole = if self.written == to {
            to
        } else {
            self.last_whole_frame(ring)
        };
        Ok(self.whole)
    }

    /// Follows the frames' lengths from the last known end. They lie between it and `written`, complete, and
    /// their place in the ring is not free yet.
    fn last_whole_frame(&self, ring: &Ring) -> Lsn {
        let mut whole = self.whole;
        while whole + FRAME_HEADER as u64 <= self.written {
            let mut header = FrameHeader::new_zeroed();
            #[expect(unsafe_code, reason = "reads what the herd found complete")]
            // SAFETY: [whole, written) lies below the boundary, and no worker writes there before `whole`, which
            // is what the log's users are told, passes it.
            unsafe {
                ring.copy_out(whole, header.as_mut_bytes());
            }
            if header.end() > self.written {
                break;
            }
            whole = header.end();
        }
        whole
    }

    /// Makes everything written durable. After an error nothing may be synced again, ever: the kernel has
    /// marked the pages clean.
    pub(crate) fn sync(&mut self) -> Result<Lsn, LogError> {
        for segment in &self.unsynced {
            segment.file.sync_data().at("sync", &segment.path)?;
        }
        self.unsynced.clear();
        Ok(self.written)
    }

    fn segment_for(&mut self, segments: &Segments) -> Result<Arc<Segment>, LogError> {
        if let Some(segment) = &self.segment
            && self.written < segment.end
        {
            return Ok(Arc::clone(segment));
        }
        // Admission let no frame past what is prepared.
        let segment = segments.find(self.written).ok_or_else(|| LogError::Poisoned {
            cause: format!("no segment was prepared for LSN {}", self.written),
        })?;
        self.segment = Some(Arc::clone(&segment));
        Ok(segment)
    }
}
