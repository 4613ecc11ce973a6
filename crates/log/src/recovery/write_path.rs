//! How the new epoch's groups are written: as asked for, or as measured.

use std::io::ErrorKind;
use std::ops::Range;

use collie_io::{Clock, Nanos, write_all_at};

use super::report::Probe;
use crate::append::ring::Block;
use crate::error::{At, LogError};
use crate::format::BLOCK;
use crate::options::{LogOptions, WritePath};
use crate::segments::files::open_direct;
use crate::segments::segment::Segment;
use zerocopy::{FromZeros, IntoBytes};

/// How often each way is tried; the fastest try counts, because what disturbs a try only makes it
/// slower.
const TRIES: usize = 5;

/// What was found out.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) direct: bool,
    pub(super) probe: Option<Probe>,
}

impl Chosen {
    /// To the page cache, and one sync at a time.
    pub(super) fn cached() -> Chosen {
        Chosen {
            direct: false,
            probe: None,
        }
    }
}

/// Opens the new segments for direct writes where that is asked for, or worth it, and possible.
/// `spare` is where in the last segment blocks lie that are zeroed and hold nothing.
pub(super) fn choose(
    options: &LogOptions,
    segments: &mut [Segment],
    spare: &Range<u64>,
    warnings: &mut Vec<String>,
) -> Result<Chosen, LogError> {
    if options.write_path == WritePath::FdataSync {
        return Ok(Chosen::cached());
    }
    let mut chosen = Chosen {
        direct: true,
        probe: None,
    };
    for segment in segments.iter_mut() {
        match open_direct(&*options.device, &segment.path) {
            Ok(direct) => segment.direct = Some(direct),
            Err(error) => {
                chosen.direct = false;
                // Where the options do not ask for it, that is no more than a finding.
                if options.write_path == WritePath::Direct {
                    warnings.push(format!("writing through the page cache: {error}"));
                }
                break;
            }
        }
    }
    // Where direct writes are asked for, too: whether the device takes blocks of this size shows at
    // the first one only.
    if chosen.direct
        && let Some(last) = segments.last()
        && spare.end - spare.start >= BLOCK as u64
    {
        chosen.probe = found(options, last, spare.end - BLOCK as u64)?;
        chosen.direct = chosen
            .probe
            .is_some_and(|probe| options.write_path == WritePath::Direct || !probe.prefers_sync());
        if chosen.probe.is_none() && options.write_path == WritePath::Direct {
            warnings.push(
                "writing through the page cache: the device takes no direct writes of 4,096 bytes".into(),
            );
        }
    }
    if !chosen.direct {
        segments.iter_mut().for_each(|segment| segment.direct = None);
    }
    Ok(chosen)
}

/// What this device takes each way: for the logs of a set it is found out once.
fn found(options: &LogOptions, segment: &Segment, offset: u64) -> Result<Option<Probe>, LogError> {
    let try_it = || probe(options.device.clock(), segment, offset);
    let Some(set) = &options.set else {
        return try_it();
    };
    let device = segment.file.stat().at("look at", &segment.path)?.dev;
    if let Some(known) = set.probe(device) {
        return Ok(Some(known));
    }
    let probe = try_it()?;
    if let Some(probe) = probe {
        set.note_probe(device, probe);
    }
    Ok(probe)
}

/// Writes zeros over zeros, both ways, at `offset`. `None` where a file can be opened for direct
/// writes and takes none of a block, as on devices with larger ones.
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

/// Where the zeroed blocks lie that hold nothing, in a segment of which `ready` bytes of data are
/// zeroed and `used` are not zero.
pub(super) fn spare_blocks(data_at: u64, ready: u64, used: u64) -> Range<u64> {
    let block = BLOCK as u64;
    let start = data_at + used.next_multiple_of(block);
    start..start.max(data_at + ready / block * block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_blocks_hold_nothing_and_are_zeroed() {
        let block = BLOCK as u64;
        for data_at in [block, 2 * block] {
            let spare = |ready, used| spare_blocks(data_at, ready, used);
            assert_eq!(spare(8 * block, 100), data_at + block..data_at + 8 * block);
            assert_eq!(spare(2 * block, block), data_at + block..data_at + 2 * block);
            assert!(spare(2 * block, block + 8).is_empty());
            assert!(spare(0, 0).is_empty());
            assert!(spare(block, 3 * block).is_empty());
        }
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
