//! The memtable: ranges of keys in buckets, each behind a short lock of its own.
//!
//! A full bucket is split, and its parts take its place in the directory. So a scan visits the
//! buckets of its range one after the other, and writers of different keys seldom meet.
//!
//! Who finds a bucket in the directory, but takes its lock after it was split, finds it gone and
//! searches the directory again. The split publishes the new directory before it releases the lock,
//! so the second search finds the parts. A bucket's first key never changes and no two buckets are
//! ever merged.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use arc_swap::ArcSwap;
use collie_log::Lsn;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::memtable::bucket::Bucket;
use crate::memtable::chunks::{Chunks, MemBytes};
use crate::memtable::directory::{Counted, Directory, Slot};
use crate::memtable::gaps::PutSince;
use crate::memtable::{At, Count, Direction, End, Entry, Found, Portion, Scan, Scanned, Write};

/// Parts that a bucket is split into after an insert, and after many loads.
const PARTS: usize = 2;
const LOADED_PARTS: usize = 4;
/// Entries that a flush takes at once.
const TAKEN: usize = 256;

/// A sorted, versioned map in memory. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Buckets {
    directory: ArcSwap<Directory>,
    /// Held while the directory is replaced, and no lock of a bucket is waited for meanwhile.
    edit: Mutex<()>,
    bytes: MemBytes,
    /// A bucket adds to the total when it grew by this much, so that writers seldom share a counter.
    report_every: u64,
}

/// What a slot's lock showed.
enum Locked<'a> {
    Is(MappedMutexGuard<'a, Bucket>),
    WasSplit,
}

/// Locks a bucket, whose entries are in order then.
fn sorted(slot: &Slot) -> Locked<'_> {
    match MutexGuard::try_map(slot.counted.lock(), |counted| counted.bucket.as_mut()) {
        Ok(mut bucket) => {
            bucket.sort();
            Locked::Is(bucket)
        }
        Err(_) => Locked::WasSplit,
    }
}

impl Buckets {
    /// `is_counted`: it counts in the total of the memtables that wait to be flushed.
    pub(crate) fn new(write_buffer_bytes: u64, chunks: &Arc<Chunks>, is_counted: bool) -> Self {
        let bucket = Bucket::new(Arc::clone(chunks));
        Self {
            directory: ArcSwap::from_pointee(Directory::new(vec![slot(Box::default(), bucket, 0)])),
            edit: Mutex::new(()),
            bytes: MemBytes::new(chunks, is_counted),
            report_every: (write_buffer_bytes / 64).min(4 << 10),
        }
    }

    /// Adds a version. A second write of the same key at the same LSN replaces the first: so of a
    /// batch's writes of one key the last counts, and replaying a commit twice is harmless.
    pub(super) fn insert(&self, key: &[u8], at: At, write: Write<'_>) {
        self.with_bucket_of(key, at, |bucket| {
            bucket.sort();
            let inserted = bucket.insert(key, at, write);
            let split = bucket.is_full().then_some((PARTS, inserted.last));
            (inserted.bytes, split)
        });
    }

    /// As `insert`, for many writes that are not read yet: they are sorted together, by `sort` or
    /// by the first read. Of repeated keys at one LSN the last counts, as there.
    pub(super) fn load(&self, key: &[u8], at: At, write: Write<'_>) {
        self.with_bucket_of(key, at, |bucket| {
            let bytes = bucket.load(key, at, write);
            let split = bucket.is_full_of_loads().then_some((LOADED_PARTS, false));
            (bytes, split)
        });
    }

    /// Calls `add` with the bucket of a key. It returns by how many bytes that grew, and how it is
    /// to be split, if it is.
    fn with_bucket_of(
        &self,
        key: &[u8],
        at: At,
        add: impl FnOnce(&mut Bucket) -> (usize, Option<(usize, bool)>),
    ) {
        loop {
            let directory = self.directory.load();
            let slot = &directory.slots()[directory.find(key)];
            let mut counted = slot.counted.lock();
            let Some(bucket) = &mut counted.bucket else {
                continue;
            };
            let (bytes, split) = add(bucket);
            counted.last_start = counted.last_start.max(at.start);
            counted.unreported += bytes as u64;
            if split.is_some() || counted.unreported >= self.report_every {
                self.bytes.add(counted.unreported);
                counted.unreported = 0;
            }
            if let Some((parts, appended)) = split {
                self.split(slot, &mut counted, parts, appended);
            }
            return;
        }
    }

