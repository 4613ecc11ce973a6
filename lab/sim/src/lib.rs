//! A simulated device, and a file system that forgets.
//!
//! * [`SimDevice`] implements `collie-io`'s [`Device`](collie_io::Device) over memory and keeps
//!   apart what was synced and what was not: file data by sector, lengths and names.
//! * A [`Snapshot`] of it yields crash images: a dead process leaves page cache and shared memory
//!   as they were, a power cut what was synced and any part of the rest ([`PowerCut`]). An
//!   [`Image`] can be damaged further: bit rot, rings that are missing, stale or foreign.
//! * A [`Fault`] makes a running device fail: reads, writes and syncs, short or interrupted
//!   transfers, sectors that never arrive or arrive elsewhere, a full disk, and any operation by
//!   its number. Each has a counter that proves that it fired.
//! * A [`SplitDevice`] puts one directory on another device.
//! * [`faultfs`] puts it behind the kernel's FUSE interface, for any program.
//! * [`fuzz`] changes inputs that programs wrote, for tests of the code that reads them.
//!
//! Everything that happens by chance follows from one seed.
//!
//! ```
//! use collie_io::{Device, OpenMode, write_all_at};
//! use collie_sim::{PowerCut, SimDevice};
//! use std::path::Path;
//!
//! let device = SimDevice::new(1);
//! let path = Path::new("/notes");
//! let file = device.open(path, OpenMode::CreateNew)?;
//! device.sync_dir(Path::new("/"))?;
//! write_all_at(&*file, b"synced", 0)?;
//! file.sync_data()?;
//! write_all_at(&*file, b"sunken", 0)?;
//!
//! let (_, lost) = PowerCut::WAYS[0];
//! let after = device.snapshot().power_cut(lost, 7).device();
//! let mut bytes = [0; 6];
//! after.open(path, OpenMode::Read)?.read_at(&mut bytes, 0)?;
//! assert_eq!(&bytes, b"synced");
//! # Ok::<(), std::io::Error>(())
//! ```

mod clock;
mod content;
mod device;
mod fault;
pub mod faultfs;
mod file;
pub mod fuzz;
mod image;
mod memory;
mod names;
mod rng;
mod split;
mod state;
mod trace;
mod walk;
mod world;

pub use clock::SimClock;
pub use content::SECTOR;
pub use device::{Gate, SimDevice};
pub use fault::{Fault, FaultCounts, FaultKind};
pub use image::{Data, Effects, Image, Keep, Points, PowerCut, Snapshot};
pub use rng::{Rng, mix};
pub use split::SplitDevice;
pub use trace::{Op, OpKind};
pub use world::VOLATILE_DIR;
