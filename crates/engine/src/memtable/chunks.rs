//! The memory of memtables that are gone, kept for the next ones.
//!
//! Who first writes to a page of memory waits for the kernel to find and clear it: 2 to 20 % of a fill's time,
//! by how busy the machine's memory is, and some milliseconds where a huge page is cleared at once. So the
//! chunks of a memtable that is freed go to those that are filled, as many as a write buffer of the default
//! size has. Where nobody took any for a while, they are given back.

use std::time::Duration;

use parking_lot::Mutex;

/// Bytes of a chunk that can be kept.
pub(super) const CHUNK: usize = 256 << 10;
/// Chunks kept, at most: 64 MiB.
const SPARE_MOST: usize = (64 << 20) / CHUNK;
/// How long chunks are kept that nobody takes.
pub(crate) const IDLE: Duration = Duration::from_secs(5);

/// Chunks without an owner. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    spare: Mutex<Spare>,
}

#[derive(Debug, Default)]
struct Spare {
    chunks: Vec<Vec<u8>>,
    /// One was taken since somebody looked.
    wanted: bool,
}

impl Chunks {
    /// An empty chunk.
    pub(super) fn take(&self) -> Vec<u8> {
        let mut spare = self.spare.lock();
        spare.wanted = true;
        let chunk = spare.chunks.pop();
        drop(spare);
        chunk.unwrap_or_else(|| Vec::with_capacity(CHUNK))
    }

    /// Keeps a chunk whose content nobody needs any more, unless it is of another size or there are enough.
    pub(super) fn give(&self, mut chunk: Vec<u8>) {
        if chunk.capacity() != CHUNK {
            return;
        }
        chunk.clear();
        let mut spare = self.spare.lock();
        if spare.chunks.len() < SPARE_MOST {
            spare.chunks.push(chunk);
        }
    }

    /// Frees the chunks if none was taken since the last call. Returns whether there are any still.
    pub(crate) fn free_unwanted(&self) -> bool {
        let mut spare = self.spare.lock();
        let freed = if std::mem::take(&mut spare.wanted) {
            Vec::new()
        } else {
            std::mem::take(&mut spare.chunks)
        };
        let left = !spare.chunks.is_empty();
        drop(spare);
        drop(freed);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_chunks_are_bounded_and_go_when_nobody_wants_them() {
        let chunks = Chunks::default();
        for _ in 0..SPARE_MOST + 10 {
            chunks.give(vec![7; CHUNK]);
        }
        chunks.give(Vec::with_capacity(CHUNK / 2));
        assert_eq!(chunks.spare.lock().chunks.len(), SPARE_MOST);
        let taken = chunks.take();
        assert_eq!((taken.len(), taken.capacity()), (0, CHUNK));
        assert!(chunks.free_unwanted(), "one was taken");
        assert!(!chunks.free_unwanted(), "none was taken since");
        assert_eq!(chunks.spare.lock().chunks.len(), 0);
    }
}
