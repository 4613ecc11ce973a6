//! Distinguishing a process from the children that it forks.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The process in which something was opened.
///
/// A child of `fork` has copies of its parent's memory and the same open files, but none of its
/// threads. What two processes write to one file, each after its own idea of where it ends, is
/// garbage. So each object that must not be used in a child keeps an `Opener`, and checks it first.
///
/// A page that the kernel clears in every child (`MADV_WIPEONFORK`, Linux 4.14) answers with one
/// load. Where the kernel does not offer that, the answer is a system call.
#[derive(Debug, Clone, Copy)]
pub struct Opener {
    pid: u32,
    /// What the page shows in that process.
    mark: Option<(&'static AtomicU32, u32)>,
}

/// Shows 0 in a process that has not opened anything, and in one that was just forked.
static MARK: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
/// The next mark. In ordinary memory, which a child has a copy of: no process has the mark of one
/// that it descends from.
static NEXT: AtomicU32 = AtomicU32::new(1);

impl Opener {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        let pid = std::process::id();
        let page = *MARK.get_or_init(|| wiped_page().ok());
        let mark = page.map(|page| {
            // Relaxed, here and below: the page distinguishes processes, and threads of one process
            // agree about it.
            let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
            match page.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => (page, fresh),
                Err(mark) => (page, mark),
            }
        });
        Self { pid, mark }
    }

    /// Whether this is that process; `false` in its children.
    #[must_use]
    pub fn is_here(self) -> bool {
        match self.mark {
            Some((page, mark)) => page.load(Ordering::Relaxed) == mark,
            None => std::process::id() == self.pid,
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(self) -> u32 {
        self.pid
    }
}

/// A page of zeros that is zeros again in each child.
fn wiped_page() -> io::Result<&'static AtomicU32> {
    const LEN: usize = crate::BLOCK;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours.
    let start: *mut c_void =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), LEN, access, MapFlags::PRIVATE) }?;
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: the mapping from above, which nothing refers to yet; in a child it reads as zeros,
    // which is an `AtomicU32`.
    unsafe { rustix::mm::madvise(start, LEN, Advice::LinuxWipeOnFork) }?;
    let start = NonNull::new(start.cast::<AtomicU32>()).ok_or(io::ErrorKind::OutOfMemory)?;
    #[expect(unsafe_code, reason = "the page is never unmapped")]
    // SAFETY: readable, writable, aligned to a page, zeroed, and mapped for as long as the process
    // lives.
    Ok(unsafe { start.as_ref() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_not_its_parent_and_has_children_of_its_own() {
        let parent = Opener::here();
        assert!(parent.is_here() && Opener::here().is_here());
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: the child allocates nothing, and ends without running any destructor.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", io::Error::last_os_error());
        if child == 0 {
            let own = Opener::here();
            let right = !parent.is_here() && own.is_here() && own.pid() == std::process::id();
            #[expect(unsafe_code, reason = "the point of the test")]
            // SAFETY: as above.
            unsafe {
                libc::_exit(i32::from(!right))
            };
        }
        let mut status = 0;
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: waits for the child from above.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert!(parent.is_here());
    }
}
