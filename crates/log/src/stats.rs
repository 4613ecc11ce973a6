//! What the log counts, per stage of a commit.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::Nanos;

use crate::append::compress::Stored;
use crate::lockfree::sync;
use crate::{Lsn, Span};

/// Buckets per power of two: values are kept to within an eighth.
const SUB: u64 = 8;
const SUB_BITS: u32 = SUB.trailing_zeros();
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB as usize;

/// A histogram that any thread may add to. All accesses are Relaxed: it orders nothing.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// There from the first value on: many small logs never have some.
    buckets: OnceLock<Box<[AtomicU64]>>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            buckets: OnceLock::new(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, value: u64) {
        let none = || (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        if let Some(bucket) = self.buckets.get_or_init(none).get(bucket_of(value)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.max.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn summary(&self) -> Summary {
        let buckets = self.buckets.get().into_iter().flatten();
        let counts: Vec<u64> = buckets.map(|b| b.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max = self.max.load(Ordering::Relaxed);
        let at = |share: f64| {
            let rank = (count as f64 * share).ceil() as u64;
            let mut seen = 0;
            for (bucket, n) in counts.iter().enumerate() {
                seen += n;
                if seen >= rank && *n > 0 {
                    return upper_of(bucket).min(max);
                }
            }
            0
        };
        Summary {
            count,
            sum: self.sum.load(Ordering::Relaxed),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max,
        }
    }
}

fn bucket_of(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    ((u64::from(shift) + 1) * SUB + (value >> shift) - SUB) as usize
}

/// The largest value of a bucket.
fn upper_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    let next = (SUB + bucket % SUB + 1) as u128;
    u64::try_from((next << shift) - 1).unwrap_or(u64::MAX)
}

/// A distribution, to within an eighth of each value.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// How many values.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// The median.
    pub p50: u64,
    /// 99 % are at most this.
    pub p99: u64,
    /// 99.9 % are at most this.
    pub p999: u64,
    /// The largest, exactly.
    pub max: u64,
}

impl Summary {
    /// The mean; 0 without values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.sum as f64 / self.count as f64
        }
    }
}

/// What the flusher and waiting workers record.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) syncs: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    /// Frames at the last sync.
    frames_synced: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) filler_bytes: AtomicU64,
    pub(crate) write_ns: Histogram,
    pub(crate) sync_ns: Histogram,
    pub(crate) group: Histogram,
    pub(crate) reserve_ns: Histogram,
    pub(crate) copy_ns: Histogram,
    pub(crate) room_ns: Histogram,
    pub(crate) prepare_ns: Histogram,
    pub(crate) durable_ns: Histogram,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            syncs: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            frames_synced: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            filler_bytes: AtomicU64::new(0),
            write_ns: Histogram::new(),
            sync_ns: Histogram::new(),
            group: Histogram::new(),
            reserve_ns: Histogram::new(),
            copy_ns: Histogram::new(),
            room_ns: Histogram::new(),
            prepare_ns: Histogram::new(),
            durable_ns: Histogram::new(),
        }
    }

    /// A sync brought the log to `frames` in all. Called by leaders only.
    pub(crate) fn count_group(&self, frames: u64) {
        let before = self.frames_synced.swap(frames, Ordering::Relaxed);
        if frames > before {
            self.group.add(frames - before);
        }
    }
}

/// Times in nanoseconds since the log was opened, by the stage of a commit that they were spent in.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// From the call to the reservation; one append in [`SAMPLE`] is timed.
    pub reserve_ns: Summary,
    /// Copying into the ring, room included; the same appends.
    pub copy_ns: Summary,
    /// Waiting for room in the ring; every wait.
    pub room_ns: Summary,
    /// Waiting for space on the device, or for the turn of a large frame; every append that was not
    /// admitted at once.
    pub prepare_ns: Summary,
    /// From asking for durability to having it; one blocking wait in [`SAMPLE`].
    pub durable_ns: Summary,
    /// Writing a group to its segments; every group.
    pub write_ns: Summary,
    /// Syncing; every sync.
    pub sync_ns: Summary,
}

/// Payloads and compression, since the log was opened with it.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compressed {
    /// Frames that are stored compressed; the others would not have shrunk, or were too small to
    /// try.
    pub frames: u64,
    /// Bytes of all payloads as they were appended.
    pub bytes_before: u64,
    /// Bytes of the same payloads as they are stored.
    pub bytes_after: u64,
}

/// One in so many appends is timed.
pub const SAMPLE: u32 = 64;

