//! Memory that is mapped: shared with a file, or private.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::{fmt, io};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::process::Opener;

/// A mapping, valid as long as this value lives.
///
/// It returns a raw pointer and no slices: other threads, and after a restart another process,
/// write the same bytes, and only the owner's protocol (for the log's ring: the completion
/// boundary) says which bytes may be touched when.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory alive; unmaps or frees it when dropped.
    _owner: Box<dyn Any + Send + Sync>,
}

#[expect(unsafe_code, reason = "a mapping is plain memory at a fixed address")]
// SAFETY: the pointer stays valid wherever the value moves; all access through it is the caller's
// to synchronise, as `as_ptr` says.
unsafe impl Send for Mapping {}
#[expect(unsafe_code, reason = "see Send")]
// SAFETY: sharing the value shares an address and a length, nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A mapping over memory that `owner` keeps alive.
    ///
    /// # Safety
    /// `start` must be valid for reads and writes of `len` bytes, aligned to
    /// [`BLOCK`](crate::BLOCK), until `owner` is dropped, and no reference into that memory may
    /// exist.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self {
            start,
            len,
            _owner: owner,
        }
    }

    /// Private memory of `len` bytes, zero, whose pages come with their first use. A child that is
    /// forked does not have it.
    ///
    /// # Errors
    /// The system has no more memory to give, or `len` is 0.
    pub fn private(len: usize) -> io::Result<Self> {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        #[expect(unsafe_code, reason = "system call")]
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rw, MapFlags::PRIVATE) }?;
        #[expect(unsafe_code, reason = "hands the fresh mapping to its owner")]
        // SAFETY: mmap gave `len` readable and writable bytes, page-aligned, and nothing else refers
        // to them.
        unsafe {
            Self::own(start, len)
        }
    }

    /// Takes over what was mapped just now.
    ///
    /// # Safety
    /// `start` came from a call of mmap for `len` readable and writable bytes, and nothing else
    /// refers to them.
    #[expect(unsafe_code, reason = "the caller vouches for the mapping")]
    pub(crate) unsafe fn own(start: *mut c_void, len: usize) -> io::Result<Self> {
        let pages = Pages {
            start: start as usize,
            len,
            opener: Opener::here(),
        };
        // A child that touched what is shared would write into its parent's memory. Its calls fail
        // before that (see `Opener`), so where the kernel cannot keep the mapping from children
        // nothing is lost.
        // SAFETY: the mapping that the caller vouches for; this process keeps it as it is.
        let _ = unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontFork) };
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: `len` readable and writable bytes, page-aligned; `pages` unmaps them when it is
        // dropped, and nothing else refers to them.
        Ok(unsafe { Self::from_raw(start, len, Box::new(pages)) })
    }

    /// The first byte. Valid for [`Mapping::len`] bytes while the mapping lives; code that reads or
    /// writes through it must rule out data races by itself.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Unmaps what was mapped.
struct Pages {
    start: usize,
    len: usize,
    opener: Opener,
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.opener.is_here() {
            // A child does not have the mapping, and may have another one there by now.
            return;
        }
        #[expect(unsafe_code, reason = "system call")]
        // SAFETY: exactly the range that mmap returned, unmapped once; `Mapping` owned the only
        // pointer.
        let unmapped = unsafe { rustix::mm::munmap(self.start as *mut c_void, self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_is_zero_and_can_be_written() {
        let mapping = Mapping::private(3 * crate::BLOCK).unwrap();
        let start = mapping.as_ptr().as_ptr();
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: one thread, within the mapping.
        unsafe {
            assert_eq!(start.add(3 * crate::BLOCK - 1).read(), 0);
            start.write(7);
            assert_eq!(start.read(), 7);
        }
        assert!(Mapping::private(0).is_err());
    }
}
