//! Memtables: commits are here until they are flushed to tables.
//!
//! A memtable keeps every version of a key, ordered by key and then from the newest to the oldest.
//! It is written by many threads at once and read by many more. [`Mem`] is one memtable with its
//! position in the log; [`Buckets`] is the implementation (docs/design/decisions/0003-memtable.md has the
//! measurements).

mod bucket;
mod buckets;
pub(crate) mod chunks;
mod directory;
pub(crate) mod gaps;
mod leaf;

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use collie_log::Lsn;

pub(crate) use crate::key::Direction;
pub(crate) use crate::memtable::buckets::Buckets;
pub(crate) use crate::memtable::chunks::Chunks;
use crate::memtable::chunks::Reclaim;
use crate::memtable::gaps::{Gaps, PutSince};
use crate::{Key, Value};

/// What a write does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write<'a> {
    /// Sets the key's value.
    Put(&'a [u8]),
    /// Hides the key, in older memtables and in tables too.
    Delete,
}

/// The position of a commit in the log: its start orders it, and it is durable when the log is
/// durable up to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) start: Lsn,
    pub(crate) end: Lsn,
}

/// The newest version of a key below some LSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// `None` is a tombstone.
    pub(crate) value: Option<Value>,
    pub(crate) at: At,
}

/// A key with its newest version below some LSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) found: Found,
}

/// The bounds of a scan. `below` is exclusive: versions with `start < below` are seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scan<'a> {
    pub(crate) low: Bound<&'a [u8]>,
    pub(crate) high: Bound<&'a [u8]>,
    pub(crate) below: Lsn,
}

/// How much a scan may do in one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    /// Keys that it takes, at most; one at least.
    pub(crate) keys: usize,
    /// Entries that it examines, about; it ends behind a key, and has examined one at least.
    pub(crate) examined: usize,
}

impl Portion {
    /// So many keys, whatever is between them.
    pub(crate) fn keys(keys: usize) -> Self {
        Self {
            keys,
            examined: usize::MAX,
        }
    }
}

/// What a scan has done in one call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    pub(crate) end: End,
    /// Entries that it examined, those that it took included.
    pub(crate) examined: usize,
}

/// Why a scan has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing is left between the bounds.
    Exhausted,
    /// It has all the keys that it may take.
    Full,
    /// It has examined as many entries as it may. Up to this key, in its direction, nothing is left.
    Passed(Key),
}

/// What a memtable holds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    /// Bytes that [`Mem::bytes`] lacks yet.
    pub(crate) unreported: u64,
    /// Versions of keys, removals included.
    pub(crate) entries: usize,
    pub(crate) removals: usize,
}

/// A memtable of a family, with the LSN from which on commits belong to it.
pub(crate) struct Mem {
    /// `None` only while it is dropped.
    table: Option<Box<Buckets>>,
    from: Lsn,
    /// The one position of all its entries, where it is a large commit's own.
    commit: Option<At>,
    unlogged: AtomicBool,
    /// Those of the family.
    gaps: Arc<Gaps>,
    reclaim: Sender<Reclaim>,
}

/// The position at which the entries of a large commit are loaded. That of the commit is known only
/// when all of them are, and [`Mem::place`] gives it to the whole memtable.
pub(crate) const UNPLACED: At = At { start: 0, end: 0 };

impl Mem {
    pub(crate) fn new(
        from: Lsn,
        write_buffer_bytes: u64,
        chunks: &Arc<Chunks>,
        gaps: &Arc<Gaps>,
        reclaim: Sender<Reclaim>,
    ) -> Self {
        let table = Buckets::new(write_buffer_bytes, chunks, true);
        Self::with(from, table, gaps, reclaim)
    }

    /// For a large commit's own entries. It does not count in the total of the store's memtables:
    /// those of large commits have a limit of their own.
    pub(crate) fn for_commit(
        write_buffer_bytes: u64,
        chunks: &Arc<Chunks>,
        gaps: &Arc<Gaps>,
        reclaim: Sender<Reclaim>,
    ) -> Self {
        let table = Buckets::new(write_buffer_bytes, chunks, false);
        Self::with(0, table, gaps, reclaim)
    }

    fn with(from: Lsn, table: Buckets, gaps: &Arc<Gaps>, reclaim: Sender<Reclaim>) -> Self {
        Self {
            table: Some(Box::new(table)),
            from,
            commit: None,
            unlogged: AtomicBool::new(false),
            gaps: Arc::clone(gaps),
            reclaim,
        }
    }

    /// Gives all of its entries, which were loaded as [`UNPLACED`], the position of their commit. It
    /// is not written any more.
    pub(crate) fn place(&mut self, at: At) {
        self.from = at.start;
        self.commit = Some(at);
    }

    /// Whether it has exactly one large commit.
    pub(crate) fn is_of_commit(&self) -> bool {
        self.commit.is_some()
    }

