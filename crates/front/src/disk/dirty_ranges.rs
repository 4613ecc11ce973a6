//! What was written to a file and may still be in the cache: to be written out before a sync asks
//! for all of it at once.

use std::collections::BTreeMap;
use std::io;

use collie_io::File;
use parking_lot::Mutex;

/// Ranges of bytes, apart from each other.
#[derive(Debug, Default)]
pub(crate) struct DirtyRanges {
    /// Their ends, by their starts.
    ranges: Mutex<BTreeMap<u64, u64>>,
}

impl DirtyRanges {
    /// So many bytes were written there.
    pub(crate) fn add(&self, offset: u64, len: usize) {
        let (mut start, mut end) = (offset, offset + len as u64);
        let mut ranges = self.ranges.lock();
        if let Some((&before, &its_end)) = ranges.range(..=start).next_back()
            && its_end >= start
        {
            start = before;
            end = end.max(its_end);
        }
        while let Some((&next, &its_end)) = ranges.range(start..).next().filter(|(next, _)| **next <= end) {
            end = end.max(its_end);
            ranges.remove(&next);
        }
        ranges.insert(start, end);
    }

    /// Whether there is nothing to be written out.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.lock().is_empty()
    }

    /// Whether any of `len` bytes from `offset` on is to be written out.
    pub(crate) fn has_any(&self, offset: u64, len: u64) -> bool {
        let ranges = self.ranges.lock();
        let last = ranges.range(..offset.saturating_add(len)).next_back();
        last.is_some_and(|(_, &end)| end > offset)
    }

    /// Takes ranges from the start, of about `limit` bytes.
    fn take(&self, limit: u64) -> Vec<(u64, u64)> {
        let (mut taken, mut rest) = (Vec::new(), limit);
        let mut ranges = self.ranges.lock();
        while rest > 0
            && let Some((start, end)) = ranges.pop_first()
        {
            let cut = end.min(start.saturating_add(rest));
            if cut < end {
                ranges.insert(cut, end);
            }
            taken.push((start, cut - start));
            rest -= cut - start;
        }
        taken
    }

    /// Writes out about `limit` bytes and waits for them. Returns where they are: starts and lengths.
    pub(crate) fn write_out(&self, file: &dyn File, limit: u64) -> io::Result<Vec<(u64, u64)>> {
        let ranges = self.take(limit);
        for &(offset, len) in &ranges {
            file.sync_range(offset, len)?;
        }
        for &(offset, len) in &ranges {
            match file.write_out(offset, len) {
                // Then it is left to the system.
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {}
                done => done?,
            }
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one_and_are_taken_in_pieces() {
        let written = DirtyRanges::default();
        written.add(8192, 4096);
        written.add(0, 4096);
        written.add(4096, 4096);
        written.add(2048, 100);
        written.add(100_000, 10);
        assert!(written.has_any(12_287, 1) && written.has_any(99_999, 2));
        assert!(!written.has_any(12_288, 87_712) && !written.has_any(100_010, 9));
        assert_eq!(written.take(10_000), [(0, 10_000)]);
        written.add(9_999, 2);
        assert_eq!(written.take(u64::MAX), [(9_999, 2_289), (100_000, 10)]);
        assert_eq!(written.take(1), []);
    }
}
