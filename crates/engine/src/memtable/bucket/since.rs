//! Searching for puts of a range.

use std::ops::Bound;

use collie_log::Lsn;

use crate::Key;
use crate::memtable::bucket::{Bucket, Cursor, PASSED};
use crate::memtable::gaps::PutSince;

impl Bucket {
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