    #[cold]
    fn split(&self, split: &Slot, counted: &mut Counted, parts: usize, appended: bool) {
        let Some(bucket) = counted.bucket.take() else {
            return;
        };
        let last_start = counted.last_start;
        let mut slots: Vec<Arc<Slot>> = Vec::new();
        for bucket in bucket.split(parts, appended) {
            let low = match bucket.first_key() {
                Some(first) if !slots.is_empty() => first.into(),
                _ => split.low.clone(),
            };
            slots.push(slot(low, bucket, last_start));
        }
        let edit = self.edit.lock();
        let directory = self.directory.load().with(&split.low, slots);
        self.directory.store(Arc::new(directory));
        drop(edit);
    }

    /// Sorts one share of what was loaded, of `of` shares.
    pub(super) fn sort(&self, share: usize, of: usize) {
        for slot in self.directory.load().slots().iter().skip(share).step_by(of) {
            drop(sorted(slot));
        }
    }

    /// The newest version with `start < below`.
    pub(super) fn get(&self, key: &[u8], below: Lsn) -> Option<Found> {
        loop {
            let directory = self.directory.load();
            if let Locked::Is(bucket) = sorted(&directory.slots()[directory.find(key)]) {
                return bucket.get(key, below);
            }
        }
    }

    /// Appends to `out` the next keys in the bounds, in the direction's order, each with its newest
    /// version below the scan's LSN, tombstones included. Buckets whose versions are all newer are
    /// passed over without a look at them.
    pub(super) fn scan(
        &self,
        scan: Scan<'_>,
        direction: Direction,
        portion: Portion,
        out: &mut VecDeque<Entry>,
    ) -> Scanned {
        let most = out.len() + portion.keys.max(1);
        let mut examined = 0;
        let mut directory = self.directory.load_full();
        let mut at = match (direction, scan.low, scan.high) {
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _)
            | (Direction::Backward, _, Bound::Included(key) | Bound::Excluded(key)) => directory.find(key),
            (Direction::Forward, Bound::Unbounded, _) => 0,
            (Direction::Backward, _, Bound::Unbounded) => directory.slots().len() - 1,
        };
        loop {
            let slot = &directory.slots()[at];
            let next = directory.slots().get(at + 1);
            let Locked::Is(bucket) = sorted(slot) else {
                let now = self.directory.load_full();
                at = match (direction, next) {
                    (Direction::Forward, _) => now.find(&slot.low),
                    (Direction::Backward, Some(next)) => now.find(&next.low) - 1,
                    (Direction::Backward, None) => now.slots().len() - 1,
                };
                directory = now;
                continue;
            };
            let end = match bucket.oldest() >= scan.below {
                true => End::Exhausted,
                false => {
                    let left = Portion {
                        keys: most - out.len(),
                        examined: portion.examined.saturating_sub(examined),
                    };
                    let scanned = bucket.scan(scan, direction, left, |entry| out.push_back(entry));
                    examined += scanned.examined;
                    scanned.end
                }
            };
            drop(bucket);
            let is_last = match (direction, scan.low, scan.high) {
                (Direction::Forward, _, Bound::Included(high)) => next.is_none_or(|next| *high < *next.low),
                (Direction::Forward, _, Bound::Excluded(high)) => next.is_none_or(|next| *high <= *next.low),
                (Direction::Forward, _, Bound::Unbounded) => next.is_none(),
                (Direction::Backward, Bound::Included(low) | Bound::Excluded(low), _) => *low >= *slot.low,
                (Direction::Backward, Bound::Unbounded, _) => at == 0,
            };
            let end = match end {
                End::Exhausted if is_last => Some(End::Exhausted),
                End::Exhausted if out.len() >= most => Some(End::Full),
                End::Exhausted => None,
                end => Some(end),
            };
            if let Some(end) = end {
                return Scanned { end, examined };
            }
            match direction {
                Direction::Forward => at += 1,
                Direction::Backward => at -= 1,
            }
        }
    }

    /// The newest version of each key, tombstones included, in order.
    pub(super) fn newest(&self) -> impl Iterator<Item = Entry> {
        let mut taken = VecDeque::new();
        let mut last = None;
        let mut exhausted = false;
        std::iter::from_fn(move || {
            if taken.is_empty() && !exhausted {
                let scan = Scan {
                    low: last.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
                    high: Bound::Unbounded,
                    below: Lsn::MAX,
                };
                let scanned = self.scan(scan, Direction::Forward, Portion::keys(TAKEN), &mut taken);
                exhausted = scanned.end == End::Exhausted;
                last = taken.back().map(|entry: &Entry| entry.key.clone());
            }
            taken.pop_front()
        })
    }

    /// As [`Mem::put_since`](super::Mem::put_since).
    pub(super) fn put_since(
        &self,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        since: Lsn,
        left: &mut usize,
    ) -> PutSince {
        let mut directory = self.directory.load_full();
        let mut at = match low {
            Bound::Included(key) | Bound::Excluded(key) => directory.find(key),
            Bound::Unbounded => 0,
        };
        while let Some(slot) = directory.slots().get(at).cloned() {
            if let Bound::Included(high) | Bound::Excluded(high) = high
                && *high < *slot.low
            {
                break;
            }
            let Some(one_less) = left.checked_sub(1) else {
                return PutSince::Unknown;
            };
            *left = one_less;
            let mut counted = slot.counted.lock();
            let newest = counted.last_start;
            let Some(bucket) = &mut counted.bucket else {
                directory = self.directory.load_full();
                at = directory.find(&slot.low);
                continue;
            };
            if newest >= since {
                bucket.sort();
                match bucket.put_since(low, high, since, left) {
                    PutSince::No => {}
                    found => return found,
                }
            }
            at += 1;
        }
        PutSince::No
    }

    /// The largest start of all versions; 0 where there are none. Exact for inserts that have
    /// returned.
    pub(super) fn last_start(&self) -> Lsn {
        let directory = self.directory.load();
        let starts = directory
            .slots()
            .iter()
            .map(|slot| slot.counted.lock().last_start);
        starts.max().unwrap_or(0)
    }

    /// Memory in use, in bytes, less what buckets have not reported yet.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Takes each bucket's lock in turn. One that is split meanwhile does not count.
    pub(super) fn count(&self) -> Count {
        let directory = self.directory.load();
        let mut count = Count::default();
        for slot in directory.slots() {
            let counted = slot.counted.lock();
            count.unreported += counted.unreported;
            if let Some(bucket) = &counted.bucket {
                count.entries += bucket.entries();
                count.removals += bucket.removals();
            }
        }
        count
    }

    /// As [`MemBytes::uncount`].
    pub(super) fn uncount(&self) {
        self.bytes.uncount();
    }

    /// Whether nothing was inserted. Exact when no insert is under way.
    pub(super) fn is_empty(&self) -> bool {
        let directory = self.directory.load();
        // Where one was split, there are entries.
        directory.slots().iter().all(|slot| {
            let counted = slot.counted.lock();
            counted.bucket.as_ref().is_some_and(Bucket::is_empty)
        })
    }
}

