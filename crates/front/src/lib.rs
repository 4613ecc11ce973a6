//! **Atomic pages over a plain file system**: writes of pages, 8 KiB by default, after which a
//! crash leaves the old page or the new one and never half of each. PostgreSQL's
//! `full_page_writes` can be off over such files.
//!
//! A [`Volume`] is a directory with page files in it. A page that is overwritten goes to a slot of
//! a *shadow file*; a small record in a log has its place, once it is on the device. Pages
//! behind a file's committed end are written in place, so a new file costs what it costs without a
//! volume. Displaced pages are *drained* home again in the background, and a drained directory is a
//! plain one.
//!
//! [`Mount`] is a FUSE file system over a volume, as a PostgreSQL server sees it; the volume below does
//! not depend on it. The repository's `docs/design/formats/front.md` draws the formats.
//!
//! ```
//! use collie_front::{Scope, Volume, VolumeOptions};
//! # let dir = tempfile::tempdir()?;
//! # let options = || VolumeOptions { slots: 64, ..VolumeOptions::default() };
//! let volume = Volume::open(dir.path(), options())?;
//! let table = volume.create("16384".as_ref())?;
//! volume.write_at(&table, &[1; 8192], 0)?;
//! volume.sync(&table)?; // The page is durable ...
//! volume.write_at(&table, &[2; 8192], 0)?; // ... and stays whole while it is overwritten.
//! volume.commit_all(Scope::Steady)?;
//! volume.close()?;
//!
//! let volume = Volume::open(dir.path(), options())?;
//! let table = volume.file("16384".as_ref())?;
//! let mut page = [0; 8192];
//! assert_eq!(volume.read_at(&table, &mut page, 0)?, 8192);
//! assert_eq!(page, [2; 8192]);
//! volume.drain()?; // Everything is at home again.
//! volume.close()?;
//! assert_eq!(std::fs::read(dir.path().join("16384"))?, [2; 8192]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod disk;
mod error;
mod file;
mod mount;
mod shared;
mod shown;
mod volume;

pub use error::{FrontError, MountError};
pub use file::{PageFile, Scope};
pub use mount::{
    Afterwards, Left, Mount, MountOptions, check_mount, close_unmounted, detach_dir, is_of_mount,
    open_unmounted, unmount_dir,
};
pub use volume::{Existing, Missing, Recovered, Volume, VolumeOptions, VolumeStatus};
