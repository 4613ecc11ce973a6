//! Scans of a bucket, in both directions, and the search for puts of a range.

use std::ops::Bound;

use collie_log::Lsn;

use crate::Key;
use crate::memtable::bucket::{Bucket, Cursor, PASSED, Stored, read};
use crate::memtable::gaps::PutSince;
use crate::memtable::{Direction, End, Entry, Portion, Scan, Scanned};

impl Bucket {
    /// Calls `take` with the next keys of the scan.
    pub(in crate::memtable) fn scan(
        &self,
        scan: Scan<'_>,
        direction: Direction,
        portion: Portion,
        take: impl FnMut(Entry),
    ) -> Scanned {
        let (low, high) = self.between(scan.low, scan.high);
        match direction {
            Direction::Forward => self.forward(low, high, scan.below, portion, take),
            Direction::Backward => self.backward(low, high, scan.below, portion, take),
        }
    }

    /// The positions of bounds.
    fn between(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> (Cursor, Cursor) {
        let low = match low {
            Bound::Unbounded => Cursor { leaf: 0, index: 0 },
            Bound::Included(key) => self.seek(key, Lsn::MAX),
            Bound::Excluded(key) => self.seek_past(key),
        };
        let high = match high {
            Bound::Unbounded => self.end(),
            Bound::Included(key) => self.seek_past(key),
            Bound::Excluded(key) => self.seek(key, Lsn::MAX),
        };
        (low, high)
    }

    /// The position after the last entry.
    pub(super) fn end(&self) -> Cursor {
        Cursor {
            leaf: self.leaves.len(),
            index: 0,
        }
    }

    fn forward(
        &self,
        mut at: Cursor,
        end: Cursor,
        below: Lsn,
        portion: Portion,
        mut take: impl FnMut(Entry),
    ) -> Scanned {
        let (mut keys, mut examined) = (portion.keys, 0);
        let ended = |end, examined| Scanned { end, examined };
        let Some(newest_start) = below.checked_sub(1) else {
            return ended(End::Exhausted, 0);
        };
        // The key that was taken last, and that of the entry before.
        let mut last: Option<&[u8]> = None;
        let mut before: Option<&[u8]> = None;
        let mut passed = 0;
        while at < end {
            let leaf = self.leaves.get(at.leaf);
            let Some(address) = leaf.and_then(|leaf| leaf.address(at.index)) else {
                at = Cursor {
                    leaf: at.leaf + 1,
                    index: 0,
                };
                continue;
            };
            let stored = read(&self.chunks, address);
            if examined >= portion.examined
                && let Some(before) = before.filter(|before| *before != stored.key)
            {
                return ended(End::Passed(Key::from(before)), examined);
            }
            examined += 1;
            before = Some(stored.key);
            let older = last == Some(stored.key);
            if older || stored.start >= below {
                passed += 1;
                if passed < PASSED {
                    at.index += 1;
                } else {
                    passed = 0;
                    at = match older {
                        true => self.seek_past(stored.key),
                        false => self.seek(stored.key, newest_start),
                    };
                }
                continue;
            }
            if keys == 0 {
                return ended(End::Full, examined - 1);
            }
            keys -= 1;
            passed = 0;
            last = Some(stored.key);
            take(self.entry(&stored));
            at.index += 1;
        }
        ended(End::Exhausted, examined)
    }

    fn backward(
        &self,
        start: Cursor,
        mut at: Cursor,
        below: Lsn,
        portion: Portion,
        mut take: impl FnMut(Entry),
    ) -> Scanned {
        let (mut keys, mut examined) = (portion.keys, 0);
        let ended = |end, examined| Scanned { end, examined };
        let Some(newest_start) = below.checked_sub(1) else {
            return ended(End::Exhausted, 0);
        };
        let mut before: Option<&[u8]> = None;
        while at > start
            && let Some((oldest, stored)) = self.previous(at)
        {
            if examined >= portion.examined
                && let Some(before) = before
            {
                return ended(End::Passed(Key::from(before)), examined);
            }
            before = Some(stored.key);
            // A key's versions come from the oldest to the newest.
            let single = self
                .previous(oldest)
                .is_none_or(|(_, before)| before.key != stored.key);
            examined += if single { 1 } else { PASSED as usize };
            let newest = if single {
                at = oldest;
                (stored.start < below).then_some(stored)
            } else {
                at = self.seek(stored.key, Lsn::MAX);
                self.stored(self.seek(stored.key, newest_start))
                    .filter(|newest| newest.key == stored.key)
            };
            if let Some(newest) = newest {
                take(self.entry(&newest));
                keys -= 1;
                if keys == 0 {
                    let end = if at <= start { End::Exhausted } else { End::Full };
                    return ended(end, examined);
                }
            }
        }
        ended(End::Exhausted, examined)
    }

    /// The entry before a position.
    pub(super) fn previous(&self, at: Cursor) -> Option<(Cursor, Stored<'_>)> {
        let at = match at.index.checked_sub(1) {
            Some(index) => Cursor { index, ..at },
            None => {
                let leaf = at.leaf.checked_sub(1)?;
                let index = self.leaves.get(leaf)?.addresses().len().checked_sub(1)?;
                Cursor { leaf, index }
            }
        };
        Some((at, self.stored(at)?))
    }

    /// As [`Mem::put_since`](crate::memtable::Mem::put_since).
    pub(in crate::memtable) fn put_since(
        &self,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        since: Lsn,
        left: &mut usize,
    ) -> PutSince {
        let (mut at, end) = self.between(low, high);
        let mut passed = 0;
        while at < end {
            let Some(stored) = self.stored(at) else {
                at = Cursor {
                    leaf: at.leaf + 1,
                    index: 0,
                };
                continue;
            };
            let Some(one_less) = left.checked_sub(1) else {
                return PutSince::Unknown;
            };
            *left = one_less;
            if stored.start >= since && stored.is_put() {
                return PutSince::Key(Key::from(stored.key));
            }
            // What follows an older version of the key is older still.
            passed = if stored.start < since { passed + 1 } else { 0 };
            if passed < PASSED {
                at.index += 1;
            } else {
                (passed, at) = (0, self.seek_past(stored.key));
            }
        }
        PutSince::No
    }
}
