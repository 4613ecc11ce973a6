//! How the new epoch's groups are to be written: asked for, or found out.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use collie_io::{Clock, File, Nanos, write_all_at};

use crate::error::{At, LogError};
use crate::format::BLOCK;
use crate::gate::IN_FLIGHT_MAX;
use crate::options::{LogOptions, WritePath};
use crate::ring::Block;
use crate::segments::{self, Segment};
use zerocopy::{FromZeros, IntoBytes};

/// How often each way is tried; the fastest try counts, because what disturbs a try only makes it slower.
const TRIES: usize = 5;

/// The fastest write of a block that was durable when it ended, each way, in nanoseconds.
///
/// The third figure decides about several writes at once. A device that takes much longer for two of them gains
/// little by the second, and both cost processor time: then one larger write for everybody is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Past the page cache.
    pub direct_ns: Nanos,
    /// To the page cache, and `fdatasync`.
    pub fdatasync_ns: Nanos,
    /// The slower of two past the page cache, at the same time; 0 where that was not tried.
    pub pair_ns: Nanos,
}

impl Probe {
    /// Several writes past the page cache can be under way at once, and of syncs only one: these must be
    /// clearly faster to be chosen.
    fn prefers_sync(self) -> bool {
        self.fdatasync_ns < self.direct_ns / 5 * 4
    }

    /// Two writes at once take hardly longer than one.
    fn prefers_several(self) -> bool {
        self.pair_ns > 0 && self.pair_ns <= self.direct_ns / 10 * 11
    }
}

/// What was found out.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) direct: bool,
    pub(super) in_flight: usize,
    pub(super) probe: Option<Probe>,
}

impl Chosen {
    /// To the page cache, and one sync at a time.
    pub(super) fn cached() -> Chosen {
        Chosen {
            direct: false,
            in_flight: 1,
            probe: None,
        }
    }
}

/// Opens the new segments for direct writes where that is asked for, or worth it, and possible, and says how many
/// may be under way. `spare` is where in the last segment blocks lie that are zeroed and hold nothing.
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
        in_flight: options.writes_in_flight.unwrap_or(1),
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
    // Who wants no threads gets none here either.
    let try_pair = options.writes_in_flight.is_none() && options.threads;
    let is_open = options.write_path == WritePath::Auto || try_pair;
    if chosen.direct
        && is_open
        && let Some(last) = segments.last()
        && spare.end - spare.start >= 2 * BLOCK as u64
    {
        chosen.probe = probe(options.device.clock(), last, spare.end - BLOCK as u64, try_pair)?;
        chosen.direct = chosen
            .probe
            .is_some_and(|probe| options.write_path == WritePath::Direct || !probe.prefers_sync());
        if chosen.probe.is_none() && options.write_path == WritePath::Direct {
            warnings.push(
                "writing through the page cache: the device takes no direct writes of 4,096 bytes".into(),
            );
        }
        if chosen.probe.is_some_and(Probe::prefers_several) {
            chosen.in_flight = IN_FLIGHT_MAX;
        }
    }
    if !chosen.direct {
        chosen.in_flight = 1;
        segments.iter_mut().for_each(|segment| segment.direct = None);
    }
    Ok(chosen)
}

/// Writes zeros over zeros, both ways, at `offset` and, for two at once, at the block before it, too. `None` where
/// a file can be opened for direct writes and takes none of a block, as on devices with larger ones.
fn probe(
    clock: &dyn Clock,
    segment: &Segment,
    offset: u64,
    try_pair: bool,
) -> Result<Option<Probe>, LogError> {
    let block = Block::new_zeroed();
    let direct = segment.direct.as_ref().unwrap_or(&segment.file);
    let mut probe = Probe {
        direct_ns: Nanos::MAX,
        fdatasync_ns: Nanos::MAX,
        pair_ns: 0,
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
    if try_pair {
        let offsets = [offset - BLOCK as u64, offset];
        probe.pair_ns = pair(clock, &**direct, offsets).at("write", &segment.path)?;
    }
    Ok(Some(probe))
}

/// Writes two blocks at the same time, [`TRIES`] times; the slower of the two, when that was fastest. 0 where there
/// is no second thread to be had.
fn pair(clock: &dyn Clock, file: &dyn File, [mine, theirs]: [u64; 2]) -> io::Result<Nanos> {
    let block = Block::new_zeroed();
    let timed = |offset| {
        let start = clock.monotonic();
        write_all_at(file, block.as_bytes(), offset).map(|()| clock.monotonic() - start)
    };
    // Which try each of the two has come to. Both stand at the same one before they write.
    let (here, there) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let meet = |own: &AtomicUsize, other: &AtomicUsize, turn| {
        // Release and Acquire pair with each other; a write that failed leaves the other one alone with the rest.
        own.store(turn, Ordering::Release);
        while other.load(Ordering::Acquire) < turn {
            thread::yield_now();
        }
    };
    let run = |own: &AtomicUsize, other: &AtomicUsize, offset| {
        let times: io::Result<Vec<Nanos>> = (1..=TRIES)
            .map(|turn| {
                meet(own, other, turn);
                timed(offset)
            })
            .collect();
        own.store(TRIES, Ordering::Release);
        times
    };
    thread::scope(|scope| {
        let other = thread::Builder::new()
            .name("collie-probe".into())
            .spawn_scoped(scope, || run(&there, &here, theirs));
        let Ok(other) = other else {
            return Ok(0);
        };
        let mine = run(&here, &there, mine);
        let theirs = other
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread for a second write panicked")));
        let slower = mine?.into_iter().zip(theirs?).map(|(a, b)| a.max(b));
        Ok(slower.min().unwrap_or(0))
    })
}

/// Where the zeroed blocks lie that hold nothing, in a segment of which `ready` bytes of data are zeroed and `used`
/// are not zero.
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
            pair_ns: 0,
        };
        assert!(probe(100_000, 79_000).prefers_sync());
        assert!(!probe(100_000, 81_000).prefers_sync());
        assert!(!probe(0, 0).prefers_sync());
    }

    #[test]
    fn several_writes_are_preferred_only_where_two_take_hardly_longer_than_one() {
        let probe = |direct_ns, pair_ns| Probe {
            direct_ns,
            fdatasync_ns: direct_ns,
            pair_ns,
        };
        assert!(probe(100_000, 109_000).prefers_several());
        assert!(!probe(100_000, 111_000).prefers_several());
        // It was not tried.
        assert!(!probe(100_000, 0).prefers_several());
    }
}
