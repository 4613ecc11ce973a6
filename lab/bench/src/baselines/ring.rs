//! The memory that baselines copy frames to: of the same size and kind as Collie's.
//!
//! Position = LSN modulo capacity. A writer touches only what it has reserved, once
//! `end <= written + capacity`; the group's leader reads only `[written, boundary)`, where every
//! copy is complete.

use std::path::Path;
use std::ptr::NonNull;

use collie_io::{BLOCK, Device, Mapping, OpenMode};
use collie_log::RingMode;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::error::{At, BenchError};

/// A block-aligned piece of memory.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
pub(crate) struct Block([u8; BLOCK]);

#[derive(Debug)]
pub(crate) struct Ring {
    memory: Mapping,
    capacity: usize,
}

impl Ring {
    /// A ring of `capacity` bytes, a power of two. Where it is shared its file's name is removed at
    /// once: the memory is the same, and no baseline is recovered.
    pub(crate) fn new(device: &dyn Device, mode: &RingMode, capacity: usize) -> Result<Self, BenchError> {
        let memory = match mode {
            RingMode::Private => private(capacity),
            RingMode::Shared { dir } => shared(device, dir, capacity)?,
        };
        Ok(Self { memory, capacity })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    fn at(&self, lsn: u64) -> (NonNull<u8>, usize) {
        let offset = lsn as usize & (self.capacity - 1);
        #[expect(unsafe_code, reason = "pointer arithmetic inside the mapping")]
        // SAFETY: offset < capacity = the mapping's length.
        let address = unsafe { self.memory.as_ptr().add(offset) };
        (address, self.capacity - offset)
    }

    /// Copies `bytes` to `lsn`, around the end of the ring where they reach it.
    ///
    /// # Safety
    /// The range lies inside the caller's reservation and its end is at most `written + capacity`.
    #[expect(unsafe_code, reason = "the caller vouches for its reservation")]
    pub(crate) unsafe fn copy_in(&self, lsn: u64, bytes: &[u8]) {
        let (address, room) = self.at(lsn);
        let (first, rest) = bytes.split_at(bytes.len().min(room));
        // SAFETY: `room` bytes follow the address; by the caller's promise no other thread touches
        // them now.
        unsafe { address.copy_from_nonoverlapping(NonNull::from(first).cast(), first.len()) };
        if !rest.is_empty() {
            // SAFETY: as above, from the ring's start.
            unsafe {
                self.at(lsn + room as u64)
                    .0
                    .copy_from_nonoverlapping(NonNull::from(rest).cast(), rest.len());
            }
        }
    }

    /// Copies `out.len()` bytes from `lsn` on.
    ///
    /// # Safety
    /// The range lies in `[written, boundary)`.
    #[expect(unsafe_code, reason = "the caller vouches that the copies are complete")]
    pub(crate) unsafe fn copy_out(&self, lsn: u64, out: &mut [u8]) {
        let (address, room) = self.at(lsn);
        let (first, rest) = out.split_at_mut(out.len().min(room));
        // SAFETY: `room` bytes follow the address, complete and unchanging by the caller's promise.
        unsafe { address.copy_to_nonoverlapping(NonNull::from(&mut *first).cast(), first.len()) };
        if !rest.is_empty() {
            // SAFETY: as above, from the ring's start.
            unsafe {
                self.at(lsn + room as u64)
                    .0
                    .copy_to_nonoverlapping(NonNull::from(&mut *rest).cast(), rest.len());
            }
        }
    }
}

fn private(capacity: usize) -> Mapping {
    let mut blocks: Vec<Block> = Vec::new();
    blocks.resize_with(capacity / BLOCK, Block::new_zeroed);
    let start = NonNull::from(blocks.as_mut_slice()).cast::<u8>();
    #[expect(unsafe_code, reason = "memory that the vector owns")]
    // SAFETY: the vector's buffer has `capacity` initialised, block-aligned bytes, does not move
    // when the vector value moves, and no reference to it is kept.
    unsafe {
        Mapping::from_raw(start, capacity, Box::new(blocks))
    }
}

fn shared(device: &dyn Device, dir: &Path, capacity: usize) -> Result<Mapping, BenchError> {
    let mut name = [0; 8];
    device.random(&mut name).at("name a ring in", dir)?;
    let path = dir.join(format!("collie-bench-{:016x}", u64::from_le_bytes(name)));
    let file = device.open(&path, OpenMode::CreateNew).at("create", &path)?;
    let mapped = file
        .allocate(capacity as u64)
        .and_then(|()| file.map(capacity))
        .at("map", &path);
    device.remove_file(&path).at("remove", &path)?;
    mapped
}
