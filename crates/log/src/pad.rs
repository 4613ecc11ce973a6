//! Flights that end with a block, for [`LogOptions::pad_to_block`](crate::LogOptions::pad_to_block).
//!
//! A flight writes whole blocks. Where the complete frames end in mid-block, its leader appends a filler up to the
//! block's end, so that the next frame begins in a fresh block and none that holds acknowledged bytes is ever
//! written again.
//!
//! The filler stands exactly at the boundary or nowhere: [`Herd::try_reserve_at`](crate::Herd) takes that place with a
//! compare-exchange, which fails when somebody has appended since the herd. Then there is more to be herded, and
//! the leader tries again, [`TRIES`] times at most. After that the flight takes the whole blocks that are there.
//!
//! **Nobody waits for ever.** Who is left behind by such a flight, with his frame in the block that is not full,
//! stands by and looks again. Each failure tells that somebody holds a place beyond the boundary, and that one
//!
//! * completes his frame: the boundary passes it, and a block's worth of such frames later the block is full and
//!   goes with the next flight, or nobody appends any more and the next filler finds its place free; or
//! * waits for room in the ring: whole blocks make it. Let his frame begin at `x`, which the boundary reaches. A
//!   flight goes as far as the last block's end below `x`, and *written* to the beginning of the frame that lies
//!   across that end, at most. A frame is at most half a ring less a block, so that this beginning is less than half
//!   a ring below `x`; and his own frame needs no more than the half above it. Or he
//! * stalls between reservation and copy. He holds nothing that the leader needs; it stands by for him as it does
//!   for who stalls below the awaited frame.
//!
//! A filler never waits: it is taken only where the ring has room for it, and where no flight is in the air and no
//! whole block is to be carried, it has: *written* is then less than half a ring less a block behind, and four blocks
//! are the smallest ring. Space in the segments is kept for it by admission ([`crate::limit`]).

use zerocopy::IntoBytes;

use crate::core::Core;
use crate::flusher::{Flusher, Reach};
use crate::format::{ALIGN, BLOCK, FRAME_HEADER, FrameHeader, FrameStart, KIND_FILLER};
use crate::sync::{Ordering, lock};
use crate::{Lsn, Span};

/// How often a leader tries to place a filler before it takes what whole blocks there are.
const TRIES: usize = 4;
/// The longest filler: fewer bytes than a header's are left of a block, and the next block.
pub(crate) const FILLER_MAX: u64 = BLOCK as u64 + FRAME_HEADER as u64 - ALIGN;
/// The payload of a filler, as far as it goes.
static ZEROS: [u8; FILLER_MAX as usize] = [0; FILLER_MAX as usize];

/// The length of the filler that goes on from byte `at` of a block's data; 0 at a block's end.
pub(crate) fn filler_len(at: u64) -> u64 {
    let block = BLOCK as u64;
    match at % block {
        0 => 0,
        filled if block - filled < FRAME_HEADER as u64 => 2 * block - filled,
        filled => block - filled,
    }
}

impl Core {
    /// How far a flight for somebody who waits for `end` may go: as far as the log is complete and, where flights
    /// pad, to a block's end. The caller has the lead.
    pub(crate) fn reach(&self, flusher: &Flusher, end: Lsn) -> Reach {
        let mut boundary = self.boundary();
        let Some(slot) = flusher.filler_slot() else {
            return Reach::up_to(boundary);
        };
        for _ in 0..TRIES {
            let whole_blocks = flusher.whole_blocks(boundary);
            if whole_blocks == boundary || self.needs_no_more(flusher, whole_blocks, end) {
                break;
            }
            if let Some(padded) = self.pad(slot, flusher.in_block(boundary), boundary) {
                return Reach::up_to(padded);
            }
            boundary = self.boundary();
        }
        Reach {
            to: flusher.whole_blocks(boundary),
            boundary,
        }
    }

    /// Whether whole blocks up to `to` serve somebody who waits for `end`. Those behind him can start a flight of
    /// their own meanwhile, unless a sync lies between.
    fn needs_no_more(&self, flusher: &Flusher, to: Lsn, end: Lsn) -> bool {
        self.segments.direct() && (flusher.has_on_board(end) || flusher.is_worth_a_flight(to, end))
    }

    /// Puts a filler at `at`, which is at byte `in_block` of a block and was the boundary a moment ago. Returns its end;
    /// `None` where the place is taken, or the ring has no room for it yet.
    fn pad(&self, slot: &crate::SlotId, in_block: u64, at: Lsn) -> Option<Lsn> {
        let len = filler_len(in_block);
        let end = at + len;
        if end > self.written() + self.ring.capacity() || self.next.glance() != at {
            return None;
        }
        if !self.herd.try_reserve_at(slot, &self.next, at, len) {
            return None;
        }
        let (payload, _) = ZEROS.split_at(len as usize - FRAME_HEADER);
        let frame = FrameStart {
            payload_crc: self.salt.crc(payload),
            len: payload.len() as u32,
            compressed: false,
            stream: 0,
            kind: KIND_FILLER,
        };
        let header = FrameHeader::finish(frame, at, self.durable(), self.epoch);
        #[expect(unsafe_code, reason = "the copy into the ring")]
        // SAFETY: the two ranges make up [at, end), which was just reserved, and there is room for it: `written` only
        // grows.
        unsafe {
            self.ring.copy_in(at, header.as_bytes());
            self.ring.copy_in(at + FRAME_HEADER as u64, payload);
        }
        self.herd.white_at_boundary(slot, end);
        *lock(&self.last_filler) = Some(Span { start: at, end });
        self.recorder.filler_bytes.fetch_add(len, Ordering::Relaxed);
        Some(end)
    }

    /// Where the log goes on behind a frame that ends at `end`: there, or behind the filler that follows it.
    pub(crate) fn behind_filler(&self, end: Lsn) -> Lsn {
        let last = *lock(&self.last_filler);
        last.filter(|filler| filler.start == end)
            .map_or(end, |filler| filler.end)
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
