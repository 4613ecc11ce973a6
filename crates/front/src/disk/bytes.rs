//! Little-endian fields, written one after the other and taken back with their bounds checked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Adds fields to what it holds.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.0.extend_from_slice(value);
    }

    /// The length, in four bytes, and the path.
    pub(crate) fn path(&mut self, path: &Path) {
        let bytes = path.as_os_str().as_bytes();
        // No path is longer than the system's limit of 4,096 bytes.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.bytes(bytes);
    }
}

/// Takes fields off the front. Each answers `None` where too few bytes are left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A path below the root.
    pub(crate) fn path(&mut self) -> Option<PathBuf> {
        let len = self.u32()?;
        let path = Path::new(OsStr::from_bytes(self.take(usize::try_from(len).ok()?)?));
        let mut parts = path.components().peekable();
        let is_below = parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
        is_below.then(|| path.to_owned())
    }
}
