//! The frame that fills a block: how long it is, and where the last one lies.

use crate::format::{ALIGN, BLOCK, FRAME_HEADER};
use crate::lockfree::sync::{Mutex, lock};
use crate::{Lsn, Span};

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
