//! From the ring to the segment files: what a write group takes, where it writes it, what the next
//! sync has to cover, and the frame that fills a block.

use std::sync::Arc;

use collie_io::write_all_at;
use zerocopy::{FromZeros, IntoBytes};

use crate::append::ring::{Block, Ring};
use crate::error::{At, Fatal};
use crate::format::{ALIGN, BLOCK, FRAME_HEADER, FrameHeader};
use crate::lockfree::boundary::SlotId;
use crate::lockfree::sync::{Mutex, lock};
use crate::segments::pool::Segments;
use crate::segments::segment::Segment;
use crate::{Lsn, Span};

/// The most that one write takes, in bytes.
const PIECE: usize = 1 << 20;

/// Takes the ring's prefix to the segments. There is one, and only the write group's leader touches
/// it.
///
/// Writes are whole blocks, zero beyond what is complete. The last, partly filled block is kept
/// here and written again, with what follows it, by the next group. That assumes of the device that
/// rewriting a block with the same leading bytes never damages those bytes. With
/// [`LogOptions::pad_to_block`](crate::LogOptions::pad_to_block) groups go to a block's end, and no
/// block is written again.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    /// Used by one group after the other.
    buffer: Vec<Block>,
    /// The last block's bytes, as far as they are written.
    tail: Box<Block>,
    /// How many those are.
    partial: usize,
    /// Everything below is written.
    position: Lsn,
    /// The end of the last frame that lies wholly below that.
    whole: Lsn,
    /// Where `position` is.
    segment: Option<Arc<Segment>>,
    /// Where groups are padded: the slot that fillers are reserved with.
    filler_slot: Option<SlotId>,
    /// Bytes written so far, whole blocks.
    pub(crate) device_bytes: u64,
}

/// How far a group may go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) to: Lsn,
    /// A frame ends here, at or above `to`.
    pub(crate) boundary: Lsn,
}

impl Reach {
    pub(crate) fn up_to(boundary: Lsn) -> Self {
        Self {
            to: boundary,
            boundary,
        }
    }
}

/// What one write puts where.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    buffer: Vec<Block>,
    /// How many of its bytes.
    len: usize,
    segment: Arc<Segment>,
    offset: u64,
    /// The end of the last frame that is written wholly once this is.
    pub(crate) whole: Lsn,
}

impl WriteBuffer {
    /// Writes it, durably where the segment is open for that.
    pub(crate) fn write(self) -> Result<Written, Fatal> {
        let blocks = self.buffer.as_slice().as_bytes();
        let (blocks, _) = blocks.split_at(self.len.min(blocks.len()));
        let file = self.segment.direct.as_ref().unwrap_or(&self.segment.file);
        let written = write_all_at(&**file, blocks, self.offset).at("write", &self.segment.path);
        written.map_err(|error| Fatal::frames(&error))?;
        Ok(Written(self))
    }
}

/// A buffer whose write has returned: only then may its segment count for the next sync.
#[derive(Debug)]
pub(crate) struct Written(WriteBuffer);

impl Written {
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.0.segment
    }
}

impl SegmentWriter {
    /// Goes on at `written`, whose block begins with `partial`. `filler_slot` is there where groups
    /// are padded; `partial` is empty then.
    pub(crate) fn new(written: Lsn, partial: &[u8], filler_slot: Option<SlotId>) -> Self {
        debug_assert!(filler_slot.is_none() || partial.is_empty());
        let mut tail = Box::new(Block::new_zeroed());
        if let Some(start) = tail.as_mut_bytes().get_mut(..partial.len()) {
            start.copy_from_slice(partial);
        }
        Self {
            buffer: Vec::new(),
            tail,
            partial: partial.len(),
            position: written,
            whole: written,
            segment: None,
            filler_slot,
            device_bytes: 0,
        }
    }

    pub(crate) fn filler_slot(&self) -> Option<&SlotId> {
        self.filler_slot.as_ref()
    }

    /// Where in its block the byte at `lsn` lies, which is not below `position`.
    pub(crate) fn in_block(&self, lsn: Lsn) -> u64 {
        (self.partial as u64 + lsn - self.position) % BLOCK as u64
    }

    /// The end of the last whole block up to `lsn`, or `position` where there is none.
    pub(crate) fn whole_blocks(&self, lsn: Lsn) -> Lsn {
        (lsn - self.in_block(lsn)).max(self.position)
    }

    /// Takes what follows, as far as the group may go and at most a piece of it. `None` if there is
    /// nothing.
    pub(crate) fn take(
        &mut self,
        ring: &Ring,
        segments: &Segments,
        Reach { to, boundary }: Reach,
    ) -> Result<Option<WriteBuffer>, Fatal> {
        if to == self.position {
            return Ok(None);
        }
        let segment = self.segment_for(ring, segments)?;
        let most = to.min(segment.end) - self.position;
        let n = (most as usize).min(PIECE - self.partial);
        let mut buffer = std::mem::take(&mut self.buffer);
        let filled = self.partial + n;
        buffer.resize_with(filled.div_ceil(BLOCK), Block::new_zeroed);
        let bytes = buffer.as_mut_slice().as_mut_bytes();
        let len = bytes.len();
        let (data, rest) = bytes.split_at_mut(filled);
        let (written, fresh) = data.split_at_mut(self.partial);
        written.copy_from_slice(self.tail.as_bytes().split_at(self.partial).0);
        #[expect(unsafe_code, reason = "reads what lies below the completion boundary")]
        // SAFETY: [position, to) lies below the boundary, and no worker writes there before the
        // log's `written` passes it, which happens when this buffer has been written.
        unsafe {
            ring.copy_out(self.position, fresh);
        }
        rest.fill(0);
        let offset = segment.offset(self.position) - self.partial as u64;
        self.position += n as u64;
        self.partial = filled % BLOCK;
        if let Some(tail) = data.get(filled - self.partial..)
            && let Some(kept) = self.tail.as_mut_bytes().get_mut(..tail.len())
        {
            kept.copy_from_slice(tail);
        }
        self.whole = if self.position == boundary {
            boundary
        } else {
            self.last_whole_frame(ring)
        };
        Ok(Some(WriteBuffer {
            buffer,
            len,
            offset,
            segment,
            whole: self.whole,
        }))
    }

