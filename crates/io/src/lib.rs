//! Collie's access to the operating system: files, directories, shared mappings and clocks.
//!
//! The crates above know only the traits here. [`RealDevice`] implements them over system calls;
//! the simulated device of `collie-sim` implements them over memory, with every fault that the
//! crash tests need. Nothing else in Collie opens a file (the table library, `lsm-tree`, opens its
//! own).
//!
//! * [`Device`] names files and directories; a [`File`] reads, writes, syncs, locks and maps.
//! * [`Mapping`] is memory shared with a file: the log's ring lives in one.
//! * [`Clock`] reads monotonic and wall time.
//! * [`Opener`] distinguishes a process from the children that it forks, which must not use what it
//!   has open.
//! * [`IoClass`] is a thread's I/O priority: that of background threads is below that of commits.
//! * [`Yielding`] gives up the processor while that pays.
//! * [`Scheduler`] lets background I/O begin, in pieces, while no user waits for the device.
//!
//! No call here retries a failed sync. The kernel marks pages clean after a failed `fsync`, so a
//! second call may report success for data that is not on the device; the caller must treat the
//! first failure as final.
//!
//! ```
//! use collie_io::{Device, OpenMode, RealDevice, read_exact_at, write_all_at};
//! # let dir = tempfile::tempdir()?;
//! let device = RealDevice::new();
//! let path = dir.path().join("hello");
//! let file = device.open(&path, OpenMode::CreateNew)?;
//! write_all_at(&*file, b"collie", 0)?;
//! file.sync_data()?; // The bytes are durable ...
//! device.sync_dir(dir.path())?; // ... and so is the name.
//! let mut back = [0; 6];
//! read_exact_at(&*file, &mut back, 0)?;
//! assert_eq!(&back, b"collie");
//! # Ok::<(), std::io::Error>(())
//! ```

mod class;
mod clock;
mod create_dirs;
mod device;
mod mapping;
mod process;
mod real;
mod reserve;
mod schedule;
mod stat;
mod yielding;

pub use class::{IoClass, set_io_class};
pub use clock::{Clock, Nanos, RealClock};
pub use create_dirs::{DirSteps, create_dirs};
pub use device::{
    Device, Dir, File, OpenMode, allocate_or_zero, is_out_of_descriptors, read_exact_at, write_all_at,
};
pub use mapping::Mapping;
pub use process::Opener;
pub use real::RealDevice;
pub use reserve::{Reserve, file_system_bytes};
pub use schedule::{Background, Begun, Foreground, Policy, Scheduler, Urgent};
pub use stat::{Entry, FileKind, FsStat, Stat};
pub use yielding::Yielding;

/// The unit in which direct writes must be aligned, in bytes: buffer address, length and file
/// offset.
pub const BLOCK: usize = 4096;
