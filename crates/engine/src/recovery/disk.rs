//! What depends on the size of the file system that the log is on.

use std::path::Path;

use collie_io::Device;

/// A log is released in whole segments, so one that is a large part of its file system might not be
/// released before that is full.
const SEGMENTS_OF_DISK: u64 = 32;
/// A segment is prepared in steps of this.
const SEGMENT_LEAST: u64 = 2 << 20;

/// The size of the file system that `dir` is on, or will be, in bytes. A device that does not say is
/// taken to be large.
pub(super) fn size_of(device: &dyn Device, dir: &Path) -> u64 {
    let found = dir.ancestors().find_map(|dir| device.statfs(dir).ok());
    found.map_or(u64::MAX, |found| found.blocks.saturating_mul(found.block_size))
}

/// The size of a segment where `asked` is wanted.
pub(super) fn segment_bytes(asked: u64, disk: u64) -> u64 {
    let most = (disk / SEGMENTS_OF_DISK).max(SEGMENT_LEAST);
    match asked <= most {
        true => asked,
        false => 1 << most.ilog2(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_a_small_part_of_its_disk() {
        const MIB: u64 = 1 << 20;
        for (disk, expected) in [
            (64, 2),
            (122, 2),
            (160, 4),
            (400, 8),
            (800, 16),
            (2048, 64),
            (1 << 20, 64),
        ] {
            assert_eq!(segment_bytes(64 * MIB, disk * MIB), expected * MIB, "{disk} MiB");
        }
        assert_eq!(
            segment_bytes(64 << 10, 1 << 20),
            64 << 10,
            "what was asked for is less"
        );
        assert_eq!(segment_bytes(64 * MIB, u64::MAX), 64 * MIB);
    }
}