    /// The buffer is used again.
    pub(crate) fn put_back(&mut self, Written(buffer): Written) {
        self.device_bytes += buffer.len as u64;
        self.buffer = buffer.buffer;
    }

    /// Follows the frames' lengths from the last known end. They lie between it and `position`,
    /// complete, and their place in the ring is not free yet.
    fn last_whole_frame(&self, ring: &Ring) -> Lsn {
        let mut whole = self.whole;
        while whole + FRAME_HEADER as u64 <= self.position {
            let mut header = FrameHeader::new_zeroed();
            #[expect(unsafe_code, reason = "reads what lies below the completion boundary")]
            // SAFETY: [whole, position) lies below the boundary, and no worker writes there before
            // `whole`, which is the log's `written`, passes it.
            unsafe {
                ring.copy_out(whole, header.as_mut_bytes());
            }
            if header.end() > self.position {
                break;
            }
            whole = header.end();
        }
        whole
    }

    /// Where the first frame begins that begins at `position` or above.
    fn next_frame(&self, ring: &Ring) -> Lsn {
        if self.whole == self.position {
            return self.position;
        }
        let mut header = FrameHeader::new_zeroed();
        #[expect(unsafe_code, reason = "reads what lies below the completion boundary")]
        // SAFETY: the frame at `whole` ends above `position`, and at or below a boundary up to
        // which that went; no worker writes there before `whole`, which is the log's `written`,
        // passes it.
        unsafe {
            ring.copy_out(self.whole, header.as_mut_bytes());
        }
        header.end()
    }

    fn segment_for(&mut self, ring: &Ring, segments: &Segments) -> Result<Arc<Segment>, Fatal> {
        if let Some(segment) = &self.segment
            && self.position < segment.end
        {
            return Ok(Arc::clone(segment));
        }
        // Admission let no frame past what is prepared.
        let segment = segments
            .find_to_write(self.position)
            .ok_or_else(|| Fatal::no_segment(self.position))?;
        if segment.first_lsn == self.position {
            segment.beginning.set_lsn(self.next_frame(ring));
        }
        self.segment = Some(Arc::clone(&segment));
        Ok(segment)
    }
}

/// Segments written to through the page cache since their last sync began.
#[derive(Debug, Default)]
pub(crate) struct Unsynced(Mutex<Vec<Arc<Segment>>>);

impl Unsynced {
    /// Called before `written` is raised: a leader that has seen the watermark finds the segment
    /// here, or in a sync that began after the write.
    pub(super) fn add(&self, written: &Written) {
        let segment = written.segment();
        let mut segments = lock(&self.0);
        if !segments.iter().any(|other| other.number == segment.number) {
            segments.push(Arc::clone(segment));
        }
    }

    /// Makes durable what was written before the call. After an error nothing may be synced again:
    /// the kernel has marked the pages clean.
    pub(super) fn sync(&self) -> Result<(), Fatal> {
        let segments = std::mem::take(&mut *lock(&self.0));
        for segment in segments {
            let synced = segment.file.sync_data().at("sync", &segment.path);
            synced.map_err(|error| Fatal::frames(&error))?;
        }
        Ok(())
    }
}

/// Where the filler lies that was placed last.
#[derive(Debug, Default)]
pub(crate) struct LastFiller(Mutex<Option<Span>>);

impl LastFiller {
    pub(super) fn placed(&self, filler: Span) {
        *lock(&self.0) = Some(filler);
    }

    /// Where the log goes on behind a frame that ends at `end`: there, or behind the filler that
    /// follows it.
    pub(super) fn behind(&self, end: Lsn) -> Lsn {
        let last = *lock(&self.0);
        last.filter(|filler| filler.start == end)
            .map_or(end, |filler| filler.end)
    }
}

/// The longest filler: fewer bytes than a header's are left of a block, and the next block.
pub(crate) const FILLER_MAX: u64 = BLOCK as u64 + FRAME_HEADER as u64 - ALIGN;

/// The length of the filler that goes on from byte `at` of a block's data; 0 at a block's end.
pub(crate) fn filler_len(at: u64) -> u64 {
    let block = BLOCK as u64;
    match at % block {
        0 => 0,
        filled if block - filled < FRAME_HEADER as u64 => 2 * block - filled,
        filled => block - filled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filler_is_a_whole_frame_and_ends_with_a_block() {
        assert_eq!(filler_len(0), 0);
        assert_eq!(filler_len(7 * BLOCK as u64), 0);
        let mut longest = 0;
        for at in (ALIGN..BLOCK as u64).step_by(ALIGN as usize) {
            let len = filler_len(at);
            assert!(len >= FRAME_HEADER as u64 && (at + len).is_multiple_of(BLOCK as u64));
            longest = longest.max(len);
        }
        assert_eq!(longest, FILLER_MAX);
    }
}
