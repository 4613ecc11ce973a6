//! Write groups that end with a block, for
//! [`LogOptions::pad_to_block`](crate::LogOptions::pad_to_block).
//!
//! A group writes whole blocks. Where the complete frames end in mid-block, its leader appends a
//! filler up to the block's end, so that the next frame begins in a fresh block and no block that
//! holds acknowledged bytes is ever written again.
//!
//! The filler stands exactly at the completion boundary or nowhere:
//! `CompletionBoundary::try_reserve_at` takes that position with a
//! compare-exchange, which fails when another thread has appended since the boundary was read. Then
//! the boundary moves on, and the leader tries again, [`TRIES`] times at most. After that the group
//! takes the whole blocks that are there.
//!
//! **No waiter is left behind for ever.** A waiter whose frame lies in the block that is not full
//! stands by and tries again. Each failed try means that another thread has reserved what lies
//! beyond the boundary, and that thread
//!
//! * completes its frame: the boundary passes it, and a block's worth of such frames later the
//!   block is full and goes with the next group; or appends stop, and the next filler finds its
//!   position free; or
//! * waits for room in the ring: whole blocks make it. Let its frame begin at `x`, which the
//!   boundary reaches. A group goes as far as the last block's end below `x`, and *written* to the
//!   beginning of the frame that lies across that end, at most. A frame is at most half a ring less
//!   a block, so that this beginning is less than half a ring below `x`; and its own frame needs no
//!   more than the half above it; or
//! * stalls between reservation and copy. It holds nothing that the leader needs; the leader stands
//!   by for it as for a thread that stalls below the awaited frame.
//!
//! A filler never waits: it is taken only where the ring has room for it, and where no whole block
//! is to be written, it has: *written* is then less than half a ring less a block behind, and four
//! blocks are the smallest ring. Space in the segments is kept for it by admission
//! ([`crate::lockfree::limit`]).

use zerocopy::IntoBytes;

use crate::core::Core;
use crate::flush::writer::{FILLER_MAX, Reach, SegmentWriter, filler_len};
use crate::format::{FRAME_HEADER, FrameHeader, FrameStart, KIND_FILLER};
use crate::lockfree::sync::Ordering;
use crate::{Lsn, Span};

/// How often a leader tries to place a filler before it takes what whole blocks there are.
const TRIES: usize = 4;
/// The payload of a filler, as far as it goes.
static ZEROS: [u8; FILLER_MAX as usize] = [0; FILLER_MAX as usize];

impl Core {
    /// How far a write group may go: as far as the log is complete and, where groups are padded, to
    /// a block's end. The caller leads.
    pub(crate) fn reach(&self, writer: &SegmentWriter) -> Reach {
        let mut boundary = self.boundary();
        let Some(slot) = writer.filler_slot() else {
            return Reach::up_to(boundary);
        };
        for _ in 0..TRIES {
            if writer.whole_blocks(boundary) == boundary {
                break;
            }
            if let Some(padded) = self.pad(slot, writer.in_block(boundary), boundary) {
                return Reach::up_to(padded);
            }
            boundary = self.boundary();
        }
        Reach {
            to: writer.whole_blocks(boundary),
            boundary,
        }
    }

    /// Puts a filler at `at`, which is at byte `in_block` of a block and was the boundary a moment
    /// ago. Returns its end; `None` where that is taken, or the ring has no room for it yet.
    fn pad(&self, slot: &crate::lockfree::boundary::SlotId, in_block: u64, at: Lsn) -> Option<Lsn> {
        let len = filler_len(in_block);
        let end = at + len;
        if end > self.written() + self.ring.capacity() || self.order.next.glance() != at {
            return None;
        }
        if !self
            .order
            .completion
            .try_reserve_at(slot, &self.order.next, at, len)
        {
            return None;
        }
        let (payload, _) = ZEROS.split_at(len as usize - FRAME_HEADER);
        let frame = FrameStart {
            payload_crc: self.opening.salt.crc(payload),
            len: payload.len() as u32,
            compressed: false,
            stream: 0,
            kind: KIND_FILLER,
        };
        let header = FrameHeader::finish(frame, at, self.durable(), self.opening.epoch);
        #[expect(unsafe_code, reason = "the copy into the ring")]
        // SAFETY: the two ranges make up [at, end), which was just reserved, and there is room for
        // it: `written` only grows.
        unsafe {
            self.ring.copy_in(at, header.as_bytes());
            self.ring.copy_in(at + FRAME_HEADER as u64, payload);
        }
        self.order.completion.complete_at_boundary(slot, end);
        self.flush.last_filler.placed(Span { start: at, end });
        self.stats.recorder.filler_bytes.fetch_add(len, Ordering::Relaxed);
        Some(end)
    }
}
