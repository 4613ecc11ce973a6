//! How the new epoch's groups are to be written: asked for, or found out.

use std::io::ErrorKind;

use collie_io::{Clock, Nanos, write_all_at};

use crate::error::{At, LogError};
use crate::format::BLOCK;
use crate::options::{LogOptions, WritePath};
use crate::ring::Block;
use crate::segments::{self, Segment};
use zerocopy::{FromZeros, IntoBytes};

/// How often each way is tried; the fastest try counts, because what disturbs a try only makes it slower.
const TRIES: usize = 5;

/// The fastest write of a block that was durable when it ended, each way, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Past the page cache.
    pub direct_ns: Nanos,
    /// To the page cache, and `fdatasync`.
    pub fdatasync_ns: Nanos,
}

impl Probe {
    /// Several writes past the page cache can be under way at once, and of syncs only one: these must be
    /// clearly faster to be chosen.
    fn prefers_sync(self) -> bool {
        self.fdatasync_ns < self.direct_ns / 5 * 4
    }
}

/// What was found out.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) direct: bool,
    pub(super) probe: Option<Probe>,
}

/// Opens the new segments for direct writes where that is asked for, or worth it, and possible. `spare` is the
/// offset of a block of the last segment that is zeroed and holds nothing.
pub(super) fn choose(
    options: &LogOptions,
    segments: &mut [Segment],
    spare: Option<u64>,
    warnings: &mut Vec<String>,
) -> Result<Chosen, LogError> {
    if options.write_path == WritePath::FdataSync {
        return Ok(Chosen::default());
    }
    let mut chosen = Chosen {
        direct: true,
        probe: None,
    };
    for segment in segments.iter_mut() {
        match segments::open_direct(&*options.device, &segment.path) {
            Ok(direct) => segment.direct = Some(direct),
            Err(error) => {
                chosen.direct = false;
                // Where nobody asked for it, that is no more than what was found out.
                if options.write_path == WritePath::Direct {
                    warnings.push(format!("writing through the page cache: {error}"));
                }
                break;
            }
        }
    }
    if chosen.direct
        && options.write_path == WritePath::Auto
        && let (Some(last), Some(offset)) = (segments.last(), spare)
    {
        chosen.probe = probe(options.device.clock(), last, offset)?;
        chosen.direct = chosen.probe.is_some_and(|probe| !probe.prefers_sync());
    }
    if !chosen.direct {
        segments.iter_mut().for_each(|segment| segment.direct = None);
    }
    Ok(chosen)
}

/// Writes zeros over zeros, both ways. `None` where a file can be opened for direct writes and takes none of a
/// block, as on devices with larger ones.
fn probe(clock: &dyn Clock, segment: &Segment, offset: u64) -> Result<Option<Probe>, LogError> {
    let block = Block::new_zeroed();
    let direct = segment.direct.as_ref().unwrap_or(&segment.file);
    let mut probe = Probe {
        direct_ns: Nanos::MAX,
        fdatasync_ns: Nanos::MAX,
    };
    for _ in 0..TRIES {
        let start = clock.monotonic();
        match write_all_at(&**direct, block.as_bytes(), offset) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(None),
            written => written.at("write", &segment.path)?,
        }
        let between = clock.monotonic();
        write_all_at(&*segment.file, block.as_bytes(), offset).at("write", &segment.path)?;
        segment.file.sync_data().at("sync", &segment.path)?;
        let end = clock.monotonic();
        probe.direct_ns = probe.direct_ns.min(between - start);
        probe.fdatasync_ns = probe.fdatasync_ns.min(end - between);
    }
    Ok(Some(probe))
}

/// The offset of the last zeroed block of a segment of which `ready` bytes are zeroed and `used` are not zero, if
/// there is one.
pub(super) fn spare_block(ready: u64, used: u64) -> Option<u64> {
    let block = BLOCK as u64;
    (used.next_multiple_of(block) + block <= ready).then(|| ready / block * block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_block_holds_nothing_and_is_zeroed() {
        let block = BLOCK as u64;
        // Data begins behind the header's block.
        assert_eq!(spare_block(8 * block, 100), Some(8 * block));
        assert_eq!(spare_block(2 * block, block), Some(2 * block));
        assert_eq!(spare_block(2 * block, block + 8), None);
        assert_eq!(spare_block(0, 0), None);
    }

    #[test]
    fn a_sync_is_preferred_only_where_it_is_clearly_faster() {
        let probe = |direct_ns, fdatasync_ns| Probe {
            direct_ns,
            fdatasync_ns,
        };
        assert!(probe(100_000, 79_000).prefers_sync());
        assert!(!probe(100_000, 81_000).prefers_sync());
        assert!(!probe(0, 0).prefers_sync());
    }
}
