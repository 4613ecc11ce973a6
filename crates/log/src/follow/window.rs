//! A stretch of the frame stream in memory, read from segments that somebody else writes.

use zerocopy::FromBytes;

use super::view::{Piece, View};
use crate::Lsn;
use crate::compress::MAX_PAYLOAD;
use crate::error::{At, LogError};
use crate::format::{ALIGN, FRAME_HEADER, FrameHeader, frame_len};
use crate::recovery::read_or_zeros;

/// How much is read at once, in bytes; a larger frame is read whole.
const WINDOW: usize = 1 << 20;
/// How much is read first after a look in vain: where little is written, little is read.
const FIRST: usize = 4 << 10;
/// No frame is larger, whatever its header says.
const MAX_FRAME: u64 = frame_len(MAX_PAYLOAD);

/// Bytes as they were at the last look. They may have changed since: whoever finds no frame looks again.
#[derive(Debug, Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    at: Lsn,
    /// How much was read last; twice that is read next.
    read: usize,
}

impl Window {
    /// Forgets what was read, so that the next look is a new one.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.read = 0;
    }

    /// `len` bytes of an epoch's stretch from `at` on; fewer where the stretch ends.
    fn bytes(&mut self, view: &View, at: Lsn, len: usize) -> Result<&[u8], LogError> {
        let end = self.at + self.bytes.len() as u64;
        if self.bytes.is_empty() || at < self.at || at + len as u64 > end {
            self.read = (2 * self.read).clamp(FIRST, WINDOW);
            self.fill(view, at, len.max(self.read))?;
        }
        let from = (at - self.at) as usize;
        let to = self.bytes.len().min(from + len);
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }

    fn fill(&mut self, view: &View, at: Lsn, len: usize) -> Result<(), LogError> {
        self.at = at;
        self.bytes.clear();
        for piece in view.stretch(at) {
            let have = self.bytes.len();
            let position = at + have as u64;
            if have >= len || position < piece.start {
                break;
            }
            // Without it the frame is not whole, and the caller looks again for what there is.
            let Some(file) = view.open(piece)? else {
                break;
            };
            let n = ((piece.end - position) as usize).min(len - have);
            self.bytes.resize(have + n, 0);
            if let Some(part) = self.bytes.get_mut(have..) {
                read_or_zeros(&*file, part, piece.offset(position)).at("read", &piece.path)?;
            }
        }
        Ok(())
    }

    /// The whole frame at `at`, with its payload as it is stored; `None` where there is none at this look. The
    /// checksum is over the LSN and seeded by the epoch: no bytes of another place or time pass.
    pub(super) fn frame(
        &mut self,
        view: &View,
        piece: &Piece,
        at: Lsn,
    ) -> Result<Option<(FrameHeader, &[u8])>, LogError> {
        let head = self.bytes(view, at, FRAME_HEADER)?;
        let Ok(header) = FrameHeader::read_from_bytes(head) else {
            return Ok(None);
        };
        if header.lsn != at || header.epoch != piece.epoch || header.end() - at > MAX_FRAME {
            return Ok(None);
        }
        let len = header.stored_len();
        let payload = self.bytes(view, at + FRAME_HEADER as u64, len)?;
        let whole = payload.len() == len && header.matches(piece.salt, payload);
        Ok(whole.then_some((header, payload)))
    }

    /// The first whole frame at or above `at`, no further than a window's length, that `wanted` wants, and how far was looked: the
    /// same as `at` at the stretch's end.
    pub(super) fn find(
        &mut self,
        view: &View,
        piece: &Piece,
        at: Lsn,
        wanted: impl Fn(&FrameHeader) -> bool,
    ) -> Result<(Option<Lsn>, Lsn), LogError> {
        const LSN_AT: usize = std::mem::offset_of!(FrameHeader, lsn);
        let chunk = self.bytes(view, at, WINDOW)?;
        if chunk.len() < FRAME_HEADER {
            return Ok((None, at));
        }
        let looked = at + (chunk.len() - FRAME_HEADER) as u64 / ALIGN * ALIGN + ALIGN;
        let places = chunk.windows(FRAME_HEADER).step_by(ALIGN as usize);
        let candidates: Vec<Lsn> = (at..)
            .step_by(ALIGN as usize)
            .zip(places)
            .filter(|(lsn, head)| {
                head.get(LSN_AT..LSN_AT + 8)
                    .is_some_and(|b| b == lsn.to_le_bytes())
            })
            .map(|(lsn, _)| lsn)
            .collect();
        for lsn in candidates {
            if self
                .frame(view, piece, lsn)?
                .is_some_and(|(header, _)| wanted(&header))
            {
                return Ok((Some(lsn), looked));
            }
        }
        Ok((None, looked))
    }
}