/// What a log did since it was opened, and where it stands. The watermarks are read one after the
/// other, durable first, so that durable ≤ written ≤ boundary ≤ appended holds in here too.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LogStats {
    /// On the device up to here.
    pub durable: Lsn,
    /// In the segment files up to here.
    pub written: Lsn,
    /// Complete without a hole up to here.
    pub boundary: Lsn,
    /// Reserved up to here.
    pub appended: Lsn,
    /// The first LSN that a segment still holds.
    pub oldest: Lsn,
    /// Appended frames, the log's own excluded.
    pub frames: u64,
    /// Bytes of those frames, headers and padding included.
    pub frame_bytes: u64,
    /// Bytes of the fillers between them,
    /// [`LogOptions::pad_to_block`](crate::LogOptions::pad_to_block).
    pub filler_bytes: u64,
    /// What compression did; zeros without it.
    pub compression: Compressed,
    /// Bytes written to segments, rewritten last blocks included.
    pub bytes_written: u64,
    /// Syncs, or writes that were durable on return.
    pub syncs: u64,
    /// Appends refused for want of space.
    pub refused: u64,
    /// Frames per sync.
    pub group_frames: Summary,
    /// Where the time went.
    pub stages: Stages,
    /// Segments that hold the log.
    pub segments: usize,
    /// Released segments kept for use as new ones.
    pub spare_segments: usize,
    /// Bytes of all segment files, archived ones excluded.
    pub segment_bytes: u64,
    /// Released segments in the archive.
    pub archived_segments: usize,
    /// The bytes that they take.
    pub archived_bytes: u64,
    /// Worker slots handed out, ever, at most.
    pub workers: usize,
    /// Whether the ring is shared, so that what is in it survives the process.
    pub ring_shared: bool,
    /// Who keeps the log from being released, and from where on; sorted by LSN.
    pub holders: Vec<(String, Lsn)>,
    /// Why the log stopped, if it did.
    pub poisoned: Option<String>,
}

/// The span between two readings of a clock.
pub(crate) fn since(start: Nanos, now: Nanos) -> u64 {
    now.saturating_sub(start)
}

/// What an open log counts.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) counts: Counts,
    pub(crate) recorder: Recorder,
}

impl Figures {
    /// For workers in so many slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            counts: Counts::new(slots),
            recorder: Recorder::new(),
        }
    }
}

/// What one worker counts, on cache lines of its own; only its owner adds to it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Share {
    frames: sync::AtomicU64,
    bytes: sync::AtomicU64,
    /// Frames that are stored compressed.
    compressed: sync::AtomicU64,
    /// Payload bytes that the compressor was given, and that were stored of them.
    before: sync::AtomicU64,
    after: sync::AtomicU64,
}

impl Share {
    fn new() -> Self {
        let zero = || sync::AtomicU64::new(0);
        Self {
            frames: zero(),
            bytes: zero(),
            compressed: zero(),
            before: zero(),
            after: zero(),
        }
    }

    pub(crate) fn add(&self, span: &Span) {
        raise(&self.frames, 1);
        raise(&self.bytes, span.end - span.start);
    }

    pub(crate) fn add_compression(&self, len: usize, stored: Stored<'_>) {
        raise(&self.before, len as u64);
        raise(&self.after, stored.bytes.len() as u64);
        raise(&self.compressed, u64::from(stored.compressed));
    }
}

/// Relaxed, and no read-modify-write: only the worker whose count it is writes it.
fn raise(count: &sync::AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// The shares of all workers, by slot.
#[derive(Debug)]
pub(crate) struct Counts(Box<[Share]>);

/// Sums of the shares.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) bytes: u64,
    pub(crate) compressed: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
}

impl Counts {
    pub(crate) fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| Share::new()).collect())
    }

    pub(crate) fn of(&self, slot: usize) -> Option<&Share> {
        self.0.get(slot)
    }

    /// Frames of the first `slots` workers.
    pub(crate) fn frames(&self, slots: usize) -> u64 {
        self.sum(slots, |share| &share.frames)
    }

    /// What the first `slots` workers counted beside frames.
    pub(crate) fn totals(&self, slots: usize) -> Totals {
        Totals {
            bytes: self.sum(slots, |share| &share.bytes),
            compressed: self.sum(slots, |share| &share.compressed),
            before: self.sum(slots, |share| &share.before),
            after: self.sum(slots, |share| &share.after),
        }
    }

    /// Relaxed: each count is exact once its worker rests, and no more is asked of it.
    fn sum(&self, slots: usize, count: impl Fn(&Share) -> &sync::AtomicU64) -> u64 {
        let shares = self.0.iter().take(slots);
        shares.map(|share| count(share).load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_a_bucket_within_an_eighth() {
        for value in (0..2_000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX / 3, u64::MAX]) {
            let upper = upper_of(bucket_of(value));
            assert!(upper >= value && upper - value <= value / 8, "{value}: {upper}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let histogram = Histogram::new();
        for value in 1..=1000 {
            histogram.add(value);
        }
        let summary = histogram.summary();
        assert_eq!((summary.count, summary.sum, summary.max), (1000, 500_500, 1000));
        assert!((500..=563).contains(&summary.p50), "{summary:?}");
        assert!((990..=1000).contains(&summary.p99), "{summary:?}");
        assert_eq!(Histogram::new().summary(), Summary::default());
    }
}