fn slot(low: Box<[u8]>, bucket: Bucket, last_start: Lsn) -> Arc<Slot> {
    Arc::new(Slot {
        low,
        counted: Mutex::new(Counted {
            bucket: Some(bucket),
            last_start,
            unreported: 0,
        }),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::memtable::bucket::MOST_ENTRIES;
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
    /// a flush takes, show each key once with its newest version. Enough of them that buckets are
    /// split, some of them around a key with more versions than a bucket has entries.
    #[test]
    fn every_version_is_found_and_scans_and_flushes_show_the_newest() {
        const ENTRIES: u64 = 6 * MOST_ENTRIES as u64;
        for seed in crate::test::seeds(4) {
            let mut rng = Rng::new(seed);
            let table = Buckets::new(1 << 20, &Arc::default(), true);
            let mut model = Model::new();
            let [first, from, to] = [(); 3].map(|()| rng.below(ENTRIES));
            let often = rng.below(3);
            for n in 0..ENTRIES {
                let loads = n < first || (from..to).contains(&n);
                let key = match rng.below(3) < often {
                    true => format!("often/{}", rng.below(2)).into_bytes(),
                    false => random_key(&mut rng),
                };
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
            for _ in 0..10 {
                let below = 8 * rng.below(ENTRIES + 200);
                check(&mut rng, &table, &visible(&model, below), below, seed);
            }
        }
    }

    /// Where keys arrive in order, buckets are filled and none is copied; where they do not, no
    /// bucket has more entries than it may.
    #[test]
    fn buckets_stay_small_and_ascending_keys_fill_them() {
        const ENTRIES: u64 = 20 * MOST_ENTRIES as u64;
        for (ascending, fewest, most) in [(true, 20, 21), (false, 22, 40)] {
            let table = Buckets::new(1 << 20, &Arc::default(), true);
            for n in 0..ENTRIES {
                let number = if ascending {
                    n
                } else {
                    n.wrapping_mul(0x9E37_79B9_7F4A_7C15)
                };
                let at = At {
                    start: n + 1,
                    end: n + 2,
                };
                table.insert(&number.to_be_bytes(), at, Write::Delete);
            }
            let buckets = table.directory.load().slots().len();
            assert!((fewest..=most).contains(&buckets), "{buckets} buckets");
            assert_eq!(table.newest().count() as u64, ENTRIES);
            assert_eq!(table.last_start(), ENTRIES);
        }
    }

    /// What was there before is seen by every scan and read below an LSN, while buckets are split
    /// under it.
    #[test]
    fn reads_beside_splits_miss_nothing() {
        const BEFORE: u64 = 3_000;
        const INSERTS: u64 = 20 * MOST_ENTRIES as u64;
        let table = Buckets::new(1 << 20, &Arc::default(), true);
        let key = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).to_be_bytes();
        let at = |start| At {
            start,
            end: start + 1,
        };
        let mut expected = Vec::new();
        for n in 1..=BEFORE {
            table.insert(&key(n), at(n), Write::Put(&n.to_le_bytes()));
            expected.push((key(n).to_vec(), n, Some(n.to_le_bytes().to_vec())));
        }
        expected.sort();
        let below = BEFORE + 1;
        let next = AtomicU64::new(below);
        let unbounded = (Bound::Unbounded, Bound::Unbounded);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n > INSERTS {
                            return;
                        }
                        // Every third one is another version of a key that was there.
                        let number = if n.is_multiple_of(3) { n % BEFORE + 1 } else { n };
                        table.insert(&key(number), at(n), Write::Delete);
                    }
                });
            }
            for direction in [Direction::Forward, Direction::Backward] {
                let (table, expected, next) = (&table, &expected, &next);
                scope.spawn(move || {
                    let mut most = 1;
                    while next.load(Ordering::Relaxed) <= INSERTS {
                        let (low, high) = unbounded;
                        let mut seen = collect(table, low, high, below, direction, most);
                        if direction == Direction::Backward {
                            seen.reverse();
                        }
                        assert!(seen == *expected, "{direction:?}, {most} at once: {}", seen.len());
                        let (wanted, start, _) = &expected[most * 37 % expected.len()];
                        assert_eq!(table.get(wanted, below).map(|found| found.at.start), Some(*start));
                        most = most % 300 + 7;
                    }
                });
            }
        });
        assert!(table.directory.load().slots().len() > 10, "buckets were split");
    }

    fn check(
        rng: &mut Rng,
        table: &Buckets,
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
        table: &Buckets,
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
            let portion = Portion {
                keys: hint,
                examined: hint,
            };
            let scanned = table.scan(Scan { low, high, below }, direction, portion, &mut out);
            let passed = match scanned.end {
                End::Exhausted => None,
                End::Full => out.back().map(|entry| entry.key.to_vec()),
                End::Passed(key) => Some(key.to_vec()),
            };
            for entry in out {
                let value = entry.found.value.map(|v| v.to_vec());
                seen.push((entry.key.to_vec(), entry.found.at.start, value));
            }
            if passed.is_none() {
                return seen;
            }
            last = passed;
        }
    }
}
