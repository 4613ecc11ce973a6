//! Where a memtable's buckets begin.

use std::sync::Arc;

use collie_log::Lsn;
use parking_lot::Mutex;

use crate::memtable::bucket::{Bucket, digest};

/// A bucket alone on its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot {
    /// Its keys are at or after this one, and before the next slot's.
    pub(super) low: Box<[u8]>,
    pub(super) counted: Mutex<Counted>,
}

#[derive(Debug)]
pub(super) struct Counted {
    /// `None` from when it was split: then the current directory has other slots in its place.
    pub(super) bucket: Option<Bucket>,
    /// The largest start of its versions, or of those that it was split from.
    pub(super) last_start: Lsn,
    /// Bytes that are not added to the memtable's total yet.
    pub(super) unreported: u64,
}

/// All slots in order, the first of which begins at the empty key. It does not change: a split
/// makes another one.
#[derive(Debug)]
pub(super) struct Directory {
    slots: Vec<Arc<Slot>>,
    /// The digests of the slots' low keys after what these have in common, the first slot's left
    /// out. Searched alone, they miss the cache seldom.
    digests: Vec<u64>,
    /// Bytes that the low keys, the first left out, have in common.
    common: usize,
}

impl Directory {
    pub(super) fn new(slots: Vec<Arc<Slot>>) -> Self {
        let lows = slots.get(1..).unwrap_or_default();
        let common = match (lows.first(), lows.last()) {
            (Some(first), Some(last)) => {
                let both = first.low.iter().zip(&last.low);
                both.take_while(|(a, b)| a == b).count()
            }
            _ => 0,
        };
        let digests = lows.iter().map(|slot| digest(&slot.low, common)).collect();
        Self {
            slots,
            digests,
            common,
        }
    }

    /// This directory with others in the place of the slot that begins at `low`, the first of which
    /// begins there too.
    pub(super) fn with(&self, low: &[u8], others: Vec<Arc<Slot>>) -> Self {
        let at = self.find(low);
        let new = others.get(1..).unwrap_or_default();
        let prefix = self.slots.get(1).map(|slot| &slot.low[..self.common]);
        let known = prefix.filter(|prefix| new.iter().all(|slot| slot.low.starts_with(prefix)));
        // Where what the low keys have in common stays the same, so do their digests: computing
        // those anew would miss the cache for each.
        let digests = known.map(|_| {
            let mut digests = Vec::with_capacity(self.digests.len() + new.len());
            digests.extend_from_slice(&self.digests[..at]);
            digests.extend(new.iter().map(|slot| digest(&slot.low, self.common)));
            digests.extend_from_slice(&self.digests[at..]);
            digests
        });
        let mut slots = Vec::with_capacity(self.slots.len() + others.len());
        slots.extend_from_slice(&self.slots[..at]);
        slots.extend(others);
        slots.extend_from_slice(&self.slots[at + 1..]);
        match digests {
            Some(digests) => Self {
                slots,
                digests,
                common: self.common,
            },
            None => Self::new(slots),
        }
    }

    /// The number of the slot that a key belongs to.
    pub(super) fn find(&self, key: &[u8]) -> usize {
        let Some(first) = self.slots.get(1) else {
            return 0;
        };
        let shared = self.common.min(key.len());
        match key[..shared].cmp(&first.low[..shared]) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.slots.len() - 1,
            std::cmp::Ordering::Equal => {}
        }
        let target = digest(key, self.common);
        let before = self.digests.partition_point(|there| *there < target);
        let ties = self.digests[before..].partition_point(|there| *there == target);
        // Slots up to `before` begin before the key, and so may some whose digest is the same.
        let tied = &self.slots[before + 1..before + 1 + ties];
        before + tied.partition_point(|slot| *slot.low <= *key)
    }

    pub(super) fn slots(&self) -> &[Arc<Slot>] {
        &self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(low: &[u8]) -> Arc<Slot> {
        Arc::new(Slot {
            low: low.into(),
            counted: Mutex::new(Counted {
                bucket: None,
                last_start: 0,
                unreported: 0,
            }),
        })
    }

    /// Every key, of those around the low keys, is found in the slot that a linear search finds.
    #[test]
    fn a_key_belongs_to_the_last_slot_that_begins_at_or_before_it() {
        let sets: [&[&[u8]]; 4] = [
            &[b""],
            &[b"", b"m"],
            &[
                b"",
                b"user/0000000001",
                b"user/00000000010",
                b"user/0000000002",
                b"user/0000000002\0\0",
            ],
            &[
                b"",
                b"\0",
                b"\0\0",
                b"a",
                b"aaaaaaaa",
                b"aaaaaaaab",
                b"aaaaaaaac",
                b"\xff\xff",
            ],
        ];
        for lows in sets {
            let directory = Directory::new(lows.iter().map(|low| slot(low)).collect());
            let mut keys: Vec<Vec<u8>> = vec![b"us".to_vec(), b"z".to_vec(), vec![255; 12]];
            for low in lows {
                keys.push(low.to_vec());
                keys.push([*low, b"\0"].concat());
                keys.push([*low, b"~"].concat());
                keys.push(low.split_last().map_or(Vec::new(), |(_, head)| head.to_vec()));
                keys.push(low.split_last().map_or(Vec::new(), |(last, head)| {
                    [head, &[last.wrapping_sub(1), 255]].concat()
                }));
            }
            for key in keys {
                let expected = lows.iter().rposition(|low| *low <= &key[..]);
                assert_eq!(Some(directory.find(&key)), expected, "{key:?} of {lows:?}");
            }
        }
    }

    #[test]
    fn others_take_the_place_of_the_slot_that_was_split() {
        let directory = Directory::new(vec![slot(b""), slot(b"d"), slot(b"m")]);
        let directory = directory.with(b"d", vec![slot(b"d"), slot(b"f"), slot(b"h")]);
        let lows: Vec<_> = directory.slots().iter().map(|slot| &*slot.low).collect();
        assert_eq!(lows, [&b""[..], b"d", b"f", b"h", b"m"]);
        assert_eq!([b"c", b"g", b"m"].map(|key| directory.find(key)), [0, 2, 4]);
    }

    /// Whether what the low keys have in common stays, shrinks or is new, the digests are those
    /// that are computed from all of them.
    #[test]
    fn digests_are_kept_as_long_as_they_are_right() {
        let keys = ["ab10", "ab30", "ab20", "ab15", "a9", "b", "ab11", "x"];
        let mut directory = Directory::new(vec![slot(b"")]);
        for key in keys {
            let key = key.as_bytes();
            let low = directory.slots()[directory.find(key)].low.clone();
            directory = directory.with(&low, vec![slot(&low), slot(key)]);
            let digest_of = |slot: &Arc<Slot>| digest(&slot.low, directory.common);
            let anew: Vec<u64> = directory.slots()[1..].iter().map(digest_of).collect();
            assert_eq!(directory.digests, anew);
            assert!(directory.slots().is_sorted_by(|a, b| a.low < b.low));
            assert_eq!(&*directory.slots()[directory.find(key)].low, key);
        }
    }
}
