//! Memory that is shared with a file.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// A shared mapping, valid as long as this value lives.
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
