//! Memory of memtables: how much waits to be flushed, and what was freed and is kept for the next
//! ones.
//!
//! The first write to a page of memory waits for the kernel to find and clear it: 2 to 20 % of a
//! fill's time, depending on how busy the machine's memory is, and some milliseconds where a huge
//! page is cleared at once. So the chunks of a freed memtable are reused for new ones, as many as a
//! write buffer of the default size has. Chunks that are not used for a while are freed.
//!
//! Memtables, and the directories of dropped families, are freed on a thread of their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use collie_io::Device;
use parking_lot::Mutex;

use crate::{Error, Result};

/// Bytes of a chunk that can be kept.
pub(super) const CHUNK: usize = 32 << 10;
/// Chunks kept, at most: 64 MiB.
const SPARE_MOST: usize = (64 << 20) / CHUNK;
/// How long unused chunks are kept.
pub(crate) const IDLE: Duration = Duration::from_secs(5);

/// Unused chunks, and how much is in use. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    spare: Mutex<Spare>,
    /// Bytes of the memtables that wait to be flushed.
    unflushed: AtomicU64,
}

/// The size of one memtable, which counts as unflushed until it is flushed or gone.
#[derive(Debug)]
pub(super) struct MemBytes {
    chunks: Arc<Chunks>,
    bytes: AtomicU64,
    is_counted: AtomicBool,
}

impl MemBytes {
    pub(super) fn new(chunks: &Arc<Chunks>, is_counted: bool) -> Self {
        Self {
            chunks: Arc::clone(chunks),
            bytes: AtomicU64::new(0),
            is_counted: AtomicBool::new(is_counted),
        }
    }

    /// Relaxed, as all accesses: sizes decide when to rotate and to stop, nothing is published by
    /// them. Whether they count changes only when nothing is added any more.
    pub(super) fn get(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_counted.load(Ordering::Relaxed) {
            self.chunks.unflushed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Nothing is added any more, and it is flushed, or will never be.
    pub(super) fn uncount(&self) {
        if self.is_counted.swap(false, Ordering::Relaxed) {
            self.chunks.unflushed.fetch_sub(self.get(), Ordering::Relaxed);
        }
    }
}

impl Drop for MemBytes {
    fn drop(&mut self) {
        self.uncount();
    }
}

#[derive(Debug, Default)]
struct Spare {
    chunks: Vec<Vec<u8>>,
    /// One was taken since the last call of `free_unwanted`.
    wanted: bool,
}

impl Chunks {
    /// Bytes of the memtables that wait to be flushed, active ones included, less what buckets have
    /// not reported yet.
    pub(crate) fn unflushed(&self) -> u64 {
        self.unflushed.load(Ordering::Relaxed)
    }

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

/// Something to free.
pub(crate) enum Reclaim {
    /// A memtable that has no reader any more.
    Memory(Box<dyn Send>),
    /// The directory of a dropped family that has no reader any more.
    Directory(PathBuf),
}

/// Starts the thread that frees what is sent to it, and spare chunks of memtables when none is
/// taken for a while. It ends when the last sender is dropped.
pub(crate) fn start_reclaim(
    device: Arc<dyn Device>,
    chunks: Arc<Chunks>,
) -> Result<(Sender<Reclaim>, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new()
        .name("collie-free".into())
        .spawn(move || collect(&receiver, &*device, &chunks))
        .map_err(|e| Error::io("start the thread", "collie-free", e))?;
    Ok((sender, thread))
}

fn collect(receiver: &Receiver<Reclaim>, device: &dyn Device, chunks: &Chunks) {
    let mut spare = false;
    loop {
        let reclaim = match spare {
            true => receiver.recv_timeout(IDLE),
            false => receiver.recv().map_err(RecvTimeoutError::from),
        };
        match reclaim {
            Ok(Reclaim::Memory(memory)) => {
                drop(memory);
                spare = true;
            }
            Ok(Reclaim::Directory(path)) => {
                // The next open removes what is left: the manifest does not name its id.
                if let Err(error) = device.remove_dir_all(&path) {
                    tracing::warn!(path = %path.display(), %error, "a dropped family's files stay for now");
                }
            }
            Err(RecvTimeoutError::Timeout) => spare = chunks.free_unwanted(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_flushed_or_gone_counts_no_more() {
        let chunks = Arc::new(Chunks::default());
        let [first, second, own] = [true, true, false].map(|counted| MemBytes::new(&chunks, counted));
        first.add(10);
        first.add(5);
        second.add(7);
        own.add(100);
        assert_eq!((first.get(), own.get(), chunks.unflushed()), (15, 100, 22));
        first.uncount();
        first.uncount();
        assert_eq!((first.get(), chunks.unflushed()), (15, 7));
        drop(first);
        drop(own);
        assert_eq!(chunks.unflushed(), 7);
        drop(second);
        assert_eq!(chunks.unflushed(), 0);
    }

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
