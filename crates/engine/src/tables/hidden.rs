//! How much of a family's tables tombstones hide, estimated from samples.
//!
//! The table library counts tombstones, and does not know whether there is a row below one and how
//! large it is. A flush looks that up for some of the tombstones that it writes. The estimate is the
//! mean of what flushes found lately for each tombstone in the tables, but no more than the sum of
//! all that they found since the tables were last merged as a whole: compactions drop tombstones
//! that hide nothing first, so a mean may be that of others than are left.
//!
//! It also looks below some of the rows that it writes: what they replace goes in a merge of all, too.
//! Other compactions remove that without being counted, so it is a bound, for when room is looked for.

use collie_log::Lsn;
use parking_lot::Mutex;

use crate::memtable::Entry;
use crate::tables::Pinned;

/// A flush looks at so many tombstones one by one, then at one of 16 up to 16 times as many, then at
/// one of 256, and so on: at some hundreds.
const AT_FIRST: u64 = 64;

/// Of more tombstones than these, what was found is halved: the mean follows what is deleted now.
const REMEMBERED: u64 = 1 << 16;

/// What a row takes in a table beside key and value, about.
const OVERHEAD: usize = 12;

/// What flushes have found.
pub(super) struct Hidden(Mutex<HiddenTotals>);

#[derive(Debug, Clone, Copy, Default)]
struct HiddenTotals {
    /// Tombstones that those looked at stand for, and the bytes of the rows below them.
    tombstones: u64,
    hidden_bytes: u64,
    /// Bytes of rows that were flushed, and of the tables that they and tombstones are in. Tombstones
    /// say nothing of how well rows are compressed: next to each other their keys take little.
    row_bytes: u64,
    table_bytes: u64,
    /// Bytes of tables below tombstones, and below rows, that were flushed since the last merge of
    /// all.
    sums: Sums,
}

/// What was found since all tables were last merged, in bytes of tables.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    hidden: u64,
    replaced: u64,
}

impl Hidden {
    /// For tables of which so many bytes may be hidden when they are opened.
    pub(super) fn new(hidden: u64) -> Self {
        let found = HiddenTotals {
            sums: Sums { hidden, replaced: 0 },
            ..HiddenTotals::default()
        };
        Self(Mutex::new(found))
    }

    /// The tables that a flush wrote are about to be in the tree.
    pub(super) fn keep(&self, sampled: &Sampled, table_bytes: u64) {
        let (new, mut found) = (&sampled.found, self.0.lock());
        found.tombstones += new.tombstones;
        found.hidden_bytes += new.hidden_bytes;
        found.row_bytes += new.row_bytes;
        found.table_bytes += table_bytes;
        let hidden = found.in_tables(sampled.tombstones.of_all(new.hidden_bytes));
        let replaced = found.in_tables(sampled.rows.of_all(sampled.replaced_bytes));
        found.sums.hidden = found.sums.hidden.saturating_add(hidden);
        found.sums.replaced = found.sums.replaced.saturating_add(replaced);
        if found.tombstones > REMEMBERED {
            *found = HiddenTotals {
                tombstones: found.tombstones / 2,
                hidden_bytes: found.hidden_bytes / 2,
                row_bytes: found.row_bytes / 2,
                table_bytes: found.table_bytes / 2,
                sums: found.sums,
            };
        }
    }

    /// Bytes of tables that so many tombstones hide. 0 as long as no tombstone was looked at.
    pub(super) fn estimate(&self, tombstones: u64) -> u64 {
        let found = self.0.lock();
        let all = u128::from(tombstones) * u128::from(found.hidden_bytes);
        let bytes = all / u128::from(found.tombstones.max(1));
        found
            .in_tables(u64::try_from(bytes).unwrap_or(u64::MAX))
            .min(found.sums.hidden)
    }

    /// Bytes of tables that later rows replace, at most.
    pub(super) fn replaced(&self) -> u64 {
        self.0.lock().sums.replaced
    }

    /// What [`merged`](Self::merged) takes when the merge that begins now has ended.
    pub(super) fn sums(&self) -> Sums {
        self.0.lock().sums
    }

    /// All tables were merged; the sums were these when that began.
    pub(super) fn merged(&self, before: Sums) {
        let sums = &mut self.0.lock().sums;
        sums.hidden = sums.hidden.saturating_sub(before.hidden);
        sums.replaced = sums.replaced.saturating_sub(before.replaced);
    }

    /// A merge found less room than there would be if so much was replaced.
    pub(super) fn forget_replaced(&self) {
        self.0.lock().sums.replaced = 0;
    }
}

impl HiddenTotals {
    /// What rows of so many bytes take in tables: less where these are compressed.
    fn in_tables(&self, row_bytes: u64) -> u64 {
        if self.table_bytes >= self.row_bytes {
            return row_bytes;
        }
        let bytes = u128::from(row_bytes) * u128::from(self.table_bytes) / u128::from(self.row_bytes);
        bytes as u64
    }
}

/// What one flush has found.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    tombstones: Samples,
    rows: Samples,
    found: HiddenTotals,
    /// Bytes of rows below the rows that were looked at.
    replaced_bytes: u64,
}

