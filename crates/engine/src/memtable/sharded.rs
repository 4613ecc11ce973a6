//! The memtable: shards by the key's hash, each behind a short lock of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::Lsn;
use parking_lot::{Mutex, MutexGuard};

use super::chunks::Chunks;
use super::newest::Newest;
use super::shard::{Cursor, Shard};
use super::{At, Direction, Entry, Found, Scan, Write};

/// Shards of a memtable, a power of two. With more of them a scan merges more; with fewer, writers
/// contend.
pub(super) const SHARDS: usize = 16;

/// A shard alone on its cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Padded {
    shard: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    shard: Shard,
    /// The largest start of its versions.
    last_start: Lsn,
    /// Bytes that are not added to the total yet.
    unreported: u64,
}

fn shard_of(key: &[u8]) -> usize {
    xxhash_rust::xxh3::xxh3_64(key) as usize % SHARDS
}

/// A sorted, versioned map in memory. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Sharded {
    shards: Box<[Padded]>,
    bytes: AtomicU64,
    /// A shard adds to the total when it grew by this much, so that writers seldom share a counter.
    report_every: u64,
}

impl Sharded {
    pub(crate) fn new(write_buffer_bytes: u64, chunks: &Arc<Chunks>) -> Self {
        let shard = || Padded {
            shard: Mutex::new(Counted {
                shard: Shard::new(Arc::clone(chunks)),
                last_start: 0,
                unreported: 0,
            }),
        };
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            bytes: AtomicU64::new(0),
            report_every: (write_buffer_bytes / (SHARDS as u64 * 32)).min(64 << 10),
        }
    }

    /// A shard whose entries are in order.
    fn sorted(&self, number: usize) -> MutexGuard<'_, Counted> {
        let mut counted = self.shards[number].shard.lock();
        counted.shard.sort();
        counted
    }

    /// Counts a version that was added to a shard.
    fn grown(&self, counted: &mut Counted, at: At, bytes: usize) {
        counted.last_start = counted.last_start.max(at.start);
        counted.unreported += bytes as u64;
        if counted.unreported >= self.report_every {
            // Relaxed: the size decides when to rotate, nothing is published by it.
            self.bytes.fetch_add(counted.unreported, Ordering::Relaxed);
            counted.unreported = 0;
        }
    }

    /// Appends to `out` the newest versions of up to `limit` keys of one shard; returns where to go
    /// on.
    pub(super) fn fetch(
        &self,
        shard: usize,
        at: Cursor,
        limit: usize,
        out: &mut Vec<Entry>,
    ) -> Option<Cursor> {
        self.sorted(shard)
            .shard
            .newest_from(at, limit, |entry| out.push(entry))
    }

    /// Adds a version. A second write of the same key at the same LSN replaces the first: so of a
    /// batch's writes of one key the last counts, and replaying a commit twice is harmless.
    pub(super) fn insert(&self, key: &[u8], at: At, write: Write<'_>) {
        let mut counted = self.sorted(shard_of(key));
        let bytes = counted.shard.insert(key, at, write);
        self.grown(&mut counted, at, bytes);
    }

    /// As `insert`, for many writes that are not read yet: they are sorted together, by `sort` or
    /// by the first read. Of repeated keys at one LSN the last counts, as there.
    pub(super) fn load(&self, key: &[u8], at: At, write: Write<'_>) {
        let mut counted = self.shards[shard_of(key)].shard.lock();
        let bytes = counted.shard.load(key, at, write);
        self.grown(&mut counted, at, bytes);
    }

    /// Sorts one share of what was loaded, of `of` shares.
    pub(super) fn sort(&self, share: usize, of: usize) {
        for number in (share..SHARDS).step_by(of) {
            drop(self.sorted(number));
        }
    }

    /// The newest version with `start < below`.
    pub(super) fn get(&self, key: &[u8], below: Lsn) -> Option<Found> {
        self.sorted(shard_of(key)).shard.get(key, below)
    }

    /// Appends to `out` the next keys in the bounds, in the direction's order, each with its newest
    /// version below the scan's LSN, tombstones included. About `hint` keys are fetched. Returns
    /// whether the bounds are exhausted; if not, at least one key was appended.
    pub(super) fn scan(
        &self,
        scan: Scan<'_>,
        direction: Direction,
        hint: usize,
        out: &mut VecDeque<Entry>,
    ) -> bool {
        let each = hint.div_ceil(SHARDS).max(2);
        let mut entries = Vec::with_capacity(each * SHARDS);
        // Where a shard has more keys than it returned, those lie beyond the last one that it
        // returned. Keys of other shards beyond that are left for the next call.
        let mut limit: Option<crate::Key> = None;
        let beyond = |a: &[u8], b: &[u8]| match direction {
            Direction::Forward => a > b,
            Direction::Backward => a < b,
        };
        for number in 0..SHARDS {
            let exhausted = self
                .sorted(number)
                .shard
                .scan(scan, direction, each, |entry| entries.push(entry));
            if !exhausted
                && let Some(last) = entries.last()
                && limit.as_ref().is_none_or(|limit| beyond(limit, &last.key))
            {
                limit = Some(last.key.clone());
            }
        }
        if let Some(limit) = &limit {
            entries.retain(|entry| !beyond(&entry.key, limit));
        }
        entries.sort_unstable_by(|a, b| match direction {
            Direction::Forward => a.key.cmp(&b.key),
            Direction::Backward => b.key.cmp(&a.key),
        });
        out.extend(entries);
        limit.is_none()
    }

    /// The newest version of each key, tombstones included, in order; of a memtable that is no
    /// longer written.
    pub(super) fn newest(&self) -> Newest<'_> {
        Newest::of(self)
    }

    /// The largest start of all versions; 0 where there are none. Exact for inserts that have
    /// returned.
    pub(super) fn last_start(&self) -> Lsn {
        let starts = self.shards.iter().map(|padded| padded.shard.lock().last_start);
        starts.max().unwrap_or(0)
    }

    /// Memory in use, in bytes, less what shards have not reported yet.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether nothing was inserted. Exact when no insert is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.shards
            .iter()
            .all(|padded| padded.shard.lock().shard.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use super::*;
    use crate::test::Rng;

    type Model = BTreeMap<(Vec<u8>, u64), Option<Vec<u8>>>;

    fn visible(model: &Model, below: u64) -> BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)> {
        let mut newest = BTreeMap::new();
        for ((key, start), value) in model.range(..).filter(|((_, start), _)| *start < below) {
            newest.insert(key.clone(), (*start, value.clone()));
        }
        newest
    }

    fn random_key(rng: &mut Rng) -> Vec<u8> {
        match rng.below(5) {
            0 => format!("{:016}", rng.below(300)).into_bytes(),
            1 => format!("user/{}/{}", rng.below(20), rng.below(20)).into_bytes(),
            3 => format!("a long common beginning/{}", rng.below(300)).into_bytes(),
            2 => vec![b'a' + rng.below(3) as u8; 1 + rng.below(5) as usize],
            _ => (0..1 + rng.below(12)).map(|_| rng.below(256) as u8).collect(),
        }
    }

    /// Random inserts, some of them loaded first and in between, against a map by (key, LSN): every
    /// version is found at every LSN, and scans in both directions, in chunks of any size, and what
    /// a flush takes, show each key once with its newest version.
    #[test]
    fn every_version_is_found_and_scans_and_flushes_show_the_newest() {
        for seed in crate::test::seeds(20) {
            let mut rng = Rng::new(seed);
            let table = Sharded::new(1 << 20, &Arc::default());
            let mut model = Model::new();
            let (first, from, to) = (rng.below(1000), rng.below(1500), rng.below(1500));
            for n in 0..1500_u64 {
                let loads = n < first || (from..to).contains(&n);
                let key = random_key(&mut rng);
                let start = 8 * (1 + if rng.below(4) == 0 { rng.below(n + 1) } else { n });
                let at = At {
                    start,
                    end: start + 64,
                };
                let value = (rng.below(4) > 0).then(|| vec![n as u8; rng.below(60) as usize]);
                let write = value.as_ref().map_or(Write::Delete, |value| Write::Put(value));
                if loads {
                    table.load(&key, at, write);
                } else {
                    table.insert(&key, at, write);
                }
                model.insert((key, start), value);
            }
            let merged = table.newest().map(|Entry { key, found }| {
                let value = found.value.map(|v| v.to_vec());
                (key.to_vec(), (found.at.start, value))
            });
            let merged: Vec<_> = merged.collect();
            let newest: Vec<_> = visible(&model, u64::MAX).into_iter().collect();
            assert_eq!(merged, newest, "seed {seed}");
            for _ in 0..40 {
                let below = 8 * rng.below(1700);
                check(&mut rng, &table, &visible(&model, below), below, seed);
            }
        }
    }

    fn check(
        rng: &mut Rng,
        table: &Sharded,
        newest: &BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>,
        below: u64,
        seed: u64,
    ) {
        for _ in 0..50 {
            let key = random_key(rng);
            let found = table.get(&key, below);
            let found = found.map(|f| (f.at.start, f.value.map(|v| v.to_vec())));
            assert_eq!(
                found.as_ref(),
                newest.get(&key),
                "seed {seed}, below {below}, key {key:?}"
            );
        }
        let (a, b) = (random_key(rng), random_key(rng));
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        let (low, high) = match rng.below(4) {
            0 => (Bound::Unbounded, Bound::Unbounded),
            1 => (Bound::Included(&a), Bound::Excluded(&b)),
            2 => (Bound::Excluded(&a), Bound::Included(&b)),
            _ => (Bound::Included(&a), Bound::Unbounded),
        };
        let skip = low == Bound::Excluded(&a) && high == Bound::Excluded(&a);
        let expected: Vec<_> = if skip || a == b && low != Bound::Unbounded {
            return;
        } else {
            newest
                .range::<Vec<u8>, _>((low, high))
                .map(|(k, (s, v))| (k.clone(), *s, v.clone()))
                .collect()
        };
        let low = low.map(Vec::as_slice);
        let high = high.map(Vec::as_slice);
        for direction in [Direction::Forward, Direction::Backward] {
            let hint = 1 + rng.below(200) as usize;
            let mut seen = collect(table, low, high, below, direction, hint);
            if direction == Direction::Backward {
                seen.reverse();
            }
            assert_eq!(
                seen, expected,
                "seed {seed}, below {below}, {direction:?}, {low:?}..{high:?}"
            );
        }
    }

    fn collect(
        table: &Sharded,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        below: u64,
        direction: Direction,
        hint: usize,
    ) -> Vec<(Vec<u8>, u64, Option<Vec<u8>>)> {
        let mut seen = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        loop {
            let (low, high) = match (direction, &last) {
                (Direction::Forward, Some(last)) => (Bound::Excluded(last.as_slice()), high),
                (Direction::Backward, Some(last)) => (low, Bound::Excluded(last.as_slice())),
                (_, None) => (low, high),
            };
            let mut out = VecDeque::new();
            let done = table.scan(Scan { low, high, below }, direction, hint, &mut out);
            assert!(done || !out.is_empty());
            for entry in out {
                last = Some(entry.key.to_vec());
                let value = entry.found.value.map(|v| v.to_vec());
                seen.push((entry.key.to_vec(), entry.found.at.start, value));
            }
            if done {
                return seen;
            }
        }
    }
}
