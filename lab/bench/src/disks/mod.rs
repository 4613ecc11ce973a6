//! Disks that measurements run on: directories, or file systems in images, whose writes may be limited.

#![expect(
    clippy::disallowed_methods,
    reason = "images, control groups and /proc are used from outside, as any program does"
)]

mod commands;
mod disk;
mod limit;

use std::fs;
use std::path::Path;

pub use commands::Interrupt;
pub(crate) use commands::Running;
pub(crate) use disk::{Disk, FileSystem, Image, open_to_all};
pub use limit::Verified;
pub(crate) use limit::{Group, verify};

/// The text of a file that the kernel makes or a program writes; nothing where there is none.
pub(crate) fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a program can be found.
pub(crate) fn is_there(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).exists())
}
