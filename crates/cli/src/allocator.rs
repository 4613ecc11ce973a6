//! The allocator of the programs: mimalloc, and blocks of 16 MiB and more straight from the kernel.
//!
//! mimalloc keeps such a block in the thread that allocated it. Where another thread frees it — a
//! value comes in on a connection's thread and goes with its memtable — its pages stay resident
//! until the first thread allocates again: after some hundred values of 33 MB a server that used
//! 600 MiB had up to 4 GiB. A mapping goes back to the kernel when it is freed, grows without a copy,
//! and is made of huge pages where the kernel has them, without which filling it takes longer than
//! what is done with it.
//!
//! glibc's allocator returns memory in bursts that stall writers for a tenth of a second after a
//! memtable was freed.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use mimalloc::MiMalloc;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

/// From this size on a block is a mapping of its own, in bytes. mimalloc has a segment for each
/// block above 16 MiB.
const MAPPED: usize = 16 << 20;
/// A mapping begins at a multiple of it, whatever the machine.
const PAGE: usize = 4096;

/// Allocates for a whole program.
pub struct Allocator;

/// Whether a block of this layout is a mapping of its own. It depends on the layout alone, which is
/// stated again when the block is freed.
fn is_mapped(size: usize, align: usize) -> bool {
    size >= MAPPED && align <= PAGE
}

fn map(len: usize) -> *mut u8 {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
    let mapping = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
    let Ok(mapping) = mapping else {
        return ptr::null_mut();
    };
    // SAFETY: the mapping is as long as that, and advice changes no byte of it. Where the kernel has
    // no huge pages it refuses the advice, and nothing is lost but time.
    let _ = unsafe { madvise(mapping, len, Advice::LinuxHugepage) };
    mapping.cast()
}

// SAFETY: each method hands a block to the allocator that it came from, which `is_mapped` decides by
// the block's layout alone. A mapping has at least the length asked for (the kernel rounds up to
// whole pages) and begins at a page, and an alignment above that of a page goes to mimalloc.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout.align()) {
            return map(layout.size());
        }
        // SAFETY: the caller's contract is mimalloc's.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout.align()) {
            // The kernel gives pages of zeroes.
            return map(layout.size());
        }
        // SAFETY: the caller's contract is mimalloc's.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout.size(), layout.align()) {
            // The kernel joins neighbours, and refuses to part them where the process may have no
            // more mappings: the block is lost then, and nothing else.
            // SAFETY: the caller owns the block, and `map` made it as long as this.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
            return;
        }
        // SAFETY: the caller's contract is mimalloc's, and the block is its own.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match (
            is_mapped(layout.size(), layout.align()),
            is_mapped(size, layout.align()),
        ) {
            (true, true) => {
                // SAFETY: the caller owns the block, which is a mapping of this length, and uses the
                // old address no more unless this fails, when the mapping is as it was.
                let moved = unsafe { mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
                moved.map_or(ptr::null_mut(), <*mut _>::cast)
            }
            // SAFETY: the caller's contract is mimalloc's, and the block is its own.
            (false, false) => unsafe { MiMalloc.realloc(block, layout, size) },
            // SAFETY: `size` is not 0 and no overflow by the caller's contract, the blocks do not
            // overlap, and both have the bytes that are copied.
            _ => unsafe {
                let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                if !new.is_null() {
                    ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                new
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    /// Resident, in bytes.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * PAGE
    }

    #[test]
    fn a_block_keeps_its_bytes_as_it_grows_and_shrinks() {
        // Bytes that differ by place, a few of each page.
        let mark = |bytes: &mut Vec<u8>, from: usize| {
            (from..bytes.len())
                .step_by(509)
                .for_each(|n| bytes[n] = (n % 251) as u8);
        };
        let mut bytes = vec![0; 509];
        mark(&mut bytes, 0);
        for pages in [
            1,
            8,
            MAPPED / 509,
            MAPPED / 509 + 1,
            100_000,
            70_000,
            MAPPED / 509,
            2,
        ] {
            let (before, len) = (bytes.len(), pages * 509);
            bytes.resize(len, 0);
            bytes.shrink_to_fit();
            mark(&mut bytes, before);
            let kept = (0..len).step_by(509).all(|n| bytes[n] == (n % 251) as u8);
            assert!(kept, "{len} bytes");
        }
        assert!(vec![0_u8; 2 * MAPPED].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_large_block_is_aligned_as_asked() {
        for align in [1, 64, PAGE, 2 * PAGE, 1 << 20] {
            let layout = Layout::from_size_align(MAPPED + 3, align).unwrap();
            // SAFETY: the layout has a size, and what is freed is what was allocated by it.
            unsafe {
                let block = Allocator.alloc(layout);
                assert!(!block.is_null() && block.addr().is_multiple_of(align), "{align}");
                block.add(layout.size() - 1).write(1);
                Allocator.dealloc(block, layout);
            }
        }
    }

    #[test]
    fn more_than_there_is_gives_none() {
        let layout = Layout::from_size_align(isize::MAX as usize & !PAGE, PAGE).unwrap();
        // SAFETY: the layout has a size.
        assert!(unsafe { Allocator.alloc(layout) }.is_null());
    }

    /// As a server's values are: allocated by the thread of a connection, freed by another one.
    #[test]
    fn what_another_thread_frees_goes_back_to_the_kernel() {
        const BLOCK: usize = 2 * MAPPED;
        let before = resident();
        let (send, receive) = mpsc::sync_channel::<Vec<u8>>(1);
        std::thread::scope(|scope| {
            scope.spawn(move || receive.into_iter().for_each(drop));
            for _ in 0..30 {
                send.send(vec![1; BLOCK]).unwrap();
            }
            drop(send);
        });
        // Other tests allocate meanwhile, but not half of that.
        let after = resident();
        assert!(
            after < before + 15 * BLOCK,
            "{before} bytes before, {after} after"
        );
    }
}
