//! The ring: where frames are copied to, and where the flusher takes them from.
//!
//! Shared, it is a tmpfs file mapped into memory: what was copied outlives the process. Private, it
//! is plain memory. Position in the ring = LSN modulo capacity.
//!
//! Who may touch which bytes: `[written, written + capacity)` may be in the ring. A worker writes
//! only inside its own reservation, once `end <= written + capacity`; the flusher reads only
//! `[written, boundary)`, where the boundary's scan has seen every copy completed. The ranges never
//! overlap, and the scan's orderings make the copies visible.

use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_io::{File, Mapping};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Lsn;
use crate::format::{BLOCK, RING_WRITTEN};

/// A block-aligned piece of memory.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
pub(crate) struct Block([u8; BLOCK]);
const _: () = assert!(align_of::<Block>() == BLOCK);

/// The tmpfs file behind a shared ring.
#[derive(Debug)]
pub(crate) struct RingFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
}

/// The memory that frames are copied into, and taken from by the flusher.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Mapping,
    /// Of the ring proper, behind the header's block; a power of two.
    capacity: usize,
    pub(crate) file: Option<RingFile>,
    /// Whether what is in the ring survives the process.
    pub(crate) survives: AtomicBool,
}

impl Ring {
    /// A ring over a mapped ring file, whose header is the caller's business.
    pub(crate) fn shared(memory: Mapping, file: RingFile) -> Self {
        let capacity = memory.len() - BLOCK;
        debug_assert!(capacity.is_power_of_two());
        Self {
            memory,
            capacity,
            file: Some(file),
            survives: AtomicBool::new(true),
        }
    }

    /// A ring in private memory, whose pages come with their first use.
    pub(crate) fn private(capacity: usize) -> std::io::Result<Self> {
        debug_assert!(capacity.is_power_of_two());
        Ok(Self {
            memory: Mapping::private(capacity + BLOCK)?,
            capacity,
            file: None,
            survives: AtomicBool::new(false),
        })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// The address of an LSN's byte, and how many bytes follow it before the ring wraps.
    fn at(&self, lsn: Lsn) -> (NonNull<u8>, usize) {
        let offset = lsn as usize & (self.capacity - 1);
        #[expect(unsafe_code, reason = "pointer arithmetic inside the mapping")]
        // SAFETY: BLOCK + offset < BLOCK + capacity = the mapping's length.
        let address = unsafe { self.memory.as_ptr().add(BLOCK + offset) };
        (address, self.capacity - offset)
    }

    /// Copies `bytes` to `lsn`, around the end of the ring where they reach it.
    ///
    /// # Safety
    /// The range lies inside the caller's reservation and its end is at most `written + capacity`.
    #[expect(unsafe_code, reason = "the caller vouches for its reservation")]
    pub(crate) unsafe fn copy_in(&self, lsn: Lsn, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.capacity);
        let (address, room) = self.at(lsn);
        let (first, rest) = bytes.split_at(bytes.len().min(room));
        // SAFETY: `room` bytes follow the address; by the caller's promise no other thread touches
        // them now, and `first` lies outside the ring, since no reference into it exists.
        unsafe { address.copy_from_nonoverlapping(NonNull::from(first).cast(), first.len()) };
        if !rest.is_empty() {
            // SAFETY: as above; `rest` is at most the capacity less `room`, from the ring's start.
            unsafe {
                self.at(lsn + room as u64)
                    .0
                    .copy_from_nonoverlapping(NonNull::from(rest).cast(), rest.len())
            };
        }
    }

    /// Copies `out.len()` bytes from `lsn` on.
    ///
    /// # Safety
    /// The range lies in `[written, boundary)`, or no thread writes to the ring.
    #[expect(unsafe_code, reason = "the caller vouches that the copies are complete")]
    pub(crate) unsafe fn copy_out(&self, lsn: Lsn, out: &mut [u8]) {
        debug_assert!(out.len() <= self.capacity);
        let (address, room) = self.at(lsn);
        let (first, rest) = out.split_at_mut(out.len().min(room));
        // SAFETY: `room` bytes follow the address, complete and unchanging by the caller's promise.
        unsafe { address.copy_to_nonoverlapping(NonNull::from(&mut *first).cast(), first.len()) };
        if !rest.is_empty() {
            // SAFETY: as above, from the ring's start.
            unsafe {
                self.at(lsn + room as u64)
                    .0
                    .copy_to_nonoverlapping(NonNull::from(&mut *rest).cast(), rest.len())
            };
        }
    }

    fn mark(&self) -> &AtomicU64 {
        #[expect(unsafe_code, reason = "an atomic in shared memory")]
        // SAFETY: offset RING_WRITTEN is inside the header's block and 8-aligned.
        let address = unsafe { self.memory.as_ptr().add(RING_WRITTEN) };
        #[expect(unsafe_code, reason = "an atomic in shared memory")]
        // SAFETY: valid as long as the mapping, which `self` owns; those 8 bytes are only ever
        // accessed through this atomic.
        unsafe {
            AtomicU64::from_ptr(address.as_ptr().cast())
        }
    }

    /// Says to a later process that the segments hold everything below `written`. Release: the
    /// kernel has the bytes before the mark says so (it is read after this process died).
    pub(crate) fn publish_written(&self, written: Lsn) {
        self.mark().store(written.to_le(), Ordering::Release);
    }

    /// The mark. Acquire pairs with the Release in `publish_written`.
    pub(crate) fn written_mark(&self) -> Lsn {
        u64::from_le(self.mark().load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_in_comes_out_across_the_wrap() {
        let ring = Ring::private(BLOCK).unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        for lsn in [0, 4000, 3 * 4096 - 8, (1 << 32) + 4096 - 255] {
            let mut out = vec![0; bytes.len()];
            #[expect(unsafe_code, reason = "the point of the test")]
            // SAFETY: one thread, and 256 bytes fit the ring.
            unsafe {
                ring.copy_in(lsn, &bytes);
                ring.copy_out(lsn, &mut out);
            }
            assert_eq!(out, bytes, "at {lsn}");
        }
        ring.publish_written(77);
        assert_eq!(ring.written_mark(), 77);
    }
}
