//! From the ring to the device: what a flight's leader does.

use std::sync::Arc;

use collie_io::write_all_at;
use zerocopy::{FromZeros, IntoBytes};

use crate::Lsn;
use crate::error::At;
use crate::format::{BLOCK, FRAME_HEADER, FrameHeader};
use crate::herd::SlotId;
use crate::ring::{Block, Ring};
use crate::segments::{Segment, Segments};
use crate::stake::Fatal;

/// The most that one flight carries, in bytes.
const PIECE: usize = 1 << 20;
/// So many whole blocks are worth a flight of their own where others may be in the air. The rest of the last block
/// then waits for the next flight, which can start at once, because no block is in two of them.
const WHOLE_BLOCKS: usize = if cfg!(shuttle) { 1 } else { 4 };

/// Takes the ring's prefix to the segments. There is one; the gate's lead guards it.
///
/// Writes are whole blocks, zero beyond what is complete. The last, partly filled block is kept here and written
/// again, with what follows it, by a later flight, but not before the one that has it in the air has landed:
/// no block is in two writes at once. That assumes of the device that rewriting a block with the same leading
/// bytes never damages those bytes. With [`LogOptions::pad_to_block`](crate::LogOptions::pad_to_block) flights go to a
/// block's end, and none is written again.
#[derive(Debug)]
pub(crate) struct Flusher {
    /// Of flights that are over.
    buffers: Vec<Vec<Block>>,
    /// The last block's bytes, as far as they are on their way.
    tail: Block,
    /// How many those are.
    partial: usize,
    /// Whether a flight in the air carries `tail`.
    tail_in_air: bool,
    /// Everything below is written or in the air.
    started: Lsn,
    /// The end of the last frame that lies wholly below that.
    whole: Lsn,
    /// Where `started` is.
    segment: Option<Arc<Segment>>,
    /// Where flights pad: the slot that fillers are reserved with.
    filler_slot: Option<SlotId>,
    /// Segments written to since their last sync.
    unsynced: Vec<Arc<Segment>>,
    /// Whether another flight may start while one is in the air.
    overlapping: bool,
    /// Bytes that landed so far, whole blocks.
    pub(crate) device_bytes: u64,
}

/// How far a flight may go.
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

/// What a flight writes.
#[derive(Debug)]
pub(crate) struct Load {
    buffer: Vec<Block>,
    /// How many of its bytes.
    len: usize,
    segment: Arc<Segment>,
    offset: u64,
    /// One past its last byte in the log.
    end: Lsn,
    /// The end of the last frame that is written wholly once this and all before it are.
    pub(crate) whole: Lsn,
}

impl Load {
    /// Writes it, durably where the segment is open for that.
    pub(crate) fn write(&self) -> Result<(), Fatal> {
        let blocks = self.buffer.as_slice().as_bytes();
        let (blocks, _) = blocks.split_at(self.len.min(blocks.len()));
        let file = self.segment.direct.as_ref().unwrap_or(&self.segment.file);
        let written = write_all_at(&**file, blocks, self.offset).at("write", &self.segment.path);
        written.map_err(|error| Fatal::frames(&error))
    }
}

impl Flusher {
    /// A flusher that goes on at `written`, whose block begins with `partial`, and has up to `in_flight` flights in
    /// the air. `filler_slot` is there where flights pad; `partial` is empty then.
    pub(crate) fn new(written: Lsn, partial: &[u8], filler_slot: Option<SlotId>, in_flight: usize) -> Self {
        debug_assert!(filler_slot.is_none() || partial.is_empty());
        let mut tail = Block::new_zeroed();
        if let Some(start) = tail.as_mut_bytes().get_mut(..partial.len()) {
            start.copy_from_slice(partial);
        }
        Self {
            buffers: Vec::new(),
            tail,
            partial: partial.len(),
            tail_in_air: false,
            started: written,
            whole: written,
            segment: None,
            filler_slot,
            unsynced: Vec::new(),
            overlapping: in_flight > 1,
            device_bytes: 0,
        }
    }

    /// Everything below is written or in the air.
    pub(crate) fn started(&self) -> Lsn {
        self.started
    }

    pub(crate) fn filler_slot(&self) -> Option<&SlotId> {
        self.filler_slot.as_ref()
    }

    /// Where in its block the byte at `lsn` lies, which is not below `started`.
    pub(crate) fn in_block(&self, lsn: Lsn) -> u64 {
        (self.partial as u64 + lsn - self.started) % BLOCK as u64
    }

    /// The end of the last whole block up to `lsn`, or `started` where there is none.
    pub(crate) fn whole_blocks(&self, lsn: Lsn) -> Lsn {
        (lsn - self.in_block(lsn)).max(self.started)
    }

    /// Whether whole blocks up to `to` are a flight for somebody who waits for `end`, or all that one can carry.
    pub(crate) fn is_worth_a_flight(&self, to: Lsn, end: Lsn) -> bool {
        let blocks = (to - self.started) as usize / BLOCK;
        blocks >= PIECE / BLOCK || blocks >= WHOLE_BLOCKS && end <= to
    }

    /// Whether a flight that was started carries all that somebody who waits for `end` waits for.
    pub(crate) fn has_on_board(&self, end: Lsn) -> bool {
        end <= self.whole
    }

    /// Whether nothing can be taken before a flight lands that is in the air.
    pub(crate) fn must_wait(&self) -> bool {
        self.tail_in_air
    }

