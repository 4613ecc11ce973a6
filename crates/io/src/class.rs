//! Whose I/O may wait.

use std::io;

/// The I/O class of a thread. What it does depends on the block device's scheduler: mq-deadline and
/// BFQ honour it, `none` ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoClass {
    /// Commits and reads: the kernel's best-effort class at its highest level.
    Foreground,
    /// Flush, compaction, segment preparation: best effort at the lowest level.
    Background,
    /// Work that no caller waits for: served when the device is idle.
    Idle,
}

/// Gives the calling thread an I/O class, until it is set again.
///
/// # Errors
/// The kernel's error, where it does not know I/O classes or a sandbox forbids the call. Carry on
/// then: the class is a wish, nothing depends on it for correctness.
pub fn set_io_class(class: IoClass) -> io::Result<()> {
    const CLASS_SHIFT: libc::c_int = 13;
    const BEST_EFFORT: libc::c_int = 2;
    const IDLE: libc::c_int = 3;
    const WHO_PROCESS: libc::c_int = 1;
    const THIS_THREAD: libc::c_int = 0;
    let value = match class {
        IoClass::Foreground => BEST_EFFORT << CLASS_SHIFT,
        IoClass::Background => (BEST_EFFORT << CLASS_SHIFT) | 7,
        IoClass::Idle => IDLE << CLASS_SHIFT,
    };
    #[expect(unsafe_code, reason = "neither rustix nor libc wraps ioprio_set")]
    // SAFETY: the call takes three integers and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, THIS_THREAD, value) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_step_back_and_forth() {
        std::thread::spawn(|| {
            for class in [IoClass::Background, IoClass::Idle, IoClass::Foreground] {
                set_io_class(class).unwrap();
            }
        })
        .join()
        .unwrap();
    }
}
