//! Memory behind shared mappings: the one place where simulated programs write without a call.

use std::cell::UnsafeCell;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use collie_io::{BLOCK, Mapping};

use crate::content::SECTOR;

#[repr(C, align(4096))]
struct Page(UnsafeCell<[u8; BLOCK]>);

const _: () = assert!(size_of::<Page>() == BLOCK && align_of::<Page>() == BLOCK);

/// The pages of one mapped file. Mappings hand out its address; the simulator looks at it from
/// outside, as a kernel does, word by word and without regard to who is writing.
pub(crate) struct SharedMemory {
    pages: Box<[Page]>,
}

#[expect(
    unsafe_code,
    reason = "pages are plain memory that mappings share between threads"
)]
// SAFETY: the bytes are reached through raw pointers and volatile accesses only, never by
// reference.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Zeroed memory for at least `len` bytes.
    pub(crate) fn new(len: usize) -> Arc<Self> {
        let pages = (0..len.div_ceil(BLOCK)).map(|_| Page(UnsafeCell::new([0; BLOCK])));
        Arc::new(Self {
            pages: pages.collect(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len() * BLOCK
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::from(&*self.pages).cast()
    }

    /// A mapping of the first `len` bytes; the memory lives as long as any mapping does.
    pub(crate) fn map(self: &Arc<Self>, len: usize) -> io::Result<Mapping> {
        if len > self.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a simulated mapping cannot grow: {len} bytes are wanted, {} were mapped first",
                    self.len()
                ),
            ));
        }
        let owner = Box::new(Arc::clone(self));
        #[expect(unsafe_code, reason = "hands the pages to a mapping")]
        // SAFETY: `len` bytes of page-aligned memory that `owner` keeps alive; the bytes lie in
        // `UnsafeCell`s and no reference to them is ever made.
        Ok(unsafe { Mapping::from_raw(self.start(), len, owner) })
    }

    /// The sector at `index`, as the memory is at this moment; zeros beyond the end.
    pub(crate) fn read(&self, index: usize) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        let at = index * SECTOR;
        if at + SECTOR > self.len() {
            return bytes;
        }
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            #[expect(unsafe_code, reason = "looks at memory that a program may be writing")]
            // SAFETY: inside the pages and 8-aligned. Programs may write concurrently; like a
            // crash, a volatile word-wise read takes what is there.
            let seen = unsafe { self.start().add(at + 8 * i).cast::<u64>().read_volatile() };
            word.copy_from_slice(&seen.to_ne_bytes());
        }
        bytes
    }

    /// Overwrites the sector at `index`, as a write to the mapped file does.
    pub(crate) fn write(&self, index: usize, bytes: &[u8; SECTOR]) {
        let at = index * SECTOR;
        if at + SECTOR > self.len() {
            return;
        }
        for (i, &byte) in bytes.iter().enumerate() {
            #[expect(unsafe_code, reason = "writes memory that programs have mapped")]
            // SAFETY: inside the pages, which live as long as `self`.
            unsafe {
                self.start().add(at + i).write_volatile(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mapping_writes_is_seen_from_outside() {
        let memory = SharedMemory::new(5_000);
        assert_eq!(memory.len(), 8_192);
        let mapping = memory.map(5_000).unwrap();
        assert_eq!(mapping.as_ptr().as_ptr() as usize % BLOCK, 0);
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: inside the mapping, and no other thread runs.
        unsafe {
            mapping.as_ptr().add(513).write(7);
        }
        assert_eq!(memory.read(1)[..3], [0, 7, 0]);
        assert!(memory.map(8_193).is_err());
    }
}