impl Sampled {
    /// A flush writes this entry above what `below` has.
    pub(crate) fn note(&mut self, entry: &Entry, below: &Pinned, until: Lsn) {
        let Self { found, .. } = self;
        let samples = match &entry.found.value {
            Some(value) => {
                found.row_bytes += row_bytes(&entry.key.0, &value.0);
                &mut self.rows
            }
            None => &mut self.tombstones,
        };
        let Some(of) = samples.take() else { return };
        // A table that cannot be read is an error to those who read rows. An estimate has none.
        let bytes = match below.get(&entry.key.0, until) {
            Ok(Some(row)) if !row.is_tombstone() => of * row_bytes(&row.key.user_key, &row.value),
            _ => 0,
        };
        match entry.found.value {
            Some(_) => self.replaced_bytes += bytes,
            None => {
                found.tombstones += of;
                found.hidden_bytes += bytes;
            }
        }
    }
}

/// Which of many are looked at.
#[derive(Debug, Default)]
struct Samples {
    seen: u64,
    /// Of these, so many are stood for by those that were looked at.
    counted: u64,
}

impl Samples {
    /// Whether the next one is looked at, and for how many it stands.
    fn take(&mut self) -> Option<u64> {
        self.seen += 1;
        let mut of = 1;
        while self.seen > AT_FIRST * of {
            of *= 16;
        }
        let is_taken = self.seen.is_multiple_of(of);
        if is_taken {
            self.counted += of;
        }
        is_taken.then_some(of)
    }

    /// What is of all, where so much was found of those that were counted.
    fn of_all(&self, found: u64) -> u64 {
        let all = u128::from(found) * u128::from(self.seen) / u128::from(self.counted.max(1));
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

fn row_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len() + OVERHEAD) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a flush that found, for so many tombstones, so many bytes of rows below, in all.
    fn flush(hidden: &Hidden, tombstones: u64, hidden_bytes: u64, row_bytes: u64, table_bytes: u64) {
        let found = HiddenTotals {
            tombstones,
            hidden_bytes,
            row_bytes,
            ..HiddenTotals::default()
        };
        let tombstones = Samples {
            seen: tombstones,
            counted: tombstones,
        };
        let sampled = Sampled {
            tombstones,
            found,
            ..Sampled::default()
        };
        hidden.keep(&sampled, table_bytes);
    }

    #[test]
    fn what_is_hidden_is_the_mean_and_no_more_than_was_found() {
        let hidden = Hidden::new(0);
        assert_eq!(hidden.estimate(1_000), 0, "nothing was looked at");
        flush(&hidden, 100, 10_000, 50_000, 50_000);
        assert_eq!(hidden.estimate(10), 1_000);
        assert_eq!(hidden.estimate(100), 10_000);
        assert_eq!(
            hidden.estimate(u64::MAX),
            10_000,
            "others hid nothing that was found"
        );
        // Tables with a filter and an index, of which little are rows.
        flush(&hidden, 100, 10_000, 3_000, 900_000);
        assert_eq!(hidden.estimate(200), 20_000);
    }

    #[test]
    fn rows_that_are_compressed_hide_less() {
        let hidden = Hidden::new(0);
        flush(&hidden, 100, 40_000, 100_000, 25_000);
        assert_eq!(hidden.estimate(100), 10_000);
    }

    #[test]
    fn a_merge_of_all_leaves_what_was_flushed_meanwhile() {
        let hidden = Hidden::new(5_000);
        flush(&hidden, 100, 10_000, 50_000, 50_000);
        assert_eq!(hidden.estimate(200), 15_000, "with what was there at the opening");
        let before = hidden.sums();
        flush(&hidden, 10, 1_000, 50_000, 50_000);
        hidden.merged(before);
        assert_eq!(hidden.estimate(1_000), 1_000);
    }

    /// As many of a flush's rows as of its tombstones are looked at. Of 1,169 those behind the 1,024th
    /// counted for nothing: the next one to be looked at would have been the 1,280th.
    #[test]
    fn samples_stand_for_all() {
        for (seen, taken) in [(64, 64), (1_024, 124), (1_169, 124), (16_384, 184)] {
            let mut samples = Samples::default();
            let looked_at: Vec<_> = (0..seen).filter_map(|_| samples.take()).collect();
            assert_eq!(looked_at.len(), taken);
            let found = looked_at.iter().map(|of| of * 100).sum();
            assert_eq!(samples.of_all(found), seen * 100);
        }
    }

    #[test]
    fn what_rows_replace_counts_until_a_merge_of_all() {
        let hidden = Hidden::new(0);
        let rows = Samples {
            seen: 1_200,
            counted: 1_000,
        };
        let replace = Sampled {
            rows,
            replaced_bytes: 50_000,
            ..Sampled::default()
        };
        hidden.keep(&replace, 100_000);
        let before = hidden.sums();
        hidden.keep(&replace, 100_000);
        assert_eq!(hidden.replaced(), 120_000);
        hidden.merged(before);
        assert_eq!(hidden.replaced(), 60_000);
        hidden.forget_replaced();
        assert_eq!((hidden.replaced(), hidden.estimate(1_000)), (0, 0));
    }

    #[test]
    fn the_mean_follows_what_is_deleted_now() {
        let hidden = Hidden::new(u64::MAX);
        for _ in 0..100 {
            flush(&hidden, REMEMBERED / 2, 0, 50_000, 50_000);
        }
        for _ in 0..10 {
            flush(&hidden, REMEMBERED / 2, 500 * REMEMBERED, 50_000, 50_000);
        }
        assert!(hidden.estimate(100) > 90_000, "{}", hidden.estimate(100));
    }
}