    /// Takes on board what follows, as far as a flight may go and at most a piece of it, for somebody who waits
    /// for `end`. `None` if nothing can or need be taken while others are in the air.
    pub(crate) fn take(
        &mut self,
        ring: &Ring,
        segments: &Segments,
        Reach { to, boundary }: Reach,
        end: Lsn,
    ) -> Result<Option<Load>, Fatal> {
        let segment = self.segment_for(ring, segments)?;
        let most = to.min(segment.end) - self.started;
        let Some(n) = self.how_much(most, end) else {
            return Ok(None);
        };
        let mut buffer = self.buffers.pop().unwrap_or_default();
        let filled = self.partial + n;
        buffer.resize_with(filled.div_ceil(BLOCK), Block::new_zeroed);
        let bytes = buffer.as_mut_slice().as_mut_bytes();
        let len = bytes.len();
        let (data, rest) = bytes.split_at_mut(filled);
        let (written, fresh) = data.split_at_mut(self.partial);
        written.copy_from_slice(self.tail.as_bytes().split_at(self.partial).0);
        #[expect(unsafe_code, reason = "reads what the herd found complete")]
        // SAFETY: [started, to) lies below the boundary, and no worker writes there before the log's `written`
        // passes it, which happens when this load has landed.
        unsafe {
            ring.copy_out(self.started, fresh);
        }
        rest.fill(0);
        let offset = segment.offset(self.started) - self.partial as u64;
        self.started += n as u64;
        self.partial = filled % BLOCK;
        self.tail_in_air = self.partial > 0;
        if let Some(tail) = data.get(filled - self.partial..)
            && let Some(kept) = self.tail.as_mut_bytes().get_mut(..tail.len())
        {
            kept.copy_from_slice(tail);
        }
        self.whole = if self.started == boundary {
            boundary
        } else {
            self.last_whole_frame(ring)
        };
        Ok(Some(Load {
            buffer,
            len,
            offset,
            segment,
            end: self.started,
            whole: self.whole,
        }))
    }

    /// How many of the next `most` bytes a flight takes for somebody who waits for `end`.
    fn how_much(&self, most: u64, end: Lsn) -> Option<usize> {
        if most == 0 || self.must_wait() {
            return None;
        }
        if self.has_on_board(end) {
            // It is on board of an earlier one, and would be told later if it flew again. (Who waits for room may
            // want the middle of a frame.)
            return None;
        }
        let n = (most as usize).min(PIECE - self.partial);
        let blocks = (self.partial + n) / BLOCK;
        let whole = (blocks * BLOCK).saturating_sub(self.partial);
        if self.overlapping && blocks >= WHOLE_BLOCKS && end <= self.started + whole as u64 {
            Some(whole)
        } else {
            Some(n)
        }
    }

    /// A load is where it belongs.
    pub(crate) fn landed(&mut self, load: Load) {
        self.device_bytes += load.len as u64;
        if load.end == self.started {
            self.tail_in_air = false;
        }
        if load.segment.direct.is_none() && !self.unsynced.iter().any(|s| s.number == load.segment.number) {
            self.unsynced.push(load.segment);
        }
        self.buffers.push(load.buffer);
    }

    /// Follows the frames' lengths from the last known end. They lie between it and `started`, complete, and
    /// their place in the ring is not free yet.
    fn last_whole_frame(&self, ring: &Ring) -> Lsn {
        let mut whole = self.whole;
        while whole + FRAME_HEADER as u64 <= self.started {
            let mut header = FrameHeader::new_zeroed();
            #[expect(unsafe_code, reason = "reads what the herd found complete")]
            // SAFETY: [whole, started) lies below the boundary, and no worker writes there before `whole`, which
            // is what the log's users are told, passes it.
            unsafe {
                ring.copy_out(whole, header.as_mut_bytes());
            }
            if header.end() > self.started {
                break;
            }
            whole = header.end();
        }
        whole
    }

    /// Makes everything written durable. After an error nothing may be synced again, ever: the kernel has
    /// marked the pages clean.
    pub(crate) fn sync(&mut self) -> Result<(), Fatal> {
        for segment in &self.unsynced {
            let synced = segment.file.sync_data().at("sync", &segment.path);
            synced.map_err(|error| Fatal::frames(&error))?;
        }
        self.unsynced.clear();
        Ok(())
    }

    /// Where the first frame begins that begins at `started` or above.
    fn next_frame(&self, ring: &Ring) -> Lsn {
        if self.whole == self.started {
            return self.started;
        }
        let mut header = FrameHeader::new_zeroed();
        #[expect(unsafe_code, reason = "reads what the herd found complete")]
        // SAFETY: the frame at `whole` ends above `started`, and at or below a boundary up to which that went; no worker
        // writes there before `whole`, which is what the log's users are told, passes it.
        unsafe {
            ring.copy_out(self.whole, header.as_mut_bytes());
        }
        header.end()
    }

    fn segment_for(&mut self, ring: &Ring, segments: &Segments) -> Result<Arc<Segment>, Fatal> {
        if let Some(segment) = &self.segment
            && self.started < segment.end
        {
            return Ok(Arc::clone(segment));
        }
        // Admission let no frame past what is prepared.
        let segment = segments
            .find_to_write(self.started)
            .ok_or_else(|| Fatal::no_segment(self.started))?;
        if segment.first_lsn == self.started {
            segment.beginning.set_lsn(self.next_frame(ring));
        }
        self.segment = Some(Arc::clone(&segment));
        Ok(segment)
    }
}