    /// Below which LSN its table is searched for what is visible below `below`; `None` where nothing
    /// is.
    fn searched_below(&self, below: Lsn) -> Option<Lsn> {
        match self.commit {
            None => Some(below),
            Some(at) if at.start < below => Some(Lsn::MAX),
            Some(_) => None,
        }
    }

    /// An entry of the table with its position.
    fn placed(&self, mut found: Found) -> Found {
        found.at = self.commit.unwrap_or(found.at);
        found
    }

    /// Commits that start here or later, and before the next memtable's `from`, are in this one.
    pub(crate) fn from(&self) -> Lsn {
        self.from
    }

    /// Notes that it has writes that are not in the log.
    pub(crate) fn note_unlogged(&self) {
        // Relaxed: read by closing, after all writers are done. Checked first to keep the cache
        // line shared.
        if !self.unlogged.load(Ordering::Relaxed) {
            self.unlogged.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Relaxed)
    }

    /// The gaps of its family.
    pub(crate) fn gaps(&self) -> &Arc<Gaps> {
        &self.gaps
    }

    pub(crate) fn insert(&self, key: &[u8], at: At, write: Write<'_>) {
        if let Some(table) = &self.table {
            table.insert(key, at, write);
        }
        if let Write::Put(_) = write {
            self.gaps.put(key);
        }
    }

    /// As [`Buckets::load`], of what no read sees yet: who links the memtable clears the gaps.
    pub(crate) fn load(&self, key: &[u8], at: At, write: Write<'_>) {
        if let Some(table) = &self.table {
            table.load(key, at, write);
        }
    }

    /// As [`Buckets::sort`].
    pub(crate) fn sort(&self, share: usize, of: usize) {
        if let Some(table) = &self.table {
            table.sort(share, of);
        }
    }

    pub(crate) fn get(&self, key: &[u8], below: Lsn) -> Option<Found> {
        let below = self.searched_below(below)?;
        let found = self.table.as_ref()?.get(key, below)?;
        Some(self.placed(found))
    }

    pub(crate) fn scan(
        &self,
        mut scan: Scan<'_>,
        direction: Direction,
        portion: Portion,
        out: &mut VecDeque<Entry>,
    ) -> Scanned {
        let (Some(table), Some(below)) = (&self.table, self.searched_below(scan.below)) else {
            return Scanned {
                end: End::Exhausted,
                examined: 0,
            };
        };
        scan.below = below;
        let before = out.len();
        let scanned = table.scan(scan, direction, portion, out);
        if let Some(at) = self.commit {
            out.iter_mut().skip(before).for_each(|entry| entry.found.at = at);
        }
        scanned
    }

    /// The first key between the bounds that was put from `since` on, if it is found within so many
    /// entries, which are counted down.
    pub(crate) fn put_since(
        &self,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        since: Lsn,
        left: &mut usize,
    ) -> PutSince {
        let since = match self.commit {
            None => since,
            Some(at) if at.start >= since => UNPLACED.start,
            Some(_) => return PutSince::No,
        };
        let found = self
            .table
            .as_ref()
            .map(|table| table.put_since(low, high, since, left));
        found.unwrap_or(PutSince::No)
    }

    /// As [`Buckets::newest`].
    pub(crate) fn newest(&self) -> impl Iterator<Item = Entry> + '_ {
        let entries = self.table.iter().flat_map(|table| table.newest());
        entries.map(|Entry { key, found }| Entry {
            key,
            found: self.placed(found),
        })
    }

    /// As [`Buckets::last_start`].
    pub(crate) fn last_start(&self) -> Lsn {
        match self.commit {
            Some(at) => at.start,
            None => self.table.as_ref().map_or(0, |table| table.last_start()),
        }
    }

    /// Its memory, in bytes, but for a little that buckets have not reported yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.bytes())
    }

    /// Its memory, in bytes. Takes as long as [`Mem::count`].
    pub(crate) fn all_bytes(&self) -> u64 {
        self.bytes() + self.count().unreported
    }

    /// Takes short locks, one for some thousand entries.
    pub(crate) fn count(&self) -> Count {
        self.table
            .as_ref()
            .map_or_else(Count::default, |table| table.count())
    }

    /// It is flushed, and counts in the total of the store's memtables no more, although snapshots
    /// may still read it.
    pub(crate) fn flushed(&self) {
        if let Some(table) = &self.table {
            table.uncount();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.as_ref().is_none_or(|table| table.is_empty())
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        // The last owner may be a reader, and freeing takes long: the reclaiming thread does it.
        // Where that has ended already (the store is closing), the failed send drops the memtable
        // right here.
        if let Some(table) = self.table.take() {
            drop(self.reclaim.send(Reclaim::Memory(table)));
        }
    }
}
