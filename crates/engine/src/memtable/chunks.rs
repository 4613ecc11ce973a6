//! Memory of freed memtables, kept for the next ones.
//!
//! The first write to a page of memory waits for the kernel to find and clear it: 2 to 20 % of a
//! fill's time, depending on how busy the machine's memory is, and some milliseconds where a huge
//! page is cleared at once. So the chunks of a freed memtable are reused for new ones, as many as a
//! write buffer of the default size has. Chunks that are not used for a while are freed.

use std::time::Duration;

use parking_lot::Mutex;

/// Bytes of a chunk that can be kept.
pub(super) const CHUNK: usize = 32 << 10;
/// Chunks kept, at most: 64 MiB.
const SPARE_MOST: usize = (64 << 20) / CHUNK;
/// How long unused chunks are kept.
pub(crate) const IDLE: Duration = Duration::from_secs(5);

/// Unused chunks. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    spare: Mutex<Spare>,
}

#[derive(Debug, Default)]
struct Spare {
    chunks: Vec<Vec<u8>>,
    /// One was taken since the last call of `free_unwanted`.
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

    /// Keeps a chunk whose content is not needed any more, unless it has another size or enough are
    /// kept.
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

    /// Frees the chunks if none was taken since the last call. Returns whether any are left.
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
    fn spare_chunks_are_bounded_and_freed_when_none_is_taken() {
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
