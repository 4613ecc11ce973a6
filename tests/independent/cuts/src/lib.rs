//! The disk that forgets what was not synced, and the file system over it.

pub mod disk;
pub mod fuse;
pub mod rng;
